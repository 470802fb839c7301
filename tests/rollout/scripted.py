"""The one fake of the rollout tests: a server client whose policy is a function from text written so far to what follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

END = "\x03"  # end-of-sequence character of the character tokenizer


@dataclass
class ScriptedClient:
    """``verl.workers.rollout.llm_server.LLMServerClient.generate``, one token per character.

    Attributes:
        policy: text written so far (prompt included) -> continuation; ``END`` in it ends the response.
    """

    policy: Callable[[str], str]
    calls: list[dict[str, Any]] = field(default_factory=list)

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        self.calls.append({"request_id": request_id, "prompt_ids": list(prompt_ids), **sampling_params})
        text = self.policy("".join(map(chr, prompt_ids)))
        text = text[: text.index(END) + 1] if END in text else text
        for stop in sampling_params.get("stop", ()):
            if stop in text:
                text = text[: text.index(stop) + len(stop)]
        text = text[: sampling_params["max_tokens"]]
        return SimpleNamespace(
            token_ids=[ord(c) for c in text],
            log_probs=[-0.5] * len(text),
            stop_reason="completed",
            extra_fields={"min_global_steps": 3, "max_global_steps": 3},
        )


def follow(script: str) -> Callable[[str], str]:
    """A policy that writes ``script`` whatever the prompt, and goes on with it after what was accepted of it."""

    def policy(text: str) -> str:
        answer = text.split("?", 1)[1]
        common = 0
        while common < min(len(answer), len(script)) and answer[common] == script[common]:
            common += 1
        return script[common:] if common == len(answer) else script[len(answer) :]

    return policy

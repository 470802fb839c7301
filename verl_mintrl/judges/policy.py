"""Backend ``policy``: the policy itself as judge, on verl's own rollout servers, with privileged context (self-intervention).

``client`` is verl's ``LLMServerClient``; only its ``generate`` is used, so nothing of verl is imported here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from verl_mintrl.errors import JudgeError
from verl_mintrl.judges.prompted import Completion
from verl_mintrl.judges.protocol import ReviewRequest, Usage


@dataclass
class PolicyBackend:
    """A chat backend over token-in-token-out generation.

    Attributes:
        max_model_len: context of the servers; a question that leaves no room for an answer is a judge error, not a crash.
        template_kwargs: ``data.apply_chat_template_kwargs``, so that the judge speaks as the policy does.
    """

    client: Any
    tokenizer: Any
    max_model_len: int
    max_answer_tokens: int
    temperature: float
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    name: str = "policy"

    async def complete(
        self, messages: list[dict[str, Any]], *, schema: dict[str, Any] | None, request: ReviewRequest
    ) -> Completion:
        """Answer of the policy.

        Raises:
            JudgeError: the question does not fit, or the servers failed.
        """
        ids = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False, **self.template_kwargs
        )
        room = min(self.max_answer_tokens, self.max_model_len - len(ids))
        if room < 1:
            raise JudgeError(
                f"the question has {len(ids)} tokens and leaves no room in a context of {self.max_model_len}.",
                "raise actor_rollout_ref.rollout.max_model_len above prompt + response + judge prompt.",
                kind="context",
            )
        started = time.monotonic()
        try:
            output = await self.client.generate(
                request_id=f"judge-{uuid4().hex}",
                prompt_ids=list(ids),
                sampling_params={"temperature": self.temperature, "top_p": 1.0, "max_tokens": room, "logprobs": False},
            )
        except Exception as error:
            raise JudgeError(
                f"the rollout servers failed: {type(error).__name__}: {error}", kind="unavailable"
            ) from error
        if output.stop_reason in ("aborted", "abort"):
            raise JudgeError("the rollout servers aborted the call (weights are being exchanged).", kind="unavailable")
        answer = list(output.token_ids)
        usage = Usage(
            calls=1,
            prompt_tokens=len(ids),
            completion_tokens=len(answer),
            cached_tokens=int(output.extra_fields.get("num_cached_tokens") or 0),
            seconds=time.monotonic() - started,
        )
        text = self.tokenizer.decode(answer, skip_special_tokens=True)
        return Completion(text=text, usage=usage, finish_reason="length" if len(answer) >= room else "stop")

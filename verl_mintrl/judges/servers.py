"""A model on verl's own servers as judge: ``policy`` (the policy itself, with privileged context: self-intervention) and
``teacher`` (a frozen model on verl's teacher servers).

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
from verl_mintrl.judges.redact import hide, printable

_MAX_QUOTED_CHARS = 500


def teacher_keys(models: Mapping[str, Any]) -> dict[str, str]:
    """What verl calls the entries of ``distillation.teacher_models``: key -> name of the entry.

    A single one is called ``default``; beside others, the entry ``teacher_model`` does not count.
    """
    if len(models) == 1:
        return {"default": next(iter(models))}
    return {model.get("key"): name for name, model in models.items() if name != "teacher_model"}


@dataclass(frozen=True)
class ServedModel:
    """A model on verl's servers.

    Attributes:
        client: verl's server client.
        tokenizer: the model's own.
        max_model_len: context of the servers, tokens; a question that leaves no room for an answer is a judge error, not a crash.
        length_key: config key that sets it.
        template_kwargs: of its chat template.
    """

    client: Any
    tokenizer: Any
    max_model_len: int
    length_key: str = "actor_rollout_ref.rollout.max_model_len"
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class ServerBackend:
    """A chat backend over token-in-token-out generation.

    Attributes:
        unique_ids: every request needs an id of its own (``rollout.full_determinism``, where the id reaches vLLM unchanged);
            otherwise all questions about a session go to the server that holds the beginning of its prompt.
    """

    model: ServedModel
    max_answer_tokens: int
    temperature: float
    name: str = "policy"
    unique_ids: bool = False

    async def complete(
        self, messages: list[dict[str, Any]], *, schema: dict[str, Any] | None, request: ReviewRequest
    ) -> Completion:
        """Answer of the model.

        Raises:
            JudgeError: the question does not fit, or the servers failed.
        """
        model = self.model
        ids = model.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False, **model.template_kwargs
        )
        room = min(self.max_answer_tokens, model.max_model_len - len(ids))
        if room < 1:
            raise JudgeError(
                f"the question has {len(ids)} tokens and leaves no room in a context of {model.max_model_len}.",
                f"raise {model.length_key} above prompt + response + judge prompt.",
                kind="context",
            )
        started = time.monotonic()
        try:
            output = await model.client.generate(
                request_id=f"judge-{request.uid}-{request.session_id}{f'-{uuid4().hex}' if self.unique_ids else ''}",
                prompt_ids=list(ids),
                sampling_params={"temperature": self.temperature, "top_p": 1.0, "max_tokens": room, "logprobs": False},
            )
        except Exception as error:
            said = printable(hide(str(error), request.privileged), _MAX_QUOTED_CHARS)
            raise JudgeError(
                f"the servers of the {self.name} failed: {type(error).__name__}: {said}", kind="unavailable"
            ) from error
        if output.stop_reason in ("aborted", "abort"):
            raise JudgeError(
                f"the servers of the {self.name} aborted the call (weights are being exchanged).", kind="unavailable"
            )
        answer = list(output.token_ids)
        usage = Usage(
            calls=1,
            prompt_tokens=len(ids),
            completion_tokens=len(answer),
            cached_tokens=int(output.extra_fields.get("num_cached_tokens") or 0),
            seconds=time.monotonic() - started,
        )
        text = model.tokenizer.decode(answer, skip_special_tokens=True)
        return Completion(text=text, usage=usage, finish_reason="length" if len(answer) >= room else "stop")

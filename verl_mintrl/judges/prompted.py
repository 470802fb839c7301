"""A judge that is a chat model: prompts in, JSON out. The backend is one method."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from verl_mintrl.errors import JudgeError
from verl_mintrl.judges.parsing import parse_correction, parse_review, parse_verification
from verl_mintrl.judges.prompts import PromptSet
from verl_mintrl.judges.protocol import Correction, Judge, Review, ReviewRequest, Usage, Verification
from verl_mintrl.judges.schemas import SCHEMAS

_Answer = TypeVar("_Answer", Review, Correction, Verification)


@dataclass(frozen=True)
class Completion:
    """What a chat model answered.

    Attributes:
        text: the answer; None or empty if there was none.
        usage: its cost, ``calls`` included.
        finish_reason: as in the OpenAI API; ``length`` and ``content_filter`` are told apart from the rest.
    """

    text: str | None
    usage: Usage
    finish_reason: str = "stop"


class ChatBackend(Protocol):
    """One chat model."""

    name: str

    async def complete(
        self, messages: list[dict[str, Any]], *, schema: dict[str, Any] | None, request: ReviewRequest
    ) -> Completion:
        """Answer ``messages``, in the form of ``schema`` where the model can be held to it.

        Raises:
            JudgeError: timeout, unavailable, http or refused.
        """
        ...


class PromptedJudge(Judge):
    """Asks a chat model in each role.

    Args:
        backend: the model.
        prompts: its prompts.
        joint: one call gives verdict, step and correction (MInTRL, arXiv 2609.12419); otherwise :meth:`review` only
            validates (RTI, arXiv 2610.13438).
        control_strings: special tokens of the policy; a correction that holds nothing else is empty.
    """

    def __init__(
        self, backend: ChatBackend, prompts: PromptSet, *, joint: bool, control_strings: Collection[str] = ()
    ) -> None:
        self.name = backend.name
        self.joint = joint
        self._backend = backend
        self._prompts = prompts
        self._control_strings = tuple(control_strings)

    async def review(self, request: ReviewRequest) -> Review:
        """Raises :class:`JudgeError` of any kind of :func:`.parsing.parse_review`, or what the backend raises."""

        def parse(done: Completion) -> Review:
            return parse_review(
                done.text,
                request,
                joint=self.joint,
                finish_reason=done.finish_reason,
                control_strings=self._control_strings,
            )

        return await self._ask("reviewer" if self.joint else "validator", request, parse)

    async def correct(self, request: ReviewRequest, step: int) -> Correction:
        """Raises :class:`JudgeError` of any kind of :func:`.parsing.parse_correction`, or what the backend raises."""

        def parse(done: Completion) -> Correction:
            return parse_correction(
                done.text,
                request,
                step,
                finish_reason=done.finish_reason,
                control_strings=self._control_strings,
            )

        return await self._ask("corrector", request, parse, step)

    async def verify(self, request: ReviewRequest, step: int, correction: str) -> Verification:
        """Raises :class:`JudgeError` of any kind of :func:`.parsing.parse_verification`, or what the backend raises."""

        def parse(done: Completion) -> Verification:
            return parse_verification(done.text, finish_reason=done.finish_reason)

        return await self._ask("verifier", request, parse, step, correction)

    async def _ask(
        self,
        role: str,
        request: ReviewRequest,
        parse: Callable[[Completion], _Answer],
        step: int | None = None,
        correction: str | None = None,
    ) -> _Answer:
        messages = self._prompts.messages(role, request, step=step, correction=correction)
        done = await self._backend.complete(messages, schema=SCHEMAS[role], request=request)
        try:
            answer = parse(done)
        except JudgeError as error:  # the call was paid for all the same
            error.usage = done.usage
            raise
        return replace(answer, usage=done.usage)

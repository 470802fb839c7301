"""What every judge call is held to: deadline, concurrency, checked answers.

A judge failure is an error, never a verdict; ``intervention.judge.on_error`` decides what follows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Protocol, TypeVar

from verl_mintrl.errors import ConfigError, JudgeError
from verl_mintrl.judges.parsing import check_correction, check_review, check_verification
from verl_mintrl.judges.protocol import Correction, Judge, Review, ReviewRequest, Usage, Verification

_Answer = TypeVar("_Answer", Review, Correction, Verification)


class Limiter(Protocol):
    """Limits beyond this process."""

    def slot(self) -> AbstractAsyncContextManager[Callable[[Usage], None]]:
        """Around one call; it is told what the call used.

        Raises:
            JudgeError: unavailable.
        """
        ...


class GuardedJudge(Judge):
    """Any judge, held to limits. The same guard covers all three roles.

    Args:
        judge: the judge to guard.
        timeout: seconds a call may take once it has started. It cannot interrupt code that blocks the event loop.
        concurrency: calls in flight at once in this process; the others wait, outside their deadline.
        limiter: limits over all processes; waiting for it is outside the deadline too.
        joint: a REVISE must bring its correction; False where another call corrects.
        control_strings: special tokens of the policy; a correction that holds nothing else is empty.

    ``usage.seconds`` of an answer, and of a :class:`JudgeError`, is the time of the call without the waiting before it.
    An error of a type that is not ours becomes a :class:`JudgeError` of kind ``exception`` with that error as its
    cause; the privileged text of the request is taken out of the message, not out of the cause.
    """

    def __init__(
        self,
        judge: Judge,
        *,
        timeout: float,
        concurrency: int,
        joint: bool = True,
        control_strings: Collection[str] = (),
        limiter: Limiter | None = None,
    ) -> None:
        if not timeout > 0:
            raise ConfigError(
                f"a judge deadline of {timeout} s", "give intervention.judge.call_deadline_s a positive number"
            )
        if concurrency < 1:
            raise ConfigError(
                f"{concurrency} judge calls at once", "set intervention.judge.max_concurrency to 1 or more"
            )
        self.name = judge.name
        self._judge = judge
        self._joint = joint
        self._timeout = timeout
        self._slots = asyncio.Semaphore(concurrency)
        self._control_strings = tuple(control_strings)
        self._limiter = limiter

    async def review(self, request: ReviewRequest) -> Review:
        """Raises :class:`JudgeError`; a :class:`ConfigError` passes through."""

        def check(answer: Review) -> Review:
            return check_review(answer, request, needs_correction=self._joint, control_strings=self._control_strings)

        return await self._call(request, lambda: self._judge.review(request), check)

    async def correct(self, request: ReviewRequest, step: int) -> Correction:
        """Raises :class:`JudgeError`; a :class:`ConfigError` passes through."""

        def check(answer: Correction) -> Correction:
            return check_correction(answer, request, step, control_strings=self._control_strings)

        return await self._call(request, lambda: self._judge.correct(request, step), check)

    async def verify(self, request: ReviewRequest, step: int, correction: str) -> Verification:
        """Raises :class:`JudgeError`; a :class:`ConfigError` passes through."""
        return await self._call(request, lambda: self._judge.verify(request, step, correction), check_verification)

    async def _call(
        self,
        request: ReviewRequest,
        call: Callable[[], Awaitable[_Answer]],
        check: Callable[[_Answer], _Answer],
    ) -> _Answer:
        async with self._slots:
            if self._limiter is None:
                return await self._timed(request, call, check)
            async with self._limiter.slot() as report:
                try:
                    answer = await self._timed(request, call, check)
                except JudgeError as error:
                    report(error.usage)
                    raise
                report(answer.usage)
                return answer

    async def _timed(
        self, request: ReviewRequest, call: Callable[[], Awaitable[_Answer]], check: Callable[[_Answer], _Answer]
    ) -> _Answer:
        started = time.monotonic()
        usage = None
        try:
            answer = await self._within_deadline(request, call)
            usage = getattr(answer, "usage", None)
            answer = check(answer)
        except JudgeError as error:
            spent = error.usage or usage or Usage(calls=1)
            error.usage = replace(spent, seconds=time.monotonic() - started)
            raise
        return replace(answer, usage=replace(answer.usage, seconds=time.monotonic() - started))

    async def _within_deadline(self, request: ReviewRequest, call: Callable[[], Awaitable[_Answer]]) -> _Answer:
        try:
            async with asyncio.timeout(self._timeout) as deadline:
                return await call()
        except (JudgeError, ConfigError):
            raise
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                error.usage = Usage(calls=1)  # type: ignore[attr-defined]  # it was on its way
                raise
            raise JudgeError(f"judge {self.name} cancelled itself", kind="exception") from error
        except Exception as error:
            if isinstance(error, TimeoutError) and deadline.expired():
                raise JudgeError(
                    f"judge {self.name} gave no answer within {self._timeout:g} s",
                    "raise intervention.judge.call_deadline_s or, if it is overloaded, lower max_concurrency beside it",
                    kind="timeout",
                ) from None
            message = f"judge {self.name} raised {type(error).__name__}: {_message(error)}"
            raise JudgeError(_redact(message, request), kind="exception") from error


def _message(error: Exception) -> str:
    try:
        return str(error)[:500]
    except Exception:  # a user's exception may have a broken __str__
        return "(its message cannot be read)"


def _redact(message: str, request: ReviewRequest) -> str:
    return message.replace(request.privileged, "[privileged]") if request.privileged else message

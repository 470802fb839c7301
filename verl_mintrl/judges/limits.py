"""What every judge call is held to: deadline, concurrency, checked answers.

A judge failure is an error, never a verdict; ``intervention.judge.on_error`` decides what follows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from verl_mintrl.errors import ConfigError, JudgeError
from verl_mintrl.judges.clock import waiting
from verl_mintrl.judges.parsing import check_correction, check_review, check_verification
from verl_mintrl.judges.protocol import Correction, Judge, Review, ReviewRequest, Usage, Verification, believed
from verl_mintrl.judges.redact import hide

_MOST = 600  # characters of an error's message that are kept
_GRACE_S = 0.3  # a cancelled call may clean up for so long before it is left to itself

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
        timeout: seconds a call may take once it has started, also if it ignores being cancelled. It cannot interrupt code that
            blocks the event loop.
        concurrency: calls in flight at once in this process; the others wait, outside their deadline. Calls that were given up
            and still run are not among them, but once there are as many, further ones fail at once with kind ``unavailable``.
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
        self._concurrency = concurrency
        self._slots = asyncio.Semaphore(concurrency)
        self._abandoned: set[asyncio.Task[Any]] = set()  # calls that were cancelled and still run
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
        async with AsyncExitStack() as turn:
            with waiting():
                await turn.enter_async_context(self._slots)
            if len(self._abandoned) >= self._concurrency:
                raise JudgeError(
                    f"{len(self._abandoned)} calls of judge {self.name} were cancelled and still run",
                    "let it end when asyncio.CancelledError is raised in it",
                    kind="unavailable",
                )
            if self._limiter is None:
                return await self._timed(request, call, check)
            with waiting():
                report = await turn.enter_async_context(self._limiter.slot())
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
            error.usage = _cost(error.usage or usage, time.monotonic() - started)
            raise
        return replace(answer, usage=_cost(usage, time.monotonic() - started))

    async def _within_deadline(self, request: ReviewRequest, call: Callable[[], Awaitable[_Answer]]) -> _Answer:
        task = asyncio.create_task(_run(call))  # of its own: what ignores its cancellation must not hold the session
        try:
            await asyncio.wait((task,), timeout=self._timeout)
        except asyncio.CancelledError as error:
            error.usage = Usage(calls=1)  # type: ignore[attr-defined]  # it was on its way
            await self._give_up(task)
            raise
        if not task.done():
            await self._give_up(task)
            raise JudgeError(
                f"judge {self.name} gave no answer within {self._timeout:g} s"
                f"{'' if task.done() else ', and runs on although it was cancelled'}",
                "raise intervention.judge.call_deadline_s or, if it is overloaded, lower max_concurrency beside it",
                kind="timeout",
            )
        try:
            return task.result()
        except (JudgeError, ConfigError):
            raise
        except asyncio.CancelledError as error:
            raise JudgeError(f"judge {self.name} cancelled itself", kind="exception") from error
        except Exception as error:
            said = hide(_message(error), request.privileged)[:_MOST]
            raise JudgeError(f"judge {self.name} raised {type(error).__name__}: {said}", kind="exception") from error

    async def _give_up(self, task: asyncio.Task[Any]) -> None:
        task.add_done_callback(_seen)
        task.cancel()
        try:
            await asyncio.wait((task,), timeout=_GRACE_S)
        finally:
            if not task.done():
                self._abandoned.add(task)
                task.add_done_callback(self._abandoned.discard)


async def _run(call: Callable[[], Awaitable[_Answer]]) -> _Answer:
    try:
        return await call()
    except (Exception, asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit, say: it would end the event loop
        raise RuntimeError(f"{type(error).__name__}({error})") from error


def _cost(usage: Any, seconds: float) -> Usage:
    """What a judge says of its cost, as plain numbers; one call where it says nothing."""
    if not isinstance(usage, Usage):
        return Usage(calls=1, seconds=seconds)
    names = ("calls", "prompt_tokens", "completion_tokens", "cached_tokens")
    return Usage(**{name: believed(getattr(usage, name)) for name in names}, seconds=seconds)


def _seen(task: asyncio.Task[Any]) -> None:
    """Nobody waits for it any more: asyncio need not report its error."""
    if not task.cancelled():
        task.exception()


def _message(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # a user's exception may have a broken __str__
        return "(its message cannot be read)"

"""Judge time of a session stands still while a call waits for its turn: the limits are ours, not the judge's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar


class JudgeClock:
    """Time that the judge takes for one proposal.

    Attributes:
        deadline: of the calls, put off by the time spent waiting.
        waited: seconds spent waiting for a turn.
    """

    def __init__(self, deadline: asyncio.Timeout) -> None:
        self.deadline = deadline
        self.waited = 0.0
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since it was made, without the waiting."""
        return time.monotonic() - self._started - self.waited


_clock: ContextVar[JudgeClock | None] = ContextVar("intervention_judge_clock", default=None)


@asynccontextmanager
async def running(clock: JudgeClock) -> AsyncIterator[None]:
    """The calls made inside are timed by ``clock``."""
    token = _clock.set(clock)
    try:
        yield
    finally:
        _clock.reset(token)


@contextmanager
def waiting() -> Iterator[None]:
    """What happens inside is no judge time."""
    clock = _clock.get()
    if clock is None:
        yield
        return
    started = time.monotonic()
    due = clock.deadline.when()
    clock.deadline.reschedule(None)
    try:
        yield
    finally:
        waited = time.monotonic() - started
        clock.waited += waited
        if due is not None:
            clock.deadline.reschedule(due + waited)

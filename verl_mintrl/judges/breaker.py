"""A circuit breaker: a server that failed often in a row is left alone for a while. Pure but for the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from verl_mintrl.errors import JudgeError
from verl_mintrl.judges.retry import CallFailed


class Breaker:
    """Closed until ``failures`` calls in a row failed through the server's fault, then open for ``cooldown_s``; after that
    one call at a time may probe, and its outcome closes or reopens the circuit.

    A call that failed through its own fault (401, an unreadable answer) shows a server at work and counts as a success; a
    cancelled call counts as neither.
    """

    def __init__(self, failures: int, cooldown_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = failures
        self._cooldown_s = cooldown_s
        self._clock = clock
        self._in_a_row = 0
        self._opened: float | None = None
        self._probing = False
        self._last = ""

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Around one call, which raises :class:`CallFailed` if it gives nothing.

        Raises:
            JudgeError: unavailable, the circuit is open.
        """
        probe = self._enter()
        try:
            yield
        except CallFailed as failed:
            if failed.retryable:
                self._failed(probe, failed.error.message)
            else:
                self._worked()
            raise
        else:
            self._worked()
        finally:
            if probe:
                self._probing = False

    def _enter(self) -> bool:
        """Whether this call is a probe."""
        if self._opened is None:
            return False
        left = self._opened + self._cooldown_s - self._clock()
        if left > 0 or self._probing:
            raise JudgeError(
                f"the judge's server is not asked for another {max(0.0, left):.0f} s: {self._in_a_row} calls in a row failed, "
                f"the last with: {self._last}",
                "repair the server; intervention.judge.breaker sets when it is given up and for how long",
                kind="unavailable",
            )
        self._probing = True
        return True

    def _worked(self) -> None:
        self._in_a_row, self._opened = 0, None

    def _failed(self, probe: bool, message: str) -> None:
        self._in_a_row += 1
        self._last = message
        if probe or (self._opened is None and self._in_a_row >= self._limit):
            self._opened = self._clock()

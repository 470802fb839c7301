"""An event loop whose clock jumps: sleeping costs nothing, and times are exact."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Jumping(selectors.DefaultSelector):
    """Instead of waiting for a file, moves the clock on to when the loop wants to be woken."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise RuntimeError("everything waits for something that no timer will bring about")
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its ``time()`` starts at 0 and passes only while every task sleeps. Threads and sockets have no place in it."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(work: Coroutine[Any, Any, _T]) -> tuple[_T, float]:
    """Run ``work``; what it returns, and the virtual seconds it took."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        result = runner.run(work)
        return result, runner.get_loop().time()

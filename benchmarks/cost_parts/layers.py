"""Whose code is a process in, and for how long: time by layer, that of inner layers taken out of the outer ones."""

from __future__ import annotations

import functools
import inspect
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterable
from pathlib import Path
from types import coroutine
from typing import Any

#: environment variable: folder in which every watched process leaves its times
FOLDER = "LAYER_TIMES"
#: moments: a batch was found in the queue; all sessions of a prompt were published
LOOKED, PUBLISHED = "looked", "published"


class Layers:
    """Seconds by layer. One per thread; a coroutine counts while it runs, not while it waits.

    Attributes:
        calls: by layer and function.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._clock = clock
        self._stack: list[str] = []
        self._since = 0.0

    def enter(self, layer: str) -> None:
        self._turn()
        self._stack.append(layer)

    def leave(self) -> None:
        self._turn()
        self._stack.pop()

    def _turn(self) -> None:
        now = self._clock()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now

    def around(self, layer: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, counted to ``layer``; a coroutine function stays one."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def waiting(*args: Any, **kwargs: Any) -> Any:
                self.calls[f"{layer} {function.__qualname__}"] += 1
                return await self._drive(layer, function(*args, **kwargs))

            return waiting

        @functools.wraps(function)
        def plain(*args: Any, **kwargs: Any) -> Any:
            self.calls[f"{layer} {function.__qualname__}"] += 1
            self.enter(layer)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return plain

    @coroutine
    def _drive(self, layer: str, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        value, error = None, None
        while True:
            self.enter(layer)
            try:
                waited_for = work.send(value) if error is None else work.throw(error)
            except StopIteration as stop:
                return stop.value
            finally:
                self.leave()
            value = error = None
            try:
                value = yield waited_for
            except BaseException as raised:
                error = raised

    def watch(self, layer: str, owner: type, names: Iterable[str]) -> None:
        """Count the functions ``names`` that ``owner`` itself defines."""
        for name in names:
            function = vars(owner).get(name)
            if inspect.isfunction(function):
                setattr(owner, name, self.around(layer, function))

    def save(self, name: str) -> None:
        """Leave the times so far in the folder, under the name of this process."""
        path = Path(os.environ[FOLDER]) / f"{name}-{os.getpid()}.json"
        path.write_text(json.dumps({"seconds": self.seconds, "calls": self.calls}))


def collect(folder: Path, name: str) -> Counter[str]:
    """Seconds by layer of all processes of one name."""
    found: Counter[str] = Counter()
    for path in folder.glob(f"{name}-*.json"):
        found.update(json.loads(path.read_text())["seconds"])
    return found


def stamp(name: str) -> None:
    """Leave the present moment in a file of this process; clocks are those of one machine."""
    with (Path(os.environ[FOLDER]) / f"{name}-{os.getpid()}.txt").open("a") as file:
        file.write(f"{time.time()}\n")


def stamps(folder: Path, name: str) -> list[float]:
    """The moments all processes left, in order."""
    return sorted(float(line) for path in folder.glob(f"{name}-*.txt") for line in path.read_text().split())

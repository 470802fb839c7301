"""Processor time of a training run between its updates, all its processes together."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType

import psutil


class Meter:
    """While it is open, notes at every new line of ``metrics`` how much processor time the run has taken so far.

    The run is the child of this process whose command line names ``entry``, with everything in its session: Ray keeps its
    daemons there. Cheaper for comparing runs than wall-clock where other work shares the machine.

    Args:
        metrics: file that the run adds a line to after each update.
    """

    def __init__(self, metrics: Path, entry: str = "verl.trainer.main_ppo", every: float = 0.1) -> None:
        self.seconds: list[float] = []
        self._metrics, self._entry, self._every = metrics, entry, every
        self._leader: int | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(self._every):
            lines = self._metrics.read_bytes().count(b"\n") if self._metrics.is_file() else 0
            if lines > len(self.seconds):
                taken = self._taken()
                self.seconds += [taken] * (lines - len(self.seconds))

    def _taken(self) -> float:
        if self._leader is None:
            self._leader = next(
                child.pid for child in psutil.Process().children() if self._entry in " ".join(child.cmdline())
            )
        total = 0.0
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self._leader:
                    times = process.cpu_times()
                    total += times.user + times.system
            except (psutil.Error, ProcessLookupError):
                continue
        return total

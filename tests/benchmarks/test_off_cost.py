"""What the comparison with stock verl is worked out with; the runs themselves take minutes and are left to the benchmark."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time

import pytest
from cost_parts import layers, meter
from cost_parts.layers import Layers
from off_cost import WARM_UP, Findings, Timed, lines, nested_ratio

#: computes in a child of its own for 0.6 s, then adds a line to a file and stays a moment
CHILD = """
import os, sys, time
end = time.process_time() + 0.6
if os.fork():
    os.wait()
else:
    while time.process_time() < end:
        pass
    print(file=open(sys.argv[1], "a"))
    time.sleep(1)
"""


class Clock:
    """Moves on when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def passing(clock: Clock, seconds: float) -> None:
    clock.now += seconds


def test_inner_layers_are_taken_out_of_outer_ones(clock):
    counts = Layers(clock)
    inner = counts.around("verl", lambda: passing(clock, 5))

    def work() -> str:
        passing(clock, 1)
        inner()
        passing(clock, 2)
        return "done"

    assert counts.around("plugin", work)() == "done"
    passing(clock, 100)
    assert counts.seconds == {"plugin": 3, "verl": 5}


def test_an_error_leaves_its_layer(clock):
    counts = Layers(clock)

    def fail() -> None:
        passing(clock, 1)
        raise ValueError

    with pytest.raises(ValueError):
        counts.around("plugin", fail)()
    passing(clock, 10)
    counts.around("verl", lambda: passing(clock, 2))()
    assert counts.seconds == {"plugin": 1, "verl": 2}


async def test_a_coroutine_counts_while_it_runs_not_while_it_waits(clock):
    counts = Layers(clock)

    async def inner(moment: asyncio.Event) -> int:
        passing(clock, 3)
        await moment.wait()
        passing(clock, 4)
        return 7

    async def outer(moment: asyncio.Event) -> int:
        passing(clock, 1)
        return await counts.around("verl", inner)(moment)

    moment = asyncio.Event()
    tasks = [asyncio.create_task(counts.around("plugin", outer)(moment)) for _ in range(2)]
    await asyncio.sleep(0)
    passing(clock, 1000)
    moment.set()
    assert await asyncio.gather(*tasks) == [7, 7]
    assert counts.seconds == {"plugin": 2, "verl": 14}


async def test_a_cancelled_coroutine_is_told(clock):
    counts, seen = Layers(clock), []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    task = asyncio.create_task(counts.around("plugin", work)())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


def test_only_what_a_class_defines_itself_is_watched(clock):
    class Base:
        def work(self) -> None:
            passing(clock, 1)

    class Ours(Base):
        def work(self) -> None:
            passing(clock, 2)
            super().work()

    counts = Layers(clock)
    counts.watch("plugin", Ours, ["work", "missing"])
    counts.watch("verl", Base, ["work"])
    Ours().work()
    assert counts.seconds == {"plugin": 2, "verl": 1}


def test_times_of_several_processes_are_added(tmp_path, monkeypatch, clock):
    monkeypatch.setenv(layers.FOLDER, str(tmp_path))
    counts = Layers(clock)
    counts.around("plugin", lambda: passing(clock, 2))()
    counts.save("worker")
    (tmp_path / "worker-0.json").write_text(json.dumps({"seconds": {"plugin": 3, "verl": 1}, "calls": {}}))
    assert layers.collect(tmp_path, "worker") == {"plugin": 5, "verl": 1}
    layers.stamp("looked")
    assert len(layers.stamps(tmp_path, "looked")) == 1


def test_processor_time_of_a_run_and_its_children(tmp_path):
    """A child that computes, in a session of its own as the harness starts it."""
    metrics = tmp_path / "metrics.jsonl"
    with meter.Meter(metrics, entry="print(file") as found:
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(metrics)], start_new_session=True)
        child.wait()
        time.sleep(0.2)
    assert len(found.seconds) == 1 and found.seconds[0] >= 0.5


def rows(seconds: list[float], tokens: float = 64.0) -> list[dict[str, float]]:
    return [{"timing_s/step": value, "response_length/mean": tokens} for value in seconds]


def test_the_warm_up_does_not_count():
    timed = Timed.of(rows([100, 50, 1, 2]), [10, 15, 16, 18])
    assert timed.steps == [1, 2] and timed.cpu == 3 and len(timed.tokens) == 4 - WARM_UP


def test_ratio_of_runs_that_differ_by_a_tenth():
    theirs = [[1.0, 1.1, 0.9, 1.0], [2.0, 2.2, 1.8, 2.0]]
    found = nested_ratio([[1.1 * value for value in run] for run in theirs], theirs, seed=0)
    assert found.value == pytest.approx(1.1) and found.low < 1.1 < found.high


def test_table_and_faults():
    stock, ours = Timed([2.0, 2.0], 5.0, [64, 64], 1.0), Timed([2.1, 2.1], 5.1, [64, 64], 1.0)
    findings = Findings([stock], [ours], {"trainer": 0.1, "worker": 0.2}, 10.0)
    assert findings.broken == []
    text = "\n".join(lines(findings))
    assert "1.050" in text and "trainer 1.00%, worker 2.00%" in text
    shorter = Findings([stock], [Timed([2.0, 2.0], 5.0, [32, 32], 1.0)], {}, 10.0)
    assert any("tokens" in fault for fault in shorter.broken)
    fewer = Findings([stock], [Timed([2.0], 5.0, [64], 1.0)], {}, 10.0)
    assert any("updates" in fault for fault in fewer.broken)

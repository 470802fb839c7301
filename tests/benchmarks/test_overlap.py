"""The overlap benchmark with few sessions, and the event loop whose clock jumps. Times are virtual, so they are exact."""

from __future__ import annotations

import asyncio
import time

import pytest
from cost_parts import virtual
from overlap import RESPONSE, REVIEW_EVERY, Cell, Policy, compare, lines, measure, roll


def test_sleeping_moves_the_clock_and_nothing_else():
    async def work() -> list[float]:
        clock = asyncio.get_running_loop().time

        async def sleeper(seconds: float) -> float:
            await asyncio.sleep(seconds)
            return clock()

        return await asyncio.gather(sleeper(3600), sleeper(5), sleeper(0))

    started = time.monotonic()
    result, seconds = virtual.run(work())
    assert result == pytest.approx([3600, 5, 0]) and seconds == pytest.approx(3600)
    assert time.monotonic() - started < 5


def test_a_deadlock_is_an_error():
    async def work() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="no timer"):
        virtual.run(work())


@pytest.mark.parametrize("revise", [0.0, 0.2])
@pytest.mark.parametrize("latency", [0.1, 2.0])
def test_both_modes_end_with_the_same_responses(revise, latency):
    result = compare(Cell(512, revise, latency, 6), seed=1)
    assert result.broken == []
    blocking, overlapped = result.rollouts["blocking"], result.rollouts["overlapped"]
    assert overlapped.seconds < blocking.seconds
    assert any(session.record.intervened for session in blocking.sessions) == bool(revise)
    assert overlapped.policy.aborted == 0 or revise


def test_kept_reviews_cost_the_latency_each_or_the_last_one_only():
    """With no REVISE and a free judge the times follow by arithmetic."""
    cell = Cell(50, 0.0, 0.5, 1)
    seconds = {mode: roll(cell, mode, seed=0).seconds for mode in ("no judge", "blocking", "overlapped")}
    looks = RESPONSE // REVIEW_EVERY
    assert seconds["blocking"] == pytest.approx(seconds["no judge"] + looks * 0.5)
    assert seconds["overlapped"] == pytest.approx(seconds["no judge"] + 0.5)


def test_a_full_judge_bounds_both_modes():
    cell = Cell(512, 0.0, 2.0, 80)
    result = compare(cell, seed=0)
    assert cell.load > 1 and result.broken == []
    assert result.ideal == pytest.approx(80 * (RESPONSE // REVIEW_EVERY) * 2.0 / 64)


async def test_an_aborted_request_is_counted_as_far_as_it_was_written():
    policy = Policy(rate=1000, prompt=1, begin={"r": 0.0})
    writing = asyncio.create_task(policy.generate("r", prompt_ids=[0], sampling_params={"max_tokens": 10_000}))
    await asyncio.sleep(0.05)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert (policy.running, policy.aborted) == (0, 1) and 0 < policy.written["r"] < 10_000


def test_different_responses_are_noticed():
    result = compare(Cell(512, 0.2, 0.1, 2), seed=0)
    result.rollouts["overlapped"].sessions[0].trajectory.ids[5] += 1
    assert any("different responses" in fault for fault in result.broken)


def test_table():
    rows, faults = measure([Cell(512, 0.2, 0.1, 2)], seeds=2)
    text = "\n".join(lines(rows))
    assert faults == [] and "512/s 20%" in text and "capacity suffices" in text

"""Limits over all workers: the Gate on a told clock, and through Ray."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_mintrl.config.judge import ClusterConfig
from verl_mintrl.errors import ConfigError, JudgeError
from verl_mintrl.judges.limits import GuardedJudge
from verl_mintrl.judges.protocol import Review, ReviewRequest, Usage
from verl_mintrl.judges.python import PythonJudge
from verl_mintrl.judges.rate import PLACE_S, ClusterLimiter, Gate


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def gate(lease_s: float = 60.0, **limits: Any) -> tuple[Gate, Clock]:
    clock = Clock()
    return Gate(ClusterConfig(**limits), lease_s, clock), clock


def test_concurrency_is_first_come_first_served() -> None:
    door, _ = gate(max_concurrency=2)
    assert door.ask("a") == door.ask("b") == 0
    assert door.ask("c") > 0 and door.ask("d") > 0
    door.done("a", 1, 0)
    assert door.ask("d") > 0  # c came first
    assert door.ask("c") == 0
    assert door.ask("d") > 0


def test_asking_again_does_not_take_a_second_place() -> None:
    door, _ = gate(max_concurrency=1)
    assert door.ask("a") == 0 and door.ask("a") == 0
    door.done("a", 1, 0)
    assert door.ask("b") == 0


def test_leases_of_dead_workers_expire() -> None:
    door, clock = gate(lease_s=60, max_concurrency=1)
    door.ask("dead")
    clock.now = 59
    assert door.ask("b") > 0
    clock.now = 61
    assert door.ask("b") == 0
    door.done("dead", 1, 0)  # it was not dead after all
    assert door.ask("c") > 0  # b still holds the slot


def test_places_of_dead_workers_expire() -> None:
    door, clock = gate(max_concurrency=1)
    door.ask("a")
    door.ask("dead")
    clock.now = PLACE_S - 1
    door.ask("b")
    door.done("a", 1, 0)
    assert door.ask("b") > 0
    clock.now = PLACE_S + 1
    assert door.ask("b") == 0


def test_giving_up_frees_the_place() -> None:
    door, _ = gate(max_concurrency=1)
    door.ask("a")
    door.ask("b")
    door.done("b", 0, 0)
    door.done("a", 1, 0)
    assert door.ask("c") == 0


def test_retries_count_as_requests() -> None:
    door, clock = gate(requests_per_minute=60)
    assert [door.ask(str(i)) for i in range(10)] == [0] * 10  # ten seconds' worth at once
    assert door.ask("x") > 0
    door.done("0", 6, 0)
    clock.now = 5.9
    assert door.ask("x") > 0
    clock.now = 6.1
    assert door.ask("x") == 0


def test_tokens_are_paid_back() -> None:
    door, clock = gate(tokens_per_minute=6000)
    assert door.ask("a") == 0
    door.done("a", 1, 3000)
    assert door.ask("b") > 0
    clock.now = 19.9
    assert door.ask("b") > 0
    clock.now = 20.1
    assert door.ask("b") == 0


def test_a_rate_below_one_in_ten_seconds_still_lets_calls_through() -> None:
    door, clock = gate(requests_per_minute=1)
    let_in = 0
    for second in range(0, 601, 2):
        clock.now = float(second)
        let_in += door.ask(f"{let_in}") == 0
    assert 9 <= let_in <= 11


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_limits_hold_for_any_order(data: st.DataObject) -> None:
    slots, per_minute = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([6.0, 30.0, 600.0]))
    door, clock = gate(lease_s=1e9, max_concurrency=slots, requests_per_minute=per_minute)
    inside: set[int] = set()
    times: list[float] = []
    for _ in range(data.draw(st.integers(1, 80))):
        clock.now += data.draw(st.floats(0, 3))
        ticket = data.draw(st.integers(0, 9))
        if ticket in inside:
            inside.remove(ticket)
            door.done(str(ticket), 1, 0)
        elif door.ask(str(ticket)) == 0:
            inside.add(ticket)
            times.append(clock.now)
        assert len(inside) <= slots
    for start in times:
        in_a_minute = sum(start <= t < start + 60 for t in times)
        assert in_a_minute <= per_minute * 70 / 60 + 1


# --- through Ray


def test_without_ray_the_limits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # another test of this process may have started it
    with pytest.raises(ConfigError, match=r"intervention\.judge\.cluster"):
        ClusterLimiter("t", ClusterConfig(max_concurrency=1), 60)


async def test_judges_of_several_workers_share_the_slots(ray_started: Any) -> None:
    running, most = 0, 0

    async def slow(request: ReviewRequest) -> Review:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.03)
        running -= 1
        return Review.keep()

    limits = ClusterConfig(max_concurrency=2)
    judges = [
        GuardedJudge(PythonJudge(slow), timeout=5, concurrency=8, limiter=ClusterLimiter("shared", limits, 60))
        for _ in range(2)
    ]
    request = ReviewRequest((), ("a",), finished=True)
    await asyncio.gather(*(judge.review(request) for judge in judges for _ in range(6)))
    assert most == 2


async def test_slot_is_free_again_after_an_error_or_a_cancelled_call(ray_started: Any) -> None:
    limiter = ClusterLimiter("errors", ClusterConfig(max_concurrency=1), 60)

    async def judge(request: ReviewRequest) -> Review:
        if request.attempt == 0:
            raise ValueError
        await asyncio.sleep(request.attempt)
        return Review.keep()

    guarded = GuardedJudge(PythonJudge(judge), timeout=5, concurrency=8, limiter=limiter)
    with pytest.raises(JudgeError):
        await guarded.review(ReviewRequest((), ("a",), finished=True))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await guarded.review(ReviewRequest((), ("a",), finished=True, attempt=30))
    async with asyncio.timeout(5), limiter.slot() as report:
        report(Usage(calls=1))


async def test_a_cancelled_call_has_used_its_request() -> None:
    """Without Ray: what the limiter tells its actor."""
    told = []

    class Remote:
        def __init__(self, function: Any) -> None:
            self.remote = function

    async def ask(ticket: str) -> float:
        return 0.0

    limiter = object.__new__(ClusterLimiter)
    limiter._actor = SimpleNamespace(ask=Remote(ask), done=Remote(lambda *arguments: told.append(arguments[1:])))

    async def hangs(request: ReviewRequest) -> Review:
        await asyncio.sleep(60)
        raise AssertionError

    guarded = GuardedJudge(PythonJudge(hangs), timeout=50, concurrency=8, limiter=limiter)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await guarded.review(ReviewRequest((), ("a",), finished=True))
    assert told == [(1, 0)]


async def test_actor_that_was_killed_is_started_anew(ray_started: Any) -> None:
    limiter = ClusterLimiter("killed", ClusterConfig(max_concurrency=1), 60)
    async with limiter.slot():
        pass
    ray_started.kill(limiter._actor)
    await asyncio.sleep(0.5)
    async with asyncio.timeout(30), limiter.slot() as report:
        report(Usage(calls=1))


async def test_unreachable_actor_is_an_error_of_the_judge(ray_started: Any) -> None:
    from ray.exceptions import RayActorError

    class Dead:
        class ask:
            @staticmethod
            async def remote(*_: Any) -> None:
                raise RayActorError

        class done:
            @staticmethod
            def remote(*_: Any) -> None:
                pass

    limiter = ClusterLimiter("dead", ClusterConfig(max_concurrency=1), 60)
    limiter._actor, limiter._find = Dead(), Dead  # type: ignore[method-assign]
    guarded = GuardedJudge(PythonJudge(lambda request: None), timeout=5, concurrency=1, limiter=limiter)
    started = time.monotonic()
    with pytest.raises(JudgeError, match=r"intervention\.judge\.cluster") as caught:
        await guarded.review(ReviewRequest((), ("a",), finished=True))
    assert caught.value.kind == "unavailable" and time.monotonic() - started < 5

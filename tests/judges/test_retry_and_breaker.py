"""Retries and circuit breaker on a clock that is told the time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_mintrl.config.judge import RetryConfig
from verl_mintrl.errors import JudgeError
from verl_mintrl.judges.breaker import Breaker
from verl_mintrl.judges.retry import CallFailed, retry_after, retryable_status, wait_before, with_retries

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def failure(retryable: bool = True, wait_s: float | None = None) -> CallFailed:
    return CallFailed(JudgeError("busy", kind="http"), retryable=retryable, wait_s=wait_s)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529, 599])
def test_statuses_that_are_repeated(status: int) -> None:
    assert retryable_status(status)


@pytest.mark.parametrize("status", [300, 307, 400, 401, 403, 404, 405, 410, 413, 422, 451, 600])
def test_statuses_that_are_not(status: int) -> None:
    assert not retryable_status(status)


@pytest.mark.parametrize(
    "value,seconds",
    [
        ("3", 3.0),
        (" 1.5 ", 1.5),
        ("-4", 0.0),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90.0),
        (format_datetime(NOW - timedelta(days=1), usegmt=True), 0.0),
        ("Sun, 01 Mar 2026 12:00:05 -0000", 5.0),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("Sun, 99 Foo 2026 99:00:00 GMT", None),
        ("", None),
        ("9" * 400, None),
    ],
)
def test_retry_after(value: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": value}, NOW) == seconds


def test_no_retry_after() -> None:
    assert retry_after({}, NOW) is None


@given(st.integers(1, 10_000), st.none() | st.floats(0, 1e9), st.floats(0, 1, exclude_max=True))
def test_waits_are_bounded_and_the_server_is_not_undercut(attempt: int, asked: float | None, chance: float) -> None:
    wait = wait_before(attempt, RetryConfig(), asked, chance)
    assert 0 <= wait <= 30
    assert asked is None or wait >= min(asked, 30)


def test_waits_double_on_average() -> None:
    waits = [wait_before(attempt, RetryConfig(base_s=1), None, 0.5) for attempt in (1, 2, 3, 9)]
    assert waits == [1, 2, 4, 30]


async def retried(outcomes: list[CallFailed | str], config: RetryConfig, deadline_s: float = 100.0):
    clock, left = Clock(), list(outcomes)

    async def call() -> str:
        outcome = left.pop(0)
        if isinstance(outcome, CallFailed):
            raise outcome
        return outcome

    try:
        result = await with_retries(call, config, deadline_s, clock=clock, sleep=clock.sleep, chance=lambda: 0.5)
    except CallFailed as error:
        result = error
    return result, clock.slept


async def test_first_success_ends_it() -> None:
    result, slept = await retried([failure(), failure(wait_s=7.0), "yes"], RetryConfig(base_s=1))
    assert result == ("yes", 3) and slept == [1, 7.5]


async def test_attempts_run_out() -> None:
    result, slept = await retried([failure()] * 9, RetryConfig(attempts=3, base_s=1))
    assert isinstance(result, CallFailed) and result.error.usage.calls == 3 and len(slept) == 2


async def test_own_fault_is_not_repeated() -> None:
    result, slept = await retried([failure(retryable=False), "yes"], RetryConfig())
    assert isinstance(result, CallFailed) and slept == []


async def test_no_wait_beyond_the_deadline() -> None:
    result, slept = await retried([failure(wait_s=20.0), "yes"], RetryConfig(), deadline_s=10)
    assert isinstance(result, CallFailed) and slept == []


async def test_timeouts_are_repeated_until_the_deadline() -> None:
    async def hang() -> None:
        await asyncio.sleep(30)

    with pytest.raises(CallFailed) as caught:
        await with_retries(hang, RetryConfig(attempts=99, base_s=0, attempt_timeout_s=0.02), 0.1)
    assert caught.value.error.kind == "timeout" and caught.value.retryable
    assert 2 <= caught.value.error.usage.calls <= 6


async def test_cancellation_is_not_a_failure() -> None:
    calls = []

    async def call() -> None:
        calls.append(1)
        await asyncio.sleep(30)

    task = asyncio.create_task(with_retries(call, RetryConfig(), 10))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert calls == [1]


# --- breaker


def fail(breaker: Breaker, retryable: bool = True) -> str:
    """Outcome of a failing call: "asked", or "open" if it was not made."""
    try:
        with breaker.guard():
            raise failure(retryable)
    except CallFailed:
        return "asked"
    except JudgeError as error:
        assert error.kind == "unavailable" and "busy" in error.message
        return "open"


def work(breaker: Breaker) -> str:
    try:
        with breaker.guard():
            return "asked"
    except JudgeError:
        return "open"


def test_opens_after_failures_in_a_row_and_probes_after_the_cooldown() -> None:
    clock = Clock()
    breaker = Breaker(3, 10, clock)
    assert [fail(breaker) for _ in range(5)] == ["asked"] * 3 + ["open"] * 2
    clock.now += 9.9
    assert work(breaker) == "open"
    clock.now += 0.2
    assert [fail(breaker), fail(breaker)] == ["asked", "open"]  # the probe fails: open for another cooldown
    clock.now += 10.1
    assert [work(breaker), work(breaker), fail(breaker), work(breaker)] == ["asked"] * 4  # closed


def test_success_starts_the_count_anew() -> None:
    breaker = Breaker(2, 10, Clock())
    assert [fail(breaker), work(breaker), fail(breaker), work(breaker)] == ["asked"] * 4


def test_a_fault_of_the_question_shows_a_server_at_work() -> None:
    breaker = Breaker(2, 10, Clock())
    assert [fail(breaker, retryable=False) for _ in range(5)] == ["asked"] * 5
    assert [fail(breaker), fail(breaker, retryable=False), fail(breaker)] == ["asked"] * 3


def test_one_probe_at_a_time_and_a_cancelled_one_gives_way() -> None:
    clock = Clock()
    breaker = Breaker(1, 10, clock)
    fail(breaker)
    clock.now += 11
    with pytest.raises(asyncio.CancelledError), breaker.guard():
        assert work(breaker) == "open"
        raise asyncio.CancelledError
    assert work(breaker) == "asked"


def test_late_results_of_earlier_calls() -> None:
    clock = Clock()
    breaker = Breaker(1, 10, clock)
    late = breaker.guard()
    late.__enter__()
    fail(breaker)
    clock.now += 5
    assert late.__exit__(CallFailed, failure(), None) is False
    clock.now += 6  # not prolonged by the late failure
    assert work(breaker) == "asked"

import math

import pytest

from verl_mintrl.errors import ConfigError, DataError
from verl_mintrl.learning.schedule import Schedule, StopWhen


def test_without_a_stop_it_never_ends():
    assert [Schedule(None).share(step) for step in (0, 1, 10**6)] == [1.0, 1.0, 1.0]


def test_stop_is_the_last_update_with_interventions():
    schedule = Schedule(200)
    assert [schedule.active(step) for step in (1, 200, 201, 500)] == [True, True, False, False]
    assert [Schedule(0).share(step) for step in (0, 1)] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("decay", "shares"), [("linear", [1, 0.75, 0.5, 0.25, 0]), ("cosine", [1, 0.853553, 0.5, 0.146447, 0])]
)
def test_decay_falls_from_one_to_zero(decay, shares):
    schedule = Schedule(5, decay)
    assert [schedule.share(step) for step in range(1, 6)] == pytest.approx(shares, abs=1e-6)
    assert schedule.share(6) == 0.0
    assert schedule.active(4)
    assert not schedule.active(5)


@pytest.mark.parametrize("decay", ["none", "linear", "cosine"])
def test_share_never_rises_and_stays_in_range(decay):
    shares = [Schedule(17, decay).share(step) for step in range(30)]
    assert shares == sorted(shares, reverse=True)
    assert all(0 <= share <= 1 for share in shares)


@pytest.mark.parametrize(
    ("args", "key"),
    [((-1,), "stop_after_updates"), ((None, "linear"), "decay"), ((1, "cosine"), "decay"), ((5, "exp"), "decay")],
)
def test_impossible_schedules_name_their_key(args, key):
    with pytest.raises(ConfigError, match=f"intervention.schedule.{key}"):
        Schedule(*args)


def test_stop_when_needs_consecutive_updates_and_is_final():
    stop = StopWhen(threshold=0.1, updates=3)
    assert [stop.observe(value) for value in (0.05, 0.05, 0.1, 0.0, 0.0)] == [False] * 5
    assert stop.observe(0.0)
    assert stop.observe(1.0)


def test_updates_without_a_measurement_neither_count_nor_break_the_run():
    stop = StopWhen(threshold=0.0, updates=2)
    assert [stop.observe(value) for value in (-0.1, None, math.nan, -0.1)] == [False, False, False, True]


def test_stop_when_resumes_where_it_was():
    first, second = StopWhen(0.1, 2), StopWhen(0.1, 2)
    first.observe(0.0)
    second.load_state_dict(first.state_dict())
    assert second.observe(0.0)
    third = StopWhen(-1.0, 2)
    third.load_state_dict(second.state_dict())
    assert third.stopped
    with pytest.raises(DataError, match="stop_when"):
        third.load_state_dict({"below": 1})


def test_stop_when_checks_its_settings():
    with pytest.raises(ConfigError, match=r"stop_when\.updates"):
        StopWhen(0.1, 0)
    with pytest.raises(ConfigError, match=r"stop_when\.threshold"):
        StopWhen(math.nan, 1)

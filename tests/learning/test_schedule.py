import pytest

from verl_mintrl.errors import ConfigError
from verl_mintrl.learning.schedule import Schedule


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

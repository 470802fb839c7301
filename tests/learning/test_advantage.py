import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from verl_mintrl.errors import DataError
from verl_mintrl.learning.advantage import control_advantage


def advantage(rewards, groups, control, included=None, **kwargs):
    kwargs = {"v_mode": "mean", "beta1": 1.0} | kwargs
    included = [True] * len(groups) if included is None else included
    rewards = torch.tensor(rewards, dtype=torch.float64)
    return control_advantage(rewards, groups, torch.tensor(control).bool(), torch.tensor(included).bool(), **kwargs)


def test_mean_of_controls_with_leave_one_out():
    got = advantage([1.0, 0.0, 0.0, 1.0, 0.0], ["a"] * 5, [1, 1, 1, 0, 0])
    assert got.values.tolist() == pytest.approx([0.0, 0.5, 0.5, 1 / 3, 1 / 3])
    assert got.advantages.tolist() == pytest.approx([1.0, -0.5, -0.5, 2 / 3, -1 / 3])
    assert (got.lone_controls, got.empty_controls) == (0, 0)


@pytest.mark.parametrize(
    ("beta1", "wins", "value"), [(0.5, 1, 0.477), (0.5, 3, 0.878), (1.0, 2, 0.620), (0.25, 1, 0.667)]
)
def test_soft_value_table(beta1, wins, value):
    rewards = [1.0] * wins + [0.0] * (4 - wins) + [1.0]
    got = advantage(rewards, [0] * 5, [1, 1, 1, 1, 0], v_mode="soft", beta1=beta1)
    assert got.values[-1].item() == pytest.approx(value, abs=5e-4)


def test_soft_leaves_a_control_out_of_its_own_value():
    got = advantage([1.0, 0.0, 0.0], [0] * 3, [1, 1, 1], v_mode="soft", beta1=0.5)
    both = 0.5 * math.log((1 + math.exp(2)) / 2)
    assert got.values.tolist() == pytest.approx([0.0, both, both])


def test_soft_is_stable_and_tends_to_the_mean_and_to_the_maximum():
    rewards, groups, control = [900.0, 100.0, -400.0, 0.0], [0] * 4, [1, 1, 1, 0]
    assert advantage(rewards, groups, control, v_mode="soft", beta1=1e9).values[-1].item() == pytest.approx(
        200, abs=1e-2
    )
    assert advantage(rewards, groups, control, v_mode="soft", beta1=1e-3).values[-1].item() == pytest.approx(
        900, abs=1e-2
    )


@pytest.mark.parametrize("v_mode", ["mean", "soft"])
def test_lone_control_is_counted_and_learns_nothing_but_still_is_the_baseline(v_mode):
    got = advantage([1.0, 0.0, 5.0, 3.0], ["a", "a", "b", "b"], [1, 0, 1, 0], v_mode=v_mode)
    assert got.advantages.tolist() == pytest.approx([0.0, -1.0, 0.0, -2.0])
    assert (got.lone_controls, got.empty_controls) == (2, 0)


def test_no_control_left_falls_back_to_the_mean_of_the_group():
    got = advantage([1.0, 0.0, 9.0], ["a"] * 3, [0, 0, 1], included=[1, 1, 0], v_mode="soft", beta1=0.1)
    assert got.advantages.tolist() == pytest.approx([0.5, -0.5, 0.0])
    assert (got.lone_controls, got.empty_controls) == (0, 1)


def test_excluded_rows_leave_the_baseline_and_may_hold_anything():
    got = advantage([math.nan, 1.0, 0.0, 1.0], ["a"] * 4, [1, 1, 1, 0], included=[0, 1, 1, 1])
    assert got.advantages.tolist() == pytest.approx([0.0, 1.0, -1.0, 0.5])
    assert got.values[0].item() == 0.0


def test_group_without_included_rows_counts_nowhere():
    got = advantage([1.0, 2.0], ["a", "a"], [1, 0], included=[0, 0])
    assert got.advantages.tolist() == [0.0, 0.0]
    assert (got.lone_controls, got.empty_controls) == (0, 0)


def test_baseline_rewards_are_those_from_before_replacement():
    got = advantage([1.0, 0.0, 0.0], ["a"] * 3, [0, 1, 1], baseline_rewards=torch.zeros(3))
    assert got.advantages.tolist() == [1.0, 0.0, 0.0]
    got = advantage([1.0, 0.0, 0.0], ["a"] * 3, [1, 1, 0], baseline_rewards=torch.zeros(3))  # a control was replaced
    assert got.advantages.tolist() == [1.0, 0.0, 0.0]
    got = advantage([1.0, 0.0], ["a"] * 2, [0, 0], baseline_rewards=torch.zeros(2))
    assert got.advantages.tolist() == [1.0, 0.0]


def test_non_finite_reward_names_the_group():
    with pytest.raises(DataError, match="group 'prompt-7'"):
        advantage([0.0, math.inf], ["prompt-1", "prompt-7"], [1, 1])
    with pytest.raises(DataError, match="group 3"):
        advantage([0.0], [3], [1], baseline_rewards=torch.tensor([math.nan]))


def test_lengths_and_options_are_checked():
    with pytest.raises(DataError, match="2 groups"):
        advantage([0.0], ["a", "a"], [1])
    with pytest.raises(ValueError, match="v_mode"):
        advantage([0.0], ["a"], [1], v_mode="median")
    with pytest.raises(ValueError, match="beta1"):
        advantage([0.0], ["a"], [1], v_mode="soft", beta1=0.0)


def test_empty_batch_and_integer_rewards():
    assert advantage([], [], []).advantages.shape == (0,)
    flags = torch.tensor([True, True])
    got = control_advantage(torch.tensor([1, 0]), [0, 0], flags, flags, v_mode="mean", beta1=1.0)
    assert got.advantages.dtype == torch.float32
    assert got.advantages.tolist() == [1.0, -1.0]


SESSIONS = st.lists(
    st.tuples(
        st.floats(-10, 10, width=32),  # reward
        st.sampled_from(["a", "b", ("c", 1)]),
        st.booleans(),  # control
        st.sampled_from([True, True, True, False]),  # included
    ),
    min_size=1,
    max_size=16,
)


@settings(deadline=None)
@given(SESSIONS, st.sampled_from(["mean", "soft"]), st.randoms(use_true_random=False))
def test_row_order_does_not_matter(sessions, v_mode, random):
    order = list(range(len(sessions)))
    random.shuffle(order)
    got = advantage(*zip(*sessions, strict=True), v_mode=v_mode)
    shuffled = advantage(*zip(*[sessions[i] for i in order], strict=True), v_mode=v_mode)
    assert torch.equal(got.advantages[order], shuffled.advantages)
    assert torch.equal(got.values[order], shuffled.values)
    assert (got.lone_controls, got.empty_controls) == (shuffled.lone_controls, shuffled.empty_controls)


@settings(deadline=None)
@given(SESSIONS)
def test_controls_sum_to_zero_and_every_advantage_is_reward_minus_value(sessions):
    rewards, groups, control, included = map(list, zip(*sessions, strict=True))
    got = advantage(rewards, groups, control, included)
    for group in set(groups):
        rows = [i for i, key in enumerate(groups) if key == group and included[i]]
        controls = [i for i in rows if control[i]]
        assert got.advantages[controls].sum().item() == pytest.approx(0, abs=1e-9)
        if not controls:
            assert got.advantages[rows].sum().item() == pytest.approx(0, abs=1e-9)
    kept = torch.tensor(included)
    rewards = torch.tensor(rewards, dtype=torch.float64)
    assert torch.equal(got.advantages[kept], (rewards - got.values)[kept])
    assert not got.advantages[~kept].any()


@settings(deadline=None)
@given(SESSIONS, st.floats(0.05, 50))
def test_soft_value_lies_between_mean_and_maximum_and_shifts_with_the_rewards(sessions, beta1):
    rewards, groups, control, included = map(list, zip(*sessions, strict=True))
    control = [flag and i != 0 for i, flag in enumerate(control)]
    included[0] = True
    soft = advantage(rewards, groups, control, included, v_mode="soft", beta1=beta1)
    mean = advantage(rewards, groups, control, included)
    assert (soft.values >= mean.values - 1e-9).all()
    moved = advantage([r + 3.0 for r in rewards], groups, control, included, v_mode="soft", beta1=beta1)
    assert torch.allclose(moved.advantages, soft.advantages, atol=1e-9)

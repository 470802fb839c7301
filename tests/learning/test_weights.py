import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from verl_mintrl.errors import DataError
from verl_mintrl.learning.weights import pack_weights, steering_weights, unpack_weights


def test_steering_ratio_inside_and_at_the_clip():
    log_roll = torch.tensor([-1.0, -1.0, -1.0, -1.0], dtype=torch.float64)
    log_cal = log_roll + torch.tensor([0.0, math.log(1.1), 3.0, -3.0], dtype=torch.float64)
    assert steering_weights(log_cal, log_roll, 0.2).tolist() == pytest.approx([1.0, 1.1, 1.2, 0.8], abs=1e-15)


def test_extremes_do_not_overflow():
    log_cal = torch.tensor([0.0, -1e30, -math.inf, -5.0])
    log_roll = torch.tensor([-1e30, 0.0, -5.0, -math.inf])
    got = steering_weights(log_cal, log_roll, 0.2)
    assert got.tolist() == pytest.approx([1.2, 0.8, 0.8, 1.2])


def test_no_gradient_and_single_precision_from_half():
    log_cal = torch.tensor([-1.0], dtype=torch.bfloat16, requires_grad=True)
    got = steering_weights(log_cal, torch.tensor([-1.1], dtype=torch.bfloat16), 0.2)
    assert not got.requires_grad
    assert got.dtype == torch.float32


def test_eps_zero_gives_exactly_one_and_eps_one_is_refused():
    assert steering_weights(torch.tensor([-3.0]), torch.tensor([-1.0]), 0.0).tolist() == [1.0]
    for eps in (1.0, -0.1, math.nan):
        with pytest.raises(ValueError, match="eps"):
            steering_weights(torch.tensor([-3.0]), torch.tensor([-1.0]), eps)


def test_unscored_tokens_are_refused():
    with pytest.raises(DataError, match="1 of 2 inserted tokens"):
        steering_weights(torch.tensor([-1.0, math.nan]), torch.tensor([-1.0, -1.0]), 0.2)
    with pytest.raises(DataError):
        steering_weights(torch.tensor([-math.inf]), torch.tensor([-math.inf]), 0.2)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-100, 0), st.floats(-100, 0)), min_size=1), st.floats(0, 0.99))
def test_steering_ratio_stays_in_bounds_and_packs(pairs, eps):
    log_cal, log_roll = torch.tensor(pairs, dtype=torch.float64).unbind(-1)
    got = steering_weights(log_cal, log_roll, eps)
    assert ((got >= 1 - eps) & (got <= 1 + eps)).all()
    inside = (log_cal - log_roll).exp().clamp(1 - eps, 1 + eps)
    assert torch.allclose(got, inside, rtol=1e-12)
    weights, inserted = unpack_weights(pack_weights(got, log_cal < log_roll))
    assert torch.equal(weights, got)
    assert torch.equal(inserted, log_cal < log_roll)


def test_round_trip_keeps_padding_apart():
    column = pack_weights(torch.tensor([[1.0, 0.5, 1.2]]), torch.tensor([[False, True, True]]))
    assert column[0].tolist() == pytest.approx([1.0, -0.5, -1.2])
    padded = torch.cat([column, torch.zeros(1, 2)], dim=-1)
    weights, inserted = unpack_weights(padded)
    assert weights.tolist()[0] == pytest.approx([1.0, 0.5, 1.2, 0.0, 0.0])
    assert inserted.tolist() == [[False, True, True, False, False]]


@pytest.mark.parametrize("weight", [0.0, -0.5, math.nan, math.inf])
def test_weights_that_would_lose_the_author_are_refused(weight):
    with pytest.raises(DataError, match="> 0"):
        pack_weights(torch.tensor([1.0, weight]), torch.tensor([False, True]))

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from verl_mintrl.errors import DataError
from verl_mintrl.learning.anchor import relaxed_anchor
from verl_mintrl.learning.loss import regression_loss

OLD = torch.tensor([[-1.0, -2.0, -3.0, -4.0], [-0.5, -0.5, -0.5, -0.5]], dtype=torch.float64)
INSERTED = torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0]]).bool()
MASK = torch.ones_like(INSERTED)


def anchor(old=OLD, inserted=INSERTED, mask=MASK, weights=None, advantages=(0.0, 0.0), success=(True, True), **kwargs):
    defaults = dict(mode="const", kappa=0.0, beta=0.1, max_bonus=math.inf, relax="always", length_norm="none")
    return relaxed_anchor(
        old,
        inserted,
        mask,
        torch.ones_like(old) if weights is None else weights,
        **(defaults | kwargs),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        success=torch.tensor(success),
    )


def test_proxy_changes_nothing():
    got = anchor(mode="proxy", max_bonus=0.0)
    assert torch.equal(got.log_probs, OLD)
    assert not got.bonus.any()
    assert torch.equal(got.scale, torch.ones(2, dtype=torch.float64))
    assert not got.flipped.any()


def test_const_puts_kappa_on_inserted_tokens_only():
    got = anchor(kappa=-0.5)
    assert got.log_probs.tolist() == [[-1.0, -0.5, -0.5, -4.0], [-0.5] * 4]
    assert got.bonus.tolist() == pytest.approx([0.1 * (1.5 + 2.5), 0.0])
    assert got.scale.tolist() == [1.0, 1.0]


def test_weights_enter_the_bonus():
    weights = torch.tensor([[9.0, 0.5, 1.2, 9.0], [9.0] * 4], dtype=torch.float64)
    assert anchor(weights=weights).bonus[0].item() == pytest.approx(0.1 * (0.5 * 2 + 1.2 * 3))


@pytest.mark.parametrize(("kappa", "sign"), [(0.0, 1), (-5.0, -1)])
def test_cap_binds_on_both_sides_and_shrinks_towards_the_policy(kappa, sign):
    got = anchor(kappa=kappa, max_bonus=0.25)
    assert got.bonus.tolist() == pytest.approx([sign * 0.25, 0.0])
    assert got.scale.tolist() == pytest.approx([0.5, 1.0])
    assert got.log_probs[0].tolist() == pytest.approx([-1.0, (kappa - 2) / 2, (kappa - 3) / 2, -4.0])


def test_cap_zero_is_proxy_and_zero_bonus_is_not_divided_by():
    assert torch.equal(anchor(max_bonus=0.0).log_probs, OLD)
    got = anchor(kappa=-2.5, max_bonus=0.0)  # (-2.5+2) + (-2.5+3) = 0
    assert got.bonus[0].item() == 0.0
    assert got.scale[0].item() == 1.0


def test_success_relaxes_only_successes():
    got = anchor(old=OLD[:1].repeat(2, 1), inserted=INSERTED[:1].repeat(2, 1), relax="success", success=(False, True))
    assert got.bonus.tolist() == pytest.approx([0.0, 0.5])
    assert torch.equal(got.log_probs[0], OLD[0])


def test_sign_flips_are_reported():
    old, inserted = OLD[:1].repeat(5, 1), INSERTED[:1].repeat(5, 1)
    mask = torch.ones_like(inserted)
    kwargs = dict(old=old, inserted=inserted, mask=mask, success=(True,) * 5)
    advantages = (-0.4, -0.5, -0.6, 0.0, 0.4)
    assert anchor(**kwargs, advantages=advantages).flipped.tolist() == [True, True, False, False, False]  # bonus 0.5
    assert anchor(**kwargs, advantages=advantages, kappa=-5.0).flipped.tolist() == [False, False, False, False, True]


def test_masked_inserted_tokens_neither_count_nor_leak():
    old, weights = OLD.clone(), torch.ones_like(OLD)
    mask = MASK.clone()
    mask[0, 2] = mask[1, 0] = False
    old[0, 2], old[1, 0] = math.nan, -math.inf
    weights[0, 2] = math.inf
    got = anchor(old=old, mask=mask, weights=weights)
    assert got.bonus.tolist() == pytest.approx([0.2, 0.0])
    assert got.log_probs[mask].isfinite().all()
    assert got.log_probs[0, 1].item() == 0.0


def test_missing_log_prob_of_a_trained_insertion_is_refused():
    old = OLD.clone()
    old[0, 1] = math.nan
    with pytest.raises(DataError, match=r"rows \[0\]"):
        anchor(old=old)
    with pytest.raises(DataError, match=r"rows \[0\]"):
        anchor(mode="proxy", weights=old)


def test_options_are_checked():
    for kwargs in ({"mode": "kappa"}, {"relax": "never"}, {"length_norm": "sqrt"}):
        with pytest.raises(ValueError, match=next(iter(kwargs))):
            anchor(**kwargs)


def test_half_precision_is_computed_in_single():
    got = anchor(old=OLD.to(torch.bfloat16), kappa=-0.5)
    assert got.log_probs.dtype == torch.bfloat16
    assert got.bonus.dtype == torch.float32
    assert got.bonus[0].item() == pytest.approx(0.4)


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**31),
    kappa=st.floats(-6, 0),
    beta=st.sampled_from([1e-3, 0.1, 2.0]),
    max_bonus=st.sampled_from([0.0, 0.05, 0.5, math.inf]),
    relax=st.sampled_from(["always", "success"]),
    length_norm=st.sampled_from(["none", "mean"]),
)
def test_const_is_proxy_with_the_effective_advantage_for_every_theta(seed, kappa, beta, max_bonus, relax, length_norm):
    gen = torch.Generator().manual_seed(seed)
    old = -5 * torch.rand(4, 6, generator=gen, dtype=torch.float64)
    inserted, mask = torch.rand(4, 6, generator=gen) < 0.3, torch.rand(4, 6, generator=gen) < 0.8
    weights = 0.8 + 0.4 * torch.rand(4, 6, generator=gen, dtype=torch.float64)
    advantages = torch.randn(4, generator=gen, dtype=torch.float64)
    success = torch.rand(4, generator=gen) < 0.5
    setting = dict(kappa=kappa, beta=beta, max_bonus=max_bonus, relax=relax, length_norm=length_norm)
    got = relaxed_anchor(old, inserted, mask, weights, mode="const", advantages=advantages, success=success, **setting)
    assert (got.bonus.abs() <= max_bonus * (1 + 1e-12)).all()
    assert ((got.scale >= 0) & (got.scale <= 1)).all()
    untouched = ~(inserted & mask)
    assert torch.equal(got.log_probs[untouched], old[untouched])
    low, high = old.clamp(max=kappa), old.clamp(min=kappa)
    assert ((got.log_probs >= low - 1e-12) & (got.log_probs <= high + 1e-12))[~untouched].all()

    def gradient(log_probs, advantage, theta):
        theta = theta.clone().requires_grad_()
        loss = regression_loss(
            theta,
            log_probs,
            advantage.unsqueeze(-1).expand(-1, 6),
            mask,
            weights,
            inserted,
            beta=beta,
            loss_scale="reinforce",
            horizon=6,
            length_norm=length_norm,
            global_batch_size=4,
            dp_size=1,
        ).loss
        loss.backward()
        return loss.detach(), theta.grad

    has_tokens = mask.any(-1)
    for theta in (old, old + torch.randn(4, 6, generator=gen, dtype=torch.float64)):
        const, const_grad = gradient(got.log_probs, advantages, theta)
        effective, effective_grad = gradient(old, torch.where(has_tokens, advantages + got.bonus, 0.0), theta)
        assert torch.allclose(const_grad, effective_grad, rtol=1e-9, atol=1e-12)
        assert torch.allclose(const, effective, rtol=1e-9, atol=1e-12)

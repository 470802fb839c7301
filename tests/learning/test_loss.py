import math

import pytest
import torch

from verl_mintrl.learning.loss import finish_metrics, regression_loss

BETA = 0.05


def batch(rows=6, length=5, dtype=torch.float64, seed=0):
    gen = torch.Generator().manual_seed(seed)

    def rand(*shape):
        return torch.rand(*shape, generator=gen, dtype=torch.float64)

    lengths = 1 + torch.randint(0, length, (rows, 1), generator=gen)
    values = dict(
        log_prob=(-3 * rand(rows, length)).to(dtype),
        anchor=(-3 * rand(rows, length)).to(dtype),
        advantages=(2 * rand(rows, 1) - 1).expand(rows, length).clone().to(dtype),
        mask=(torch.arange(length) < lengths) & (rand(rows, length) < 0.9),
        weights=(0.8 + 0.4 * rand(rows, length)).to(dtype),
        inserted=rand(rows, length) < 0.3,
    )
    values["mask"][:, 0] = True
    return values


def call(values, **kwargs):
    defaults = dict(beta=BETA, loss_scale="reinforce", horizon=5, length_norm="none", dp_size=1)
    defaults["global_batch_size"] = max(len(values["mask"]), 1)
    return regression_loss(**values, **(defaults | kwargs))


def loss_and_gradient(values, **kwargs):
    log_prob = values["log_prob"].clone().requires_grad_()
    result = call(values | {"log_prob": log_prob}, **kwargs)
    result.loss.backward()
    return result.loss.item(), log_prob.grad, result.metrics


def test_golden_numbers():
    values = dict(
        log_prob=torch.tensor([[-1.0, -2.0, -0.5], [-0.25, -1.5, -9.0]], dtype=torch.float64),
        anchor=torch.tensor([[-1.5, 0.0, -0.5], [-0.25, -1.0, 9.0]], dtype=torch.float64),
        advantages=torch.tensor([[0.5] * 3, [-0.25] * 3], dtype=torch.float64),
        mask=torch.tensor([[1, 1, 1], [1, 1, 0]]).bool(),
        weights=torch.tensor([[1.0, 0.5, 1.0], [1.0, 1.0, 1.0]], dtype=torch.float64),
        inserted=torch.tensor([[0, 1, 0], [0, 0, 1]]).bool(),
    )
    # residuals: 0.1 * (0.5 - 1.0 + 0) - 0.5 = -0.55 and 0.1 * (0 - 0.5) + 0.25 = 0.2; squares 0.3025 and 0.04
    loss, gradient, metrics = loss_and_gradient(values, beta=0.1, loss_scale="raw")
    assert loss == pytest.approx(0.3425 / 2, abs=1e-15)
    # d/d log_prob = 2 * residual * beta * w / rows
    assert gradient.flatten().tolist() == pytest.approx([-0.055, -0.0275, -0.055, 0.02, 0.02, 0.0], abs=1e-15)
    assert loss_and_gradient(values, beta=0.1, loss_scale="reinforce")[0] == pytest.approx(0.3425 / 2 / 0.2)
    assert loss_and_gradient(values, beta=0.1, loss_scale="horizon", horizon=4)[0] == pytest.approx(0.3425 / 2 / 0.8)
    # length_norm: 0.1 * (-0.5 / 3) - 0.5 and 0.1 * (-0.5 / 2) + 0.25
    normed = loss_and_gradient(values, beta=0.1, loss_scale="raw", length_norm="mean")[0]
    assert normed == pytest.approx(((0.1 * -0.5 / 3 - 0.5) ** 2 + (0.1 * -0.25 + 0.25) ** 2) / 2)

    finish_metrics(metrics)
    assert metrics == pytest.approx(
        {
            "actor/ppo_kl": (-0.5 - 0.0 - 0.0 + 0.5) / 4,
            "actor/regression/residual": (-0.55 + 0.2) / 2,
            "actor/regression/residual_abs": 0.75 / 2,
            "actor/regression/drift": (0.05 - 0.05) / 2,
            "actor/regression/drift_abs_min": 0.05,
            "actor/regression/inserted_log_prob": -2.0,
            "actor/regression/effective_row_share": 1.0,
        }
    )


def test_reinforce_scale_gives_the_policy_gradient_exactly():
    """At theta = pi_t, w = 1, proxy: the gradient is -A* grad log pi(y), through a real softmax policy."""
    gen = torch.Generator().manual_seed(1)
    features = torch.randn(4, 6, 3, generator=gen, dtype=torch.float64)
    table = torch.randn(3, 7, generator=gen, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(0, 7, (4, 6), generator=gen)
    mask = torch.rand(4, 6, generator=gen) < 0.8
    mask[:, 0] = True
    advantages = torch.randn(4, 1, generator=gen, dtype=torch.float64)

    def log_prob():
        return (features @ table).log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)

    old = log_prob().detach()
    ones, nobody = torch.ones_like(old), torch.zeros_like(mask)
    values = dict(advantages=advantages.expand(4, 6), mask=mask, weights=ones, inserted=nobody, anchor=old)
    (got,) = torch.autograd.grad(call(values | {"log_prob": log_prob()}).loss, table)
    (want,) = torch.autograd.grad(-(advantages * (log_prob() * mask).sum(-1, keepdim=True)).sum() / 4, table)
    assert torch.allclose(got, want, rtol=1e-12, atol=1e-14)


def test_scales_multiply_the_loss_and_never_touch_the_residual():
    raw, raw_gradient, raw_metrics = loss_and_gradient(batch(), loss_scale="raw")
    for scale, factor in (("reinforce", 1 / (2 * BETA)), ("horizon", 1 / (2 * BETA * 5))):
        loss, gradient, metrics = loss_and_gradient(batch(), loss_scale=scale)
        assert loss == pytest.approx(raw * factor, rel=1e-12)
        assert torch.allclose(gradient, raw_gradient * factor, rtol=1e-12)
        assert metrics == raw_metrics


@pytest.mark.parametrize("splits", [[6], [3, 3], [2, 2, 1, 1], [1] * 6, [5, 1], [1, 0, 5]])
@pytest.mark.parametrize("length_norm", ["none", "mean"])
def test_micro_batch_splits_do_not_change_loss_or_gradient(splits, length_norm):
    values = batch()
    loss, gradient, _ = loss_and_gradient(values, length_norm=length_norm)
    parts = [torch.split(tensor, splits) for tensor in values.values()]
    results = [
        loss_and_gradient(dict(zip(values, part, strict=True)), length_norm=length_norm, global_batch_size=6)
        for part in zip(*parts, strict=True)
    ]
    assert sum(result[0] for result in results) == pytest.approx(loss, rel=1e-12)
    assert torch.allclose(torch.cat([result[1] for result in results]), gradient, rtol=1e-12)


@pytest.mark.parametrize("dp_size", [2, 3])
def test_ranks_average_to_the_global_loss_and_gradient(dp_size):
    """verl averages gradients over ranks; each rank sees the rows of its share, in uneven micro-batches."""
    values = batch()
    loss, gradient, _ = loss_and_gradient(values)
    shard = 6 // dp_size
    losses, gradients = [], []
    for rank in range(dp_size):
        rows = [slice(rank * shard, rank * shard + 1), slice(rank * shard + 1, (rank + 1) * shard)]
        for part in rows:
            micro = {name: tensor[part] for name, tensor in values.items()}
            result = loss_and_gradient(micro, global_batch_size=6, dp_size=dp_size)
            losses.append(result[0] / dp_size)
            gradients.append(result[1] / dp_size)
    assert sum(losses) == pytest.approx(loss, rel=1e-12)
    assert torch.allclose(torch.cat(gradients), gradient, rtol=1e-12)


@pytest.mark.parametrize("shape", [(0, 5), (0, 0), (3, 0)])
def test_batches_without_tokens_are_zero_and_connected(shape):
    empty = torch.zeros(shape)
    values = dict.fromkeys(("log_prob", "anchor", "advantages", "weights"), empty)
    values |= dict(mask=empty.bool(), inserted=empty.bool())
    loss, gradient, _ = loss_and_gradient(values)
    assert loss == 0.0
    assert gradient.shape == shape


def test_fully_masked_micro_batch_is_zero_and_connected():
    values = batch()
    values["mask"] = torch.zeros_like(values["mask"])
    loss, gradient, metrics = loss_and_gradient(values)
    assert loss == 0.0
    assert not gradient.any()
    assert all(math.isfinite(value) for value in metrics.values())


def test_empty_row_adds_nothing_beside_full_ones():
    values = batch()
    values["mask"][2] = False
    loss, gradient, _ = loss_and_gradient(values, global_batch_size=6)
    rest = {name: torch.cat([tensor[:2], tensor[3:]]) for name, tensor in values.items()}
    assert loss == pytest.approx(loss_and_gradient(rest, global_batch_size=6)[0], rel=1e-12)
    assert not gradient[2].any()


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("length_norm", ["none", "mean"])
def test_what_is_under_the_mask_does_not_leak(poison, length_norm):
    values = batch()
    values["mask"][1, 0] = False  # the advantage is then read further right
    values["mask"][3] = False
    clean = loss_and_gradient(values, length_norm=length_norm)
    hidden = ~values["mask"]
    poisoned = dict(values)
    for name in ("log_prob", "anchor", "weights", "advantages"):
        poisoned[name] = values[name].masked_fill(hidden, poison)
    loss, gradient, metrics = loss_and_gradient(poisoned, length_norm=length_norm)
    assert loss == clean[0]
    assert torch.equal(gradient, clean[1])
    assert not gradient[hidden].any()
    assert metrics == clean[2]


def test_gradient_through_a_network_survives_poison_under_the_mask():
    """The gradient that leaves the loss at masked tokens is exactly 0, so finite logits behind them stay finite."""
    logits = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    log_prob = logits.log_softmax(-1)[..., 0]
    log_prob = log_prob + torch.tensor([0.0, math.nan, 0.0], dtype=torch.float64)
    mask = torch.tensor([[1, 0, 1]] * 2).bool()
    values = dict(log_prob=log_prob, anchor=torch.zeros(2, 3), advantages=torch.ones(2, 3), mask=mask)
    call(values | dict(weights=torch.ones(2, 3), inserted=~mask)).loss.backward()
    assert logits.grad.isfinite().all()
    assert not logits.grad[:, 1].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gap", [80.0, -80.0])
def test_extreme_log_ratios_stay_finite(dtype, gap):
    shape = (2, 4096)
    values = dict(
        log_prob=torch.full(shape, min(gap, 0.0), dtype=dtype),
        anchor=torch.full(shape, min(-gap, 0.0), dtype=dtype),
        advantages=torch.ones(shape, dtype=dtype),
        mask=torch.ones(shape).bool(),
        weights=torch.ones(shape, dtype=dtype),
        inserted=torch.zeros(shape).bool(),
    )
    loss, gradient, metrics = loss_and_gradient(values, beta=1.0, loss_scale="raw")
    assert loss == pytest.approx((gap * 4096 - 1) ** 2, rel=1e-5)
    assert gradient.isfinite().all()
    assert all(math.isfinite(value) for value in metrics.values())


def test_half_precision_agrees_with_single():
    values = batch(rows=8, length=64, dtype=torch.bfloat16)
    half = loss_and_gradient(values, beta=1e-3)
    single = loss_and_gradient({k: v.float() if v.is_floating_point() else v for k, v in values.items()}, beta=1e-3)
    assert half[0] == pytest.approx(single[0], rel=1e-6)  # same numbers in, sums in float32 both times
    assert half[1].dtype == torch.bfloat16
    assert torch.allclose(half[1].float(), single[1], rtol=1e-2)
    assert half[2] == pytest.approx(single[2], rel=1e-6)
    assert call(values).loss.dtype == torch.float32
    assert call(batch()).loss.dtype == torch.float64


def test_half_weight_on_known_tokens_halves_their_gradient_and_moves_the_residual():
    values = batch(rows=1)
    values["mask"][:] = True
    values["anchor"] = values["log_prob"] - 0.1
    values["weights"] = torch.ones_like(values["weights"])
    values["weights"][0, 1:3] = 0.5
    residual = BETA * 0.1 * (3 + 2 * 0.5) - values["advantages"][0, 0].item()
    _, gradient, _ = loss_and_gradient(values)
    expected = residual * torch.tensor([1.0, 0.5, 0.5, 1.0, 1.0], dtype=torch.float64)
    assert torch.allclose(gradient[0], expected, rtol=1e-10)


def test_anchor_weights_and_advantages_get_no_gradient():
    values = batch()
    for name in ("log_prob", "anchor", "advantages", "weights"):
        values[name] = values[name].clone().requires_grad_()
    call(values).loss.backward()
    assert values["log_prob"].grad is not None
    assert all(values[name].grad is None for name in ("anchor", "advantages", "weights"))


def micro_batches():
    full, masked, policy_only = batch(), batch(seed=1), batch(seed=2)
    masked["mask"] = torch.zeros_like(masked["mask"])
    policy_only["inserted"] = torch.zeros_like(policy_only["inserted"])
    return [full, masked, policy_only, {name: tensor[:0] for name, tensor in full.items()}]


def test_metric_keys_are_the_same_from_every_micro_batch_and_values_are_detached_floats():
    results = [call(values | {"log_prob": values["log_prob"].requires_grad_()}).metrics for values in micro_batches()]
    assert all(list(metrics) == list(results[0]) for metrics in results)
    assert all(type(value) is float for metrics in results for value in metrics.values())


def test_metric_names_pick_the_reduction_they_mean():
    """verl reduces by substring; ``drift_abs_min`` is the one that means it, and "mintrl" would be read as min."""
    emitted = dict(call(batch()).metrics)
    finished = dict(emitted)
    finish_metrics(finished)
    for name in [*emitted, *finished]:
        assert name.startswith("actor/")
        reductions = [word for word in ("min", "max", "sum", "total") if word in name]
        assert reductions == (["min"] if name == "actor/regression/drift_abs_min" else [])


def test_finished_means_do_not_depend_on_the_split():
    whole = batch(rows=12)
    whole["inserted"][6:] = False  # half of the micro-batches have no inserted token
    whole["mask"][11] = False
    expected = dict(call(whole).metrics)
    finish_metrics(expected)
    parts = [
        {name: tensor[rows] for name, tensor in whole.items()} for rows in (slice(0, 5), slice(5, 6), slice(6, 12))
    ]
    emitted = [call(part).metrics for part in parts]
    averaged = {name: sum(metrics[name] for metrics in emitted) / len(emitted) for name in emitted[0]}
    finish_metrics(averaged)
    del averaged["actor/regression/drift_abs_min"], expected["actor/regression/drift_abs_min"]
    assert averaged == pytest.approx(expected, rel=1e-10)
    hidden = whole["mask"] & whole["inserted"]
    assert averaged["actor/regression/inserted_log_prob"] == pytest.approx(whole["log_prob"][hidden].mean().item())
    assert averaged["actor/regression/effective_row_share"] == pytest.approx(11 / 12)


def test_finishing_leaves_out_means_over_nothing_and_ignores_other_losses():
    metrics = call(micro_batches()[1]).metrics
    finish_metrics(metrics)
    assert metrics == {"actor/regression/effective_row_share": 0.0, "actor/regression/drift_abs_min": 0.0}
    other = {"actor/ppo_kl": 0.5, "actor/pg_clipfrac": 0.1}
    finish_metrics(other)
    assert other == {"actor/ppo_kl": 0.5, "actor/pg_clipfrac": 0.1}


def test_drift_reads_policy_tokens_only_and_vanishes_at_the_old_policy():
    values = batch()
    values["anchor"] = torch.where(values["inserted"], 0.0, values["log_prob"])
    metrics = call(values).metrics
    finish_metrics(metrics)
    assert metrics["actor/regression/drift"] == 0.0
    assert metrics["actor/regression/drift_abs_min"] == 0.0
    assert metrics["actor/ppo_kl"] == 0.0


def test_unknown_options_are_refused():
    for kwargs in ({"loss_scale": "token-mean"}, {"length_norm": "sqrt"}):
        with pytest.raises(ValueError, match=next(iter(kwargs))):
            call(batch(), **kwargs)

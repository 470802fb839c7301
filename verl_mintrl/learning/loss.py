"""The objective ``intervention_regression``: sequence-level advantage regression, no importance ratio, no clipping.

Source: arXiv 2609.12419, Eq. 7-10: (beta * log(pi_theta(y|x) / pi_anchor(y|x)) - A*)^2, pi_anchor from Eq. 11
(:mod:`verl_mintrl.learning.anchor`). beta, ``loss_scale``, ``length_norm`` and the token weights inside the sum are
[inf].
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch

LossScale = Literal["horizon", "reinforce", "raw"]
LengthNorm = Literal["none", "mean"]

_PREFIX = "actor/regression/"
_SUFFIX = "_per_micro_batch"

#: readable name -> (accumulator, count it is divided by); see :func:`finish_metrics`
_RATIOS = {
    "actor/ppo_kl": ("policy_kl", "policy_tokens"),
    "actor/regression/residual": ("residual", "effective_rows"),
    "actor/regression/residual_abs": ("residual_abs", "effective_rows"),
    "actor/regression/drift": ("drift", "effective_rows"),
    "actor/regression/inserted_log_prob": ("inserted_log_prob", "inserted_tokens"),
    "actor/regression/effective_row_share": ("effective_rows", "rows"),
}


@dataclass(frozen=True)
class RegressionLoss:
    """Result of :func:`regression_loss`.

    Attributes:
        loss: scalar with gradient, this micro-batch's part of the global batch's loss.
        metrics: python floats, the same keys from every micro-batch. Names ending in ``_per_micro_batch`` are
            accumulated over the micro-batch; see :func:`finish_metrics`.
    """

    loss: torch.Tensor
    metrics: dict[str, float]


def regression_loss(
    log_prob: torch.Tensor,
    anchor: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    weights: torch.Tensor,
    inserted: torch.Tensor,
    *,
    beta: float,
    loss_scale: LossScale,
    horizon: int,
    length_norm: LengthNorm,
    global_batch_size: int,
    dp_size: int,
) -> RegressionLoss:
    """Squared residual of every row, summed over the micro-batch's rows and divided by the global batch.

        residual_i = beta * sum_t w_t * (log pi_theta(y_t) - anchor_t) - A*_i
        loss       = sum_i residual_i^2 * scale / global_batch_size * dp_size

    as verl's seq-mean modes do it, so that the gradient depends neither on the split into micro-batches nor on the
    number of ranks (verl averages gradients over them). A row without unmasked tokens contributes exactly 0, to the
    gradient too, and stays connected to the graph; it counts in ``global_batch_size``. Values under the mask are never
    read. Computed in float32, or float64 if ``log_prob`` is.

    Args:
        log_prob: (B, T) log pi_theta in nats, with gradient.
        anchor: (B, T) nats; log pi_t for policy tokens.
        advantages: (B, T) A* broadcast over the row, in reward units, read at the first unmasked token.
        mask: (B, T) bool, trained tokens.
        weights: (B, T) w_t.
        inserted: (B, T) bool, written by the corrector; decides metrics only.
        beta: reward units per nat, > 0.
        loss_scale: "horizon" 1 / (2 beta L): gradients have the size of a token mean; "reinforce" 1 / (2 beta): at
            theta = pi_t, w = 1, "proxy", the gradient is exactly -A* grad log pi_theta(y); "raw" 1. It scales the loss,
            never the residual.
        horizon: L in tokens, used by "horizon".
        length_norm: "mean" divides the sum inside the residual by the row's unmasked tokens, and so changes what beta
            means.
        global_batch_size: rows of the global batch over all ranks, padding included.
        dp_size: data-parallel ranks.

    Raises:
        ValueError: unknown ``loss_scale`` or ``length_norm``.
    """
    dtype = torch.promote_types(log_prob.dtype, torch.float32)
    mask, inserted = mask.bool(), inserted.bool()

    def unmasked(values: torch.Tensor, where: torch.Tensor = mask) -> torch.Tensor:
        return torch.where(where, values.to(dtype), 0.0)  # before any arithmetic: nan * 0 is nan

    log_ratio = unmasked(log_prob) - unmasked(anchor.detach())
    weighted = unmasked(weights.detach()) * log_ratio
    first = mask & (mask.cumsum(-1) == 1)
    advantage = unmasked(advantages.detach(), first).sum(-1)
    residual = beta * normalise_length(weighted.sum(-1), mask, length_norm) - advantage
    loss = residual.square().sum() * _scale(loss_scale, beta, horizon) / global_batch_size * dp_size

    with torch.no_grad():
        policy, corrector = mask & ~inserted, mask & inserted
        drift = beta * normalise_length(unmasked(weighted, policy).sum(-1), mask, length_norm)
        effective_rows = mask.any(-1).sum()
        accumulated = {
            "rows": torch.tensor(len(mask)),
            "effective_rows": effective_rows,
            "policy_tokens": policy.sum(),
            "inserted_tokens": corrector.sum(),
            "residual": residual.sum(),
            "residual_abs": residual.abs().sum(),
            "drift": drift.sum(),
            "policy_kl": -unmasked(log_ratio, policy).sum(),
            "inserted_log_prob": unmasked(log_prob, corrector).sum(),
        }
        named = {f"{_PREFIX}{name}{_SUFFIX}": value for name, value in accumulated.items()}
        named[f"{_PREFIX}drift_abs_min"] = drift.abs().sum() / effective_rows.clamp(min=1)
        values = torch.stack([value.to(mask.device, torch.float64) for value in named.values()]).tolist()
    return RegressionLoss(loss=loss, metrics=dict(zip(named, values, strict=True)))


def finish_metrics(metrics: MutableMapping[str, float]) -> None:
    """Turn the reduced accumulators of :func:`regression_loss` into readable means, in place, on the driver.

    verl averages what a loss emits over micro-batches, ranks and mini-batches with equal weights, so a mean over
    inserted tokens would be pulled towards 0 by every micro-batch that has none. Accumulators and counts pass through
    that average unharmed, and their quotient is the mean over tokens (or rows). Accumulators are removed; a mean over
    nothing is left out; without accumulators (another loss, no update in this step) nothing happens.

    Adds (row = row with an unmasked token):

    - ``actor/ppo_kl``: k1 estimate of KL(pi_t || pi_theta) in nats per **policy** token, where the anchor is log pi_t;
    - ``actor/regression/residual``, ``.../residual_abs``: mean per row, reward units;
    - ``actor/regression/drift``: policy tokens' part of the residual's sum, ``beta * sum w (log pi_theta - log pi_t)``,
      per row;
    - ``actor/regression/inserted_log_prob``: mean log pi_theta over trained inserted tokens, nats;
    - ``actor/regression/effective_row_share``: rows with an unmasked token over all rows, padding included.

    ``actor/regression/drift_abs_min`` is final as emitted: mean abs(drift) per row, of which verl takes the smallest
    over the mini-batches of the step because of its name. The first mini-batch is trained at theta = pi_t, so it must
    be about 0; anything else says that ``old_log_probs`` are not those of the trained policy.
    """
    for name, (above, below) in _RATIOS.items():
        count = metrics.get(f"{_PREFIX}{below}{_SUFFIX}", 0.0)
        if count > 0:
            metrics[name] = metrics[f"{_PREFIX}{above}{_SUFFIX}"] / count
    for name in [name for name in metrics if name.startswith(_PREFIX) and name.endswith(_SUFFIX)]:
        del metrics[name]


def normalise_length(sums: torch.Tensor, mask: torch.Tensor, length_norm: LengthNorm) -> torch.Tensor:
    """(B,) sums over unmasked tokens, as they stand ("none") or divided by the number of unmasked tokens ("mean")."""
    if length_norm not in get_args(LengthNorm):
        raise ValueError(f"length_norm is {length_norm!r}, expected one of {get_args(LengthNorm)}")
    return sums / mask.sum(-1).clamp(min=1) if length_norm == "mean" else sums


def _scale(loss_scale: LossScale, beta: float, horizon: int) -> float:
    if loss_scale == "horizon":
        return 1 / (2 * beta * horizon)
    if loss_scale == "reinforce":
        return 1 / (2 * beta)
    if loss_scale == "raw":
        return 1.0
    raise ValueError(f"loss_scale is {loss_scale!r}, expected one of {get_args(LossScale)}")

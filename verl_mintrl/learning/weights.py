"""Per-token weights of inserted tokens, and the one column in which weight and author travel to the worker.

verl passes a registered policy loss only old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config and
rollout_is_weights. Weights are always > 0, so the author of a token travels in the **sign** of the weight column:
negative means corrector. Only ``intervention_regression`` reads it that way; verl's own losses multiply by the column
and must be given the plain weights.
"""

from __future__ import annotations

import torch

from verl_mintrl.errors import DataError


@torch.no_grad()
def steering_weights(log_cal: torch.Tensor, log_roll: torch.Tensor, eps: float) -> torch.Tensor:
    """Steering ratio ``clip(exp(log_cal - log_roll), 1 - eps, 1 + eps)`` of inserted tokens, without gradient.

    Source: RTI (arXiv 2610.13438), inferred form [inf]. An exponential that overflows is
    clipped like any other.

    Args:
        log_cal: (...) log-probs in nats of the tokens under the policy conditioned on the correction context.
        log_roll: (...) the same tokens under the policy in the original observable context.
        eps: half-width of the clip, 0 <= eps < 1 ([inf] 0.2).

    Returns:
        (...) weights in [1 - eps, 1 + eps], all > 0; float32, or float64 if an input is.

    Raises:
        DataError: a difference is not a number (a token was not scored).
        ValueError: ``eps`` out of range.
    """
    if not 0 <= eps < 1:
        raise ValueError(f"eps is {eps!r}, expected 0 <= eps < 1: a weight has to stay positive")
    dtype = torch.promote_types(torch.promote_types(log_cal.dtype, log_roll.dtype), torch.float32)
    difference = log_cal.to(dtype) - log_roll.to(dtype)
    if torch.isnan(difference).any():
        raise DataError(
            f"{int(torch.isnan(difference).sum())} of {difference.numel()} inserted tokens have no usable log-prob.",
            "score every inserted token in both contexts, or leave its weight at 1",
        )
    return difference.exp().clamp(1 - eps, 1 + eps)


def pack_weights(weights: torch.Tensor, inserted: torch.Tensor) -> torch.Tensor:
    """Put weight and author into one column: ``-weight`` for inserted tokens, ``+weight`` for all others.

    Args:
        weights: (...) finite and > 0; masked tokens too (leave them at 1).
        inserted: (...) bool, written by the corrector.

    Raises:
        DataError: a weight is not a finite number > 0, which would lose the author.
    """
    if not ((weights > 0) & torch.isfinite(weights)).all():
        raise DataError(
            "token weights must be finite and > 0, their sign carries the author of the token.",
            "leave the weight of masked tokens at 1",
        )
    return torch.where(inserted.bool(), -weights, weights)


def unpack_weights(column: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Inverse of :func:`pack_weights`: (weights, inserted). Zeros, verl's padding, become weight 0, not inserted."""
    return column.abs(), column < 0

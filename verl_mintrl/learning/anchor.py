"""The anchor: what the regression takes for the log-prob of each token under the policy that produced it.

Source: arXiv 2609.12419, Eq. 11. Policy tokens: log pi_t. Corrector tokens: log pi_t ("proxy") or a constant kappa
("const"). The value of kappa, the cap and ``relax`` are [inf].

Identity: with ``bonus = beta * sum_{t in I} w_t * s * (kappa - log pi_t)``, the residual under "const" is, for every
theta,

    beta * sum_t w_t * (log pi_theta - anchor_t) - A*  =  beta * sum_t w_t * (log pi_theta - log pi_t) - (A* + bonus)

so "const" is "proxy" with the effective advantage A* + bonus **on the whole session**, policy tokens included. It
teaches where A* = 0, and where ``|bonus| > |A*|`` with opposite signs it turns the session's direction round
(``flipped``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from verl_mintrl.errors import DataError
from verl_mintrl.learning.loss import LengthNorm, normalise_length

AnchorMode = Literal["proxy", "const"]
Relax = Literal["always", "success"]


@dataclass(frozen=True)
class Anchor:
    """Result of :func:`relaxed_anchor`; N sessions of at most T response tokens.

    Attributes:
        log_probs: (N, T) the anchor, in nats; equal to ``old_log_probs`` wherever nothing was relaxed, masked tokens
            included.
        bonus: (N,) added to A* by the relaxation, after the cap, in reward units; 0 where nothing was relaxed.
        scale: (N,) the factor s in [0, 1] by which the cap shrank the relaxation; 1 where it did not bind.
        flipped: (N,) bool, sign(A* + bonus) differs from sign(A*), A* not 0.
    """

    log_probs: torch.Tensor
    bonus: torch.Tensor
    scale: torch.Tensor
    flipped: torch.Tensor


def relaxed_anchor(
    old_log_probs: torch.Tensor,
    inserted: torch.Tensor,
    mask: torch.Tensor,
    weights: torch.Tensor,
    *,
    mode: AnchorMode,
    kappa: float,
    beta: float,
    max_bonus: float,
    relax: Relax,
    length_norm: LengthNorm,
    advantages: torch.Tensor,
    success: torch.Tensor,
) -> Anchor:
    """Anchor of every token; the relaxation of each session is capped to ``max_bonus`` (reward units, either sign).

    Args:
        old_log_probs: (N, T) log pi_t, verl's recomputed ``old_log_probs``.
        inserted: (N, T) bool, written by the corrector.
        mask: (N, T) bool, trained on; values outside it are neither read nor changed.
        weights: (N, T) token weights w_t, the ones the loss uses.
        mode: "proxy" relaxes nothing, "const" moves inserted tokens to (or, capped, towards) ``kappa``.
        kappa: log-prob in nats given to inserted tokens.
        beta: the regression's beta.
        max_bonus: cap on |bonus|, >= 0 (0 makes "const" equal to "proxy", inf switches the cap off).
        relax: "always", or "success": only sessions marked in ``success``.
        length_norm: the regression's; "mean" divides the bonus as it divides the sum in the residual, so that the
            identity above holds and the cap acts on what the loss sees.
        advantages: (N,) A*.
        success: (N,) bool.

    Raises:
        DataError: log pi_t or the weight of a trained inserted token is not finite.
        ValueError: unknown ``mode`` or ``relax``.
    """
    if mode not in get_args(AnchorMode):
        raise ValueError(f"mode is {mode!r}, expected one of {get_args(AnchorMode)}")
    if relax not in get_args(Relax):
        raise ValueError(f"relax is {relax!r}, expected one of {get_args(Relax)}")
    mask, inserted = mask.bool(), inserted.bool()
    chosen = inserted & mask
    broken = (chosen & ~(torch.isfinite(old_log_probs) & torch.isfinite(weights))).any(-1)
    if broken.any():
        rows = broken.nonzero().flatten().tolist()
        raise DataError(
            f"inserted tokens of rows {rows} have a non-finite log-prob or weight.",
            "old_log_probs must be recomputed for every trained token, whoever wrote it",
        )
    if mode == "proxy":
        chosen = torch.zeros_like(chosen)
    elif relax == "success":
        chosen = chosen & success.bool().unsqueeze(-1)

    dtype = torch.promote_types(old_log_probs.dtype, torch.float32)
    gap = torch.where(chosen, kappa - old_log_probs.to(dtype), 0.0)
    weighted = torch.where(chosen, weights.to(dtype), 0.0) * gap
    uncapped = beta * normalise_length(weighted.sum(-1), mask, length_norm)
    over = uncapped.abs() > max_bonus
    scale = torch.where(over, max_bonus / torch.where(over, uncapped.abs(), 1.0), 1.0)
    old = old_log_probs.to(dtype)
    relaxed = torch.lerp(old, torch.full_like(old, kappa), scale.unsqueeze(-1))  # exact at both ends
    log_probs = torch.where(chosen, relaxed.to(old_log_probs.dtype), old_log_probs)
    bonus = scale * uncapped
    advantages = advantages.to(dtype)
    flipped = (advantages != 0) & (torch.sign(advantages + bonus) != torch.sign(advantages))
    return Anchor(log_probs=log_probs, bonus=bonus, scale=scale, flipped=flipped)

"""From the rows of one update to what the loss reads: advantages, anchor and weights. Pure torch.

The same function serves verl's trainer and any in-process loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from verl_mintrl.config.schema import InterventionConfig
from verl_mintrl.learning.advantage import ControlAdvantage, control_advantage
from verl_mintrl.learning.anchor import Anchor, relaxed_anchor
from verl_mintrl.learning.weights import pack_weights
from verl_mintrl.trajectory.spans import Author


@dataclass(frozen=True)
class Rows:
    """N sessions of at most T response tokens, padding rows of verl included.

    Attributes:
        uids: group of each row.
        rewards: (N,) outcome reward.
        baseline_rewards: (N,) reward before a session was replaced by its edited version; V is taken from these.
        old_log_probs: (N, T) log pi_t in nats, recomputed by the actor for every token.
        mask: (N, T) bool, trained tokens.
        authors: (N, T) :class:`Author` values, 0 beyond the response.
        weights: (N, T) token weights, 1 beyond the response.
        is_control: (N,) bool.
        included: (N,) bool; false for masked sessions and padding, which leave every baseline.
    """

    uids: Sequence[str]
    rewards: torch.Tensor
    baseline_rewards: torch.Tensor
    old_log_probs: torch.Tensor
    mask: torch.Tensor
    authors: torch.Tensor
    weights: torch.Tensor
    is_control: torch.Tensor
    included: torch.Tensor

    @property
    def inserted(self) -> torch.Tensor:
        """(N, T) bool, written by the corrector."""
        return self.authors == int(Author.CORRECTOR)


@dataclass(frozen=True)
class Targets:
    """What the loss reads, and what the metrics tell about it.

    Attributes:
        advantages: (N, T) A* on trained tokens, 0 elsewhere.
        anchor: the (relaxed) log-probs, see :class:`Anchor`.
        weight_column: (N, T) weights with the author in the sign, see :func:`pack_weights`; plain steering weights for verl's own
            losses; None where no token has a weight of its own, which is stock verl.
        control: result of the control estimator, None with verl's own.
    """

    advantages: torch.Tensor
    anchor: Anchor
    weight_column: torch.Tensor | None
    control: ControlAdvantage | None


def build_targets(
    rows: Rows, config: InterventionConfig, *, group_advantages: torch.Tensor, regression: bool
) -> Targets:
    """Advantages, anchor and weights of one update.

    Args:
        rows: the update's rows.
        config: the ``intervention:`` node.
        group_advantages: (N, T) verl's own advantages, used unless the estimator is ``control``.
        regression: whether the objective is ``intervention_regression``; verl's own losses know no anchor.

    Raises:
        DataError: a non-finite reward, or an inserted token without a finite log pi_t.
    """
    mask = rows.mask.bool()
    control = None
    advantages = group_advantages
    if config.advantage.estimator == "control":
        control = control_advantage(
            rows.rewards,
            rows.uids,
            rows.is_control,
            rows.included,
            v_mode=config.advantage.v_mode,  # type: ignore[arg-type]
            beta1=config.advantage.beta1,
            baseline_rewards=rows.baseline_rewards,
        )
        advantages = control.advantages.unsqueeze(-1) * mask
    anchor = relaxed_anchor(
        rows.old_log_probs,
        rows.inserted,
        mask,
        rows.weights,
        mode=config.anchor.mode if regression else "proxy",  # type: ignore[arg-type]
        kappa=config.anchor.kappa,
        beta=config.objective.beta,
        max_bonus=config.anchor.max_bonus,
        relax=config.anchor.relax,  # type: ignore[arg-type]
        length_norm=config.objective.length_norm,  # type: ignore[arg-type]
        advantages=(advantages * mask).sum(-1) / mask.sum(-1).clamp(min=1),
        success=rows.rewards > config.success_threshold,
    )
    column = None
    if regression:
        column = pack_weights(rows.weights, rows.inserted & mask)
    elif config.token_weights.mode == "steering":
        column = rows.weights
    return Targets(advantages, anchor, column, control)

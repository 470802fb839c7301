"""Registers ``intervention_regression`` as a policy loss of verl; importing this module is what registers it.

Leans on verl:

- ``verl.trainer.ppo.core_algos.register_policy_loss`` and the keyword call in ``verl.workers.utils.losses.ppo_loss``:
  old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights;
- ``ActorConfig.global_batch_info`` (``dp_size``, ``global_batch_size``), filled by ``ppo_loss`` before the call,
  ``ActorConfig.policy_loss`` and ``ActorConfig.loss_scale_factor``;
- ``ppo_loss`` averages the returned metrics (``Metric.from_dict(..., AggregationType.MEAN)``) and sums the returned
  loss over micro-batches.

What travels in which argument: the anchor in ``old_log_prob`` (the trainer writes it there), A* in ``advantages``,
weight and author of each token in ``rollout_is_weights`` (:func:`verl_mintrl.learning.weights.pack_weights`).
"""

from __future__ import annotations

from typing import Any

import torch
from verl.trainer.ppo.core_algos import register_policy_loss

from verl_mintrl.config.loss import InterventionLossConfig
from verl_mintrl.errors import ConfigError, DataError
from verl_mintrl.learning.loss import regression_loss
from verl_mintrl.learning.weights import unpack_weights

LOSS_NAME = "intervention_regression"


@register_policy_loss(LOSS_NAME)
def intervention_regression(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "seq-mean-token-sum",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, dict[str, float]]:
    """One micro-batch of the objective, all tensors (B, T); see :func:`verl_mintrl.learning.loss.regression_loss`.

    ``loss_agg_mode`` is not used: a session is one residual, whatever the mode of verl's entropy and KL terms.

    Returns:
        the loss, scaled for the global batch as verl's seq-mean modes are, and its metrics.

    Raises:
        ConfigError: the policy loss config is not ours, the weight column is missing, or the size of the batch is
            unknown.
        DataError: a trained token has no weight.
    """
    policy_loss = getattr(config, "policy_loss", None)
    if not isinstance(policy_loss, InterventionLossConfig):
        raise ConfigError(
            f"actor_rollout_ref.actor.policy_loss is a {type(policy_loss).__name__}, "
            f"loss_mode {LOSS_NAME} needs an InterventionLossConfig.",
            "set actor_rollout_ref.actor.policy_loss._target_: verl_mintrl.config.loss.InterventionLossConfig",
        )
    if rollout_is_weights is None:
        raise ConfigError(
            f"loss_mode {LOSS_NAME} got no rollout_is_weights column, which carries weight and author of each token.",
            "set trainer.v1.trainer_mode: intervention_sync, whose trainer writes it",
        )
    global_batch_size = config.global_batch_info.get("global_batch_size")
    if not global_batch_size:
        raise ConfigError(
            f"loss_mode {LOSS_NAME} needs the global batch size, got {global_batch_size!r}.",
            "train with a trainer that passes global_batch_size to update_actor",
        )
    mask = response_mask.bool()
    weights, inserted = unpack_weights(rollout_is_weights)
    if (mask & ~((weights > 0) & torch.isfinite(weights))).any():
        raise DataError(
            "a trained token has weight 0 or none in the rollout_is_weights column.",
            "the column must be as long as the response in every row; build it with pack_weights",
        )
    result = regression_loss(
        log_prob=log_prob,
        anchor=old_log_prob,
        advantages=advantages,
        mask=mask,
        weights=weights,
        inserted=inserted,
        beta=policy_loss.beta,
        loss_scale=policy_loss.loss_scale,  # type: ignore[arg-type]  # checked by the config
        horizon=config.loss_scale_factor or policy_loss.horizon,
        length_norm=policy_loss.length_norm,  # type: ignore[arg-type]  # checked by the config
        global_batch_size=global_batch_size,
        dp_size=config.global_batch_info.get("dp_size", 1),
    )
    return result.loss, result.metrics

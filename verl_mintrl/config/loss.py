"""How the regression's settings reach verl's workers: a ``_target_`` subclass, as verl's PolicyLossConfig is closed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

from omegaconf import MISSING
from verl.workers.config import PolicyLossConfig

from verl_mintrl.errors import ConfigError
from verl_mintrl.learning.loss import LengthNorm, LossScale


@dataclass
class InterventionLossConfig(PolicyLossConfig):
    """``actor_rollout_ref.actor.policy_loss`` for ``loss_mode: intervention_regression``.

    Values are interpolated from ``intervention.objective``, their one home (``horizon``: from the rollout), so errors
    name that key. What is applied on the driver (kappa, cap, relax) is not here. Field types are plain because
    OmegaConf knows no literals.

    Attributes:
        loss_mode: name under which :mod:`verl_mintrl.objective` registers the loss.
        beta: reward units per nat, > 0 ([inf] 1e-3, the scale of A*-PO and OAPL).
        loss_scale: "horizon", "reinforce" or "raw", see :func:`verl_mintrl.learning.loss.regression_loss`.
        horizon: response length limit in tokens; recipes interpolate ``actor_rollout_ref.rollout.response_length``.
        length_norm: "none" or "mean".

    Raises:
        ConfigError: a value out of range.
    """

    loss_mode: str = "intervention_regression"
    beta: float = 1e-3
    loss_scale: str = "horizon"
    horizon: int = MISSING
    length_norm: str = "none"

    def __post_init__(self) -> None:
        if not _is_number(self.beta) or not (0 < self.beta < math.inf):
            raise _error("beta", self.beta, "a finite number > 0")
        if self.loss_scale not in get_args(LossScale):
            raise _error("loss_scale", self.loss_scale, f"one of {', '.join(get_args(LossScale))}")
        if not isinstance(self.horizon, int) or isinstance(self.horizon, bool) or self.horizon < 1:
            raise ConfigError(
                f"actor_rollout_ref.actor.policy_loss.horizon is {self.horizon!r}, expected a number of tokens >= 1.",
                "interpolate it: ${actor_rollout_ref.rollout.response_length}",
            )
        if self.length_norm not in get_args(LengthNorm):
            raise _error("length_norm", self.length_norm, f"one of {', '.join(get_args(LengthNorm))}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _error(field: str, value: object, expected: str) -> ConfigError:
    key = f"intervention.objective.{field}"
    return ConfigError(f"{key} is {value!r}, expected {expected}.", f"change {key}")

"""When to intervene: a schedule computed from the step.

Source: arXiv 2609.12419 intervenes during the first 200 of 500 updates. ``decay`` is ours [inf].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from verl_mintrl.errors import ConfigError

Decay = Literal["none", "linear", "cosine"]


@dataclass(frozen=True)
class Schedule:
    """Share of the non-control sessions that may be intervened on, as a function of the global step. Holds no state.

    Attributes:
        stop_after_updates: last update with interventions (0: none at all); ``None``: never stop.
        decay: how the share falls from 1 at update 1 to 0 at ``stop_after_updates``; "none" keeps it at 1 until then.

    Raises:
        ConfigError: a negative stop, an unknown decay, or a decay without room to fall.
    """

    stop_after_updates: int | None
    decay: Decay = "none"

    def __post_init__(self) -> None:
        if self.decay not in get_args(Decay):
            raise ConfigError(f"intervention.schedule.decay is {self.decay!r}, expected one of {get_args(Decay)}.")
        stop = self.stop_after_updates
        if stop is not None and stop < 0:
            raise ConfigError(
                f"intervention.schedule.stop_after_updates is {stop}, expected a number of updates >= 0.",
                "null never stops, 0 never intervenes",
            )
        if self.decay != "none" and (stop is None or stop < 2):
            raise ConfigError(
                f"intervention.schedule.decay is {self.decay!r} but stop_after_updates is {stop}.",
                "set intervention.schedule.stop_after_updates to the update (>= 2) at which the share reaches 0",
            )

    def share(self, step: int) -> float:
        """Share in [0, 1] at the 1-based global step; steps before the first count as the first."""
        step = max(step, 1)
        stop = self.stop_after_updates
        if stop is None:
            return 1.0
        if step > stop:
            return 0.0
        if self.decay == "none":
            return 1.0
        left = (stop - step) / (stop - 1)
        return left if self.decay == "linear" else (1 - math.cos(math.pi * left)) / 2

    def active(self, step: int) -> bool:
        """Whether any session may be intervened on at this step."""
        return self.share(step) > 0

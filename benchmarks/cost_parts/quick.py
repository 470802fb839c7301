"""A replay buffer that a run's config names, ``trainer.v1.sampler.custom_sampler``."""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from verl_mintrl.trainer import POLL_INTERVAL


class Quick(ReplayBuffer):
    """Stock, but looks into the queue as often as the plugin's trainer does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.poll_interval = POLL_INTERVAL

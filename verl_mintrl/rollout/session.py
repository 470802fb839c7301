"""What the worker hands to one session through the agent loop's keyword arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from verl_mintrl.rollout.group import Group
from verl_mintrl.rollout.periodic import Reviewing
from verl_mintrl.trajectory.record import SessionRecord

GROUP_KEY = "intervention_group"
SESSION_KEY = "intervention_session"


@dataclass
class Session:
    """One session on its way through verl's agent loop.

    Attributes:
        seed_parts: parts of the per-call seeds under ``rollout.full_determinism``, else None.
    """

    record: SessionRecord
    group: Group
    shared: Reviewing
    sampling_params: dict[str, Any]
    seed_parts: tuple[Any, ...] | None = None

    @property
    def sampled_as_scored(self) -> bool:
        """Whether sampling log-probs are those at temperature 1 without truncation, so that they may be reused."""
        params = self.sampling_params
        plain = params.get("temperature") == 1.0 and params.get("top_p") == 1.0 and params.get("top_k", -1) in (-1, 0)
        return plain and bool(params.get("logprobs"))

"""What the worker hands to one session through the agent loop's keyword arguments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from verl_mintrl.rollout.group import Group
from verl_mintrl.rollout.periodic import Reviewing
from verl_mintrl.rollout.replay import Turn
from verl_mintrl.trajectory.record import SessionRecord

GROUP_KEY = "intervention_group"
SESSION_KEY = "intervention_session"


@dataclass
class Session:
    """One session on its way through verl's agent loop.

    Attributes:
        rerun: run the session's agent loop again with given turns, where it is not a single turn; returns the scored row.
        collect: the row of this run is wanted back, not published.
        seed_parts: parts of the per-call seeds under ``rollout.full_determinism``, else None.
    """

    record: SessionRecord
    group: Group
    shared: Reviewing
    sampling_params: dict[str, Any]
    seed_parts: tuple[Any, ...] | None = None
    rerun: Callable[[Sequence[Turn], dict[str, Any]], Awaitable[Any]] | None = None
    collect: bool = False

    @property
    def sampled_as_scored(self) -> bool:
        """Whether sampling log-probs are those at temperature 1 without truncation, so that they may be reused."""
        params = self.sampling_params
        plain = params.get("temperature") == 1.0 and params.get("top_p") == 1.0 and params.get("top_k", -1) in (-1, 0)
        return plain and bool(params.get("logprobs"))

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

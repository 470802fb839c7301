"""What the worker hands to one session through the agent loop's keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_mintrl.errors import DataError
from verl_mintrl.rollout.group import Group
from verl_mintrl.rollout.periodic import Reviewing
from verl_mintrl.trajectory.record import SessionRecord

GROUP_KEY = "intervention_group"
SESSION_KEY = "intervention_session"


@dataclass
class Session:
    """One session on its way through verl's agent loop.

    Attributes:
        privileged: evidence text only the judge may see.
        seed_parts: parts of the per-call seeds under ``rollout.full_determinism``, else None.
    """

    record: SessionRecord
    group: Group
    shared: Reviewing
    privileged: str | None = None
    seed_parts: tuple[Any, ...] | None = None


def lookup(sample: Mapping[str, Any], dotted: str) -> str:
    """Text at a dotted path of a dataset row, e.g. ``reward_model.ground_truth``.

    Raises:
        DataError: the path does not exist in the row, or holds nothing.
    """
    value: Any = sample
    for part in dotted.split("."):
        if not isinstance(value, Mapping) or part not in value:
            known = sorted(value) if isinstance(value, Mapping) else type(value).__name__
            raise DataError(
                f"the dataset row has no {dotted!r}: {part!r} is missing, found {known}.",
                "set intervention.judge.evidence_column to an existing column, or intervention.judge.evidence: none.",
            )
        value = value[part]
    if value is None or str(value) == "":
        raise DataError(f"the dataset row holds nothing at {dotted!r}.", "fill intervention.judge.evidence_column.")
    return str(value)

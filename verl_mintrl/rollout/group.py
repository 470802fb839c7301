"""Roles of the sessions of one prompt, and what they must know about each other. Pure asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_mintrl.trajectory.record import Role


def assign_roles(n: int, control_size: int, share: float) -> list[Role]:
    """Roles of sessions 0..n-1.

    The first ``control_size`` are control. Of the rest, ``share`` (0..1, rounded to whole sessions, at least one if positive)
    are treated, the others stay on-policy. With share 0 nobody is treated, and the control sessions keep their role so that the
    baseline of the control estimator stays the same estimator after interventions have stopped.
    """
    rest = n - control_size
    treated = min(rest, max(1, round(share * rest))) if share > 0 and rest > 0 else 0
    return [Role.CONTROL] * control_size + [Role.TREATED] * treated + [Role.POLICY] * (rest - treated)


@dataclass
class Held:
    """A scored session that waits for its group.

    Attributes:
        rows: what is to be published.
        reward: their reward.
        payload: whatever the work on a failed group needs to know about it.
    """

    rows: list[Any]
    reward: float
    payload: Any = None


#: work on a group whose sessions all ran: session id -> held; may change what is held
GroupWork = Callable[[Mapping[int, Held]], Awaitable[None]]


class Group:
    """All sessions of one prompt.

    Args:
        roles: role of each session.
        active: whether interventions are on at this step.
        work: what is done once all sessions have been scored and before any is published (trigger ``group_failure``);
            skipped if a session failed to run, since verl drops such a group.
    """

    def __init__(self, roles: Sequence[Role], active: bool, work: GroupWork | None = None) -> None:
        self.roles = list(roles)
        self.active = active
        self._work = work
        self._rewards: dict[int, float | None] = {}
        self._controls = {i for i, role in enumerate(self.roles) if role is Role.CONTROL}
        self._controls_settled = asyncio.Event()
        self._held: dict[int, Held] = {}
        self._worked: asyncio.Future[None] | None = None
        self._all_settled = asyncio.Event()
        self._update()

    def settle(self, session_id: int, reward: float | None) -> None:
        """Report a session's reward; None if it failed to run. The first report counts."""
        self._rewards.setdefault(session_id, reward)
        self._update()

    def _update(self) -> None:
        if self._controls <= self._rewards.keys():
            self._controls_settled.set()
        if len(self._rewards) == len(self.roles):
            self._all_settled.set()

    async def control_rewards(self) -> list[float]:
        """Rewards of the control sessions that ran, once all have settled."""
        await self._controls_settled.wait()
        return [reward for i in sorted(self._controls) if (reward := self._rewards[i]) is not None]

    async def hold(self, session_id: int, held: Held) -> Held:
        """Wait until the whole group has been scored and worked on; returns what this session is to publish."""
        if self._work is None:
            self.settle(session_id, held.reward)
            return held
        self._held[session_id] = held
        self.settle(session_id, held.reward)
        await self._all_settled.wait()
        if len(self._held) == len(self.roles):
            if self._worked is None:
                self._worked = asyncio.ensure_future(self._work(self._held))  # type: ignore[arg-type]
            await self._worked
        return held

"""Roles of the sessions of one prompt, and what the treated ones must know about the control ones. Pure asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

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


class Group:
    """All sessions of one prompt.

    Args:
        roles: role of each session.
        active: whether interventions are on at this step.
    """

    def __init__(self, roles: Sequence[Role], active: bool) -> None:
        self.roles = list(roles)
        self.active = active
        self._rewards: dict[int, float | None] = {}
        self._controls = {i for i, role in enumerate(self.roles) if role is Role.CONTROL}
        self._settled = asyncio.Event()
        self._update()

    def settle(self, session_id: int, reward: float | None) -> None:
        """Report a session's reward; None if it failed to run. The first report counts."""
        self._rewards.setdefault(session_id, reward)
        self._update()

    def _update(self) -> None:
        if self._controls <= self._rewards.keys():
            self._settled.set()

    async def control_rewards(self) -> list[float]:
        """Rewards of the control sessions that ran, once all have settled."""
        await self._settled.wait()
        return [reward for i in sorted(self._controls) if (reward := self._rewards[i]) is not None]

"""Groups of sessions that lapse at random, worked on as the trigger ``group_failure`` does: book-keeping needs groups."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tau2_parts.judges import exact
from tau2_parts.players import mistakes
from tau2_parts.trial import BUDGET, Task, run
from tau2_parts.world import Domain
from verl_mintrl.rollout.environment import EnvironmentSession
from verl_mintrl.rollout.walk import Reentrant, Walker, walk_group
from verl_mintrl.trajectory.record import SessionRecord
from verl_mintrl.trajectory.splice import Ledger

SIZE = 8
LAPSE = 0.8  # chance of a session to make a mistake, decisive or not


async def work(domain: Domain, tasks: Sequence[Task], seed: int) -> tuple[list[SessionRecord], list[float]]:
    """One group per task; at most one session of a failed group is replaced.

    Returns:
        the records, and the rewards as published.
    """
    records: list[SessionRecord] = []
    rewards: list[float] = []
    for task in tasks:
        rng = random.Random(f"group {seed} {task.id}")
        sessions = [await _session(domain, task, rng) for _ in range(SIZE)]
        group = [SessionRecord(task.id, number, 0) for number in range(SIZE)]
        published = [session.reward for session in sessions]
        if not any(reward > 0 for reward in published):
            await _edit(domain, sessions, group, published)
        records += group
        rewards += published
    return records, rewards


async def _session(domain: Domain, task: Task, rng: random.Random) -> EnvironmentSession:
    lapse = next(mistakes(domain, task, rng), None) if rng.random() < LAPSE else None
    return await run(domain, task, lapse)


async def _edit(
    domain: Domain, sessions: Sequence[EnvironmentSession], group: Sequence[SessionRecord], published: list[float]
) -> None:
    for record, reward in zip(group, published, strict=True):
        record.triggered, record.reward_before = True, reward
    walker = Walker(exact(domain.acting), True, success_threshold=0.0, deadline_s=600.0)

    async def walk(index: int, stop: Callable[[], bool]) -> Reentrant:
        ended = await walker.walk(sessions[index], Ledger(BUDGET), group[index].walk, stop)
        if ended is not sessions[index]:
            group[index].reward_after = ended.reward
        return ended

    for index, ended in (await walk_group(sessions, walk, wanted=1, success_threshold=0.0)).items():
        group[index].replaced, group[index].reviews = True, group[index].walk
        published[index] = ended.reward

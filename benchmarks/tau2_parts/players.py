"""The scripted assistant: a golden plan, and one mistake in it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tau2_parts.turns import Call, farewell, read
from tau2_parts.world import Domain
from verl_mintrl.rollout.environment import History


def golden_calls(task: Any) -> list[Call]:
    """The golden actions of a task, in order."""
    return [Call(a.requestor, a.name, a.arguments) for a in task.evaluation_criteria.actions or []]


def information(task: Any) -> list[str]:
    """What the user must be told."""
    return list(task.evaluation_criteria.communicate_info or [])


def plan(task: Any) -> list[str]:
    """The turns of a golden run."""
    return [call.write() for call in golden_calls(task)] + [farewell(information(task))]


def gold(task: Any) -> str:
    """The golden evidence as text: actions in order and what the user must be told."""
    actions = [{"by": call.by, "name": call.name, "arguments": call.arguments} for call in golden_calls(task)]
    return json.dumps({"actions": actions, "information": information(task)}, sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True)
class Mistake:
    """What takes the place of the turn at ``position`` (from 0) of the plan.

    Attributes:
        kind: ``tool``, ``argument`` or ``end``.
    """

    position: int
    kind: str
    turn: str


@dataclass(frozen=True)
class Assistant:
    """Plays its plan from wherever the accepted history stands; sees the history and its own plan, nothing else.

    A turn of the history that is in the plan is done; one that is not has taken the place of the first turn not done.

    Attributes:
        lapse: made whenever the history is as long as its position.
    """

    plan: tuple[str, ...]
    lapse: Mistake | None = None

    async def __call__(self, history: History) -> str:
        if self.lapse is not None and len(history.turns) == self.lapse.position:
            return self.lapse.turn
        left = list(self.plan)
        for turn in history.turns:
            if turn in left:
                left.remove(turn)
            elif left:
                left.pop(0)
        return left[0] if left else self.plan[-1]


def mistakes(domain: Domain, task: Any, rng: random.Random) -> Iterator[Mistake]:
    """Candidates in random order. Wrong tools and arguments are drawn from golden actions of the whole domain.

    Only acting calls are replaced, and only by acting calls: a wrong look-up can be repaired by another look-up. None is
    a golden action of the task.
    """
    calls, pool = golden_calls(task), [c for t in domain.tasks for c in golden_calls(t) if c.name in domain.acting]
    written = set(plan(task))
    found: list[Mistake] = []
    for position, call in enumerate(calls):
        found.append(Mistake(position, "end", farewell()))
        if call.name not in domain.acting:
            continue
        others = [other for other in pool if other.name != call.name]
        if others:
            other = rng.choice(others)
            shared = {key: value for key, value in call.arguments.items() if key in other.arguments}
            wrong = Call(other.by, other.name, {**other.arguments, **shared})
            found.append(Mistake(position, "tool", wrong.write()))
        for key in call.arguments:
            values = [
                other.arguments[key]
                for other in pool
                if other.name == call.name and key in other.arguments and other.arguments[key] != call.arguments[key]
            ]
            if values:
                wrong = Call(call.by, call.name, {**call.arguments, key: rng.choice(values)})
                found.append(Mistake(position, "argument", wrong.write()))
    found = [mistake for mistake in found if mistake.turn not in written or read(mistake.turn) is None]
    by_kind = {kind: [m for m in found if m.kind == kind] for kind in ("tool", "argument", "end")}
    for group in by_kind.values():
        rng.shuffle(group)
    while any(by_kind.values()):  # every kind first with the same chance, however many candidates it has
        kinds = [kind for kind, group in by_kind.items() if group]
        rng.shuffle(kinds)
        for kind in kinds:
            yield by_kind[kind].pop()

"""One task: golden run, a run with one decisive mistake, and walks over it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tau2_parts.judges import exact, hostile
from tau2_parts.players import Assistant, Mistake, gold, mistakes, plan
from tau2_parts.world import Conversation, Domain, KeptConversation, Task, needs_a_model
from verl_mintrl.errors import EnvironmentFailure
from verl_mintrl.judges.leak import LeakRules, find_leak
from verl_mintrl.judges.protocol import Judge, ReviewRequest
from verl_mintrl.rollout.environment import EnvironmentSession, History, World
from verl_mintrl.rollout.walk import Proposal, Reentrant, Walker
from verl_mintrl.trajectory.record import Outcome, ReviewRecord
from verl_mintrl.trajectory.splice import Budget, Ledger

BUDGET = Budget(max_reviews=64, max_insertions=2, max_insertion_tokens=1024, max_inserted_share=1.0)
MAX_TURNS = 64
MAX_CANDIDATES = 12
MODES = {"replay": Conversation, "snapshot": KeptConversation}


async def prepare(history: History, replaced: str, correction: str, final: bool) -> Proposal:
    """No tokenizer and no gate here: a token is a word."""
    return Proposal(tokens=len(correction.split()))


def question(domain: Domain, task: Task) -> ReviewRequest:
    """All a judge is told beside turns and observations: the same for every run of a task."""
    return ReviewRequest(
        problem=({"role": "system", "content": domain.policy},),
        steps=(),
        finished=False,
        sample={"gold": gold(task)},
        uid=task.id,
    )


@dataclass(frozen=True)
class Case:
    """A task with a mistake that costs the reward.

    Attributes:
        skipped: candidates that did not, by reason.
        irreversible: the goal stays out of reach even if the right turn follows the mistake.
    """

    domain: Domain
    task: Task
    mistake: Mistake
    skipped: Counter[str]
    irreversible: bool


@dataclass
class Walked:
    """What became of one walk."""

    session: EnvironmentSession
    ended: Reentrant
    notes: list[ReviewRecord]


def play(domain: Domain, task: Task, assistant: Assistant, make: Callable[[], Conversation]) -> World:
    return World(make, assistant, prepare, MAX_TURNS)


async def run(domain: Domain, task: Task, mistake: Mistake | None = None) -> EnvironmentSession:
    world = play(domain, task, Assistant(tuple(plan(task)), mistake), lambda: Conversation(domain, task))
    return await EnvironmentSession.run(world, question(domain, task))


async def find_case(domain: Domain, task: Task, rng: random.Random) -> Case | str:
    """A case, or why there is none."""
    if needs_a_model(task):
        return "reward needs a model"
    if not task.evaluation_criteria.actions:
        return "no golden actions"
    if (await run(domain, task)).reward != 1.0:
        return "golden run not rewarded"
    skipped: Counter[str] = Counter()
    for number, mistake in enumerate(mistakes(domain, task, rng)):
        if number == MAX_CANDIDATES:
            break
        try:
            failed = (await run(domain, task, mistake)).reward == 0.0
        except EnvironmentFailure:
            skipped["environment raised"] += 1
            continue
        if failed:
            return Case(domain, task, mistake, skipped, await _irreversible(domain, task, mistake))
        skipped[f"{mistake.kind} without effect"] += 1
    return "no decisive mistake"


async def _irreversible(domain: Domain, task: Task, mistake: Mistake) -> bool:
    if mistake.kind == "end":
        return True
    turns = plan(task)
    repaired = tuple([*turns[: mistake.position], mistake.turn, *turns[mistake.position :]])
    world = play(domain, task, Assistant(repaired), lambda: Conversation(domain, task))
    return (await EnvironmentSession.run(world, question(domain, task))).reward != 1.0


@dataclass(frozen=True)
class Started:
    """The run with the mistake, and the environments made for it and, later, for entering it again."""

    session: EnvironmentSession
    made: list[Conversation]


async def start(case: Case, mode: str = "replay", traced: bool = False) -> Started:
    """Play the run with the mistake."""
    made: list[Conversation] = []

    def make() -> Conversation:
        made.append(MODES[mode](case.domain, case.task, traced))
        return made[-1]

    world = play(case.domain, case.task, Assistant(tuple(plan(case.task)), case.mistake), make)
    return Started(await EnvironmentSession.run(world, question(case.domain, case.task)), made)


async def walk(session: EnvironmentSession, judge: Judge, success_threshold: float = 0.0) -> Walked:
    """Walk over a session as it is; it can be walked over again."""
    notes: list[ReviewRecord] = []
    walker = Walker(judge, True, success_threshold, deadline_s=600.0)
    return Walked(session, await walker.walk(session, Ledger(BUDGET), notes), notes)


async def false_alarms(case: Case) -> int:
    """Steps of the golden run that the exact judge would have changed."""
    walked = await walk(await run(case.domain, case.task), exact(case.domain.acting), success_threshold=float("inf"))
    return sum(note.outcome != Outcome.KEPT for note in walked.notes)


@dataclass
class Result:
    """What is reported about one case.

    Attributes:
        located: the first step found harmful is the one with the mistake.
        corrected: the golden turn stands there now.
        moved: the databases had changed since the beginning before that step, so that restoring them takes more than a reset.
        restored: by mode, the databases before that step hash to what they did in the original run.
        rescued: by mode, the reward is 1 at the end.
        calls: by role, replay mode.
        leaky: the correction would be rejected by the leak rules' defaults.
        hostile: by name: reward at the end, survived, and what became of the proposals.
    """

    domain: str
    kind: str
    irreversible: bool
    located: bool = False
    corrected: bool = False
    moved: bool = False
    restored: dict[str, bool] = field(default_factory=dict)
    rescued: dict[str, bool] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    false_alarms: int = 0
    golden_steps: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    leaky: bool = False
    hostile: dict[str, Counter[str]] = field(default_factory=dict)


async def examine(case: Case) -> Result:
    """Walk over a case with the exact judge in both modes, and with the hostile ones."""
    at = case.mistake.position
    result = Result(case.domain.name, case.mistake.kind, case.irreversible)
    for mode in MODES:
        started = await start(case, mode, traced=True)
        walked = await walk(started.session, exact(case.domain.acting))
        found = [note for note in walked.notes if note.step is not None]
        inserted = [note for note in walked.notes if note.outcome == Outcome.INSERTED]
        before = started.made[0].trace[at]
        after = started.made[1].trace[at : at + 1] if len(started.made) > 1 else []
        result.restored[mode] = after == [before]
        result.rescued[mode] = walked.ended.reward == 1.0
        result.lost[mode] = sum(note.reason in ("replay", "environment") for note in walked.notes)
        if mode == "replay":
            result.moved = before != started.made[0].trace[0]
            result.located = bool(found) and found[0].step == at + 1
            result.corrected = bool(inserted) and (inserted[0].step, inserted[0].correction) == (
                at + 1,
                plan(case.task)[at],
            )
            for note in walked.notes:
                result.calls.update(note.calls_by_role)
            result.leaky = any(_leaks(walked, note) for note in inserted)
    result.false_alarms = await false_alarms(case)
    result.golden_steps = len(plan(case.task))
    session = (await start(case)).session
    for name, judge in hostile(case.domain.acting).items():
        result.hostile[name] = _fate(await walk(session, judge))
    return result


def _leaks(walked: Walked, note: ReviewRecord) -> bool:
    assert note.step is not None and note.correction is not None
    request = walked.session.request(note.step)
    seen = [str(request.problem[0]["content"]), *request.observations, *request.steps[:-1]]
    return bool(find_leak(note.correction, request.sample["gold"], "\n".join(seen), LeakRules()))


def _fate(walked: Walked) -> Counter[str]:
    intact = walked.session.reward == 0.0 and len(walked.session.steps) + 1 == len(walked.session.observations)
    outcomes = Counter(f"{note.outcome}" for note in walked.notes)
    return outcomes + Counter(
        survived=intact and walked.ended.observations[-1].done,  # type: ignore[attr-defined]
        rewarded=walked.ended.reward == 1.0,
        spent=outcomes["inserted"] == BUDGET.max_insertions,
    )

"""Turn-based sessions that are entered again, with tiny worlds."""

import copy
import itertools
from dataclasses import dataclass, field

import pytest

from verl_mintrl.errors import EnvironmentFailure, ReplayError
from verl_mintrl.judges.protocol import ReviewRequest
from verl_mintrl.judges.python import PythonJudge
from verl_mintrl.rollout.environment import EnvironmentSession, History, Observation, World
from verl_mintrl.rollout.walk import Proposal, Walker
from verl_mintrl.trajectory.record import Outcome
from verl_mintrl.trajectory.splice import Budget, Ledger

GOAL = ["a", "b", "c", "d"]


@dataclass
class Lock:
    """Opens if the letters come in order; shows what was typed."""

    goal: list[str] = field(default_factory=lambda: GOAL)
    typed: list[str] = field(default_factory=list)
    closed: bool = False

    def __post_init__(self) -> None:
        """For subclasses."""

    async def reset(self) -> None:
        self.typed = []

    async def step(self, turn: str) -> None:
        self.typed.append(turn)

    def observe(self) -> Observation:
        return Observation(" ".join(self.typed), len(self.typed) == len(self.goal))

    async def reward(self) -> float:
        return float(self.typed == self.goal)

    def close(self) -> None:
        self.closed = True


class Keeping(Lock):
    async def snapshot(self) -> object:
        return copy.deepcopy(self.typed)

    async def restore(self, snapshot: list[str]) -> None:
        self.typed = list(snapshot)


class Sharing(Keeping):
    """A snapshot that goes on changing with the world."""

    async def snapshot(self) -> object:
        return self.typed

    async def restore(self, snapshot: list[str]) -> None:
        self.typed = snapshot


class Refusing(Keeping):
    async def snapshot(self) -> object:
        raise OSError("disk full")


class Unreadable(Keeping):
    async def restore(self, snapshot: list[str]) -> None:
        raise ValueError("bad snapshot")


class Lossy(Keeping):
    async def restore(self, snapshot: list[str]) -> None:
        self.typed = list(snapshot)[:-1]


async def forgetful(history: History) -> str:
    """Types the goal, but ``x`` in the place of the third letter."""
    return {2: "x"}.get(len(history.turns), GOAL[len(history.turns)])


async def prepare(history: History, replaced: str, correction: str, final: bool) -> Proposal:
    return Proposal(tokens=len(correction))


REQUEST = ReviewRequest(problem=({"role": "user", "content": "open"},), steps=(), finished=False)


def world(make=Lock, policy=forgetful, max_turns=10) -> World:
    return World(make, policy, prepare, max_turns)


async def corrected(session: EnvironmentSession, step: int, text: str) -> EnvironmentSession:
    return await session.resume(step, await session.prepare(step, text, False))


async def test_a_session_plays_until_the_environment_is_done():
    session = await EnvironmentSession.run(world(), REQUEST)
    assert session.steps == ("a", "b", "x", "d")
    assert session.reward == 0.0
    assert [o.text for o in session.observations] == ["", "a", "a b", "a b x", "a b x d"]
    assert session.observations[-1].done


async def test_or_until_its_turns_are_used_up():
    session = await EnvironmentSession.run(world(max_turns=2), REQUEST)
    assert session.steps == ("a", "b")
    assert not session.request(2).finished


async def test_the_judge_sees_what_came_before_a_step_and_nothing_after():
    session = await EnvironmentSession.run(world(), REQUEST)
    request = session.request(2)
    assert (request.steps, request.observations, request.finished) == (("a", "b"), ("", "a"), False)
    assert session.request(4).finished


@pytest.mark.parametrize("make", [Lock, Keeping, Refusing])
async def test_entered_again_it_stands_where_it_stood(make):
    """By replay, by snapshot, and by replay where no snapshot could be taken."""
    made = []

    def tracked():
        made.append(make())
        return made[-1]

    session = await EnvironmentSession.run(world(tracked), REQUEST)
    after = await corrected(session, 3, "c")
    assert after.steps == ("a", "b", "c", "d")
    assert after.reward == 1.0
    assert after.corrected == {3}
    assert session.steps == ("a", "b", "x", "d") and session.reward == 0.0
    assert all(lock.closed for lock in made)


async def test_a_snapshot_is_used_where_there_is_one():
    steps = []

    class Counting(Keeping):
        async def step(self, turn: str) -> None:
            steps.append(turn)
            await super().step(turn)

    session = await EnvironmentSession.run(world(Counting), REQUEST)
    steps.clear()
    await corrected(session, 3, "c")
    assert steps == ["c", "d"]


async def test_corrections_behind_the_cut_are_forgotten():
    session = await EnvironmentSession.run(world(), REQUEST)
    twice = await corrected(await corrected(session, 3, "y"), 4, "z")
    assert (twice.steps, twice.corrected) == (("a", "b", "y", "z"), {3, 4})
    again = await corrected(twice, 3, "c")
    assert (again.steps, again.corrected, again.reward) == (("a", "b", "c", "d"), {3}, 1.0)


async def test_a_session_can_be_entered_several_times_and_by_its_children():
    session = await EnvironmentSession.run(world(Keeping), REQUEST)
    child = await corrected(session, 2, "b")
    for parent in (session, child, session):
        assert (await corrected(parent, 3, "c")).reward == 1.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Sharing, "shows 'a b x d'"),
        (Unreadable, "ValueError: bad snapshot"),
        (Lossy, "shows 'a' before turn 3, the first time 'a b'"),
    ],
)
async def test_broken_snapshots_are_told(make, message):
    session = await EnvironmentSession.run(world(make), REQUEST)
    with pytest.raises(ReplayError, match=message):
        await corrected(session, 3, "c")


async def test_a_world_that_is_not_the_same_twice_is_told():
    numbers = itertools.count()

    class Moody(Lock):
        def __post_init__(self):
            self.mood = next(numbers)

        def observe(self) -> Observation:
            shown = super().observe()
            return Observation(f"{shown.text} {self.mood}" if len(self.typed) == 2 else shown.text, shown.done)

    session = await EnvironmentSession.run(world(Moody), REQUEST)
    assert (await corrected(session, 2, "b")).steps[:2] == ("a", "b")  # nothing differed before step 2
    with pytest.raises(ReplayError, match="before turn 3"):
        await corrected(session, 3, "c")


async def test_a_replay_that_ends_early_is_told():
    goals = iter([GOAL, GOAL[:2]])
    session = await EnvironmentSession.run(world(lambda: Lock(goal=next(goals))), REQUEST)
    with pytest.raises(ReplayError, match=r"shows 'a b' \(done\)"):
        await corrected(session, 3, "c")


def failing(at: str, on: int):
    """Instances of a lock of which number ``on`` raises at ``at``: reset, a turn, reward or observe."""
    numbers = itertools.count()
    closed = []

    class Failing(Lock):
        def __post_init__(self):
            self.fails = next(numbers) == on
            if self.fails and at == "make":
                raise RuntimeError("no room")

        def _check(self, name: str) -> None:
            if self.fails and name == at:
                raise RuntimeError("connection lost")

        async def reset(self) -> None:
            self._check("reset")
            await super().reset()

        async def step(self, turn: str) -> None:
            self._check(turn)
            await super().step(turn)

        async def reward(self) -> float:
            self._check("reward")
            return await super().reward()

        def observe(self) -> Observation:
            self._check("observe")
            return super().observe()

        def close(self) -> None:
            closed.append(self.fails)

    return Failing, closed


@pytest.mark.parametrize("at", ["make", "reset", "observe", "a", "d", "reward"])
async def test_a_world_that_raises_at_first_leaves_no_session_and_no_reward(at):
    make, closed = failing(at, on=0)
    with pytest.raises(EnvironmentFailure, match="RuntimeError"):
        await EnvironmentSession.run(world(make), REQUEST)
    assert closed == ([] if at == "make" else [True])


@pytest.mark.parametrize("at", ["make", "reset", "observe", "a", "b"])
async def test_a_world_that_raises_on_the_way_back_is_a_replay_error(at):
    make, _ = failing(at, on=1)
    session = await EnvironmentSession.run(world(make), REQUEST)
    with pytest.raises(ReplayError):
        await corrected(session, 3, "c")


@pytest.mark.parametrize("at", ["c", "d", "reward"])
async def test_a_world_that_raises_afterwards_is_an_environment_failure(at):
    make, closed = failing(at, on=1)
    session = await EnvironmentSession.run(world(make), REQUEST)
    with pytest.raises(EnvironmentFailure):
        await corrected(session, 3, "c")
    assert closed == [False, True]


async def test_what_the_policy_raises_passes_through_and_the_world_is_closed():
    lock = Lock()

    async def gone(history: History) -> str:
        raise ConnectionError("server gone")

    with pytest.raises(ConnectionError):
        await EnvironmentSession.run(world(lambda: lock, gone), REQUEST)
    assert lock.closed


async def test_a_world_that_cannot_be_closed_keeps_its_session():
    class Stuck(Lock):
        async def close(self) -> None:
            raise OSError("busy")

    assert (await EnvironmentSession.run(world(Stuck), REQUEST)).reward == 0.0


def fixing_judge() -> PythonJudge:
    """Knows the goal."""

    def review(request: ReviewRequest):
        wrong = request.steps[-1] != GOAL[len(request.steps) - 1]
        return {"verdict": "revise", "step": len(request.steps)} if wrong else None

    return PythonJudge(review, in_thread=False, correct=lambda request, step: GOAL[step - 1])


async def walk(session: EnvironmentSession, judge: PythonJudge):
    notes = []
    walker = Walker(judge, verify=False, success_threshold=0.0, deadline_s=60.0)
    ended = await walker.walk(session, Ledger(Budget(10, 3, 100, 1.0)), notes)
    return ended, notes


async def test_the_walk_corrects_a_session():
    session = await EnvironmentSession.run(world(Keeping), REQUEST)
    ended, notes = await walk(session, fixing_judge())
    assert ended.reward == 1.0
    assert [note.outcome for note in notes] == [Outcome.KEPT, Outcome.KEPT, Outcome.INSERTED]


@pytest.mark.parametrize(
    ("at", "reason"), [("a", "replay"), ("reset", "replay"), ("d", "environment"), ("reward", "environment")]
)
async def test_the_walk_counts_what_failed_and_the_session_survives(at, reason):
    make, _ = failing(at, on=1)
    session = await EnvironmentSession.run(world(make), REQUEST)
    ended, notes = await walk(session, fixing_judge())
    assert ended is session and ended.reward == 0.0
    assert (notes[2].outcome, notes[2].reason, notes[2].inserted_tokens) == (Outcome.REJECTED, reason, 0)
    assert "RuntimeError" in notes[2].detail


async def test_a_failed_roll_on_costs_no_insertion_so_a_later_step_may_still_be_corrected():
    async def twice_wrong(history: History) -> str:
        return {1: "x", 2: "y"}.get(len(history.turns), GOAL[len(history.turns)])

    make, _ = failing("d", on=1)
    session = await EnvironmentSession.run(world(make, twice_wrong), REQUEST)
    ledger, notes = Ledger(Budget(10, 1, 100, 1.0)), []
    walker = Walker(fixing_judge(), verify=False, success_threshold=0.0, deadline_s=60.0)
    ended = await walker.walk(session, ledger, notes)
    assert [(note.outcome, note.reason) for note in notes[1:3]] == [
        (Outcome.REJECTED, "environment"),
        (Outcome.INSERTED, ""),
    ]
    assert ended.steps == ("a", "x", "c", "d")

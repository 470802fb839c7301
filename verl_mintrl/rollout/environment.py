"""Sessions of turns with an environment, entered again at any turn (RTI, arXiv 2610.13438, section 3). No verl, no Ray.

A step is one assistant turn: text or a tool call, written as text. A session is entered again on a fresh environment,
which is put into the state before the turn by its own snapshot if it offers that, else by playing the earlier turns
again. What it shows after every turn played again must be what it showed the first time. That is all that can be
compared in general: a part of the state that is never shown may differ [inf].
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from verl_mintrl.errors import EnvironmentFailure, ReplayError
from verl_mintrl.judges.protocol import ReviewRequest
from verl_mintrl.rollout.walk import Proposal

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Observation:
    """What the environment shows between two turns.

    Attributes:
        done: no further turn is possible.
    """

    text: str
    done: bool = False


class Environment(Protocol):
    """One run of a world that answers turns. May also have ``close()``, plain or ``async``, and be :class:`Restorable`."""

    async def reset(self) -> None:
        """Begin; the same every time."""
        ...

    async def step(self, turn: str) -> None:
        """Take one assistant turn. A turn that makes no sense is answered in the next observation, not raised."""
        ...

    def observe(self) -> Observation:
        """What is shown now."""
        ...

    async def reward(self) -> float:
        """Outcome reward of the turns so far."""
        ...


@runtime_checkable
class Restorable(Protocol):
    """An environment whose state can be kept. A snapshot may be restored several times, into any instance."""

    async def snapshot(self) -> object: ...

    async def restore(self, snapshot: Any) -> None: ...


@dataclass(frozen=True)
class History:
    """What the policy has seen: ``observations[0], turns[0], observations[1], ...``, an observation last."""

    observations: tuple[str, ...]
    turns: tuple[str, ...]


#: history -> next turn
Policy = Callable[[History], Awaitable[str]]
#: (history before the step, the turn that stands there, correction, final) -> a proposal. Where tokens, budget and gate
#: are looked at; raises JudgeError for a correction that cannot be used.
Prepare = Callable[[History, str, str, bool], Awaitable[Proposal]]


@dataclass(frozen=True)
class World:
    """What all sessions of a group share.

    Attributes:
        make: a fresh environment.
        policy: what it raises passes through: a policy that does not answer is no matter of one session.
        max_turns: turns of a session, those before an intervention included.
    """

    make: Callable[[], Environment]
    policy: Policy
    prepare: Prepare
    max_turns: int


@dataclass(frozen=True)
class _Played:
    """Turns, what was shown before and after each, and the snapshot before each (None where there is none)."""

    turns: tuple[str, ...] = ()
    observations: tuple[Observation, ...] = ()
    snapshots: tuple[object | None, ...] = ()

    def before(self, step: int) -> _Played:
        return _Played(self.turns[: step - 1], self.observations[:step], self.snapshots[: step - 1])

    def history(self) -> History:
        return History(tuple(observation.text for observation in self.observations), self.turns)


class EnvironmentSession:
    """A finished session, see :class:`verl_mintrl.rollout.walk.Reentrant`. Holds texts and snapshots, no environment.

    Args:
        request: template of the judge's question.
        corrected: 1-based steps that the Corrector wrote.

    Attributes:
        steps: the turns.
        reward: scored by the environment.
    """

    def __init__(
        self, world: World, request: ReviewRequest, played: _Played, reward: float, corrected: frozenset[int]
    ) -> None:
        self.steps = played.turns
        self.reward = reward
        self.corrected = corrected
        self._world, self._request, self._played = world, request, played

    @property
    def observations(self) -> tuple[Observation, ...]:
        """One before each turn, and the last."""
        return self._played.observations

    @classmethod
    async def run(cls, world: World, request: ReviewRequest) -> EnvironmentSession:
        """Let the policy play from the beginning.

        Raises:
            EnvironmentFailure: the environment raised; there is no session and no reward.
        """
        try:
            environment = world.make()
        except Exception as error:
            raise _failure(error, 1) from error
        try:
            try:
                await environment.reset()
                shown = environment.observe()
            except Exception as error:
                raise _failure(error, 1) from error
            played, reward = await _roll_on(world, environment, _Played(observations=(shown,)))
        finally:
            await _close(environment)
        return cls(world, request, played, reward, frozenset())

    def request(self, focus: int) -> ReviewRequest:
        """Turns up to ``focus`` and what was shown before each of them, nothing of what came after."""
        ended = focus == len(self.steps) and self.observations[-1].done
        shown = tuple(observation.text for observation in self.observations[:focus])
        return replace(self._request, steps=self.steps[:focus], observations=shown, finished=ended)

    async def prepare(self, step: int, correction: str, final: bool) -> Proposal:
        history = self._played.before(step).history()
        proposal = await self._world.prepare(history, self.steps[step - 1], correction, final)
        return replace(proposal, payload=correction) if proposal.payload is None else proposal

    async def resume(self, step: int, proposal: Proposal) -> EnvironmentSession:
        """A new session with the correction as turn ``step``; this one stays as it is.

        Args:
            proposal: its ``payload`` is the text of the turn.

        Raises:
            ReplayError: the environment raised on its way to the state before ``step``, or showed something else.
            EnvironmentFailure: it raised after that. The new session has no reward, so there is no new session.
        """
        before = self._played.before(step)
        try:
            environment = self._world.make()
        except Exception as error:
            raise _lost(step, f"a fresh instance raised {type(error).__name__}: {error}") from error
        try:
            await self._return_to(environment, step)
            corrected = frozenset(number for number in self.corrected if number < step) | {step}
            played, reward = await _roll_on(self._world, environment, before, proposal.payload)
        finally:
            await _close(environment)
        return EnvironmentSession(self._world, self._request, played, reward, corrected)

    async def _return_to(self, environment: Environment, step: int) -> None:
        """Put a fresh environment into the state before ``step``."""
        snapshot = self._played.snapshots[step - 1]
        try:
            if snapshot is not None and isinstance(environment, Restorable):
                await environment.restore(snapshot)
                self._compare(environment, step)
                return
            await environment.reset()
            self._compare(environment, 1)
            for number in range(1, step):
                await environment.step(self.steps[number - 1])
                self._compare(environment, number + 1)
        except ReplayError:
            raise
        except Exception as error:
            raise _lost(step, f"the environment raised {type(error).__name__}: {error}") from error

    def _compare(self, environment: Environment, step: int) -> None:
        recorded, shown = self.observations[step - 1], environment.observe()
        if shown != recorded:
            raise _lost(
                step, f"the environment shows {_short(shown)} before turn {step}, the first time {_short(recorded)}"
            )


async def _roll_on(
    world: World, environment: Environment, played: _Played, first: str | None = None
) -> tuple[_Played, float]:
    """Play until the environment is done or the turns are used up, and score.

    Args:
        first: a turn to begin with, in the place of the policy's.
    """
    turns, observations, snapshots = [*played.turns], [*played.observations], [*played.snapshots]
    while first is not None or (not observations[-1].done and len(turns) < world.max_turns):
        history = _Played(tuple(turns), tuple(observations)).history()
        turn = await world.policy(history) if first is None else first
        first = None
        try:
            snapshots.append(await _snapshot(environment))
            await environment.step(turn)
            observations.append(environment.observe())
        except Exception as error:
            raise _failure(error, len(turns) + 1) from error
        turns.append(turn)
    try:
        reward = await environment.reward()
    except Exception as error:
        raise _failure(error, len(turns)) from error
    return _Played(tuple(turns), tuple(observations), tuple(snapshots)), reward


async def _snapshot(environment: Environment) -> object | None:
    """None where there is none; then the turns before are played again. A session never fails for want of a snapshot."""
    if not isinstance(environment, Restorable):
        return None
    try:
        return await environment.snapshot()
    except Exception as error:
        logger.warning(
            "an environment gave no snapshot, its turns will be replayed: %s: %s", type(error).__name__, error
        )
        return None


async def _close(environment: Environment) -> None:
    close = getattr(environment, "close", None)
    if close is None:
        return
    try:
        closing = close()
        if inspect.isawaitable(closing):
            await closing
    except Exception as error:  # what was played and scored stands
        logger.warning("an environment did not close: %s: %s", type(error).__name__, error)


def _failure(error: Exception, turn: int) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"the environment raised {type(error).__name__} at turn {turn}: {error}",
        "a turn that makes no sense should be answered by an observation, not by an exception",
    )


def _lost(step: int, cause: str) -> ReplayError:
    return ReplayError(
        f"the state before turn {step} was not reached again: {cause}",
        "the environment must be deterministic, or offer snapshot and restore",
    )


def _short(observation: Observation) -> str:
    ending = " (done)" if observation.done else ""
    return repr(observation.text if len(observation.text) <= 80 else observation.text[:77] + "...") + ending

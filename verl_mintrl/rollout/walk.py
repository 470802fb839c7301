"""Validator - Corrector - Verifier over a finished session, step by step (RTI, arXiv 2610.13438, section 3). No verl, no Ray.

What a session is - one text, a conversation with tools, an environment - is hidden behind :class:`Reentrant`: it can be
entered again at any of its steps with another text there, and rolls on from that point.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from verl_mintrl.errors import EnvironmentFailure, JudgeError, ReplayError
from verl_mintrl.judges.protocol import Judge, ReviewRequest
from verl_mintrl.judges.recorded import question_id
from verl_mintrl.rollout.propose import Proposal, propose
from verl_mintrl.trajectory.record import Outcome, ReviewRecord, clip_insertions
from verl_mintrl.trajectory.splice import Ledger


class Reentrant(Protocol):
    """A finished session that can be entered again.

    Attributes:
        steps: texts of its steps, in order.
        reward: outcome reward, scored.
    """

    steps: Sequence[str]
    reward: float

    def request(self, focus: int) -> ReviewRequest:
        """The question about step ``focus`` (1-based): problem, steps up to it, observations the policy saw."""
        ...

    async def prepare(self, step: int, correction: str, final: bool) -> Proposal:
        """Encode and score a proposed correction of ``step``.

        Raises:
            JudgeError: it cannot be used (too long, not encodable).
        """
        ...

    async def resume(self, step: int, proposal: Proposal) -> Reentrant:
        """A new session: as this one before ``step``, the proposal in its place, the policy from there on; scored.

        Raises:
            ReplayError: the environment did not return to the state it had before ``step``.
            EnvironmentFailure: it raised after that; the new session is given up, this one stands.
        """
        ...


@dataclass(frozen=True)
class Walker:
    """One way to walk.

    Attributes:
        verify: whether the Verifier is asked.
        success_threshold: a reward above it ends the walk.
        deadline_s: seconds of judge time per session.
    """

    judge: Judge
    verify: bool
    success_threshold: float
    deadline_s: float

    async def walk(
        self,
        session: Reentrant,
        ledger: Ledger,
        notes: list[ReviewRecord],
        stop: Callable[[], bool] = lambda: False,
        on_error: Callable[[JudgeError, ReviewRecord], bool] = lambda error, note: True,
    ) -> Reentrant:
        """Walk over the steps, also over those that come after an intervention, until success, budget or the end.

        Args:
            session: a failed session.
            ledger: its budget.
            notes: one record per step looked at is appended.
            stop: asked before every step; true ends the walk (enough siblings have succeeded).
            on_error: told of every judge failure; false ends the walk.

        Returns:
            the session as it is at the end; the very object handed in if nothing was inserted.
        """
        step, spent = 1, 0.0
        while step <= len(session.steps) and ledger.may_review() and not stop():
            if spent >= self.deadline_s:
                break
            request = replace(session.request(step), focus=step, attempt=len(notes), outcome=session.reward)
            note = ReviewRecord(
                at_tokens=0,
                finished=request.finished,
                steps=step,
                outcome=Outcome.KEPT,
                judge=self.judge.name,
                question=question_id(request),
            )
            notes.append(note)
            ledger.count_review()
            try:
                proposal = await propose(
                    self.judge, self.verify, request, note, session.prepare, self.deadline_s - spent
                )
            except JudgeError as error:
                if not on_error(error, note):
                    break
                proposal = None
            spent += note.judge_seconds
            if proposal is not None:
                try:
                    session = await session.resume(step, proposal)
                except (ReplayError, EnvironmentFailure) as error:
                    reason = "replay" if isinstance(error, ReplayError) else "environment"
                    note.outcome, note.reason, note.detail = Outcome.REJECTED, reason, str(error)
                else:
                    ledger.count_insertion()
                    note.outcome, note.inserted_tokens = Outcome.INSERTED, proposal.tokens
                    if proposal.cut_at is not None:
                        clip_insertions(notes, proposal.cut_at)
                        note.cut_at, note.dropped_ids = proposal.cut_at, list(proposal.dropped_ids)
                        note.inserted = (proposal.cut_at, proposal.cut_at + proposal.tokens)
                    if session.reward > self.success_threshold:
                        break
            step += 1
        return session


async def walk_group(
    sessions: Sequence[Reentrant],
    walk: Callable[[int, Callable[[], bool]], Awaitable[Reentrant]],
    *,
    wanted: int,
    success_threshold: float,
) -> dict[int, Reentrant]:
    """Walk all failed sessions of a group at once; stop early once enough of them have succeeded.

    Args:
        sessions: the failed sessions.
        walk: walks session ``i``, asking the given function whether to stop.
        wanted: successes after which no further step is started.

    Returns:
        at most ``wanted`` sessions that ended in success, by index, in order of success.
    """
    successes: dict[int, Reentrant] = {}

    async def one(index: int) -> None:
        ended = await walk(index, lambda: len(successes) >= wanted)
        if ended is not sessions[index] and ended.reward > success_threshold and len(successes) < wanted:
            successes[index] = ended

    await asyncio.gather(*(one(index) for index in range(len(sessions))))
    return successes

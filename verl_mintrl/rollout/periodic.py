"""Trigger ``periodic``: generate - review - intervene - go on (MInTRL, arXiv 2609.12419, Algorithm 1).

No verl and no Ray here: the policy is a :class:`Writer`, the judge a :class:`Judge`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from verl_mintrl.config.judge import JudgeConfig
from verl_mintrl.config.schema import ReviewConfig
from verl_mintrl.errors import InterventionError, JudgeError
from verl_mintrl.judges.protocol import ReviewRequest
from verl_mintrl.judges.recorded import question_id
from verl_mintrl.judges.roles import RolesJudge
from verl_mintrl.rollout.propose import Proposal, Proposer, out_of_time, own_step_perplexities, propose
from verl_mintrl.rollout.stops import STOPS
from verl_mintrl.rollout.writer import Chunk, Writer
from verl_mintrl.trajectory.record import Outcome, ReviewRecord, SessionRecord, clip_insertions
from verl_mintrl.trajectory.spans import Author, Trajectory
from verl_mintrl.trajectory.splice import Budget, Ledger, apply_splice
from verl_mintrl.trajectory.steps import Segmenter, Step, StepReader
from verl_mintrl.trajectory.text import TokenText

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reviewing:
    """What every session of a worker shares.

    Attributes:
        verify: whether the Verifier is asked.
        end_ids: end-of-sequence ids.
    """

    judge: RolesJudge
    judge_config: JudgeConfig
    verify: bool
    review: ReviewConfig
    budget: Budget
    segmenter: Segmenter
    proposer: Proposer
    end_ids: Collection[int]


@dataclass(frozen=True)
class _Asked:
    """A review the judge has not been heard on yet.

    Attributes:
        steps: what was shown, of the text as it was then.
        answer: the proposal to splice in, None to leave everything as it is.
    """

    note: ReviewRecord
    steps: list[Step]
    answer: asyncio.Task[Proposal | None]


class PeriodicSession:
    """One treated session.

    The response is looked at whenever a review point is reached. With ``review.mode: blocking`` the policy waits for the answer;
    with ``overlapped`` it goes on writing, also past further review points, and an intervention cuts back what it has written
    since. Answers take effect in the order of the questions, and each is prepared from the response as it was when asked, so
    both modes write the same response with a policy and a judge that answer by content.

    Args:
        shared: see :class:`Reviewing`.
        writer: the policy.
        prompt_ids: tokens of the prompt.
        limit: response length in tokens.
        request: template of the judge's question (problem, evidence, row); steps are filled in per review.
        record: filled in as the session goes.
        sampled_as_scored: see :meth:`verl_mintrl.rollout.propose.Proposer.prepare`.
    """

    def __init__(
        self,
        shared: Reviewing,
        writer: Writer,
        prompt_ids: Sequence[int],
        limit: int,
        request: ReviewRequest,
        record: SessionRecord,
        sampled_as_scored: bool = False,
    ) -> None:
        self.shared = shared
        self.sampled_as_scored = sampled_as_scored
        self.writer = writer
        self.prompt_ids = list(prompt_ids)
        self.request = request
        self.record = record
        self.trajectory = Trajectory(limit)
        self.text = TokenText(shared.proposer.decode)
        self._reader = StepReader(shared.segmenter)
        self.ledger = Ledger(shared.budget)
        self.judge_seconds = 0.0
        self.reviewing = True
        self._overlapped = shared.review.mode == "overlapped"
        self._asked: deque[_Asked] = deque()
        self._point = 0  # response length at the last review point, whether or not there was a step to review
        self._reviewed = 0  # response length at the last review
        self._reviewed_steps = 0  # complete steps at the last review

    async def run(self) -> Trajectory:
        """Sample the whole session. Judge failures follow ``intervention.judge.on_error``; they never raise."""
        ended = False
        try:
            while not ended or self._asked:
                if not ended:
                    written = await self._write()
                    if written is None:
                        continue
                    ended = written
                    self._look(ended)
                if self._asked and (ended or not self._overlapped) and await self._wait_for_answers():
                    ended = False
        finally:
            await self._forget_asked()
        self.trajectory.check()
        return self.trajectory

    async def _write(self) -> bool | None:
        """Let the policy write up to the next review point; whether the response is over. None if a correction came in."""
        limit = self.trajectory.remaining
        stop: tuple[str, ...] = ()
        if self.reviewing and self.ledger.may_review():
            if self.shared.review.every_tokens is not None:
                due = self._point + self.shared.review.every_tokens - len(self.trajectory.ids)
                limit = min(limit, max(1, due))
            else:
                stop = STOPS[self.shared.review.segmenter]
        call = self.writer.write(self.prompt_ids + self.trajectory.ids, limit, stop)
        chunk = await (self._unless_corrected(call) if self._asked else call)
        if chunk is None:
            return None
        self.trajectory.append(chunk.ids, Author.POLICY, chunk.logprobs)
        visible = chunk.ids[:-1] if chunk.ids and chunk.ids[-1] in self.shared.end_ids else chunk.ids
        self.text.extend(visible)
        return chunk.ended or not chunk.ids or self.trajectory.remaining == 0

    async def _unless_corrected(self, call: Coroutine[Any, Any, Chunk]) -> Chunk | None:
        """Hear the judge while the policy writes; None, and the call is given up, if a correction came in."""
        writing = asyncio.ensure_future(call)
        corrected = False
        try:
            while self._asked and not corrected:
                await asyncio.wait((writing, self._asked[0].answer), return_when=asyncio.FIRST_COMPLETED)
                if not self._asked[0].answer.done():
                    break
                corrected = await self._take_answer()
            if not corrected:
                return await writing
        finally:
            if not writing.done():
                writing.cancel()
                await asyncio.wait((writing,))
        if not writing.cancelled() and writing.exception() is None:  # an error will be met again, or did not matter
            self.record.speculative_tokens += len(writing.result().ids)
        return None

    def _look(self, ended: bool) -> None:
        """Ask the judge if a review is due and there is a new step to show."""
        if not self._review_due(ended):
            return
        self._point = len(self.trajectory.ids)
        steps = [step for step in self._reader.read(self.text.text, finished=ended) if step.complete]
        if steps and (ended or len(steps) != self._reviewed_steps):
            self._reviewed, self._reviewed_steps = len(self.trajectory.ids), len(steps)
            self._ask(steps, ended)

    def _review_due(self, ended: bool) -> bool:
        if not self.reviewing or not self.ledger.may_review():
            return False
        if ended:
            return self.shared.review.at_end and len(self.trajectory.ids) > self._reviewed
        if self.shared.review.every_tokens is not None:
            return len(self.trajectory.ids) - self._point >= self.shared.review.every_tokens
        steps = self._reader.read(self.text.text, finished=False)
        complete = len(steps) - (bool(steps) and not steps[-1].complete)  # only the last may be open
        return complete - self._reviewed_steps >= (self.shared.review.every_steps or 1)

    def _ask(self, steps: list[Step], ended: bool) -> None:
        request = replace(
            self.request,
            steps=tuple(s.text for s in steps),
            finished=ended,
            attempt=len(self.record.reviews),
            global_step=self.record.step,
        )
        note = ReviewRecord(
            at_tokens=len(self.trajectory.ids),
            finished=ended,
            steps=len(steps),
            outcome=Outcome.KEPT,
            judge=self.shared.judge.name,
            question=question_id(request),
        )
        self.ledger.count_review()
        self.record.reviews.append(note)
        # While the answer is prepared the policy may write on: that leaves the tokens shown as they are, but can change how
        # their text ends. A cut comes only after the answer, or once it has been given up.
        text = self.text.copy() if self._overlapped else self.text
        answer = propose(
            self.shared.judge,
            self.shared.verify,
            request,
            note,
            partial(self._prepare, request, steps, text),
            self.shared.judge_config.session_deadline_s - self.judge_seconds,
        )
        self._asked.append(_Asked(note, steps, asyncio.ensure_future(answer)))

    async def _wait_for_answers(self) -> bool:
        """Hear the judge on everything asked; true if a correction was spliced in."""
        started = time.monotonic()
        try:
            while self._asked:
                await asyncio.wait((self._asked[0].answer,))
                if await self._take_answer():
                    return True
            return False
        finally:
            self.record.judge_wait_seconds += time.monotonic() - started

    async def _take_answer(self) -> bool:
        """Act on the oldest answer, which is there; true if a correction was spliced in."""
        asked = self._asked.popleft()
        note, proposal = asked.note, None
        try:
            proposal = asked.answer.result()
            left = self.shared.judge_config.session_deadline_s - self.judge_seconds
            if note.judge_seconds > left:  # when it was asked, earlier answers had not been charged yet
                proposal = None
                raise out_of_time(left)
        except JudgeError as error:
            self._failed(error, note)
        except InterventionError as error:
            self.reviewing = False
            self.record.stop_run("config", str(error))
        except Exception as error:  # scoring a proposal failed: the session goes on as after a judge failure
            logger.exception("review of session %s of uid %s failed", self.record.session_id, self.record.uid)
            self._failed(JudgeError(f"{type(error).__name__}: {error}", kind="exception"), note)
        self.judge_seconds += note.judge_seconds
        if proposal is not None or not self.reviewing:
            await self._forget_asked()
        if proposal is None:
            return False
        self._splice(proposal, note)
        return True

    async def _forget_asked(self) -> None:
        """What was asked about text that will not stand is as if it had never been asked, but for its cost."""
        if not self._asked:
            return
        forgotten = [asked.answer for asked in self._asked]
        for answer in forgotten:
            answer.cancel()
        await asyncio.wait(forgotten)
        for answer in forgotten:
            if not answer.cancelled():
                answer.exception()  # seen
        count = len(self._asked)
        self.ledger.reviews -= count
        self.record.superseded += self.record.reviews[-count:]
        del self.record.reviews[-count:]
        self._asked.clear()

    async def _prepare(
        self,
        request: ReviewRequest,
        steps: list[Step],
        text: TokenText,
        number: int,
        correction: str,
        final: bool,
    ) -> Proposal:
        own_steps = []
        if self.shared.proposer.gate.mode == "quantile" and self.sampled_as_scored:
            own_steps = own_step_perplexities(self.trajectory, text, self.shared.segmenter)
        return await self.shared.proposer.prepare(
            self.prompt_ids,
            self.trajectory,
            text,
            steps[number - 1],
            correction,
            final,
            request=request,
            ledger=self.ledger,
            sampled_as_scored=self.sampled_as_scored,
            own_steps=own_steps,
        )

    def _splice(self, proposal: Proposal, note: ReviewRecord) -> None:
        plan, logprobs, weights = proposal.payload
        done = apply_splice(self.trajectory, self.text, plan, logprobs, weights)
        clip_insertions(self.record.reviews, done.start)
        self.ledger.count_insertion()
        note.outcome = Outcome.INSERTED
        shown = note.at_tokens - done.start
        note.cut_at, note.dropped_ids = done.start, done.dropped_ids[:shown]
        self.record.speculative_tokens += len(done.dropped_ids) - shown
        note.inserted, note.inserted_tokens = (done.start, done.end), done.end - done.start
        self._point = self._reviewed = done.end
        self._reviewed_steps = note.step or 0

    def _failed(self, error: JudgeError, note: ReviewRecord) -> None:
        note.outcome, note.reason, note.detail = Outcome.ERROR, error.kind, str(error)
        if error.kind == "session_timeout":
            self.reviewing = False
        policy = self.shared.judge_config.on_error
        if policy == "keep":
            return
        self.reviewing = False
        self.record.masked, self.record.mask_reason = True, f"judge_{error.kind}"
        if policy == "fail":
            self.record.fatal = fatal_message(self.shared.judge.name, error)


def fatal_message(judge: str, error: JudgeError) -> str:
    """What the trainer stops with under ``on_error: fail``."""
    return f"judge {judge!r} failed ({error.kind}): {error} The run stops because intervention.judge.on_error is fail."

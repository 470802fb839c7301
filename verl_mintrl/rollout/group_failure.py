"""Trigger ``group_failure``: when a whole group fails, walk its sessions, replace at most a few (RTI).

The rollout worker hands in what touches verl as callables, so nothing of verl is imported here.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from verl_mintrl.config.schema import InterventionConfig
from verl_mintrl.errors import ConfigError, DataError, JudgeError
from verl_mintrl.judges.protocol import ReviewRequest
from verl_mintrl.rollout.group import Held
from verl_mintrl.rollout.periodic import Reviewing, fatal_message
from verl_mintrl.rollout.replay import Turn
from verl_mintrl.rollout.text_session import Means, TextSession, from_columns
from verl_mintrl.rollout.tool_session import Tools, ToolSession
from verl_mintrl.rollout.walk import Reentrant, Walker, walk_group
from verl_mintrl.rollout.writer import Writer
from verl_mintrl.trajectory.record import ReviewRecord, SessionRecord
from verl_mintrl.trajectory.spans import Trajectory
from verl_mintrl.trajectory.splice import Ledger

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Waiting:
    """What the work on a failed group knows about one held session.

    Attributes:
        sample: its dataset row.
        writer: makes the policy of this session.
        score: row of a trajectory, with its reward; raises DataError for a reward that is no number.
        sampled_as_scored: see :class:`Means`.
        rerun: run a multi-turn loop again with given turns; None for a single turn.
    """

    record: SessionRecord
    sample: dict[str, Any]
    writer: Callable[[], Writer]
    score: Callable[[Trajectory], Awaitable[Any]]
    sampled_as_scored: bool
    rerun: Callable[[Sequence[Turn], dict[str, Any]], Awaitable[Any]] | None = None


@dataclass(frozen=True)
class GroupFailure:
    """The work on one group.

    Attributes:
        response_length: limit of a response, tokens.
    """

    config: InterventionConfig
    shared: Reviewing
    response_length: int

    async def work(self, held: Mapping[int, Held]) -> None:
        """Edit the group if all of it failed: changes rows, rewards and records of what is held. Never raises for one session."""
        threshold = self.config.success_threshold
        for h in held.values():
            h.payload.record.reward_before = h.reward
        if any(h.reward > threshold for h in held.values()):
            return
        own_steps: list[float] = []
        rows: dict[int, Any] = {}  # id of a trajectory -> its scored row
        walked: list[int] = []
        sessions: list[TextSession | ToolSession] = []
        for i, h in sorted(held.items()):
            waiting: Waiting = h.payload
            waiting.record.triggered = True
            if not waiting.record.masked:
                walked.append(i)
                sessions.append(self._session(h, own_steps, rows))
        for session in sessions:
            if isinstance(session, TextSession):
                own_steps += session.own_step_perplexities()

        async def walk(index: int, stop: Callable[[], bool]) -> Reentrant:
            return await self._walk(sessions[index], held[walked[index]].payload.record, stop)

        successes = await walk_group(
            sessions, walk, wanted=self.config.group_failure.max_replaced, success_threshold=threshold
        )
        for index, ended in successes.items():
            h = held[walked[index]]
            row = ended.row if isinstance(ended, ToolSession) else rows[id(ended.trajectory)]  # type: ignore[attr-defined]
            h.rows, h.reward = [row], ended.reward
            record: SessionRecord = h.payload.record
            record.replaced, record.reviews = True, record.walk

    def _session(self, h: Held, own_steps: list[float], rows: dict[int, Any]) -> TextSession | ToolSession:
        waiting, row = h.payload, h.rows[-1]
        request = ReviewRequest(
            problem=tuple(waiting.sample["raw_prompt"]),
            steps=(),
            finished=True,
            sample=waiting.sample,
            uid=waiting.record.uid,
            session_id=waiting.record.session_id,
            global_step=waiting.record.step,
        )
        ledger = Ledger(self.shared.budget)
        if waiting.rerun is not None:
            tools = Tools(self.shared, waiting.rerun, self._trajectory, waiting.sampled_as_scored)
            return ToolSession(tools, row, self._trajectory(row), request, ledger)

        async def score(trajectory: Trajectory) -> float:
            scored = rows[id(trajectory)] = await waiting.score(trajectory)
            return scored.reward_score

        means = Means(self.shared, waiting.writer(), score, waiting.sampled_as_scored, own_steps)
        return TextSession(means, row.prompt_ids, self._trajectory(row), request, ledger, h.reward)

    def _trajectory(self, row: Any) -> Trajectory:
        return from_columns(
            self.response_length, row.response_ids, row.authors, row.response_logprobs, row.token_weights
        )

    async def _walk(
        self, session: TextSession | ToolSession, record: SessionRecord, stop: Callable[[], bool]
    ) -> Reentrant:
        walker = Walker(
            self.shared.judge,
            self.config.verifier.enabled,
            self.config.success_threshold,
            self.config.judge.session_deadline_s,
        )
        try:
            ended = await walker.walk(session, session.ledger, record.walk, stop, partial(self._failed, record))
        except (ConfigError, DataError) as error:
            record.stop_run("reward" if isinstance(error, DataError) else "config", str(error))
            return session
        except Exception as error:  # the policy's servers failed under an edited session: only the edit is given up
            logger.exception("walk over session %s of uid %s ended early", record.session_id, record.uid)
            record.walk_error = f"{type(error).__name__}: {error}"
            return session
        finally:
            record.judge_wait_seconds += sum(note.judge_seconds for note in record.walk)
            if isinstance(session, TextSession):
                record.generate_seconds += session.means.writer.seconds
        if ended is not session:
            record.reward_after = ended.reward
        return ended

    def _failed(self, record: SessionRecord, error: JudgeError, note: ReviewRecord) -> bool:
        policy = self.config.judge.on_error
        if policy == "keep":
            return True
        record.masked, record.mask_reason = True, f"judge_{error.kind}"
        if policy == "fail":
            record.fatal = fatal_message(self.shared.judge.name, error)
        return False

"""Samples the groups of one update as ``verl_mintrl.rollout.worker`` does, in process.

The roles, the periodic review, the walk over failed groups, the gate, and what a row holds are the package's own; only who
samples is the laboratory's :class:`lab.engine.Engine`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics  # first: its hook imports parts of ours

from lab.engine import Engine
from lab.judging import HintJudge, hint_judge
from lab.settings import RESPONSE_LENGTH
from lab.tasks import Problem, rows, score
from verl_mintrl.config.schema import InterventionConfig
from verl_mintrl.judges.build import Surroundings, build_judge
from verl_mintrl.judges.protocol import ReviewRequest
from verl_mintrl.judges.servers import ServedModel
from verl_mintrl.learning.schedule import Schedule
from verl_mintrl.rollout.group import Group, Held, assign_roles
from verl_mintrl.rollout.group_failure import GroupFailure, Waiting
from verl_mintrl.rollout.output import InterventionOutput, inert
from verl_mintrl.rollout.periodic import PeriodicSession, Reviewing
from verl_mintrl.rollout.propose import Proposer
from verl_mintrl.rollout.scoring import ServerScorer
from verl_mintrl.rollout.writer import ServerWriter
from verl_mintrl.trajectory.record import Role, SessionRecord
from verl_mintrl.trajectory.spans import Author, Trajectory
from verl_mintrl.trajectory.splice import Budget, control_strings, encode_correction
from verl_mintrl.trajectory.steps import get_segmenter

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "logprobs": True}
GREEDY = {**SAMPLING, "temperature": 0.0}


@dataclass
class Sample:
    """One session.

    Attributes:
        response: its text, without the end of the sequence.
    """

    problem: Problem
    row: InterventionOutput
    record: SessionRecord
    response: str

    @property
    def reward(self) -> float:
        assert self.row.reward_score is not None
        return self.row.reward_score


class Sampler:
    """Samples groups under one arm's configuration.

    Args:
        engine: the policy.
        tokenizer: its tokenizer; one token is one character.
        config: the ``intervention:`` node.
        self_judged: the policy with a hint plays all roles, in place of ``config.judge``.
    """

    def __init__(self, engine: Engine, tokenizer: Any, config: InterventionConfig, *, self_judged: bool) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.config = config
        self.pieces = pieces(tokenizer)
        self.end_ids = frozenset([tokenizer.eos_token_id])
        self.schedule = Schedule(config.schedule.stop_after_updates, config.schedule.decay)  # type: ignore[arg-type]
        self.reviewing = self._reviewing(self_judged)
        self._loop = asyncio.Runner()  # one for all updates: judges hold semaphores, which belong to a loop
        self.group_failure = GroupFailure(config, self.reviewing, RESPONSE_LENGTH)

    def close(self) -> None:
        """To be called in the end."""
        self._loop.close()

    def decode(self, ids: Sequence[int]) -> str:
        text = "".join([self.pieces[i] for i in ids])
        return self.tokenizer.decode(ids, skip_special_tokens=False) if "\ufffd" in text else text

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _reviewing(self, self_judged: bool) -> Reviewing:
        config = self.config
        strings = control_strings(self.tokenizer)
        around = Surroundings(ServedModel(self.engine, self.tokenizer, self.engine.max_model_len), strings)
        scorer = ServerScorer(self.engine, self.engine.max_model_len)
        hinted = HintJudge(self.engine, scorer, self.encode, self.decode)
        if self_judged:
            judge = hint_judge(hinted, config.judge, config.verifier)
        else:
            judge = build_judge(config.judge, config.verifier, around)
        return Reviewing(
            judge=judge,
            judge_config=config.judge,
            verify=config.verifier.enabled,
            review=config.review,
            budget=Budget(**vars(config.budget)),
            segmenter=get_segmenter(config.review.segmenter),
            proposer=Proposer(
                scorer=scorer,
                gate=config.gate,
                token_weights=config.token_weights,
                decode=self.decode,
                encode=lambda text: encode_correction(self.tokenizer, text),
                control_strings=strings,
                # what tells this policy of a correction is the hint, not the shipped prompt in English
                steering_context=lambda request, step: hinted.context(request, step - 1),
                backend=judge.corrector_name,
            ),
            end_ids=self.end_ids,
        )

    def train_groups(self, problems: Sequence[Problem], step: int, n: int) -> list[Sample]:
        """``n`` sessions of each problem for the 1-based update ``step``, intervened on as the configuration says."""
        config = self.config
        share = self.schedule.share(step) if config.trigger != "never" else 0.0
        wants_control = config.advantage.estimator == "control" or config.trigger == "periodic"
        control = min(n, config.control_size(n)) if wants_control else 0

        def group() -> Group:
            work = self.group_failure.work if config.trigger == "group_failure" and share > 0 else None
            roles = assign_roles(n, control, share if config.trigger == "periodic" else 0.0)
            return Group(roles, active=share > 0, work=work)

        return self._sample(problems, [group() for _ in problems], step, SAMPLING)

    def plain_groups(self, problems: Sequence[Problem], n: int, *, greedy: bool = False) -> list[Sample]:
        """``n`` sessions of each problem that nobody intervenes on, as in validation."""
        groups = [Group([Role.POLICY] * n, active=False) for _ in problems]
        return self._sample(problems, groups, 0, GREEDY if greedy else SAMPLING)

    def _sample(
        self, problems: Sequence[Problem], groups: Sequence[Group], step: int, params: dict[str, Any]
    ) -> list[Sample]:
        async def every() -> list[Sample]:
            return await asyncio.gather(
                *(
                    self._session(problem, sample, group, session_id, step, params)
                    for problem, sample, group in zip(problems, rows(problems, "lab"), groups, strict=True)
                    for session_id in range(len(group.roles))
                )
            )

        samples = self._loop.run(every())
        # a walk that ends early is no more than a metric in training, where a server may go away; here it is a fault
        if failed := {s.record.walk_error or s.record.fatal for s in samples} - {""}:
            raise RuntimeError("; ".join(sorted(failed)))
        return samples

    async def _session(
        self, problem: Problem, sample: dict[str, Any], group: Group, session_id: int, step: int, params: dict[str, Any]
    ) -> Sample:
        role = group.roles[session_id]
        record = SessionRecord(f"{step}-{problem.text}", session_id, step, role.value, group.active)
        sample = {**sample, "raw_prompt": sample["prompt"]}
        prompt_ids = self.encode(problem.text)
        treated = role is Role.TREATED
        if treated and self.config.only_if_control_fails:
            record.gated_off = any(r > self.config.success_threshold for r in await group.control_rewards())
            treated = not record.gated_off
        if treated:
            request = ReviewRequest(tuple(sample["raw_prompt"]), (), False, sample=sample, uid=record.uid)
            trajectory = await PeriodicSession(
                self.reviewing,
                self._writer(record, params),
                prompt_ids,
                RESPONSE_LENGTH,
                request,
                record,
                sampled_as_scored=True,
            ).run()
        else:
            chunk = await self._writer(record, params).write(prompt_ids, RESPONSE_LENGTH)
            trajectory = Trajectory(RESPONSE_LENGTH)
            trajectory.append(chunk.ids, Author.POLICY, chunk.logprobs)
        row = self._row(prompt_ids, trajectory)
        if not row.response_ids:
            inert(row, self.tokenizer.eos_token_id, log_probs=True)
            record.masked, record.mask_reason = True, "empty_response"
        row.check(RESPONSE_LENGTH)
        row.reward_score = score(problem, self.text(row.response_ids))

        async def edited(trajectory: Trajectory) -> InterventionOutput:
            twin = self._row(prompt_ids, trajectory)
            twin.reward_score = score(problem, self.text(twin.response_ids))
            return twin

        waiting = Waiting(record, sample, lambda: self._writer(record, params), edited, sampled_as_scored=True)
        held = await group.hold(session_id, Held([row], row.reward_score, waiting))
        row = held.rows[-1]
        if not record.is_trained(self.config.control.train):
            row.mask_out()
        return Sample(problem, row, record, self.text(row.response_ids))

    def _writer(self, record: SessionRecord, params: dict[str, Any]) -> ServerWriter:
        return ServerWriter(
            self.engine,
            params,
            request_id=f"{record.uid}-{record.session_id}",
            end_ids=self.end_ids,
            decode=self.decode,
        )

    def text(self, ids: Sequence[int]) -> str:
        """Of a response, without what ends it."""
        return self.decode(ids[:-1] if ids and ids[-1] in self.end_ids else ids)

    @staticmethod
    def _row(prompt_ids: list[int], trajectory: Trajectory) -> InterventionOutput:
        return InterventionOutput(
            prompt_ids=prompt_ids,
            response_ids=list(trajectory.ids),
            response_mask=trajectory.response_mask(),
            response_logprobs=list(trajectory.logprobs),
            authors=trajectory.authors(),
            token_weights=list(trajectory.weights),
            metrics=AgentLoopMetrics(),
        )


def pieces(tokenizer: Any) -> list[str]:
    """Text of every token id by itself."""
    return [tokenizer.decode([i], skip_special_tokens=False) for i in range(len(tokenizer))]

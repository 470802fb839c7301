"""verl adapter: the rollout worker. Gives every session of a group its role and completes every row.

Leans on ``verl.trainer.ppo.v1.agent_loop_tq.AgentLoopWorkerTQ`` (a Ray actor class; the plain class is
``__ray_metadata__.modified_class``): ``_run_prompt``, ``_run_agent_loop``, ``_agent_loop_postprocess``, ``_compute_score``,
attributes ``config``, ``rollout_config``, ``model_config``, ``tokenizer``, ``llm_client``, ``teacher_client``,
``reward_loop_worker_handles``; and on ``verl.workers.rollout.utils.get_max_position_embeddings``, with which verl fills in a
missing ``rollout.max_model_len``. Of ``transformers``, ``PreTrainedTokenizerFast.backend_tokenizer``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.workers.rollout.utils import get_max_position_embeddings

from verl_mintrl.config import parse
from verl_mintrl.errors import DataError
from verl_mintrl.judges.build import Surroundings, build_judge, prompt_set
from verl_mintrl.judges.prompts import PromptSet
from verl_mintrl.judges.protocol import ReviewRequest
from verl_mintrl.judges.roles import RolesJudge
from verl_mintrl.judges.servers import ServedModel
from verl_mintrl.learning.schedule import Schedule
from verl_mintrl.rollout.abort import AbortingClient
from verl_mintrl.rollout.agent_loop import AGENT_NAME
from verl_mintrl.rollout.group import Group, Held, assign_roles
from verl_mintrl.rollout.group_failure import GroupFailure, Waiting
from verl_mintrl.rollout.output import InterventionOutput, checked_reward, inert
from verl_mintrl.rollout.periodic import Reviewing
from verl_mintrl.rollout.propose import Proposer
from verl_mintrl.rollout.replay import ReplayingClient, Turn, replayed
from verl_mintrl.rollout.scoring import ServerScorer
from verl_mintrl.rollout.session import GROUP_KEY, SESSION_KEY, Session
from verl_mintrl.rollout.teachers import served_teachers
from verl_mintrl.rollout.writer import ServerWriter
from verl_mintrl.trajectory.record import Role, SessionRecord
from verl_mintrl.trajectory.spans import Trajectory
from verl_mintrl.trajectory.splice import Budget, control_strings, encode_correction
from verl_mintrl.trajectory.steps import get_segmenter

logger = logging.getLogger(__name__)

#: loops whose whole response is one assistant turn; all others are entered again by running them with given turns
SINGLE_TURN = ("single_turn_agent", AGENT_NAME)


class InterventionAgentLoopWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):  # type: ignore[name-defined]
    """``AgentLoopWorkerTQ`` whose treated sessions run the intervention loop; all others run the stock loops unchanged."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.scoring_client = self.llm_client  # type: ignore[has-type]  # verl's own: scoring calls a method of its base class
        client = AbortingClient(self.scoring_client)
        self.llm_client = ReplayingClient(client)  # what loops get; judges and scoring are never given turns
        self.intervention = parse(self.config.intervention)
        self.schedule = Schedule(
            stop_after_updates=self.intervention.schedule.stop_after_updates,
            decay=self.intervention.schedule.decay,  # type: ignore[arg-type]  # checked by ScheduleConfig
        )
        self.end_ids = self._end_ids()
        template_kwargs = dict(self.config.data.get("apply_chat_template_kwargs", None) or {})
        length = self.rollout_config.max_model_len or get_max_position_embeddings(self.model_config.hf_config)
        self.surroundings = Surroundings(
            policy=ServedModel(client, self.tokenizer, length, template_kwargs=template_kwargs),
            control_strings=control_strings(self.tokenizer),
            teachers=self._teachers(),
            unique_ids=self.rollout_config.full_determinism,
        )
        self.reviewing = self._build_reviewing()
        self.group_failure = GroupFailure(self.intervention, self.reviewing, self.rollout_config.response_length)

    def _teachers(self) -> dict[str, ServedModel]:
        if "teacher" not in self.intervention.judge.backends:
            return {}
        return served_teachers(self.teacher_client or {}, self.config.distillation.teacher_models)  # type: ignore[has-type]

    def _end_ids(self) -> frozenset[int]:
        generation = getattr(self.model_config, "generation_config", None)
        ids = getattr(generation, "eos_token_id", None)
        ids = [ids] if isinstance(ids, int) else list(ids or [])
        return frozenset(i for i in [*ids, self.tokenizer.eos_token_id] if i is not None)

    def _build_reviewing(self) -> Reviewing:
        config, tokenizer = self.intervention, self.tokenizer
        judge = build_judge(config.judge, config.verifier, self.surroundings)
        return Reviewing(
            judge=judge,
            judge_config=config.judge,
            verify=config.verifier.enabled,
            review=config.review,
            budget=Budget(**vars(config.budget)),
            segmenter=get_segmenter(config.review.segmenter),
            proposer=Proposer(
                scorer=ServerScorer(self.scoring_client, self.surroundings.policy.max_model_len),
                gate=config.gate,
                token_weights=config.token_weights,
                decode=whole_text(tokenizer),
                encode=lambda text: encode_correction(tokenizer, text),
                control_strings=self.surroundings.control_strings,
                steering_context=partial(self._steering_context, judge, prompt_set(config.judge, self.surroundings)),
                backend=judge.corrector_name,
            ),
            end_ids=self.end_ids,
        )

    def _steering_context(self, judge: RolesJudge, prompts: PromptSet, request: ReviewRequest, step: int) -> list[int]:
        messages = prompts.messages("steering", judge.correction_context(request), step=step)
        return list(
            self.tokenizer.apply_chat_template(
                messages,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
                **self.surroundings.policy.template_kwargs,
            )
        )

    async def _run_prompt(self, prompt: dict, sampling_params: dict, trajectory: dict, trace: bool = False) -> None:
        config = self.intervention
        if trajectory["validate"]:  # a corrected validation answer would report the judge's accuracy
            n = prompt.get("__rollout_n__", self.rollout_config.val_kwargs.n)
            group = Group([Role.POLICY] * n, active=False)
        else:
            n = prompt.get("__rollout_n__", self.rollout_config.n)
            share = self.schedule.share(trajectory["step"]) if config.trigger != "never" else 0.0
            wants_control = config.advantage.estimator == "control" or config.trigger == "periodic"
            control = min(n, config.control_size(n)) if wants_control else 0
            work = self.group_failure.work if config.trigger == "group_failure" and share > 0 else None
            roles = assign_roles(n, control, share if config.trigger == "periodic" else 0.0)
            group = Group(roles, active=share > 0, work=work)
        prompt[GROUP_KEY] = group
        await super()._run_prompt(prompt, sampling_params, trajectory, trace)

    async def _run_agent_loop(
        self, sampling_params: dict, trajectory: dict, *, agent_name: str, trace: bool = True, **kwargs: Any
    ) -> InterventionOutput:
        group: Group = kwargs.pop(GROUP_KEY)
        session_id = kwargs["session_id"]
        record = SessionRecord(
            uid=str(kwargs["uid"]),
            session_id=session_id,
            step=int(trajectory["step"]),
            role=group.roles[session_id].value,
            active=group.active,
        )
        session = Session(
            record, group, self.reviewing, dict(sampling_params), self._seed_parts(trajectory, kwargs, session_id)
        )
        try:
            if group.roles[session_id] is Role.TREATED:
                if self.intervention.only_if_control_fails and await self._control_succeeds(group):
                    record.gated_off = True
                else:
                    agent_name = AGENT_NAME
            run = super()._run_agent_loop
            if agent_name not in SINGLE_TURN:
                again = replace(session, collect=True)

                async def rerun(turns: Sequence[Turn], meta: dict[str, Any]) -> InterventionOutput:
                    arguments = {**kwargs, SESSION_KEY: again}
                    return await replayed(
                        turns,
                        meta,
                        lambda: run(dict(sampling_params), trajectory, agent_name=agent_name, trace=False, **arguments),
                    )

                session.rerun = rerun
            return await run(
                sampling_params, trajectory, agent_name=agent_name, trace=trace, **{**kwargs, SESSION_KEY: session}
            )
        finally:
            group.settle(session_id, None)  # only counts if the session never came to its reward

    async def _control_succeeds(self, group: Group) -> bool:
        return any(r > self.intervention.success_threshold for r in await group.control_rewards())

    def _seed_parts(self, trajectory: dict, kwargs: dict, session_id: int) -> tuple[Any, ...] | None:
        if not self.rollout_config.full_determinism:
            return None
        return (self.rollout_config.seed, trajectory["step"], kwargs.get("index"), session_id)

    async def _agent_loop_postprocess(
        self, output: AgentLoopOutput | list[AgentLoopOutput], validate: bool, **kwargs: Any
    ) -> InterventionOutput:
        """Complete the row (authors, weights, record, reward), hold it while its group is worked on, let verl publish it."""
        session: Session = kwargs.pop(SESSION_KEY)
        record = session.record
        rows = [InterventionOutput.from_output(o) for o in (output if isinstance(output, list) else [output])]
        for row in rows:
            if not row.response_ids:
                inert(row, min(self.end_ids, default=0), log_probs=self.rollout_config.calculate_log_probs)
                record.masked, record.mask_reason = True, record.mask_reason or "empty_response"
            row.check(self.rollout_config.response_length)
        record.generate_seconds = record.generate_seconds or rows[-1].metrics.generate_sequences
        reward = await self._score(rows, kwargs, record, validate)
        rows[-1].extra_fields.setdefault("reward_extra_info", {})
        if session.collect:
            return rows[-1]
        if reward is not None:
            held = Held(rows, reward, self._waiting(session, rows[-1], kwargs))
            rows = (await session.group.hold(record.session_id, held)).rows
        for row in rows:
            if not record.is_trained(self.intervention.control.train):
                row.mask_out()
            row.attach(record)
        await super()._agent_loop_postprocess(rows, validate, **kwargs)
        return rows[-1]

    async def _score(
        self, rows: list[InterventionOutput], sample: dict[str, Any], record: SessionRecord, validate: bool
    ) -> float | None:
        """verl's scoring; None where there is no reward yet, or none that can be used.

        A reward function that raises stops the run: verl would drop the session, and not at random.
        """
        try:
            await self._compute_score(rows, kwargs=sample)
        except Exception as error:
            if validate:
                raise
            logger.exception("the reward of session %s of uid %s could not be computed", record.session_id, record.uid)
            record.stop_run(
                "reward",
                f"the reward function raised {type(error).__name__} for session {record.session_id} of uid {record.uid}: "
                f"{error}; fix the function of reward.custom_reward_function (or the reward manager).",
            )
            rows[-1].reward_score = 0.0  # published masked, so that the trainer sees the reason and stops
            return None
        return self._reward(rows[-1], record, validate)

    def _reward(self, row: InterventionOutput, record: SessionRecord, validate: bool) -> float | None:
        """The row's reward; None where there is none yet, or none that can be used.

        Raises:
            DataError: a validation reward is no number; verl counts the session as wrong. While training it would go on without
                the session, so there the trainer is told to stop.
        """
        if row.reward_score is None and self.reward_loop_worker_handles is None:
            return None  # scored after sampling
        try:
            row.reward_score = checked_reward(row.reward_score, record.uid, record.session_id)
        except DataError as error:
            if validate:
                raise
            record.stop_run("reward", str(error))
            row.reward_score = 0.0
            return None
        return row.reward_score

    def _waiting(self, session: Session, row: InterventionOutput, sample: dict[str, Any]) -> Waiting:
        """What the work on a failed group needs to know about a session."""
        params = session.sampling_params
        record = session.record

        def writer() -> ServerWriter:
            return ServerWriter(
                self.llm_client,
                params,
                request_id=f"{record.uid}-{record.session_id}",
                end_ids=self.end_ids,
                decode=self.reviewing.proposer.decode,
                seed_parts=(*session.seed_parts, "walk") if session.seed_parts is not None else None,
            )

        async def score(trajectory: Trajectory) -> InterventionOutput:
            edited = row.with_trajectory(trajectory, keep_logprobs=bool(params.get("logprobs")))
            await self._compute_score([edited], kwargs=sample)
            edited.reward_score = checked_reward(edited.reward_score, record.uid, record.session_id)
            return edited

        return Waiting(record, sample, writer, score, session.sampled_as_scored, session.rerun)


def whole_text(tokenizer: Any) -> Callable[[list[int]], str]:
    """Token ids -> their text, with special tokens and with all spaces.

    ``transformers`` looks at every id in Python before it hands them to a fast tokenizer, which takes longer than decoding them; so
    the one behind is asked itself, unless the class decodes in a way of its own.
    """
    kind = type(tokenizer)
    if (
        isinstance(tokenizer, PreTrainedTokenizerFast)
        and kind.decode is PreTrainedTokenizerBase.decode
        and kind._decode is PreTrainedTokenizerFast._decode
    ):
        return partial(tokenizer.backend_tokenizer.decode, skip_special_tokens=False)
    return partial(tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False)

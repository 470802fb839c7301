"""verl adapter: the rollout worker. Gives every session of a group its role and completes every row.

Leans on ``verl.trainer.ppo.v1.agent_loop_tq.AgentLoopWorkerTQ`` (a Ray actor class; the plain class is
``__ray_metadata__.modified_class``): ``_run_prompt``, ``_run_agent_loop``, ``_agent_loop_postprocess``, ``_compute_score``,
attributes ``config``, ``rollout_config``, ``model_config``, ``tokenizer``, ``llm_client``.
"""

from __future__ import annotations

import logging
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

from verl_mintrl.config import parse
from verl_mintrl.judges.build import Surroundings, build_judge
from verl_mintrl.learning.schedule import Schedule
from verl_mintrl.rollout.agent_loop import AGENT_NAME
from verl_mintrl.rollout.group import Group, assign_roles
from verl_mintrl.rollout.output import InterventionOutput, checked_reward, inert
from verl_mintrl.rollout.periodic import Reviewing
from verl_mintrl.rollout.session import GROUP_KEY, SESSION_KEY, Session
from verl_mintrl.trajectory.record import Role, SessionRecord
from verl_mintrl.trajectory.splice import Budget, control_strings, encode_correction
from verl_mintrl.trajectory.steps import get_segmenter

logger = logging.getLogger(__name__)


class InterventionAgentLoopWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):  # type: ignore[name-defined]
    """``AgentLoopWorkerTQ`` whose treated sessions run the intervention loop; all others run the stock loops unchanged."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.intervention = parse(self.config.intervention)
        self.schedule = Schedule(
            stop_after_updates=self.intervention.schedule.stop_after_updates,
            decay=self.intervention.schedule.decay,  # type: ignore[arg-type]  # checked by ScheduleConfig
        )
        self.end_ids = self._end_ids()
        self.reviewing = self._build_reviewing()

    def _end_ids(self) -> frozenset[int]:
        generation = getattr(self.model_config, "generation_config", None)
        ids = getattr(generation, "eos_token_id", None)
        ids = [ids] if isinstance(ids, int) else list(ids or [])
        return frozenset(i for i in [*ids, self.tokenizer.eos_token_id] if i is not None)

    def _build_reviewing(self) -> Reviewing:
        config, tokenizer = self.intervention, self.tokenizer
        strings = control_strings(tokenizer)
        return Reviewing(
            judge=build_judge(
                config.judge,
                config.verifier,
                Surroundings(
                    client=self.llm_client,
                    tokenizer=tokenizer,
                    control_strings=strings,
                    max_model_len=self.rollout_config.max_model_len
                    or self.rollout_config.prompt_length + self.rollout_config.response_length,
                    template_kwargs=dict(self.config.data.get("apply_chat_template_kwargs", None) or {}),
                ),
            ),
            judge_config=config.judge,
            review=config.review,
            budget=Budget(
                max_reviews=config.budget.max_reviews,
                max_insertions=config.budget.max_insertions,
                max_insertion_tokens=config.budget.max_insertion_tokens,
                max_inserted_share=config.budget.max_inserted_share,
            ),
            segmenter=get_segmenter(config.review.segmenter),
            decode=lambda ids: tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False),
            encode=lambda text: encode_correction(tokenizer, text),
            control_strings=strings,
            end_ids=self.end_ids,
        )

    async def _run_prompt(self, prompt: dict, sampling_params: dict, trajectory: dict, trace: bool = False) -> None:
        n = prompt.get("__rollout_n__", self.rollout_config.n)
        share = self.schedule.share(trajectory["step"]) if self.intervention.trigger != "never" else 0.0
        if trajectory["validate"]:  # a corrected validation answer would report the judge's accuracy
            roles, share = [Role.POLICY] * prompt.get("__rollout_n__", self.rollout_config.val_kwargs.n), 0.0
        elif self.intervention.trigger == "never" and self.intervention.advantage.estimator == "grpo":
            roles = [Role.POLICY] * n
        else:
            roles = assign_roles(n, min(n, self.intervention.control_size(n)), share)
        prompt[GROUP_KEY] = Group(roles, active=share > 0)
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
        session = Session(record, group, self.reviewing, seed_parts=self._seed_parts(trajectory, kwargs, session_id))
        try:
            if group.roles[session_id] is Role.TREATED:
                if self.intervention.only_if_control_fails and await self._control_succeeds(group):
                    record.gated_off = True
                else:
                    agent_name = AGENT_NAME
            return await super()._run_agent_loop(
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
        """Complete the row (authors, weights, record, reward), then let verl publish it."""
        session: Session = kwargs.pop(SESSION_KEY)
        record = session.record
        rows = [InterventionOutput.from_output(o) for o in (output if isinstance(output, list) else [output])]
        for row in rows:
            if not row.response_ids:
                inert(row, min(self.end_ids, default=0))
                record.masked, record.mask_reason = True, record.mask_reason or "empty_response"
            row.check(self.rollout_config.response_length)
            if record.masked or (record.role == Role.CONTROL and not self.intervention.control.train):
                row.mask_out()
            row.attach(record)
        if not record.generate_seconds:
            record.generate_seconds = rows[-1].metrics.generate_sequences
            rows[-1].attach(record)
        await self._compute_score(rows, kwargs=kwargs)
        if rows[-1].reward_score is not None:
            rows[-1].reward_score = checked_reward(rows[-1].reward_score, record.uid, record.session_id)
        rows[-1].extra_fields.setdefault("reward_extra_info", {})
        await super()._agent_loop_postprocess(rows, validate, **kwargs)
        session.group.settle(record.session_id, rows[-1].reward_score)
        return rows[-1]

"""verl adapter: the agent loop of a treated single-turn session.

Leans on ``verl.experimental.agent_loop.agent_loop``: ``AgentLoopBase`` (``ct_build_initial_tokens``, ``rollout_config``,
``server_manager``), ``AgentLoopOutput``, ``register``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, register

from verl_mintrl.judges.protocol import ReviewRequest
from verl_mintrl.rollout.periodic import PeriodicSession
from verl_mintrl.rollout.session import SESSION_KEY, Session
from verl_mintrl.rollout.writer import ServerWriter

if TYPE_CHECKING:
    from verl_mintrl.rollout.output import InterventionOutput

AGENT_NAME = "intervention_agent"


@register(AGENT_NAME)
class InterventionAgentLoop(AgentLoopBase):
    """One turn, reviewed and corrected while it is written. One object per session, so it keeps nothing."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> InterventionOutput:
        # not at the top: output imports verl's agent loop, whose import registers this module
        from verl_mintrl.rollout.output import InterventionOutput

        session: Session = kwargs.pop(SESSION_KEY)
        messages = list(kwargs["raw_prompt"])
        prompt_ids = await self.ct_build_initial_tokens(messages)
        shared, record = session.shared, session.record
        writer = ServerWriter(
            self.server_manager,
            sampling_params,
            request_id=f"{record.uid}-{record.session_id}",
            end_ids=shared.end_ids,
            decode=shared.proposer.decode,
            seed_parts=session.seed_parts,
        )
        request = ReviewRequest(
            problem=tuple(messages),
            steps=(),
            finished=False,
            sample=kwargs,
            uid=record.uid,
            session_id=record.session_id,
        )
        trajectory = await PeriodicSession(
            shared, writer, prompt_ids, self.rollout_config.response_length, request, record, session.sampled_as_scored
        ).run()
        record.generate_seconds, record.aborted_requests = writer.seconds, writer.aborted
        return InterventionOutput(
            prompt_ids=prompt_ids,
            response_ids=trajectory.ids,
            response_mask=trajectory.response_mask(),
            # NaN where no one scored the token: the trainer fills in the actor's log-prob, a placeholder would poison ratios
            response_logprobs=trajectory.logprobs if sampling_params.get("logprobs") else None,
            authors=trajectory.authors(),
            token_weights=trajectory.weights,
            num_turns=2,
            metrics=AgentLoopMetrics(generate_sequences=writer.seconds),
            extra_fields={
                "min_global_steps": min(writer.versions, default=record.step - 1),
                "max_global_steps": max(writer.versions, default=record.step - 1),
                "turn_scores": [],
                "tool_rewards": [],
            },
        )

"""An agent loop that generates nothing: the same response in every step, with the rollout's log-probs of its tokens.

verl's own metrics then compare rollout and actor on fixed tokens, so what changes from step to step are the weights.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

PROMPT = list(range(1000, 1016))
RESPONSE_LENGTH = 16
SCORE = {"prompt_logprobs": 0, "max_tokens": 1, "temperature": 1.0, "logprobs": False}


class FixedResponse(AgentLoopBase):
    """Every second session is rewarded."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        session = int(kwargs["session_id"])
        response = [2000 + 100 * session + position for position in range(RESPONSE_LENGTH)]
        scored = await self.server_manager.generate(uuid4().hex, prompt_ids=PROMPT + response, sampling_params=SCORE)
        # entry i is the log-prob of token i + 1
        log_probs = [entry[0] for entry in scored.extra_fields["prompt_logprobs"]][len(PROMPT) - 1 : -1]
        steps = {key: scored.extra_fields[key] for key in ("min_global_steps", "max_global_steps")}
        return AgentLoopOutput(
            prompt_ids=PROMPT,
            response_ids=response,
            response_mask=[1] * RESPONSE_LENGTH,
            response_logprobs=log_probs,
            reward_score=float(session % 2),
            num_turns=2,
            metrics=AgentLoopMetrics(),
            extra_fields={"reward_extra_info": {}, **steps},
        )

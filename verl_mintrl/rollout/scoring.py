"""verl adapter: log-probs of given tokens under the policy, by verl's rollout servers.

Leans on ``verl.workers.rollout.llm_server.LLMServerClient.generate`` and on ``extra_fields["prompt_logprobs"]`` of its output:
entry i holds the log-prob of token i + 1. The base class's ``generate`` is called even on the client of the async trainers,
whose own one drops that field.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from verl_mintrl.errors import ConfigError, JudgeError


@dataclass
class ServerScorer:
    """Scores on the policy's own servers.

    Attributes:
        client: verl's server client.
        max_model_len: context of the servers; scoring needs one token of headroom.
    """

    client: Any
    max_model_len: int

    async def score(self, context: Sequence[int], ids: Sequence[int]) -> list[float]:
        """See :class:`verl_mintrl.rollout.propose.Scorer`.

        Raises:
            JudgeError: context and tokens do not fit.
            ConfigError: the servers return no prompt log-probs.
        """
        from verl.workers.rollout.llm_server import LLMServerClient

        if len(context) + len(ids) + 1 > self.max_model_len:
            raise JudgeError(
                f"{len(context)} + {len(ids)} tokens and one of headroom exceed a context of {self.max_model_len}.",
                "raise actor_rollout_ref.rollout.max_model_len.",
                kind="context",
            )
        generate = LLMServerClient.generate if isinstance(self.client, LLMServerClient) else type(self.client).generate
        while True:
            output = await generate(
                self.client,
                request_id=f"score-{uuid4().hex}",
                prompt_ids=[*context, *ids],
                sampling_params={"prompt_logprobs": 0, "max_tokens": 1, "temperature": 1.0, "logprobs": False},
            )
            if output.stop_reason not in ("aborted", "abort"):
                break
            await asyncio.sleep(0.5)  # weights are being exchanged
        entries = output.extra_fields.get("prompt_logprobs")
        if entries is None:
            raise ConfigError(
                "the rollout servers returned no prompt log-probs; gate and steering weights need them.",
                "use actor_rollout_ref.rollout.name: vllm, or intervention.gate.mode: none and token_weights.mode: ones.",
            )
        return [entry[0] for entry in entries[len(context) - 1 : len(context) + len(ids) - 1]]

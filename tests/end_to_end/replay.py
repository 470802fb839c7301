"""Recorded rollouts instead of sampled ones, in a fixed order, so that two trainers can be compared bit by bit."""

from __future__ import annotations

import json
import os
import random
from functools import cache
from pathlib import Path
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

FILE = "REPLAY_FILE"
VOCABULARY = (1000, 40000)


def record(path: Path, steps: int, prompts: int, n: int) -> None:
    """Write ``steps`` batches of rollouts; every row of a batch has a total length of its own, see :class:`InOrder`."""
    rng = random.Random(0)
    rows = {}
    for step in range(1, steps + 1):
        for prompt in range(prompts):
            ids = [rng.randrange(*VOCABULARY) for _ in range(8)]
            for session in range(n):
                length = 4 + prompt * n + session
                rows[f"{step}/{prompt}/{session}"] = {
                    "prompt_ids": ids,
                    "response_ids": [rng.randrange(*VOCABULARY) for _ in range(length)],
                    "response_logprobs": [-rng.random() for _ in range(length)],
                    "reward_score": float(session == step % n or rng.random() < 0.4),  # every group succeeds
                }
    path.write_text(json.dumps(rows))


@cache
def recorded() -> dict[str, dict[str, Any]]:
    return json.loads(Path(os.environ[FILE]).read_text())


class Replay(AgentLoopBase):
    """The recorded rollout of this step, prompt and session."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        rows = recorded()
        step, session = int(kwargs["global_steps"]), int(kwargs["session_id"])
        prompts = len({key.split("/")[1] for key in rows})
        row = rows[f"{step}/{int(kwargs['index']) % prompts}/{session}"]
        return AgentLoopOutput(
            **row,
            response_mask=[1] * len(row["response_ids"]),
            num_turns=2,
            metrics=AgentLoopMetrics(),
            extra_fields={
                "reward_extra_info": {},
                "turn_scores": [],
                "tool_rewards": [],
                "min_global_steps": step - 1,
                "max_global_steps": step - 1,
            },
        )


class InOrder(ReplayBuffer):
    """Rows come by length instead of by arrival: a sum of gradients depends on its order in the last bit."""

    def sample(self, *args: Any, **kwargs: Any):
        batch, metrics = super().sample(*args, **kwargs)
        lengths = [tag["seq_len"] for tag in batch.tags]
        assert len(set(lengths)) == len(lengths)
        batch.reorder(sorted(range(len(lengths)), key=lengths.__getitem__))
        return batch, metrics

"""verl's real worker and queue in one process; the policy, the reward function and the actor are scripted."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from omegaconf import DictConfig
from scripted import END, ScriptedClient

from verl_mintrl.trajectory.record import SessionRecord

N, CONTROL = 4, 2
PROMPT_LENGTH, RESPONSE_LENGTH = 16, 32
SCRIPT = "one.\n\nbad.\n\nend." + END
CORRECTED = SCRIPT.replace("bad", "god")
INSERTED = range(6, 12)  # the step with its blank line


class Servers:
    """The scripted policy behind everything verl's own loops pass. No dataclass: Hydra would copy it into a config."""

    def __init__(self, policy: Callable[[str], str]) -> None:
        self._client = ScriptedClient(policy)
        self.calls = self._client.calls

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        params = {"max_tokens": RESPONSE_LENGTH, **sampling_params}
        output = await self._client.generate(request_id, prompt_ids=prompt_ids, sampling_params=params)
        return TokenOutput(**vars(output))


@dataclass
class Rewards:
    """A reward worker: ``score(session_id, response)``, awaited if it is a coroutine."""

    score: Callable[[int, str], Any] = lambda session, text: float("bad" not in text)
    seen: list[int] = field(default_factory=list)

    @property
    def compute_score(self) -> Any:
        return SimpleNamespace(remote=self._score)

    async def _score(self, data: Any) -> dict[str, Any]:
        session = int(data.non_tensor_batch["session_id"][0])
        reward = self.score(session, "".join(map(chr, data.batch["responses"][0].tolist())))
        self.seen.append(session)
        return {"reward_score": await reward if isinstance(reward, Awaitable) else reward, "reward_extra_info": {}}


@dataclass
class Rollout:
    """What one prompt left in the queue."""

    tq: Any
    config: DictConfig
    servers: Servers
    worker: Any
    uid: str
    partition: str
    status: str
    keys: list[str]

    def column(self, name: str) -> list[Any]:
        return list(self.tq.kv_batch_get(keys=self.keys, partition_id=self.partition, select_fields=[name])[name])

    @property
    def records(self) -> list[SessionRecord]:
        from verl_mintrl.rollout.output import RECORD_KEY

        fields = [getattr(value, "data", value) for value in self.column("extra_fields")]
        return [SessionRecord.from_dict(value[RECORD_KEY]) for value in fields]

    @property
    def texts(self) -> list[str]:
        return ["".join(map(chr, row.tolist())) for row in self.column("responses")]


def read_dump(config: DictConfig, step: int) -> list[dict[str, Any]]:
    file = Path(config.trainer.rollout_data_dir) / "trajectories" / f"{step}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]

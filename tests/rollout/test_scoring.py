"""Scoring through verl's own clients, as a worker wires it: the async one drops prompt log-probs from what it returns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput

CONTEXT, IDS = [65, 66, 67], [68, 69]


class Server:
    """A server's handle: the log-prob of token i + 1 of the prompt is -(i + 1)."""

    def __init__(self) -> None:
        self.generate = SimpleNamespace(remote=self._generate)

    async def _generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict, **_: Any) -> TokenOutput:
        assert sampling_params["prompt_logprobs"] == 0
        entries = [[-float(i + 1)] for i in range(len(prompt_ids) - 1)] + [[0.0]]
        return TokenOutput(token_ids=[1], stop_reason="completed", extra_fields={"prompt_logprobs": entries})


@pytest.mark.parametrize("client_class", [LLMServerClient, FullyAsyncLLMServerClient])
async def test_a_worker_scores_through_the_clients_of_all_trainers(queue, config, client_class):
    from verl_mintrl.rollout.worker import InterventionAgentLoopWorker

    settings = config()
    client = client_class(settings, load_balancer_handle=None)

    async def acquire(request_id: str, **_: Any) -> tuple[str, Server]:
        return "server", Server()

    client._acquire_server, client._release_server = acquire, lambda server_id, request_id=None: None
    worker = InterventionAgentLoopWorker(settings, client, reward_loop_worker_handles=[])
    scored = await worker.reviewing.proposer.scorer.score(CONTEXT, IDS)
    assert scored == [-3.0, -4.0]

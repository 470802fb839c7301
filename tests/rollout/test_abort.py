"""A cancelled request stops on the server: verl's own client class against Ray actors that stand for its servers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from verl_mintrl.rollout.abort import ABORTED, AbortingClient
from verl_mintrl.rollout.writer import ServerWriter


@ray.remote
class Server:
    """Writes one token every ``pace`` seconds and knows what became of its requests."""

    def __init__(self) -> None:
        self.events: list[str] = []

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict, **kwargs: Any) -> Any:
        self.events.append("started")
        try:
            await asyncio.sleep(sampling_params["seconds"])
        except asyncio.CancelledError:
            self.events.append("aborted")
            raise
        self.events.append("finished")
        return TokenOutput(token_ids=[1, 2], log_probs=[0.0, 0.0], stop_reason="completed")

    async def happened(self) -> list[str]:
        return self.events

    async def forget(self) -> None:
        self.events.clear()


@ray.remote
class Balancer:
    def __init__(self, server: Any) -> None:
        self.server, self.held, self.slow = server, 0, 0.0

    async def require_acquire_fields(self) -> list[str]:
        return []

    async def require_release_fields(self) -> list[str]:
        return []

    async def acquire_server(self, request_id: str) -> Any:
        self.held += 1
        await asyncio.sleep(self.slow)
        return "server", self.server

    async def release_server(self, server_id: str) -> None:
        self.held -= 1

    async def answer_after(self, seconds: float) -> None:
        self.slow = seconds

    async def in_use(self) -> int:
        return self.held


CONFIG = SimpleNamespace(
    actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(full_determinism=False, name="vllm", response_length=8))
)


def start() -> Any:
    """A server and its balancer, both answering."""
    server = Server.options(num_cpus=0).remote()
    balancer = Balancer.options(num_cpus=0).remote(server)
    ray.get([server.happened.remote(), balancer.in_use.remote()])
    return server, balancer


@pytest.fixture(scope="module")
def actors(ray_started: None) -> Any:
    yield (made := start())
    for actor in made:
        ray.kill(actor)


@pytest.fixture(params=[LLMServerClient, FullyAsyncLLMServerClient])
def parts(request: Any, actors: Any) -> Any:
    server, balancer = actors
    ray.get(server.forget.remote())
    return AbortingClient(request.param(CONFIG, balancer)), server, balancer


async def started(server: Any) -> None:
    while "started" not in await server.happened.remote():
        await asyncio.sleep(0.01)


async def test_a_cancelled_request_is_dropped_by_its_server(parts: Any) -> None:
    client, server, balancer = parts
    writer = ServerWriter(client, {"seconds": 60}, "r", {0}, lambda ids: "")
    task = asyncio.ensure_future(writer.write([5], 8))
    await started(server)
    task.cancel()
    with pytest.raises(asyncio.CancelledError, match=ABORTED):
        await task
    assert await server.happened.remote() == ["started", "aborted"]
    assert writer.aborted == 1 and writer.calls == 1 and writer.seconds > 0
    assert await balancer.in_use.remote() == 0


async def test_a_request_cancelled_while_it_is_routed_gives_its_place_back(parts: Any) -> None:
    client, server, balancer = parts
    await client.generate("warm", prompt_ids=[5], sampling_params={"seconds": 0})  # verl asks for the fields once
    await balancer.answer_after.remote(0.3)
    task = asyncio.ensure_future(client.generate("r", prompt_ids=[5], sampling_params={"seconds": 60}))
    while not await balancer.in_use.remote():
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await balancer.answer_after.remote(0.0)
    async with asyncio.timeout(10):
        while await balancer.in_use.remote():
            await asyncio.sleep(0.05)
    assert "aborted" not in await server.happened.remote()


async def test_a_deadline_drops_the_request_too(parts: Any) -> None:
    client, server, _ = parts
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await client.generate("r", prompt_ids=[5], sampling_params={"seconds": 60})
    assert await server.happened.remote() == ["started", "aborted"]


async def test_a_request_that_ends_is_left_alone(parts: Any) -> None:
    client, server, balancer = parts
    outputs = await asyncio.gather(
        *(client.generate(f"r{i}", prompt_ids=[5], sampling_params={"seconds": 0.01}) for i in range(8))
    )
    assert [output.token_ids for output in outputs] == [[1, 2]] * 8
    assert sorted(await server.happened.remote()) == ["finished"] * 8 + ["started"] * 8
    assert await balancer.in_use.remote() == 0


async def test_only_the_cancelled_request_is_dropped(parts: Any) -> None:
    client, server, _ = parts
    other = asyncio.ensure_future(client.generate("a", prompt_ids=[5], sampling_params={"seconds": 1.5}))
    task = asyncio.ensure_future(client.generate("b", prompt_ids=[5], sampling_params={"seconds": 60}))
    while (await server.happened.remote()).count("started") < 2:
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait((task,))
    assert (await other).token_ids == [1, 2]
    assert sorted(await server.happened.remote()) == ["aborted", "finished", "started", "started"]


async def test_a_server_that_died_is_no_second_error(ray_started: None) -> None:
    server, balancer = start()
    client = AbortingClient(LLMServerClient(CONFIG, balancer))
    task = asyncio.ensure_future(client.generate("r", prompt_ids=[5], sampling_params={"seconds": 60}))
    await started(server)
    ray.kill(server)
    task.cancel()
    with pytest.raises((asyncio.CancelledError, ray.exceptions.RayActorError)):  # whichever comes first
        await asyncio.wait_for(task, 30)
    ray.kill(balancer)


async def test_what_is_not_generating_passes_through(parts: Any) -> None:
    client, _, _ = parts
    assert client.config is CONFIG

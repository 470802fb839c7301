"""The endpoint backend against vLLM's own OpenAI server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import ROOT

from verl_mintrl.config.schema import parse
from verl_mintrl.errors import JudgeError
from verl_mintrl.judges import endpoint
from verl_mintrl.judges.endpoint import EndpointBackend
from verl_mintrl.judges.protocol import ReviewRequest
from verl_mintrl.judges.schemas import SCHEMAS

CONTEXT = 1024
REQUEST = ReviewRequest((), ("a",), finished=True)
MESSAGES = [{"role": "user", "content": "Is 3 + 4 = 7? " * 12}]


@pytest.fixture(scope="module")
def url(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log.txt"
    command = [sys.executable, str(ROOT / "scripts" / "serve_judge.py"), "--engine", "vllm", "--model", str(tiny_model)]
    command += ["--port", str(port), "--context", str(CONTEXT)]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        until = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.5)
        else:
            raise AssertionError(f"no server: {log.read_text()[-3000:]}")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
async def backend(url: str):
    node = {"backend": "endpoint", "function": None, "max_answer_tokens": 300, "call_deadline_s": 120}
    judge = parse({"judge": {**node, "endpoint": {"base_url": url, "model": "judge"}}}).judge
    yield EndpointBackend(judge)
    await endpoint._reset()


async def test_even_a_random_model_answers_in_the_form_it_is_held_to(backend: EndpointBackend) -> None:
    done = await backend.complete(MESSAGES, schema=SCHEMAS["verifier"], request=REQUEST)
    assert (done.text or "").lstrip().startswith("{") and '"reason"' in (done.text or "")
    if done.finish_reason == "stop":
        assert {"agrees", "leak_free", "plausible"} <= json.loads(done.text or "").keys()
    assert done.usage.calls == 1 and done.usage.prompt_tokens > 50 and done.usage.completion_tokens > 1


async def test_reuse_of_a_prompt_is_reported(backend: EndpointBackend) -> None:
    for _ in range(2):
        done = await backend.complete(MESSAGES, schema=None, request=REQUEST)
    assert 0 < done.usage.cached_tokens < done.usage.prompt_tokens


async def test_a_question_beyond_the_context_is_told_as_such(backend: EndpointBackend) -> None:
    with pytest.raises(JudgeError) as caught:
        await backend.complete([{"role": "user", "content": "word " * 2 * CONTEXT}], schema=None, request=REQUEST)
    assert caught.value.kind == "context"

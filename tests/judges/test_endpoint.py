"""The endpoint backend: what it sends, what it counts, what it never tells, and that nothing leaks."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import pickle
import traceback
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, replace
from typing import Any

import pytest
from judges.driving import GOLD, build, endpoint_config, session, text_of
from judges.fault_server import Call, FaultServer
from judges.faults import sends

from verl_mintrl.errors import ConfigError, JudgeError
from verl_mintrl.judges import endpoint
from verl_mintrl.judges.endpoint import EndpointBackend
from verl_mintrl.judges.protocol import Evidence, ReviewRequest
from verl_mintrl.judges.schemas import SCHEMAS
from verl_mintrl.metrics import rollout_metrics

KEEP = '{"verdict": "keep"}'
SECRET = "sk-live-0123456789abcdef"
REQUEST = ReviewRequest(({"role": "user", "content": "1 + 1?"},), ("1 + 1 = 3",), finished=True)
MESSAGES = [{"role": "user", "content": "judge"}]


async def keep(call: Call) -> None:
    await call.answer(KEEP)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer(keep) as server:
        yield server


@pytest.fixture(autouse=True)
async def closed_clients() -> AsyncIterator[None]:
    yield
    await endpoint._reset()


async def ask(backend: EndpointBackend, request: ReviewRequest = REQUEST) -> Any:
    return await backend.complete(MESSAGES, schema=SCHEMAS["reviewer"], request=request)


async def test_request(server: FaultServer) -> None:
    config = endpoint_config(
        server.url,
        temperature=0.3,
        max_answer_tokens=77,
        endpoint={"extra_body": {"top_k": 5, "chat_template_kwargs": {"enable_thinking": False}}},
    )
    await ask(EndpointBackend(config))
    (call,) = server.calls
    assert call.body == {
        "model": "judge-1",
        "messages": MESSAGES,
        "temperature": 0.3,
        "max_tokens": 77,
        "top_k": 5,
        "chat_template_kwargs": {"enable_thinking": False},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": SCHEMAS["reviewer"], "strict": True},
        },
    }
    await ask(EndpointBackend(endpoint_config(server.url, endpoint={"structured": False})))
    assert "response_format" not in server.calls[1].body and server.calls[1].body["max_tokens"] == 512


async def test_fields_a_model_does_not_know_are_taken_back(server: FaultServer) -> None:
    extra = {"temperature": None, "max_tokens": None}
    await ask(EndpointBackend(endpoint_config(server.url, max_answer_tokens=77, endpoint={"extra_body": extra})))
    body = server.calls[0].body
    assert body["max_completion_tokens"] == 77 and not {"max_tokens", "temperature"} & set(body)


@pytest.mark.parametrize(
    ("body", "said", "attempts"),
    [
        ({"error": {"message": "rate limit: slow down", "code": 429}}, r"429.*rate limit: slow down.*cluster", 3),
        ({"error": "model is loading"}, r"200 \(model is loading\)", 1),
        ({"error": {"message": "bad key", "code": "invalid_api_key"}}, r"invalid_api_key: bad key", 1),
    ],
)
async def test_an_error_under_the_status_of_a_success(
    server: FaultServer, body: dict, said: str, attempts: int
) -> None:
    server.behaviour = sends(json.dumps(body).encode())
    with pytest.raises(JudgeError, match=said) as caught:
        await ask(EndpointBackend(endpoint_config(server.url)))
    assert caught.value.kind == "http" and len(server.calls) == attempts


async def test_a_server_that_sends_the_key_back(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", SECRET)
    answer = {"verdict": "revise", "step": 1, "correction": f"debug Bearer {SECRET}"}
    message = {"role": "assistant", "content": json.dumps(answer)}
    server.behaviour = sends(json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode())
    with pytest.raises(JudgeError, match="answered with the key") as caught:
        await ask(EndpointBackend(endpoint_config(server.url, endpoint={"api_key_env": "JUDGE_KEY"})))
    assert SECRET not in str(caught.value) and caught.value.kind == "http"


async def test_a_question_that_is_too_long_is_told_whatever_the_evidence(server: FaultServer) -> None:
    server.behaviour = sends(b'{"error": {"message": "This model\'s maximum context length is 4096 tokens."}}', 400)
    with pytest.raises(JudgeError) as caught:
        await ask(EndpointBackend(endpoint_config(server.url)), replace(REQUEST, privileged="4096"))
    assert caught.value.kind == "context" and "4096" not in str(caught.value)


@pytest.mark.parametrize(
    "body", [[{"error": {"message": "no such key"}}], {"detail": [{"msg": "no such key"}]}, ["no such key"]]
)
async def test_reasons_of_other_servers_are_told(server: FaultServer, body: object) -> None:
    server.behaviour = sends(json.dumps(body).encode(), 400)
    with pytest.raises(JudgeError, match="no such key"):
        await ask(EndpointBackend(endpoint_config(server.url)))


async def test_usage_reaches_record_and_metrics(server: FaultServer) -> None:
    config = endpoint_config(server.url, prices={"prompt": 2.0, "completion": 10.0, "cached": 0.5})
    run = session(config, build(config))
    await run.run()
    reviews = run.record.reviews
    assert [
        (r.judge_calls, r.judge_prompt_tokens, r.judge_completion_tokens, r.judge_cached_tokens) for r in reviews
    ] == [(1, 100, 10, 40)] * 3
    metrics = rollout_metrics([run.record], [True], [1.0], config.prices)
    assert metrics["intervention/judge_cached_tokens"] == 120
    assert metrics["intervention/judge_cost"] == pytest.approx(3 * (60 * 2 + 40 * 0.5 + 10 * 10) / 1e6)
    assert metrics["intervention/judge_latency_p95"] >= metrics["intervention/judge_latency_p50"] > 0
    assert "intervention/judge_cost" not in rollout_metrics([run.record], [True], [1.0])
    assert not [name for name in metrics if any(word in name for word in ("min", "max", "sum", "total"))]


async def test_answers_that_were_no_use_are_paid_for(server: FaultServer) -> None:
    async def refuse(call: Call) -> None:
        await call.answer(None, refusal="no")

    server.behaviour = refuse
    config = endpoint_config(server.url, on_error="mask")
    run = session(config, build(config))
    await run.run()
    (note,) = run.record.reviews
    assert (note.judge_calls, note.judge_prompt_tokens, note.judge_completion_tokens) == (1, 100, 10)


async def test_secret_stands_nowhere(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JUDGE_KEY", f"{SECRET}\n")
    caplog.set_level(logging.DEBUG)
    config = endpoint_config(server.url, endpoint={"api_key_env": "JUDGE_KEY"}, retry={"attempts": 1})
    backend = EndpointBackend(config)
    privileged = ReviewRequest(REQUEST.problem, REQUEST.steps, True, Evidence.GOLD, GOLD)

    async def echo(call: Call) -> None:
        assert call.headers["authorization"] == f"Bearer {SECRET}"
        await call.error(401, f"key {SECRET} is wrong, and the answer is {GOLD}", code=SECRET)

    async def hang_up(call: Call) -> None:
        call.writer.close()

    seen = [repr(config), repr(asdict(config)), repr(backend), repr(vars(backend))]
    for behaviour, kind in ((echo, "http"), (hang_up, "unavailable"), (keep, None)):
        server.behaviour = behaviour
        if kind is None:
            await ask(backend, privileged)
            continue
        with pytest.raises(JudgeError) as caught:
            await ask(backend, privileged)
        error: Any = caught.value
        assert error.kind == kind and error.__cause__ is None and error.__suppress_context__
        seen += [str(error), repr(error), repr(error.args), repr(pickle.dumps(error))]
        seen.append("".join(traceback.TracebackException.from_exception(error, capture_locals=False).format()))
    assert SECRET not in "".join(seen) + caplog.text
    assert GOLD not in "".join(seen)
    assert "[hidden]" in "".join(seen)


def test_key_without_its_variable_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    config = endpoint_config("http://127.0.0.1:1/v1", endpoint={"api_key_env": "JUDGE_KEY"})
    for value in (None, " ", "clé", "a\nb"):
        monkeypatch.delenv("JUDGE_KEY", raising=False)
        if value is not None:
            monkeypatch.setenv("JUDGE_KEY", value)
        with pytest.raises(
            ConfigError, match=r"endpoint.api_key_env names an environment variable that is no"
        ) as caught:
            build(config)
        assert "JUDGE_KEY" not in str(caught.value), "it may be the key itself"


async def test_no_other_key_is_sent(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("OPENAI_ADMIN_KEY", SECRET)
    await ask(EndpointBackend(endpoint_config(server.url)))
    assert SECRET not in repr(server.calls[0].headers)


async def test_redirects_are_not_followed(server: FaultServer) -> None:
    with FaultServer(keep) as other:

        async def redirect(call: Call) -> None:
            await call.send(b"", 307, {"location": f"{other.url}/chat/completions"})

        server.behaviour = redirect
        with pytest.raises(JudgeError, match=r"307.*points to in intervention\.judge\.endpoint\.base_url"):
            await ask(EndpointBackend(endpoint_config(server.url)))
        assert other.calls == []


@pytest.mark.parametrize(
    "change,key",
    [
        ({"base_url": "http://user:pw@host/v1"}, "endpoint.base_url"),
        ({"base_url": "https://host/v1?api_key=pw"}, "endpoint.base_url"),
        ({"base_url": "host:8000"}, "endpoint.base_url"),
        ({"base_url": "http://[pw/v1"}, "endpoint.base_url"),
        ({"base_url": None}, "endpoint.base_url"),
        ({"model": ""}, "endpoint.model"),
        ({"api_key_env": "sk-pw-1"}, "endpoint.api_key_env"),
        ({"extra_body": {"api_key": "pw"}}, "endpoint.extra_body.api_key"),
        ({"extra_body": {"metadata": [{"api_key": "pw"}]}}, "endpoint.extra_body.api_key"),
        ({"extra_body": {"stream": True}}, "endpoint.extra_body.stream"),
        ({"extra_body": {"response_format": {}}}, "endpoint.structured"),
    ],
)
def test_config_is_refused_by_its_key_and_without_its_secret(change: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        endpoint_config("http://127.0.0.1:1/v1", endpoint=change)
    assert f"intervention.judge.{key}" in str(caught.value) and "pw" not in str(caught.value)


async def test_overall_deadline_holds_over_retries(server: FaultServer) -> None:
    async def busy(call: Call) -> None:
        await call.error(503, "busy")

    server.behaviour = busy
    config = endpoint_config(
        server.url, call_deadline_s=0.3, retry={"attempts": 99, "base_s": 0.1, "max_wait_s": 60.0}, on_error="mask"
    )
    started = asyncio.get_running_loop().time()
    run = session(config, build(config))
    await run.run()
    assert asyncio.get_running_loop().time() - started < 2
    note = run.record.reviews[0]
    assert note.reason in ("http", "timeout")  # timeout: an attempt was under way at the deadline
    assert 1 <= note.judge_calls < 9 and abs(note.judge_calls - len(server.calls)) <= 1


async def test_attempt_that_hangs_is_given_up_and_repeated(server: FaultServer) -> None:
    async def hang_once(call: Call) -> None:
        await (asyncio.sleep(30) if call.number == 0 else keep(call))

    server.behaviour = hang_once
    config = endpoint_config(server.url, retry={"attempt_timeout_s": 0.2})
    assert (await ask(EndpointBackend(config))).usage.calls == 2


async def test_session_deadline_ends_the_reviewing(server: FaultServer) -> None:
    async def hang(call: Call) -> None:
        await asyncio.sleep(30)

    server.behaviour = hang
    config = endpoint_config(server.url, session_deadline_s=0.5)
    run = session(config, build(config))
    await run.run()
    assert [note.reason for note in run.record.reviews] == ["session_timeout"]
    assert text_of(run).startswith("ab") and len(server.calls) <= 1


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


async def calls_leave_no_descriptors(server: FaultServer, rounds: int) -> None:
    """Answers, errors, resets and cancelled calls in turn, 32 at a time; the server shares this process's descriptors."""

    async def behave(call: Call) -> None:
        match call.number % 8:
            case 0:
                await call.error(500)
            case 1:
                call.reset()
            case 2:
                await asyncio.sleep(0.4)  # beyond the deadline
            case 3:
                await call.send(b"{", length=99)
                call.writer.close()
            case 4:
                await call.send(b"x" * 2_000_000)
            case _:
                await keep(call)

    server.behaviour = behave
    config = endpoint_config(
        server.url, call_deadline_s=0.2, retry={"attempts": 1}, breaker={"failures": 10**6}, max_concurrency=32
    )
    judge = build(config)

    async def call() -> None:
        try:
            await judge.review(REQUEST)
        except JudgeError:
            pass

    start, most = descriptors(), 0
    for _ in range(rounds):
        await asyncio.gather(*(call() for _ in range(32)))
        await asyncio.sleep(0.25)
        most = max(most, descriptors())
    assert most <= start + 4 * 32, "connections of two rounds, seen from both ends"
    await endpoint._reset()
    assert asyncio.get_running_loop() not in endpoint._clients
    patience = 80  # a busy machine closes connections late; a leak never does
    while descriptors() > start + 4 and patience:
        await asyncio.sleep(0.25)
        patience -= 1
    assert patience, (start, most, descriptors())


async def test_descriptors(server: FaultServer) -> None:
    await calls_leave_no_descriptors(server, rounds=8)


@pytest.mark.skipif("SLOW_TESTS" not in os.environ, reason="ten thousand calls; set SLOW_TESTS")
async def test_descriptors_over_ten_thousand_calls(server: FaultServer) -> None:
    await calls_leave_no_descriptors(server, rounds=313)


async def test_one_client_serves_all_calls_of_a_loop(server: FaultServer) -> None:
    first, second = (EndpointBackend(endpoint_config(server.url)) for _ in range(2))
    await asyncio.gather(*(ask(backend) for backend in (first, second) for _ in range(5)))
    assert len(endpoint._clients[asyncio.get_running_loop()]) == 1


def test_every_loop_has_its_own_client_and_takes_it_along() -> None:
    with FaultServer(keep) as server:
        backend = EndpointBackend(endpoint_config(server.url))
        for _ in range(3):
            asyncio.run(ask(backend))
        assert len(server.calls) == 3 and len(endpoint._clients) == 1


def test_openai_is_only_imported_when_used() -> None:
    import subprocess
    import sys

    code = "import sys, verl_mintrl.judges.build; sys.exit('openai' in sys.modules or 'ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0

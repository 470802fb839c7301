"""Every way a judge's server can fail, under every failure policy, in both modes, through a real session."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict

import pytest
import pytest_asyncio
from judges.driving import SCRIPT, build, endpoint_config, session, text_of
from judges.fault_server import Call, FaultServer
from judges.faults import FAULTS, INSERTED, KEEP, KEPT, SLOW, fails, says

from verl_mintrl.config.judge import JudgeConfig
from verl_mintrl.judges import endpoint
from verl_mintrl.metrics import rollout_metrics
from verl_mintrl.trajectory.record import Outcome, SessionRecord
from verl_mintrl.trajectory.spans import Author

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one event loop, so that its client is built once

MODES = ["blocking", "overlapped"]
#: what a failure may change in a record; the trainer learns from none of it but ``masked``
OF_FAILURES = {"reviews", "superseded", "judge_wait_seconds", "masked", "mask_reason", "fatal"}


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    with FaultServer(says(KEEP)) as server:
        yield server


@pytest_asyncio.fixture(autouse=True, scope="module", loop_scope="module")
async def closed_clients() -> AsyncIterator[None]:
    yield
    await endpoint._reset()


@functools.cache
def parsed(url: str, policy: str, deadline_s: float) -> JudgeConfig:
    """Parsing is most of what a test would cost."""
    return endpoint_config(url, on_error=policy, call_deadline_s=deadline_s, breaker={"failures": 99})


def without_failures(record: SessionRecord) -> dict[str, object]:
    return {name: value for name, value in asdict(record).items() if name not in OF_FAILURES}


@pytest.mark.parametrize("policy", ["keep", "mask", "fail"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fault", FAULTS)
async def test_fault(server: FaultServer, fault: str, mode: str, policy: str) -> None:
    server.behaviour, expected = FAULTS[fault]
    server.calls.clear()
    config = parsed(server.url, policy, 0.15 if fault in SLOW else 5.0)
    run = session(config, build(config), mode=mode)
    before = without_failures(run.record)
    alone = await run.writer.write(run.prompt_ids, run.trajectory.limit)
    async with asyncio.timeout(10):
        await run.run()
    run.trajectory.check()
    record, first = run.record, run.record.reviews[0]
    metrics = rollout_metrics([record], [True], [1.0])
    if expected == INSERTED:
        assert first.outcome == INSERTED and record.intervened and not record.masked
        return
    # Nothing in the row but what the policy writes without a judge, so nothing that a reward function could see.
    assert run.trajectory.ids == alone.ids and run.trajectory.logprobs == alone.logprobs
    assert set(run.trajectory.authors()) == {Author.POLICY}
    assert without_failures(record) == before, "not intervened on, nothing cut back, no reward"
    if expected == KEPT:
        assert {note.outcome for note in record.reviews} == {KEPT} and len(record.reviews) == 3
        assert not record.masked and metrics["intervention/judge_error_rate"] == 0
        return
    assert {(note.outcome, note.reason) for note in record.reviews} == {(Outcome.ERROR, expected)}, first.detail
    assert all(note.cut_at is None and note.inserted is None and not note.dropped_ids for note in record.reviews)
    assert len(record.reviews) == (3 if policy == "keep" else 1) == metrics["intervention/errors_validator"]
    assert (record.masked, record.mask_reason) == ((False, "") if policy == "keep" else (True, f"judge_{expected}"))
    assert bool(record.fatal) == (policy == "fail")
    if policy == "fail":
        named = ("'endpoint'", f"({expected})", first.detail, "intervention.judge.on_error is fail")
        assert first.detail and all(words in record.fatal for words in named)
    assert metrics["intervention/judge_error_rate"] == 1
    assert metrics[f"intervention/judge_errors/{expected}"] == metrics["intervention/reviews_failed"] > 0
    assert metrics["intervention/reviews_kept"] == 0, "a failure is no verdict"


@pytest.mark.parametrize("status,attempts", [(429, 3), (503, 3), (409, 3), (425, 3), (400, 1), (401, 1), (422, 1)])
async def test_attempts_are_counted(server: FaultServer, status: int, attempts: int) -> None:
    server.behaviour = fails(status)
    model = f"judge-{status}"  # not to count what an earlier test gave up
    config = endpoint_config(server.url, on_error="mask", endpoint={"model": model})
    run = session(config, build(config))
    await run.run()
    calls = [call for call in server.calls if call.body["model"] == model]
    assert run.record.reviews[0].judge_calls == len(calls) == attempts
    assert str(status) in run.record.reviews[0].detail


async def test_port_closed() -> None:
    with FaultServer(says(KEEP)) as gone:
        url = gone.url
    config = endpoint_config(url, on_error="mask")
    run = session(config, build(config))
    await run.run()
    assert [note.reason for note in run.record.reviews] == ["unavailable"] and text_of(run) == SCRIPT


async def test_server_killed_and_restarted_in_mid_run() -> None:
    """No session is lost: those in flight fail or wait, the later ones are reviewed again, on new connections."""
    with FaultServer(says(KEEP)) as server:
        config = endpoint_config(server.url, breaker={"failures": 4, "cooldown_s": 0.05})
        judge = build(config)

        async def batch() -> list[str]:
            runs = [session(config, judge, number=i) for i in range(8)]
            await asyncio.gather(*(run.run() for run in runs))
            assert [text_of(run) for run in runs] == [SCRIPT] * 8
            return [note.reason or note.outcome for run in runs for note in run.record.reviews]

        assert set(await batch()) == {KEPT}
        server.stop()
        down = await batch()
        assert len(down) == 24 and set(down) == {"unavailable"}
        server.start()
        await asyncio.sleep(0.06)
        for _ in range(3):  # one probe at a time: the first batch may still be told that the circuit is open
            up = await batch()
        assert set(up) == {KEPT}


@pytest.mark.parametrize("mode", MODES)
async def test_concurrent_sessions_with_mixed_faults(server: FaultServer, mode: str) -> None:
    faults = [behaviour for name, (behaviour, _) in FAULTS.items() if name not in SLOW]

    async def behave(call: Call) -> None:
        await faults[call.number % len(faults)](call)

    server.behaviour = behave
    server.calls.clear()
    config = endpoint_config(server.url, breaker={"failures": 999}, max_concurrency=16)
    judge = build(config)
    runs = [session(config, judge, number=i, mode=mode) for i in range(40)]
    async with asyncio.timeout(20):
        await asyncio.gather(*(run.run() for run in runs))
    for run in runs:
        run.trajectory.check()
        assert run.record.intervened or text_of(run) == SCRIPT
        assert run.record.reviews and not run.record.masked

"""A judge's server that fails, through verl's real worker and queue: the rows and rewards are those of a run without a judge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from adapters import Rewards
from judges.fault_server import Call, FaultServer
from judges.faults import FAULTS

from verl_mintrl.judges import endpoint
from verl_mintrl.trajectory.record import Outcome

SESSIONS, UNTREATED = 8, 2
KINDS = ("500 for ever", "connection reset", "refusal", "length", "prose", "step out of range")  # one a treated session


@pytest.fixture
def server() -> Iterator[FaultServer]:
    async def behave(call: Call) -> None:
        await FAULTS[KINDS[call.number % len(KINDS)]][0](call)

    with FaultServer(behave) as server:
        yield server


@pytest.fixture(autouse=True)
async def closed_clients() -> AsyncIterator[None]:
    yield
    await endpoint._reset()


def every_character(session: int, text: str) -> float:
    """A reward that no change of the text, however small, leaves as it is."""
    return sum(place * ord(character) for place, character in enumerate(text, start=1)) / 2**10


@pytest.mark.parametrize(
    ("mode", "policy"), [("blocking", "keep"), ("overlapped", "keep"), ("blocking", "mask"), ("overlapped", "fail")]
)
async def test_a_failing_judge_changes_no_reward(roll, server: FaultServer, mode: str, policy: str) -> None:
    sizes = {"actor_rollout_ref.rollout.n": SESSIONS, "intervention.control.size": UNTREATED}
    judge = {
        "intervention.review.mode": mode,
        "intervention.judge.backend": "endpoint",
        "intervention.judge.function": None,
        "intervention.judge.endpoint.base_url": server.url,
        "intervention.judge.endpoint.model": "judge-1",
        "intervention.judge.retry.attempts": 1,
        "intervention.judge.on_error": policy,
    }
    alone = await roll({"intervention.trigger": "never", **sizes}, rewards=Rewards(every_character))
    rewards = Rewards(every_character)
    done = await roll(sizes | judge, rewards=rewards)
    assert alone.status == done.status == "finished"
    for column in ("responses", "authors", "token_weights", "rollout_log_probs", "rm_scores"):
        ours, theirs = ([row.tolist() for row in rollout.column(column)] for rollout in (done, alone))
        assert ours == theirs, column
    assert sorted(rewards.seen) == list(range(SESSIONS)), "asked once about each session"
    records = done.records[UNTREATED:]
    failures = [note for record in records for note in record.reviews]
    assert {note.outcome for note in failures} == {Outcome.ERROR}
    reasons, kinds = {note.reason for note in failures}, {FAULTS[kind][1] for kind in KINDS}
    assert reasons == kinds if policy == "keep" else reasons <= kinds
    trained = [bool(row.any()) for row in done.column("response_mask")]
    assert trained == [True] * UNTREATED + [policy == "keep"] * len(records)
    assert [record.masked for record in records] == [policy != "keep"] * len(records)
    assert all(bool(record.fatal) == (policy == "fail") for record in records)

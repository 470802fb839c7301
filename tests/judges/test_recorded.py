"""Replay of a recorded run: the same rollouts get the same answers, others are told so."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from judges.driving import SCRIPT, build, session, text_of
from rollout.scripted import END

from verl_mintrl.config.judge import JudgeConfig
from verl_mintrl.config.schema import parse
from verl_mintrl.errors import ConfigError, JudgeError
from verl_mintrl.judges.limits import GuardedJudge
from verl_mintrl.judges.protocol import Review, ReviewRequest
from verl_mintrl.judges.python import PythonJudge
from verl_mintrl.judges.recorded import RecordedJudge, question_id
from verl_mintrl.rollout.periodic import PeriodicSession
from verl_mintrl.trajectory.record import ReviewRecord, SessionRecord, write_jsonl

PUBLIC = {"uid": "u", "session_id": 0, "step": 1, "public": True}
CHECKS = {"agrees": True, "leak_free": False, "plausible": True}


async def capricious(request: ReviewRequest) -> Review:
    """Every kind of answer, by session, none of it derivable from the text alone."""
    match request.session_id, request.attempt:
        case 0, 1:
            return Review.revise(2, "gh")
        case 1, 0:
            raise ValueError("no idea")
        case 2, 1:
            return Review.revise(1, "x" * 80)  # too long
        case 3, 1:
            return Review.revise(9, "y")  # no such step
        case 4, 2:
            return Review.revise(3, "the end", final=True)
        case 5, 1:
            await asyncio.sleep(30)
    return Review.keep()


async def sessions(config: JudgeConfig, judge: Any) -> list[PeriodicSession]:
    runs = [session(config, judge, number=i) for i in range(6)]
    await asyncio.gather(*(run.run() for run in runs))
    return runs


def seen(run: PeriodicSession) -> Any:
    notes = [asdict(note) for note in run.record.reviews]
    for note in notes:
        for key in ("judge", "detail", "judge_seconds", "judge_calls", "calls_by_role"):
            del note[key]
    return text_of(run), notes, run.trajectory.authors()


async def record(folder: Path) -> list[PeriodicSession]:
    config = JudgeConfig(function="unused:unused", session_deadline_s=0.3)
    runs = await sessions(config, GuardedJudge(PythonJudge(capricious), timeout=5, concurrency=9))
    # as the trainer dumps them: the record and more
    write_jsonl(folder / "trajectories" / "1.jsonl", [{"key": "k", "reward": 1.0, **r.record.to_dict()} for r in runs])
    return runs


def config(path: Path) -> JudgeConfig:
    return parse({"judge": {"backend": "recorded", "function": None, "recorded": str(path)}}).judge


async def test_exact_rerun_gets_the_same_answers(tmp_path: Path) -> None:
    recorded = await record(tmp_path)
    assert {note.reason for run in recorded for note in run.record.reviews} >= {
        "exception",
        "too_long",
        "step_range",
        "session_timeout",
    }
    for path in (tmp_path, tmp_path / "trajectories", tmp_path / "trajectories" / "1.jsonl"):
        replayed = await sessions(config(path), build(config(path)))
        assert [seen(run) for run in replayed] == [seen(run) for run in recorded]
        assert {note.judge for run in replayed for note in run.record.reviews} == {"recorded"}
        assert sum(note.judge_calls for run in replayed for note in run.record.reviews) == 0


async def test_diverged_rollout_is_told_so(tmp_path: Path) -> None:
    await record(tmp_path)
    judge = build(config(tmp_path))
    run = session(config(tmp_path), judge, number=4, script="ab\n\nCD\n\nef" + END)
    await run.run()
    assert [note.reason for note in run.record.reviews] == ["", "unrecorded", "unrecorded"]
    assert "diverged" in run.record.reviews[1].detail
    run = session(config(tmp_path), judge, number=0)
    run.record.step = 2  # a step that was not recorded
    await run.run()
    assert text_of(run) == SCRIPT and {note.reason for note in run.record.reviews} == {"unrecorded"}


def test_what_a_question_is() -> None:
    base = ReviewRequest(({"role": "user", "content": "p"},), ("a", "b"), finished=False)
    same = ReviewRequest(base.problem, base.steps, False, privileged="gold", uid="u", session_id=3, attempt=2)
    assert question_id(base) == question_id(same)
    others = [
        ReviewRequest(({"role": "user", "content": "q"},), base.steps, False),
        ReviewRequest(base.problem, ("ab",), False),
        ReviewRequest(base.problem, ("a", "b", ""), False),
        ReviewRequest(base.problem, base.steps, True),
        ReviewRequest(base.problem, base.steps, False, focus=1),
    ]
    assert len({question_id(request) for request in [base, *others]}) == 6


async def test_old_recordings_load_and_answer_nothing(tmp_path: Path) -> None:
    note = asdict(ReviewRecord(at_tokens=1, finished=False, steps=1, outcome="kept"))
    for new in ("final", "question", "judge_cached_tokens"):
        del note[new]
    row = {**SessionRecord("u", 0, 1).to_dict(), "reviews": [note], "response": "..."}
    (tmp_path / "1.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(JudgeError) as caught:
        await RecordedJudge(tmp_path, verified=True, informed=True).review(
            ReviewRequest((), ("a",), False, global_step=1)
        )
    assert caught.value.kind == "unrecorded"


async def test_roles_of_a_walk_are_replayed(tmp_path: Path) -> None:
    """Three looks: verified and refused, failed while correcting, failed while verifying; then one that was kept."""
    requests = [ReviewRequest((), ("a", "b"), True, global_step=7, attempt=i, focus=i + 1) for i in range(4)]
    walk = [
        ReviewRecord(0, True, 1, "rejected", "leak", step=1, correction="x", checks=CHECKS, dropped_ids=[1]),
        ReviewRecord(0, True, 2, "error", "timeout", "too slow", step=2),
        ReviewRecord(0, True, 3, "error", "http", "busy", step=3, correction="y"),
        ReviewRecord(0, True, 4, "kept"),
    ]
    for request, note in zip(requests, walk, strict=True):
        note.question = question_id(request)
    write_jsonl(tmp_path / "7.jsonl", [SessionRecord("u", 0, 7, walk=walk).to_dict()])
    judge = RecordedJudge(tmp_path, verified=True, informed=True)
    reviews = [await judge.review(request) for request in requests]
    assert [(r.step, r.correction) for r in reviews] == [(1, "x"), (2, None), (3, "y"), (None, None)]
    assert asdict(await judge.verify(requests[0], 1, "x")).items() >= CHECKS.items()
    for call, kind in (
        (judge.correct(requests[1], 2), "timeout"),
        (judge.verify(requests[2], 3, "y"), "http"),
        (judge.verify(requests[3], 4, "z"), "unrecorded"),
    ):
        with pytest.raises(JudgeError) as caught:
            await call
        assert caught.value.kind == kind and caught.value.usage.calls == 0


@pytest.mark.parametrize(
    ("note", "refused_by"),
    [
        ({"reason": "leak"}, {"informed": False}),
        ({"reason": "leak", "checks": {**CHECKS, "leak_free": False}}, {"verified": False}),
        ({"reason": "implausible", "checks": {**CHECKS, "plausible": False}}, {"verified": False}),
        ({"reason": "perplexity", "checks": dict.fromkeys(CHECKS, True)}, None),
        ({"reason": "max_insertions"}, None),
    ],
)
async def test_what_was_rejected_is_not_inserted_where_its_check_is_off(tmp_path, note, refused_by):
    request = ReviewRequest(({"role": "user", "content": "q"},), ("a",), True, global_step=1)
    record = ReviewRecord(1, True, 1, "rejected", step=1, correction="x", question=question_id(request), **note)
    write_jsonl(tmp_path / "1.jsonl", [SessionRecord("u", 0, 1, reviews=[record]).to_dict()])
    for off in ({"verified": False}, {"informed": False}, {}):
        judge = RecordedJudge(tmp_path, **{"verified": True, "informed": True, **off})
        if off and off == refused_by:
            with pytest.raises(JudgeError, match=r"check that is off in this run.*intervention\.verifier") as caught:
                await judge.review(request)
            assert caught.value.kind == "unrecorded"
        else:
            assert (await judge.review(request)).correction == "x"


def test_a_validator_with_evidence_does_not_check_for_the_corrector(tmp_path):
    write_jsonl(tmp_path / "1.jsonl", [SessionRecord("u", 0, 1).to_dict()])
    node = {"backend": "recorded", "recorded": str(tmp_path), "function": None, "joint": False}
    gold = {"evidence": "gold", "evidence_column": "answer"}
    for changes, informed in (
        ({"roles": {"validator": gold}}, False),
        ({"roles": {"corrector": gold}}, True),
        ({"roles": {"validator": gold}, "joint": True}, True),
        (gold, True),
        ({}, False),
    ):
        judge = build(parse({"judge": {**node, **changes}}).judge)
        assert judge._validator.judge._judge._informed is informed


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"outcome": "revised"}, "the outcome 'revised'"),
        ({"outcome": "error", "reason": "odd"}, "of the kind 'odd'"),
        ({"checks": [1]}, "checks are"),
        ({"question": ["q"]}, "a question that is no text"),
        ({"step": [1]}, "a step that is no number"),
        ({"final": "false"}, "neither true nor false"),
    ],
)
async def test_a_damaged_review_is_no_keep(tmp_path, damage, said):
    note = {**asdict(ReviewRecord(1, True, 1, "kept")), **damage}
    write_jsonl(tmp_path / "1.jsonl", [{**SessionRecord("u", 0, 1).to_dict(), "reviews": [note]}])
    request = ReviewRequest(({"role": "user", "content": "q"},), ("a",), True, global_step=1)
    with pytest.raises(ConfigError, match=said):
        await RecordedJudge(tmp_path, verified=True, informed=True).review(request)


def test_missing_recording_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ConfigError, match=r"intervention\.judge\.recorded"):
            build(config(path))


async def test_a_public_dump_is_refused(tmp_path):
    write_jsonl(tmp_path / "1.jsonl", [PUBLIC])
    request = ReviewRequest(({"role": "user", "content": "q"},), ("a",), True, global_step=1)
    with pytest.raises(ConfigError, match=r"public_dump: true.*intervention\.judge\.recorded"):
        await RecordedJudge(tmp_path, verified=True, informed=True).review(request)


@pytest.mark.parametrize(
    "content", ['{"uid": "u", "sess', "[1, 2]\n", '{"input": "verl", "gts": 1}\n', b"\xff\xfe\x00".decode("latin-1")]
)
async def test_a_file_that_is_no_recording_is_refused(tmp_path, content):
    (tmp_path / "1.jsonl").write_bytes(content.encode("latin-1"))
    request = ReviewRequest(({"role": "user", "content": "q"},), ("a",), True, global_step=1)
    with pytest.raises(ConfigError, match=r"1\.jsonl is no file of dumped trajectories.*intervention\.judge\.recorded"):
        await RecordedJudge(tmp_path, verified=True, informed=True).review(request)


async def test_an_error_after_a_verdict_stays_an_error(tmp_path):
    """A correction that came too late in the recorded run is not in time when it is replayed."""
    request = ReviewRequest(({"role": "user", "content": "q"},), ("a",), True, global_step=1)
    late = ReviewRecord(
        1, True, 1, "error", reason="session_timeout", step=1, correction="x", question=question_id(request)
    )
    write_jsonl(tmp_path / "1.jsonl", [SessionRecord("u", 0, 1, reviews=[late]).to_dict()])
    with pytest.raises(JudgeError) as caught:
        await RecordedJudge(tmp_path, verified=True, informed=True).review(request)
    assert caught.value.kind == "session_timeout"


def test_half_a_surrogate_pair_can_be_written(tmp_path):
    rows = [{"detail": "bad \ud800 char", "text": "\u00e9\U0001f600"}]
    write_jsonl(tmp_path / "1.jsonl", rows)
    assert [json.loads(line) for line in (tmp_path / "1.jsonl").read_text(encoding="utf-8").splitlines()] == rows

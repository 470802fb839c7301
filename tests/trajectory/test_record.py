"""Session records survive the way through a row, a file and back."""

from __future__ import annotations

import json

from verl_mintrl.trajectory.record import (
    Outcome,
    ReviewRecord,
    Role,
    SessionRecord,
    clip_insertions,
    read_jsonl,
    write_jsonl,
)


def record() -> SessionRecord:
    reviews = [
        ReviewRecord(at_tokens=9, finished=False, steps=2, outcome=Outcome.KEPT, judge="python", judge_seconds=0.25),
        ReviewRecord(
            at_tokens=20,
            finished=True,
            steps=3,
            outcome=Outcome.INSERTED,
            step=2,
            correction="Zweiter Schritt: 7 ≠ 8 — “so”\u2028\n",
            cut_at=10,
            dropped_ids=[1, 2, 3],
            inserted_tokens=4,
            inserted=(10, 14),
        ),
        ReviewRecord(at_tokens=21, finished=True, steps=3, outcome=Outcome.ERROR, reason="timeout", detail="slow"),
    ]
    return SessionRecord("uid", 3, 17, Role.TREATED.value, active=True, masked=True, mask_reason="x", reviews=reviews)


def test_round_trip_through_a_dict():
    assert SessionRecord.from_dict(record().to_dict()) == record()


def test_round_trip_through_a_file(tmp_path):
    path = tmp_path / "folder" / "1.jsonl"
    extra = {**record().to_dict(), "reward": 0.5, "response": "a\nb"}
    write_jsonl(path, [extra, SessionRecord("u", 0, 1).to_dict()])
    assert len(path.read_text(encoding="utf-8").rstrip("\n").split("\n")) == 2
    first, second = read_jsonl(path)
    assert SessionRecord.from_dict(first) == record(), "keys of the dump that are no fields are ignored"
    assert first["reward"] == 0.5
    assert SessionRecord.from_dict(second) == SessionRecord("u", 0, 1)


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "1.jsonl"
    write_jsonl(path, [{"a": 1}])

    def rows():
        yield {"a": 2}
        raise OSError("disk full")

    try:
        write_jsonl(path, rows())
    except OSError:
        pass
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"a": 1}]


def test_a_cut_clips_the_insertions_before_it():
    session = SessionRecord("uid", 0, 1)
    ranges = [(0, 2), (4, 8), (9, 12), None]
    session.reviews = [ReviewRecord(12, False, 1, Outcome.INSERTED, inserted=inserted) for inserted in ranges]
    clip_insertions(session.reviews, 6)
    assert [review.inserted for review in session.reviews] == [(0, 2), (4, 6), None, None]
    assert session.intervened
    clip_insertions(session.reviews, 0)
    assert not session.intervened


def test_a_cut_at_the_start_of_an_insertion_leaves_nothing_of_it():
    session = SessionRecord("uid", 0, 1)
    session.reviews = [ReviewRecord(12, False, 1, Outcome.INSERTED, inserted=(4, 8))]
    clip_insertions(session.reviews, 4)
    assert session.reviews[0].inserted is None

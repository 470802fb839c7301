"""Book-keeping by hand-computed cases."""

import math

import pytest

from verl_mintrl.bookkeeping import Books, keep_books, table
from verl_mintrl.trajectory.record import Outcome, ReviewRecord, SessionRecord

G = 8


def note(outcome: Outcome, step: int | None = None, reason: str = "", calls: str = "", **values) -> ReviewRecord:
    by_role = {
        role: 1 for role, letter in (("validator", "v"), ("corrector", "c"), ("verifier", "y")) if letter in calls
    }
    values.setdefault("judge_calls", len(by_role))
    return ReviewRecord(
        at_tokens=0, finished=True, steps=1, outcome=outcome, reason=reason, step=step, calls_by_role=by_role, **values
    )


def failed_group(uid: str, walks: list[list[ReviewRecord]], replaced: int | None = None) -> tuple[list, list]:
    records, rewards = [], []
    for i in range(G):
        walk = walks[i] if i < len(walks) else []
        inserted = any(n.outcome == Outcome.INSERTED for n in walk)
        record = SessionRecord(uid=uid, session_id=i, step=0, triggered=True, reward_before=0.0, walk=walk)
        record.replaced = i == replaced
        record.reward_after = (1.0 if record.replaced else 0.0) if inserted else None
        if record.replaced:
            record.reviews = record.walk
        records.append(record)
        rewards.append(1.0 if record.replaced else 0.0)
    return records, rewards


@pytest.fixture
def books() -> Books:
    """Four groups of 8: one succeeds twice by itself, one rescued, one edited in vain, one whose judge failed."""
    records = [SessionRecord(uid="a", session_id=i, step=0) for i in range(G)]
    rewards = [1.0, 1.0] + [0.0] * 6
    kept, checks = note(Outcome.KEPT, calls="v"), {"agrees": True, "leak_free": True, "plausible": True}
    inserted = note(Outcome.INSERTED, 2, calls="vcy", checks=checks, perplexity=2.0, judge_prompt_tokens=100)
    for more in (
        failed_group("b", [[kept, inserted]], replaced=0),
        failed_group(
            "c",
            [
                [note(Outcome.INSERTED, 1, calls="vcy", checks=checks, perplexity=4.0)],
                [note(Outcome.REJECTED, 1, "leak", "vcy", checks=checks | {"leak_free": False}, perplexity=3.0)],
                [note(Outcome.REJECTED, 1, "perplexity", "vcy", checks=checks, perplexity=9.0)],
            ],
        ),
        failed_group("d", [[note(Outcome.ERROR, None, "timeout", judge_calls=1)]]),
    ):
        records += more[0]
        rewards += more[1]
    return keep_books(records, rewards)


def test_trigger_and_success_before_editing(books):
    assert (books.groups, books.sessions, books.triggered, books.processed) == (4, 32, 3, 24)
    assert books.per_1000(books.triggered) == 750
    assert books.successful_sessions == 2  # the replaced one failed before it was edited
    assert books.successful_groups == 1


def test_successes_after_editing_and_advantages(books):
    assert books.successes_after == {0: 2, 1: 1}
    # one success of eight: mean 1/8, unbiased std sqrt((1 * (7/8)^2 + 7 * (1/8)^2) / 7) = 0.353553
    assert books.advantage_win == pytest.approx(2.475, abs=1e-3)
    assert books.advantage_lose == pytest.approx(-0.354, abs=1e-3)


def test_edited_sessions(books):
    assert (books.walked, books.edited, books.rescued, books.replaced, books.trained) == (5, 2, 1, 1, 32)


def test_calls(books):
    assert books.looked_at == 6
    assert books.invalid == 4
    assert books.paper_calls == 12
    assert books.calls == {"validator": 5, "corrector": 4, "verifier": 4}
    assert books.valid_step_calls == 1
    assert books.failed_calls == 1
    assert books.prompt_tokens == 100


def test_verifier_and_gate(books):
    assert (books.verified, books.unverified) == (4, 1)
    assert (books.gated, books.over_bound) == (4, 1)
    assert books.quantiles[0.5] == 3.5  # over 2, 3, 4 and 9: rejected proposals too
    assert books.rejections == {"leak": 1, "perplexity": 1}
    assert books.errors == {"timeout": 1}


def test_a_rejection_that_became_an_error_still_counts_as_rejected_by_the_verifier():
    checks = {"agrees": False, "leak_free": True, "plausible": True}
    records, rewards = failed_group("a", [[note(Outcome.ERROR, 1, "too_long", "vcy", checks=checks)]])
    books = keep_books(records, rewards)
    assert (books.verified, books.unverified, books.errors) == (1, 1, {"too_long": 1})


def test_a_masked_session_is_not_trained():
    records, rewards = failed_group("a", [])
    records[0].masked = True
    assert keep_books(records, rewards).trained == G - 1


def test_the_replaced_walk_is_not_counted_twice_after_a_round_trip():
    records, rewards = failed_group("b", [[note(Outcome.INSERTED, 1, calls="vc")]], replaced=0)
    records = [SessionRecord.from_dict(record.to_dict()) for record in records]
    assert keep_books(records, rewards).calls == {"validator": 1, "corrector": 1, "verifier": 0}


def test_nothing():
    books = keep_books([], [])
    assert math.isnan(books.per_1000(1))
    assert math.isnan(books.advantage_win)
    assert "groups triggered" in table(books)


def test_table_puts_the_papers_numbers_beside_ours(books):
    lines = table(books).splitlines()
    row = {line.split("  ")[0].strip(): line for line in lines}
    assert row["groups triggered per 1000"].split()[-2:] == ["150", "750"]
    assert "40.89 %" in row["rejected by the verifier"] and "25.00 % (1/4)" in row["rejected by the verifier"]
    assert "26217" in row["extra calls per 1000, 3 x invalid"]
    assert "2.475 / -0.354" in row["A_win / A_lose"].split("(k=1)")[1]


@pytest.mark.parametrize(("writing", "shown"), [(0.0, "-"), (3.0, "25.00 %")])
def test_waiting_is_a_share_only_where_the_policys_time_was_measured(writing, shown):
    records, rewards = failed_group("a", [[note(Outcome.KEPT, calls="v", judge_seconds=1.0)]])
    records[0].generate_seconds = writing
    assert table(keep_books(records, rewards)).splitlines()[-1].endswith(f"  {shown}")

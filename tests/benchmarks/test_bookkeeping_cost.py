"""The book-keeping benchmark on short sessions of a character tokenizer; nothing is timed here."""

from __future__ import annotations

import bookkeeping_cost
import pytest
from bookkeeping_cost import Inconsistent, Written, as_row, check, lines, measure, run
from trajectory.toy_tokenizers import Characters

from verl_mintrl.config.schema import ReviewConfig
from verl_mintrl.trajectory.record import ReviewRecord, SessionRecord
from verl_mintrl.trajectory.spans import Author, Trajectory


@pytest.fixture(scope="module")
def written() -> Written:
    return Written.draw(Characters(), 9000, seed=1)


@pytest.mark.parametrize("review", [ReviewConfig(every_tokens=400), ReviewConfig(every_tokens=None, every_steps=2)])
def test_a_session_gets_its_interventions(written, review):
    cost = measure(Characters(), written, 2048, review, seed=1)
    assert (cost.tokens, cost.interventions) == (2048, 4)
    assert cost.total == cost.session + cost.row > 0
    assert 0 < cost.tokenizer < cost.total


def test_too_few_interventions_are_an_error(written):
    with pytest.raises(Inconsistent, match="4 interventions were wanted"):
        measure(Characters(), written, 2048, ReviewConfig(every_tokens=900), seed=1)


def test_a_row_that_disagrees_is_an_error():
    trajectory = Trajectory(8)
    trajectory.append([1, 2, 3], Author.POLICY)
    trajectory.append([4, 5], Author.CORRECTOR)
    trajectory.append([6, 7, 8], Author.POLICY)
    record = SessionRecord(uid="u", session_id=0, step=1)
    review = ReviewRecord(at_tokens=4, finished=False, steps=1, outcome="inserted", inserted=(3, 5))
    record.reviews.append(review)
    row = as_row(trajectory)
    check(trajectory, row, record, 8, 1)
    review.inserted = (2, 5)
    with pytest.raises(Inconsistent, match="stand where"):
        check(trajectory, row, record, 8, 1)


def test_what_the_policy_writes_is_seeded():
    assert Written.draw(Characters(), 500, 3) == Written.draw(Characters(), 500, 3)
    assert Written.draw(Characters(), 500, 3) != Written.draw(Characters(), 500, 4)


def test_table(monkeypatch):
    monkeypatch.setattr(bookkeeping_cost, "MODES", {"every 512 tokens": ReviewConfig(every_tokens=400)})
    text = "\n".join(lines(*run(Characters(), (1024, 2048), 2, seed=1)))
    assert "every 512 tokens" in text and "cost ~ tokens^" in text and "cost(2048) / cost(1024) / 2" in text

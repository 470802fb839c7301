from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_mintrl.errors import TrajectoryError
from verl_mintrl.trajectory.spans import Author, Span, Trajectory

WRITES = st.tuples(
    st.sampled_from(list(Author)), st.lists(st.integers(0, 999), max_size=9), st.booleans(), st.booleans()
)
EDITS = st.lists(st.one_of(WRITES, st.floats(0, 1)), max_size=25)


@settings(max_examples=150, deadline=None)
@given(edits=EDITS, limit=st.integers(1, 60))
def test_columns_agree_after_any_edits(edits, limit):
    trajectory = Trajectory(limit)
    model: list[tuple[int, int, float, float]] = []
    origins: set[int] = set()
    for edit in edits:
        if isinstance(edit, float):
            end = int(edit * len(model))
            expected = sum(row[1] == Author.CORRECTOR for row in model[:end])
            assert trajectory.inserted_before(end) == expected
            assert trajectory.cut(end) == [row[0] for row in model[end:]]
            del model[end:]
            assert trajectory.inserted == expected
        else:
            author, ids, scored, weighted = edit
            logprobs = [-float(i) for i in ids] if scored else None
            weights = [i / 1000 for i in ids] if weighted else None
            if len(ids) > trajectory.remaining:
                before = list(trajectory.ids)
                with pytest.raises(TrajectoryError, match="do not fit"):
                    trajectory.append(ids, author, logprobs, weights)
                assert trajectory.ids == before
            else:
                span = trajectory.append(ids, author, logprobs, weights)
                if ids:
                    assert span == trajectory.spans[-1] and span.origin not in origins
                    assert len(span) == len(ids)
                    origins.add(span.origin)
                else:
                    assert span is None
                for n, token in enumerate(ids):
                    model.append((token, author, logprobs[n] if scored else math.nan, weights[n] if weighted else 1.0))
        trajectory.check()
        assert trajectory.ids == [row[0] for row in model]
        assert trajectory.authors() == [row[1] for row in model]
        assert trajectory.response_mask() == [int(row[1] != Author.ENVIRONMENT) for row in model]
        assert repr(trajectory.logprobs) == repr([row[2] for row in model])
        assert trajectory.weights == [row[3] for row in model]
        assert len(trajectory) == limit - trajectory.remaining <= limit


def test_origin_is_not_reused_after_a_cut():
    trajectory = Trajectory(9)
    trajectory.append([1, 2, 3], Author.POLICY)
    trajectory.cut(1)
    trajectory.append([4], Author.CORRECTOR)
    assert trajectory.spans == [Span(0, 1, Author.POLICY, 0), Span(1, 2, Author.CORRECTOR, 1)]


def test_lengths_that_disagree_change_nothing():
    trajectory = Trajectory(9)
    for columns in ({"logprobs": [0.0]}, {"weights": [1.0, 1.0, 1.0]}):
        with pytest.raises(TrajectoryError, match=next(iter(columns))):
            trajectory.append([1, 2], Author.POLICY, **columns)
    assert not trajectory.ids and not trajectory.spans


@pytest.mark.parametrize("end", [-1, 4])
def test_cut_out_of_range(end):
    trajectory = Trajectory(9)
    trajectory.append([1, 2, 3], Author.POLICY)
    with pytest.raises(TrajectoryError, match="cannot cut"):
        trajectory.cut(end)


def test_limit_must_be_positive():
    with pytest.raises(TrajectoryError, match="limit is 0"):
        Trajectory(0)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda t: t.logprobs.pop(), "2 logprobs for 3"),
        (lambda t: t.weights.append(1.0), "4 weights for 3"),
        (lambda t: t.spans.pop(), "spans cover 2 tokens of 3"),
        (lambda t: t.spans.pop(0), "expected to start at 0"),
        (lambda t: t.spans.reverse(), "expected to start at 0"),
        (lambda t: t.spans.__setitem__(1, Span(2, 3, Author.CORRECTOR, 0)), "origin 0"),
        (lambda t: t.spans.__setitem__(1, Span(2, 3, Author.POLICY, 1)), "1 inserted tokens were counted"),
        (lambda t: setattr(t, "limit", 2), "exceed the limit 2"),
    ],
)
def test_check_names_the_disagreement(break_it, message):
    trajectory = Trajectory(9)
    trajectory.append([1, 2], Author.POLICY)
    trajectory.append([3], Author.CORRECTOR)
    trajectory.check()
    break_it(trajectory)
    with pytest.raises(TrajectoryError, match=message):
        trajectory.check()

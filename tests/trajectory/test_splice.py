from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_tokenizers import SPECIAL, Characters, byte_level, sentencepiece_like

from verl_mintrl.errors import ConfigError, TrajectoryError
from verl_mintrl.trajectory.spans import Author, Trajectory
from verl_mintrl.trajectory.splice import (
    Budget,
    Ledger,
    apply_splice,
    control_strings,
    encode_correction,
    neutralise,
    plan_splice,
    splice,
)
from verl_mintrl.trajectory.text import TokenText

TOKENIZERS = [byte_level, sentencepiece_like, Characters]
WORDS = [
    "∀x",
    "ϕ",
    "🙂",
    "数学",
    "\ufffd",
    "\n\n  foo",
    " ",
    "\n",
    "x = 1",
    "é",
    "step",
    "<|im_end|>",
    "<|im_",
    "end|>",
    "\0",
]
WORD = st.one_of(st.sampled_from(WORDS), st.text(st.characters(codec="utf-8"), max_size=5))
EDIT = st.one_of(
    st.tuples(st.just("policy"), st.integers(0, 10**6)),
    st.tuples(st.just("write"), st.lists(WORD, max_size=8).map("".join)),
    st.tuples(st.just("environment"), st.lists(WORD, max_size=4).map("".join)),
    st.tuples(st.just("insert"), st.floats(0, 1), st.lists(WORD, min_size=1, max_size=5).map("".join)),
)


def sampled(tokenizer, seed):
    """Ids a bad policy may sample: mostly not text."""
    drawn = random.Random(seed)
    if isinstance(tokenizer, Characters):
        return [drawn.randrange(1, tokenizer.size) for _ in range(drawn.randrange(12))]
    return [drawn.randrange(tokenizer.size) for _ in range(drawn.randrange(12))]


@pytest.mark.parametrize("make", TOKENIZERS)
@settings(max_examples=80, deadline=None)
@given(edits=st.lists(EDIT, max_size=14), limit=st.integers(1, 90))
def test_repeated_interventions(make, edits, limit):
    tokenizer = make()
    encode = partial(encode_correction, tokenizer)
    controls = control_strings(tokenizer)
    trajectory, token_text = Trajectory(limit), TokenText(tokenizer.decode)
    for edit in edits:
        before = list(trajectory.ids)
        if edit[0] == "insert":
            text = token_text.text
            at = int(edit[1] * len(text))
            correction = neutralise(edit[2], controls)
            try:
                plan = plan_splice(token_text, at, correction, encode)
                done = splice(trajectory, token_text, at, correction, encode)
            except TrajectoryError as error:
                assert any(word in str(error) for word in ("no tokens", "exceed the limit", "special token"))
                assert trajectory.ids == before
                continue
            assert trajectory.ids[: done.start] == before[: done.start]
            assert done.dropped_ids == before[done.start :]
            assert tuple(trajectory.ids[done.start : done.end]) == plan.ids
            assert trajectory.authors()[done.start :] == [Author.CORRECTOR] * (done.end - done.start)
            assert not set(plan.ids) & set(tokenizer.all_special_ids)
            assert tokenizer.decode(trajectory.ids[: done.start]) + done.carry == text[:at]
            spm_start = make is sentencepiece_like and done.start == 0  # its decoder strips one space there
            expected = text[:at] + correction
            assert token_text.text == (expected.removeprefix(" ") if spm_start else expected)
        else:
            ids = sampled(tokenizer, edit[1]) if edit[0] == "policy" else tokenizer.encode(edit[1], False)
            ids = ids[: trajectory.remaining]
            author = Author.ENVIRONMENT if edit[0] == "environment" else Author.POLICY
            trajectory.append(ids, author, [-1.0] * len(ids))
            token_text.extend(ids)
            assert trajectory.ids[: len(before)] == before
        trajectory.check()
        assert token_text.text == tokenizer.decode(trajectory.ids)
        columns = (trajectory.logprobs, trajectory.weights, trajectory.authors(), trajectory.response_mask())
        assert {len(column) for column in columns} == {len(trajectory.ids)} and len(trajectory) <= limit


@pytest.mark.parametrize("make", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(text=st.lists(WORD, max_size=8).map("".join))
def test_a_correction_round_trips_inside_a_response(make, text):
    tokenizer = make()
    text = neutralise(text, control_strings(tokenizer))
    before = tokenizer.encode("Step 1: ok.", False)
    assert tokenizer.decode(before + encode_correction(tokenizer, text)) == tokenizer.decode(before) + text


@settings(max_examples=200, deadline=None)
@given(
    text=st.lists(st.one_of(st.sampled_from([*SPECIAL, "<|im_", "end|>", "<|", "|>", "\0"]), st.text(max_size=3))).map(
        "".join
    )
)
def test_neutralised_text_holds_no_control_string(text):
    clean = neutralise(text, SPECIAL)
    assert not any(control in clean for control in SPECIAL) and "\0" not in clean
    assert neutralise(clean, SPECIAL) == clean
    if not any(control in text.replace("\0", "") for control in SPECIAL):
        assert clean == text.replace("\0", "")


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("<|im_<|im_end|>end|>", ""),
        ("<|im_e\0nd|>", ""),
        ("a<|im_start|>b", "ab"),
        ("<|" * 2000 + "im_end|>" * 2000, ""),
        ("a\ud800b", "ab"),
        ("a < b | c > d", "a < b | c > d"),
    ],
)
def test_neutralise(text, clean):
    assert neutralise(text, [*SPECIAL, ""]) == clean


def test_control_strings_are_the_special_tokens_longest_first():
    class Added(SimpleNamespace):
        def __str__(self):
            return self.content

    tokenizer = SimpleNamespace(
        all_special_ids=[7, 8],
        all_special_tokens=["<s>", ""],
        added_tokens_decoder={9: Added(content="<tool>", special=False), 10: Added(content="<reserved>", special=True)},
    )
    assert control_strings(tokenizer) == ("<reserved>", "<s>")
    assert control_strings(Characters()) == ()


def test_special_tokens_are_refused():
    tokenizer = byte_level()
    assert encode_correction(tokenizer, "plain <|im text") == tokenizer.encode("plain <|im text", False)
    with pytest.raises(TrajectoryError, match="im_end"):
        encode_correction(tokenizer, "a<|im_end|>b")


def test_a_written_space_is_taken_off():
    tokenizer = sentencepiece_like()
    before = tokenizer.encode("x =", False)
    assert tokenizer.decode(before + tokenizer.encode("42", False)) == "x = 42"  # what encoding alone would do
    assert tokenizer.decode(before + encode_correction(tokenizer, "42")) == "x =42"


def written(text, limit=50):
    tokenizer = byte_level()
    trajectory, token_text = Trajectory(limit), TokenText(tokenizer.decode)
    ids = tokenizer.encode(text, False)
    trajectory.append(ids, Author.POLICY)
    token_text.extend(ids)
    return trajectory, token_text, partial(encode_correction, tokenizer)


def test_a_plan_changes_nothing_until_it_is_applied():
    trajectory, token_text, encode = written("one\n\ntwo")
    before = list(trajectory.ids)
    plan = plan_splice(token_text, 5, "2", encode)
    assert trajectory.ids == before == token_text.ids
    n = len(plan.ids)
    done = apply_splice(trajectory, token_text, plan, logprobs=[-2.0] * n, weights=[0.5] * n)
    assert token_text.text == "one\n\n2"
    assert trajectory.logprobs[done.start :] == [-2.0] * n and trajectory.weights[done.start :] == [0.5] * n


def test_the_end_token_may_be_left_out_of_the_text():
    trajectory, token_text, encode = written("one\n\ntwo")
    end = byte_level().all_special_ids[1]
    trajectory.append([end], Author.POLICY)
    done = splice(trajectory, token_text, 5, "2", encode)
    assert done.dropped_ids[-1] == end
    assert trajectory.ids == token_text.ids


def test_impossible_splices_change_nothing():
    trajectory, token_text, encode = written("one\n\ntwo", limit=12)
    before = list(trajectory.ids)
    for at, text, message in (
        (99, "2", "character offset 99"),
        (5, "", "no tokens"),
        (5, "many words" * 9, "exceed the limit"),
    ):
        with pytest.raises(TrajectoryError, match=message):
            splice(trajectory, token_text, at, text, encode)
    plan = plan_splice(token_text, 5, "2", encode)
    with pytest.raises(TrajectoryError, match="0 weights"):
        apply_splice(trajectory, token_text, plan, weights=[])
    token_text.extend([1])
    with pytest.raises(TrajectoryError, match="do not start"):
        apply_splice(trajectory, token_text, plan)
    assert trajectory.ids == before


@settings(max_examples=200, deadline=None)
@given(
    kept=st.integers(0, 40),
    inserted=st.integers(0, 40),
    n=st.integers(1, 40),
    limit=st.integers(1, 60),
    percent=st.integers(1, 100),
    used=st.integers(0, 3),
    finishes=st.booleans(),
)
def test_budget_at_its_edges(kept, inserted, n, limit, percent, used, finishes):
    inserted = min(inserted, kept)
    ledger = Ledger(Budget(4, 2, 8, percent / 100), insertions=used)
    reason = ledger.reject_reason(kept, inserted, n, limit, finishes)
    if used >= 2:
        assert reason == "insertions"
    elif kept + n + (0 if finishes else 1) > limit:
        assert reason == "no_room"
    else:  # in whole numbers
        assert reason == ("share" if 100 * (inserted + n) > percent * (kept + n) else "")
    assert ledger.too_long(n) == (n > 8)


def test_reviews_end_with_either_count():
    ledger = Ledger(Budget(max_reviews=2, max_insertions=1, max_insertion_tokens=9, max_inserted_share=1.0))
    assert ledger.may_review()
    ledger.count_review()
    assert ledger.may_review()
    ledger.count_insertion()
    assert not ledger.may_review()  # nothing could come of it
    ledger = Ledger(ledger.budget, reviews=2)
    assert not ledger.may_review()


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ((0, 1, 1, 0.5), "max_reviews"),
        ((1, True, 1, 0.5), "max_insertions"),
        ((1, 1, 2.0, 0.5), "max_insertion_tokens"),
        ((1, 1, 1, 0.0), "max_inserted_share"),
        ((1, 1, 1, 1.1), "max_inserted_share"),
        ((1, 1, 1, float("nan")), "max_inserted_share"),
    ],
)
def test_budgets_that_make_no_sense(values, key):
    with pytest.raises(ConfigError, match=f"intervention.budget.{key}"):
        Budget(*values)


def test_undecodable_bytes_before_the_cut_do_not_swallow_the_correction():
    """A byte-fallback decoder would read the stray byte and the bytes of the snowman as one undecodable run."""
    tokenizer = sentencepiece_like()
    stray = tokenizer.backend.token_to_id("<0xE2>")
    ids = [*tokenizer.encode("ok", False), stray, *tokenizer.encode("x", False)]
    trajectory, token_text = Trajectory(50), TokenText(tokenizer.decode)
    trajectory.append(ids, Author.POLICY)
    token_text.extend(ids)
    assert token_text.text.startswith("ok\ufffd")
    done = splice(trajectory, token_text, 3, "☃", partial(encode_correction, tokenizer))
    assert token_text.text == "ok\ufffd☃"
    assert done.carry == "\ufffd" and trajectory.ids[: done.start] == tokenizer.encode("ok", False)

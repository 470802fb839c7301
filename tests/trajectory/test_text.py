"""Offsets against the definition: whole-prefix decodes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_tokenizers import CORPUS, byte_level, decode_bytes, decode_stripping, sentencepiece_like

from verl_mintrl.errors import TrajectoryError
from verl_mintrl.trajectory.text import TokenText

fast = settings(max_examples=60, deadline=None)


def best_boundary(decode, ids, char_offset):
    """The definition, quadratic."""
    text = decode(ids)
    for k in range(len(ids), -1, -1):
        prefix = decode(ids[:k])
        if text.startswith(prefix) and len(prefix) <= char_offset:
            return k, text[len(prefix) : char_offset]


def check_all(decode, ids, token_text):
    text = decode(ids)
    assert token_text.text == text
    prefixes = [decode(ids[:k]) for k in range(len(ids) + 1)]
    clean = [k for k, prefix in enumerate(prefixes) if text.startswith(prefix)]
    for char_offset in range(len(text) + 1):
        k = max(k for k in clean if len(prefixes[k]) <= char_offset)
        assert token_text.boundary(char_offset) == (k, text[len(prefixes[k]) : char_offset]), char_offset
    for k, prefix in enumerate(prefixes):
        assert token_text.offset(k) == len(prefix)


PIECES = st.one_of(
    st.sampled_from(["∀", "ϕ", "🙂", "数学", "👩‍👩‍👧", "\ufffd", "\n\n  foo", " ", "\n", "x = 1", "é", "<|im_end|>"]),
    st.text(max_size=6),
)


@pytest.mark.parametrize("make", [byte_level, sentencepiece_like])
@fast
@given(pieces=st.lists(PIECES, max_size=30), data=st.data())
def test_encoded_text(make, pieces, data):
    tokenizer = make()
    ids = tokenizer.encode("".join(p for p in pieces if p.isprintable() or p.isspace()), add_special_tokens=False)
    token_text = TokenText(tokenizer.decode)
    at = 0
    while at < len(ids):
        step = data.draw(st.integers(1, 40))
        token_text.extend(ids[at : at + step])
        at += step
        assert token_text.text == tokenizer.decode(ids[:at])
    check_all(tokenizer.decode, ids, token_text)


@pytest.mark.parametrize("make", [byte_level, sentencepiece_like])
@fast
@given(data=st.data())
def test_any_ids_the_policy_may_sample(make, data):
    """Random ids are mostly invalid UTF-8."""
    tokenizer = make()
    ids = data.draw(st.lists(st.integers(0, tokenizer.size - 1), max_size=40))
    token_text = TokenText(tokenizer.decode)
    token_text.extend(ids)
    check_all(tokenizer.decode, ids, token_text)


RUNS = st.lists(
    st.tuples(
        st.sampled_from(
            ["∀".encode(), "🙂".encode(), b"\x80", b"\xf0\x9f", b"\xef\xbf\xbd", b" ", b"\n", b"ab c", b"\xff"]
        ),
        st.integers(1, 50),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("decode", [decode_bytes, decode_stripping])
@fast
@given(runs=RUNS, seed=st.integers(0, 99))
def test_long_runs_cross_many_windows(decode, runs, seed):
    """Runs of blanks, of half characters, of valid ones, longer than a window; with cuts in between."""
    ids = [byte for piece, times in runs for byte in piece * times]
    drawn = random.Random(seed)
    token_text = TokenText(decode)
    at = 0
    while at < len(ids):
        step = drawn.randint(1, 150)
        token_text.extend(ids[at : at + step])
        at = min(at + step, len(ids))
        if drawn.random() < 0.3:
            assert token_text.text == decode(ids[:at])
            at = drawn.randint(at // 2, at)
            token_text.truncate(at)
        assert len(token_text) == at
    text = decode(ids)
    assert token_text.text == text
    for char_offset in drawn.sample(range(len(text) + 1), min(12, len(text) + 1)):
        assert token_text.boundary(char_offset) == best_boundary(decode, ids, char_offset)
    for k in drawn.sample(range(len(ids) + 1), min(12, len(ids) + 1)):
        assert token_text.offset(k) == len(decode(ids[:k]))


@settings(max_examples=25, deadline=None)
@given(runs=RUNS, seed=st.integers(0, 99))
def test_runs_of_byte_tokens_that_turn_invalid_late(runs, seed):
    """One bad byte makes a byte-fallback decoder replace the whole run before it, over many windows."""
    tokenizer = sentencepiece_like()
    byte = [tokenizer.backend.token_to_id(f"<0x{value:02X}>") for value in range(256)]
    word = tokenizer.encode("the quick", add_special_tokens=False)
    ids = word + [byte[value] for piece, times in runs for value in piece * times] + word
    drawn = random.Random(seed)
    token_text = TokenText(tokenizer.decode)
    at = 0
    while at < len(ids):
        step = drawn.randint(1, 150)
        token_text.extend(ids[at : at + step])
        at += step
        assert token_text.text == tokenizer.decode(ids[:at])
    text = token_text.text
    for char_offset in drawn.sample(range(len(text) + 1), 2):
        assert token_text.boundary(char_offset) == best_boundary(tokenizer.decode, ids, char_offset)


def test_cut_inside_an_emoji_of_several_tokens():
    token_text = TokenText(decode_bytes)
    token_text.extend("a🙂b".encode())
    assert [token_text.boundary(offset) for offset in range(4)] == [(0, ""), (1, ""), (5, ""), (6, "")]


def test_cut_inside_a_token_of_several_characters():
    pieces = ["one", ".\n\n  ", "foo"]
    token_text = TokenText(lambda ids: "".join(pieces[i] for i in ids))
    token_text.extend([0, 1, 2])
    assert token_text.boundary(len("one.\n\n")) == (1, ".\n\n")
    assert token_text.boundary(len("one.\n\n  ")) == (2, "")


def test_incomplete_character_is_replaced_when_it_completes():
    first, rest = list("ab∀".encode())[:3], list("ab∀".encode())[3:]
    token_text = TokenText(decode_bytes)
    token_text.extend(first)
    assert token_text.text == "ab\ufffd"
    token_text.extend(rest)
    assert token_text.text == "ab∀"
    assert token_text.boundary(2) == (2, "")


def test_undecodable_bytes_do_not_push_the_cut_back():
    token_text = TokenText(decode_bytes)
    token_text.extend(b"a\x80\x80b")
    assert [token_text.boundary(offset)[0] for offset in range(5)] == [0, 1, 2, 3, 4]


def test_decoder_without_any_locality_is_decoded_whole():
    """Every character depends on the number of tokens: windows agree with nothing, the whole decode still decides."""
    calls = []

    def decode(ids):
        calls.append(len(ids))
        return ("A" if len(ids) > 300 else "a") * len(ids)

    token_text = TokenText(decode)
    for _ in range(20):
        token_text.extend(range(40))
        found = token_text.text
        assert found == decode(token_text.ids) or 300 < len(found) < 600  # seen when the length has doubled
    assert token_text.boundary(790) == (790, "")
    assert token_text.boundary(250) == (0, "A" * 250)  # shorter prefixes read "aaa", which is not how the text starts


@pytest.mark.parametrize("chunk", [1, 64, 8192])
@pytest.mark.parametrize("name", ["prose", "blank", "emoji", "garbage"])
def test_cost_is_linear(name, chunk):
    """Counted in decoded tokens, with the text read after every chunk of 64 or more."""
    ids = {
        "prose": byte_level().encode("".join(CORPUS) * 400, add_special_tokens=False),
        "blank": byte_level().encode("\n", add_special_tokens=False) * 16384,
        "emoji": [byte_level().backend.token_to_id(BYTE[byte]) for byte in b"x" + "🙂".encode() * 4096],
        "garbage": ([byte_level().backend.token_to_id(BYTE[0x80])] * 90 + byte_level().encode("word", False) * 10)
        * 164,
    }[name]
    spent = []
    for total in (4096, 8192, 16384):
        calls = []

        def decode(part, calls=calls):
            calls.append(len(part))
            return byte_level().decode(part)

        token_text = TokenText(decode)
        for at in range(0, total, chunk):
            token_text.extend(ids[at : min(at + chunk, total)])
            if chunk > 1:
                assert token_text.text
        length = len(token_text.text)
        for part in range(5):
            token_text.boundary(length * part // 5)
        assert sum(calls) < (60 if name == "garbage" else 15) * total
        assert len(calls) < total / 4
        spent.append(sum(calls))
    assert spent[2] < 2.5 * spent[1] < 6.5 * spent[0]


def _byte_characters():
    """The printable character that stands for each byte in byte-level vocabularies (GPT-2)."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in own]
    return {byte: chr(byte) for byte in own} | {byte: chr(256 + n) for n, byte in enumerate(others)}


BYTE = _byte_characters()


@pytest.mark.parametrize("offset", [-1, 3])
def test_offsets_out_of_range(offset):
    token_text = TokenText(decode_bytes)
    token_text.extend(b"ab")
    with pytest.raises(TrajectoryError):
        token_text.boundary(offset)
    with pytest.raises(TrajectoryError):
        token_text.offset(offset)
    with pytest.raises(TrajectoryError):
        token_text.truncate(offset)


@pytest.mark.parametrize("blank", [b" ", b"\n"])
def test_blanks_over_many_windows_before_a_decoder_that_strips(blank):
    ids = list(b"ab" + blank * 500 + b"cd")
    token_text = TokenText(decode_stripping)
    for at in range(0, len(ids), 50):
        token_text.extend(ids[at : at + 50])
        assert token_text.text == decode_stripping(token_text.ids)
    assert token_text.boundary(300) == (300, "")

"""What only the judge was shown does not come back in messages, however it is spelled there."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_mintrl.judges.redact import hide, printable

SECRET = "line one of the gold answer\nline two: 987654321"


@pytest.mark.parametrize(
    "quoted",
    [
        SECRET,
        repr(SECRET),
        json.dumps(SECRET),
        SECRET[:30],
        "\n> ".join(SECRET.split("\n")),
        SECRET.upper(),
        SECRET.replace("\n", "\\u000a"),
        "y" * 480 + SECRET,
    ],
)
def test_a_quotation_is_hidden(quoted):
    found = hide(f"400: unprocessable input ({quoted}), sorry", SECRET)
    assert "hidden" in found and "987654321" not in found and "of the gold" not in found.lower()


def test_other_messages_stay():
    assert hide("the server is overloaded", SECRET) == "the server is overloaded"
    assert hide("error 404: not found", "4") == "error 404: not found"
    assert hide("the model is gone", "e") == "the model is gone"
    assert hide("anything", "") == "anything"


def test_a_short_secret_takes_the_message_with_it():
    """Cut out alone, it could be read off what stands around it."""
    assert "4" not in hide("expected 42, got 41", "42") and "hidden" in hide("expected 42, got 41", "42")


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        (r"\\frac{\\pi}{4}", repr(r"\\frac{\\pi}{4}")),
        ("2\n3", "got '2\\n3'"),
        ("42\n", "expected 42"),
        ("forty-two\n", "FORTY TWO"),
        ("x = 42", "x=42"),
        ("12,345", "12345"),
        ("Yes", "it is yes"),
    ],
)
def test_short_secrets_in_other_spellings(secret, text):
    assert hide(text, secret) == "[hidden: it quotes what only the judge was shown]"


@given(
    st.text(max_size=60), st.text(min_size=6, max_size=40).filter(lambda s: len(s.strip()) >= 6), st.text(max_size=60)
)
def test_never_verbatim(before, secret, after):
    found = hide(before + secret + after, secret)
    assert "[hidden" in found
    assert found.startswith("[hidden: it") or secret.strip() not in found.replace("[hidden]", "")


def test_a_quoted_message_is_one_printable_line():
    assert printable("a\nERROR forged\x1b[31m\0 b" + "c" * 99, 20) == "a ERROR forged [31m "

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_mintrl.errors import ConfigError
from verl_mintrl.trajectory.spans import Author, Span
from verl_mintrl.trajectory.steps import SEGMENTERS, StepReader, get_segmenter, split_steps, turn_steps


def texts(text, name, finished=False):
    return [step.text for step in split_steps(text, SEGMENTERS[name], finished)]


def complete(text, name, finished=False):
    return [step.complete for step in split_steps(text, SEGMENTERS[name], finished)]


def test_paragraphs_keep_all_blank_lines_with_the_step_before():
    assert texts("one\nstill\n\n \n\n  two\n\nthree", "paragraph") == ["one\nstill\n\n \n\n", "  two\n\n", "three"]
    assert complete("one\n\ntwo", "paragraph") == [True, False]
    assert complete("one\n\ntwo", "paragraph", finished=True) == [True, True]
    assert complete("one\n\ntwo\n", "paragraph") == [True, False]
    assert complete("one\n\ntwo\n\n", "paragraph") == [True, True]
    assert complete("one\n\ntwo\n\n  ", "paragraph") == [True, True]


def test_windows_line_ends():
    assert texts("one\r\n\r\ntwo\r\n", "paragraph") == ["one\r\n\r\n", "two\r\n"]
    assert texts("one\r\n\r\ntwo\r\n", "line") == ["one\r\n\r\n", "two\r\n"]
    assert texts("a\r\n```\r\nx\r\ny\r\n```\r\nb", "code") == ["a\r\n```\r\n", "x\r\n", "y\r\n```\r\n", "b"]


def test_lines():
    assert texts("one\n\n \n  two\nthree", "line") == ["one\n\n \n", "  two\n", "three"]
    assert complete("one\ntwo\n", "line") == [True, True]
    assert complete("one\ntwo", "line") == [True, False]


CODE = "First.\n\nThen code:\n```python\nimport math\n\ndef f(x):\n    return x\n```\nDone\nindeed.\n\nBye"


def test_code_is_prose_outside_and_lines_inside_of_fences():
    assert texts(CODE, "code") == [
        "First.\n\n",
        "Then code:\n```python\n",
        "import math\n\n",
        "def f(x):\n",
        "    return x\n```\n",
        "Done\nindeed.\n\n",
        "Bye",
    ]


@pytest.mark.parametrize(
    ("text", "steps", "last_complete"),
    [
        ("```\nx = 1\ny = 2\n", ["```\nx = 1\n", "y = 2\n"], True),  # a fence that opens the text
        ("\n\n```\n\nx = 1\n", ["\n\n```\n\nx = 1\n"], True),
        ("```py\n", ["```py\n"], False),  # nothing in it yet
        ("```\n```\nb", ["```\n```\nb"], False),
        ("a\n\n```\nx\n", ["a\n\n```\n", "x\n"], True),  # never closed
        ("a\n```\nx\n```", ["a\n```\n", "x\n```"], False),  # the closing fence is being written
        ("````\n```\nx\n````\nb", ["````\n```\n", "x\n````\n", "b"], False),  # a shorter fence is code
        ("a\n```\n```\nb", ["a\n```\n```\n", "b"], False),  # empty block
        ("use ```x``` here\n\nb", ["use ```x``` here\n\n", "b"], False),  # inline
        ("a\n  ```py\n  x\n  ```\n", ["a\n  ```py\n", "  x\n  ```\n"], True),  # in a list
    ],
)
def test_fences(text, steps, last_complete):
    assert texts(text, "code") == steps
    assert complete(text, "code")[-1] == last_complete
    assert all(complete(text, "code", finished=True))


@pytest.mark.parametrize("name", SEGMENTERS)
@pytest.mark.parametrize("text", ["", " ", "\n\n\n"])
def test_no_steps_in_blank_text(name, text):
    assert texts(text, name) == []
    assert texts(text, name, finished=True) == []


PIECES = st.sampled_from(
    ["a", "bc", " ", "\n", "\n\n", "```", "```py\n", "\n```\n", "🙂", "\t", "\r\n", "\x85", "\x0c", "x = 1\n"]
)


@pytest.mark.parametrize("name", SEGMENTERS)
@settings(max_examples=150, deadline=None)
@given(pieces=st.lists(PIECES, max_size=30), more=st.lists(PIECES, max_size=10))
def test_steps_cover_the_text_and_do_not_move(name, pieces, more):
    text = "".join(pieces)
    steps = split_steps(text, SEGMENTERS[name], finished=False)
    assert "".join(step.text for step in steps) == (text if text.strip() else "")
    assert [step.number for step in steps] == list(range(1, len(steps) + 1))
    assert all(step.text.strip() and text[step.start : step.end] == step.text for step in steps)
    assert all(step.complete for step in steps[:-1])
    later = split_steps(text + "".join(more), SEGMENTERS[name], finished=False)
    starts = [step.start for step in later]
    if name != "code":  # half a fence may still become code
        assert starts[: len(steps)] == [step.start for step in steps]


@pytest.mark.parametrize("name", SEGMENTERS)
@settings(max_examples=300, deadline=None)
@given(
    edits=st.lists(
        st.tuples(st.floats(0, 1), st.lists(PIECES, max_size=12).map("".join), st.booleans(), st.booleans()), max_size=8
    )
)
def test_a_reader_gives_what_splitting_anew_gives(name, edits):
    reader, text = StepReader(SEGMENTERS[name]), ""
    for kept, more, cuts, finished in edits:
        text = (text[: int(kept * len(text))] if cuts else text) + more
        assert reader.read(text, finished) == split_steps(text, SEGMENTERS[name], finished)


@pytest.mark.parametrize("name", SEGMENTERS)
@settings(max_examples=100, deadline=None)
@given(texts=st.lists(st.lists(PIECES, max_size=12).map("".join), max_size=4))
def test_a_reader_of_unrelated_texts(name, texts):
    reader = StepReader(SEGMENTERS[name])
    for text in texts:
        assert reader.read(text, False) == split_steps(text, SEGMENTERS[name], False)


def test_a_reader_splits_only_what_is_new(monkeypatch):
    seen: list[int] = []

    def watched(text):
        seen.append(len(text))
        return SEGMENTERS["paragraph"](text)

    monkeypatch.setattr("verl_mintrl.trajectory.steps._LOCAL", frozenset({watched}))
    reader, text = StepReader(watched), ""
    for number in range(100):
        text += f"step {number}\n\n"
        assert len(reader.read(text, False)) == number + 1
    assert max(seen) <= 3 * len("step 99\n\n") + 1


def test_registry_and_import_paths():
    assert get_segmenter("line") is SEGMENTERS["line"]
    assert get_segmenter("verl_mintrl.trajectory.steps:lines") is SEGMENTERS["line"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("paragraf", "did you mean 'paragraph'"),
        ("sql", "package.module:function"),
        ("no.such.module:f", "cannot be imported"),
        ("verl_mintrl.trajectory.steps:nothing", "cannot be imported"),
        (":f", "cannot be imported"),
        ("verl_mintrl.trajectory.steps:SEGMENTERS", "is a dict"),
    ],
)
def test_unknown_segmenters(name, message):
    with pytest.raises(ConfigError, match=message) as caught:
        get_segmenter(name)
    assert "intervention.review.segmenter" in str(caught.value)


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([(0, 2), (1, 4)], "ordered"),
        ([(0, 0), (0, 4)], "ordered"),
        ([(0, 9)], "ordered"),
        ([(0, 2)], "left out 'cd' at the end"),
        ([(1, 4)], "left out 'a'"),
        ([(0, 2.0), (2, 4)], "pairs of int"),
        ([3], "pairs of int"),
    ],
)
def test_a_broken_segmenter_is_named(ranges, message):
    with pytest.raises(ConfigError, match=message):
        split_steps("abcd", lambda text: ranges, finished=False)


def test_turns():
    spans = [
        Span(0, 3, Author.POLICY, 0),
        Span(3, 5, Author.CORRECTOR, 1),
        Span(5, 8, Author.ENVIRONMENT, 2),
        Span(8, 9, Author.CORRECTOR, 3),
        Span(9, 11, Author.ENVIRONMENT, 4),
        Span(11, 12, Author.CORRECTOR, 5),
        Span(12, 14, Author.POLICY, 6),
    ]
    assert turn_steps(spans) == [
        Span(0, 5, Author.POLICY, 0),
        Span(8, 9, Author.CORRECTOR, 3),
        Span(11, 14, Author.POLICY, 5),
    ]
    assert turn_steps([]) == []

import json
import time

import pytest
from injection_corpus import CORPUS

from verl_mintrl.errors import JudgeError
from verl_mintrl.judges.parsing import (
    MAX_ANSWER_CHARS,
    MAX_CORRECTION_CHARS,
    check_review,
    parse_correction,
    parse_review,
    parse_verification,
)
from verl_mintrl.judges.protocol import Evidence, Review, ReviewRequest, Verdict

REQUEST = ReviewRequest(
    problem=({"role": "user", "content": "Add 3 + 9 + 5."},),
    steps=("3 + 9 = 12", "12 + 5 = 18", "The answer is 18."),
    finished=True,
    evidence=Evidence.GOLD,
    privileged="SECRET-17",
)
KEEP = (Verdict.KEEP, None, None)
FIX = (Verdict.REVISE, 2, "12 + 5 = 17")
GOOD = '{"verdict": "revise", "step": 2, "correction": "12 + 5 = 17"}'

READABLE = {
    "plain": (GOOD, FIX),
    "keep": ('{"verdict": "keep", "step": null, "correction": null}', KEEP),
    "keep without the rest": ('{"verdict": "keep"}', KEEP),
    "keep ignores what it carries": ('{"verdict": "keep", "step": 99, "correction": ""}', KEEP),
    "upper case": (GOOD.replace("revise", "REVISE"), FIX),
    "spaces in the verdict": (GOOD.replace("revise", " Revise "), FIX),
    "upper case keys": (GOOD.replace("verdict", "Verdict").replace("step", "STEP"), FIX),
    "step as a string": (GOOD.replace("2,", '" 2 ",', 1), FIX),
    "fence": (f"```json\n{GOOD}\n```", FIX),
    "fence without language": (f"```\n{GOOD}\n```", FIX),
    "unclosed fence": (f"```json\n{GOOD}", FIX),
    "prose around": (f"Let me see.\n\n{GOOD}\n\nHope this helps!", FIX),
    "LaTeX before": (rf"We use $\frac{{1}}{{2}}$ and {{x}}. {GOOD}", FIX),
    "thought": (f"<think>maybe {{not}} ... keep</think>{GOOD}", FIX),
    "thought with a draft": ('<think>{"verdict": "keep"}</think>\n' + GOOD, FIX),
    "thought opened in the template": ('first {"verdict": "keep"} hm</think>\n' + GOOD, FIX),
    "thinking tag": ('<thinking>{"verdict": "keep"}</thinking>' + GOOD, FIX),
    "two thoughts": (f"<think>a</think><think>b</think>{GOOD}", FIX),
    "tag inside the correction": (
        '{"verdict": "revise", "step": 1, "correction": "</think> x"}',
        (Verdict.REVISE, 1, "</think> x"),
    ),
    "trailing comma": (GOOD.replace("}", ",}"), FIX),
    "trailing comma and line": (GOOD.replace("}", ",\n}"), FIX),
    "comma inside a string stays": (
        '{"verdict": "revise", "step": 1, "correction": "a, }",}',
        (Verdict.REVISE, 1, "a, }"),
    ),
    "list": (f"[{GOOD}]", FIX),
    "last of two": ('{"verdict": "keep"} and on reflection ' + GOOD, FIX),
    "last of two, keep": (GOOD + ' no: {"verdict": "keep"}', KEEP),
    "quoted fake before": ('The text claims {"verdict": "keep"}, which is not mine. ' + GOOD, FIX),
    "other objects after": (GOOD + ' {"note": 1} {}', FIX),
    "schema echoed before": ('{"type": "object", "properties": {"verdict": {}}} ' + GOOD, FIX),
    "raw newline in a string": (
        '{"verdict": "revise", "step": 1, "correction": "a\nb"}',
        (Verdict.REVISE, 1, "a\nb"),
    ),
    "escaped newline": (r'{"verdict": "revise", "step": 1, "correction": "a\nb"}', (Verdict.REVISE, 1, "a\nb")),
    "LaTeX, invalid escape": (
        r'{"verdict": "revise", "step": 1, "correction": "\(x \le 2\)"}',
        (Verdict.REVISE, 1, r"\(x \le 2\)"),
    ),
    "LaTeX, valid by accident": (
        r'{"verdict": "revise", "step": 1, "correction": "\frac{1}{2} \times 3 \neq \rho \beta"}',
        (Verdict.REVISE, 1, r"\frac{1}{2} \times 3 \neq \rho \beta"),
    ),
    "LaTeX, escaped": (
        r'{"verdict": "revise", "step": 1, "correction": "\\frac{1}{2}"}',
        (Verdict.REVISE, 1, r"\frac{1}{2}"),
    ),
    "unknown keys": ('{"reason": "x", "confidence": 0.5, "verdict": "keep"}', KEEP),
    "NaN elsewhere in prose": ("NaN Infinity " + GOOD, FIX),
    "unicode": (
        '{"verdict": "revise", "step": 1, "correction": "３ ＋ ９ = 12 ✓ 👩‍👩‍👧"}',
        (Verdict.REVISE, 1, "３ ＋ ９ = 12 ✓ 👩‍👩‍👧"),
    ),
    "NUL and bidi removed": (
        r'{"verdict": "revise", "step": 1, "correction": "\u0000\u202ea\u202c\ufeff b\u001b"}',
        (Verdict.REVISE, 1, "a b"),
    ),
    "lone surrogate removed": (r'{"verdict": "revise", "step": 1, "correction": "a\ud800"}', (Verdict.REVISE, 1, "a")),
    "carriage returns": ('{"verdict": "revise", "step": 1, "correction": "a\r\nb"}', (Verdict.REVISE, 1, "a\nb")),
    "indentation stays": ('{"verdict": "revise", "step": 1, "correction": "    a"}', (Verdict.REVISE, 1, "    a")),
    "long prose before": ("word " * 200_000 + GOOD, FIX),
    "byte order mark": ("\ufeff" + GOOD, FIX),
}


@pytest.mark.parametrize("name", READABLE)
def test_what_is_read(name):
    text, expected = READABLE[name]
    review = parse_review(text, REQUEST, joint=True)
    assert (review.verdict, review.step, review.correction) == expected


REFUSED = {
    "None": (None, "refused"),
    "nothing": ("", "refused"),
    "blank": (" \n\t", "refused"),
    "prose": ("I think step 2 is wrong.", "unparseable"),
    "bare verdict": ("REVISE 2", "unparseable"),
    "refusal": ("I'm sorry, I can't help with that.", "unparseable"),
    "empty object": ("{}", "unparseable"),
    "no verdict": ('{"step": 2, "correction": "x"}', "unparseable"),
    "other verdict": ('{"verdict": "maybe"}', "unparseable"),
    "verdict null": ('{"verdict": null}', "unparseable"),
    "verdict true": ('{"verdict": true}', "unparseable"),
    "verdict list": ('{"verdict": ["keep"]}', "unparseable"),
    "verdict both": ('{"verdict": "keep or revise"}', "unparseable"),
    "verdict twice": ('{"verdict": "keep", "verdict": "revise"}', "unparseable"),
    "verdict twice in other case": ('{"verdict": "keep", "Verdict": "revise"}', "unparseable"),
    "NaN": ('{"verdict": "revise", "step": NaN, "correction": "x"}', "unparseable"),
    "Infinity": ('{"verdict": "revise", "step": Infinity, "correction": "x"}', "unparseable"),
    "NaN beside": ('{"verdict": "keep", "p": -Infinity}', "unparseable"),
    "Python dict": ("{'verdict': 'keep'}", "unparseable"),
    "only a thought": ('<think>{"verdict": "keep"}', "unparseable"),
    "broken later object": ('{"verdict": "keep"} {"verdict": "revise", "step": 2, "corr', "unparseable"),
    "cut in a string": ('{"verdict": "revise", "step": 2, "correction": "12 +', "unparseable"),
    "correction a number": ('{"verdict": "revise", "step": 2, "correction": 17}', "unparseable"),
    "correction a list": ('{"verdict": "revise", "step": 2, "correction": ["x"]}', "unparseable"),
    "no step": ('{"verdict": "revise", "correction": "x"}', "step_range"),
    "step null": ('{"verdict": "revise", "step": null, "correction": "x"}', "step_range"),
    "step 0": ('{"verdict": "revise", "step": 0, "correction": "x"}', "step_range"),
    "step -1": ('{"verdict": "revise", "step": -1, "correction": "x"}', "step_range"),
    "step 4": ('{"verdict": "revise", "step": 4, "correction": "x"}', "step_range"),
    "step 2.0": ('{"verdict": "revise", "step": 2.0, "correction": "x"}', "step_range"),
    "step 1e0": ('{"verdict": "revise", "step": 1e0, "correction": "x"}', "step_range"),
    "step true": ('{"verdict": "revise", "step": true, "correction": "x"}', "step_range"),
    "step in words": ('{"verdict": "revise", "step": "step 2", "correction": "x"}', "step_range"),
    "step Arabic digit": ('{"verdict": "revise", "step": "٢", "correction": "x"}', "step_range"),
    "step list": ('{"verdict": "revise", "step": [2], "correction": "x"}', "step_range"),
    "step of 5000 digits": ('{"verdict": "revise", "step": %s, "correction": "x"}' % ("1" * 5000), "step_range"),
    "no correction": ('{"verdict": "revise", "step": 2}', "empty_correction"),
    "correction null": ('{"verdict": "revise", "step": 2, "correction": null}', "empty_correction"),
    "correction empty": ('{"verdict": "revise", "step": 2, "correction": ""}', "empty_correction"),
    "correction fillers": (
        '{"verdict": "revise", "step": 2, "correction": "\u3164\u2800 \ufe0f\uffa0"}',
        "empty_correction",
    ),
    "correction blank": (r'{"verdict": "revise", "step": 2, "correction": " \n\t\u00a0"}', "empty_correction"),
    "correction invisible": (
        r'{"verdict": "revise", "step": 2, "correction": "\u200b\u202e\u0000\u200d"}',
        "empty_correction",
    ),
    "correction the same": ('{"verdict": "revise", "step": 2, "correction": "12 + 5 = 18"}', "same_correction"),
    "the same but spaces": (r'{"verdict": "revise", "step": 2, "correction": " 12  +\n5 = 18 "}', "same_correction"),
    "the same but invisible": (
        r'{"verdict": "revise", "step": 2, "correction": "12 +\u200b 5 = 18"}',
        "same_correction",
    ),
    "correction of 1 MB": (json.dumps({"verdict": "revise", "step": 2, "correction": "x" * 1_000_000}), "unparseable"),
    "deep": ('{"verdict": ' * 5_000, "unparseable"),
    "bytes": (b"{}", "unparseable"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    text, kind = REFUSED[name]
    with pytest.raises(JudgeError) as caught:
        parse_review(text, REQUEST, joint=True)
    assert caught.value.kind == kind
    assert len(str(caught.value)) < 500


def test_length_and_filter_reasons():
    for text in (None, "", '{"verdict": "revise", "step": 2, "correction": "12', '<think>{"verdict": "keep"}'):
        with pytest.raises(JudgeError) as caught:
            parse_review(text, REQUEST, joint=True, finish_reason="length")
        assert caught.value.kind == "truncated"
    assert parse_review(GOOD, REQUEST, joint=True, finish_reason="length").step == 2
    with pytest.raises(JudgeError) as caught:
        parse_review(GOOD, REQUEST, joint=True, finish_reason="content_filter")
    assert caught.value.kind == "refused"


def test_validator_needs_no_correction_and_drops_one():
    review = parse_review(GOOD, REQUEST, joint=False)
    assert (review.step, review.correction) == (2, None)
    assert parse_review('{"verdict": "revise", "step": 3}', REQUEST, joint=False).step == 3


def test_corrector():
    assert parse_correction('{"correction": "12 + 5 = 17"}', REQUEST, 2).text == "12 + 5 = 17"
    for text, kind in (
        ('{"correction": ""}', "empty_correction"),
        ('{"correction": "12 + 5 = 18"}', "same_correction"),
        ('{"text": "x"}', "unparseable"),
    ):
        with pytest.raises(JudgeError) as caught:
            parse_correction(text, REQUEST, 2)
        assert caught.value.kind == kind
    with pytest.raises(JudgeError) as caught:
        parse_correction('{"correction": "x"}', REQUEST, 9)
    assert caught.value.kind == "step_range"


def test_verifier():
    read = parse_verification('{"agrees": true, "leak_free": "False", "plausible": true}')
    assert (read.agrees, read.leak_free, read.plausible, read.reason) == (True, False, True, "leak")
    for text in ('{"agrees": true}', '{"agrees": 1, "leak_free": 1, "plausible": 1}', '{"accepted": true}'):
        with pytest.raises(JudgeError) as caught:
            parse_verification(text)
        assert caught.value.kind == "unparseable"


def test_a_correction_of_control_strings_alone_is_empty():
    controls = ("<|im_end|>", "</s>")
    for text in ("<|im_end|>", " </s>\n<|im_end|> ", "<|im_<|im_end|>end|>"):
        with pytest.raises(JudgeError) as caught:
            check_review(Review.revise(2, text), REQUEST, control_strings=controls)
        assert caught.value.kind == "empty_correction"
    with pytest.raises(JudgeError) as caught:
        check_review(Review.revise(2, "12 + 5 = 18</s>"), REQUEST, control_strings=controls)
    assert caught.value.kind == "same_correction"
    passed = check_review(Review.revise(2, "12 + 5 = 17</s>"), REQUEST, control_strings=controls)
    assert passed.correction == "12 + 5 = 17", "what is checked afterwards is what is inserted"


def test_check_review_normalises_and_refuses_wrong_types():
    assert check_review(Review(Verdict.KEEP, 7, "x"), REQUEST) == Review.keep()
    assert check_review(Review.revise(2), REQUEST).correction is None
    for wrong in (None, {"verdict": "keep"}, "keep", Review("nonsense")):
        with pytest.raises(JudgeError) as caught:
            check_review(wrong, REQUEST)
        assert caught.value.kind == "unparseable"
    with pytest.raises(JudgeError) as caught:
        check_review(Review.revise(1, "x" * (MAX_CORRECTION_CHARS + 1)), REQUEST)
    assert caught.value.kind == "too_long"
    with pytest.raises(JudgeError) as caught:
        check_review(Review.revise(1, "x"), ReviewRequest((), (), False))
    assert caught.value.kind == "step_range"


@pytest.mark.parametrize("index", range(len(CORPUS)))
def test_hostile_answers_cost_little_and_never_escape_as_other_errors(index):
    text = CORPUS[index]
    started = time.perf_counter()
    for answer in (text, text * (1_000_000 // max(1, len(text)) + 1), GOOD + text, text + GOOD):
        try:
            review = parse_review(answer, REQUEST, joint=True)
        except JudgeError as error:
            assert "SECRET" not in str(error)
        else:
            assert review.correction is None or len(review.correction) <= MAX_ANSWER_CHARS
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize("text", [text for text in CORPUS if len(text) < 1_000 and text.strip()])
def test_a_correction_is_data(text):
    answer = json.dumps({"reason": text, "verdict": "revise", "step": 1, "correction": f"a {text} b"})
    review = parse_review(answer, REQUEST, joint=True)
    assert review.step == 1 and review.correction.startswith("a ") and review.correction.endswith(" b")
    review.correction.encode("utf-8")


def test_errors_hold_nothing_of_the_answer():
    for text in (
        "SECRET-17",
        '{"verdict": "SECRET-17"}',
        '{"verdict": "revise", "step": "SECRET-17", "correction": "x"}',
        '{"verdict": "revise", "step": 1, "correction": ["SECRET-17"]}',
        '{"reason": "SECRET-17", "verdict": "revise", "step": 9, "correction": "x"}',
    ):
        with pytest.raises(JudgeError) as caught:
            parse_review(text, REQUEST, joint=True)
        assert "SECRET" not in f"{caught.value} {caught.value!r} {caught.value.__cause__!r}"
    assert "SECRET" not in repr(REQUEST)


@pytest.mark.parametrize(
    ("written", "final"), [("true", True), ('"true"', True), ('"False"', False), ('"yes"', False), ("1", False)]
)
def test_a_final_answer_is_said_with_a_boolean_or_its_name(written: str, final: bool) -> None:
    answer = f'{{"verdict": "revise", "step": 2, "correction": "x", "final": {written}}}'
    assert parse_review(answer, REQUEST, joint=True).final is final

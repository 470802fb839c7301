"""Answers of judges: read leniently, checked strictly (MInTRL, arXiv 2609.12419; RTI, arXiv 2610.13438).

Reading. Thoughts (``<think>``) are dropped, what is left is cut to its last :data:`MAX_ANSWER_CHARS` characters, and
JSON objects are looked for anywhere in it: in fences, after prose, in a list. **The last object with the role's key
wins**: a model drafts and quotes before it answers, and what it quotes is often the policy's text. If a later object
with that key is broken, nothing wins, for the broken one was meant. Trailing commas, raw newlines and LaTeX
backslashes are repaired.

Checking. The checks are functions of their own because they hold for every backend, Python functions included. No
message contains a word of an answer or of privileged text: errors are logged, and a judge may quote the gold answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from numbers import Integral
from typing import Any

from verl_mintrl.errors import JudgeError
from verl_mintrl.judges.protocol import Correction, Review, ReviewRequest, Verdict, Verification
from verl_mintrl.judges.text import clean, collapse, without_blanks
from verl_mintrl.trajectory.splice import neutralise

MAX_ANSWER_CHARS = 32_768
MAX_CORRECTION_CHARS = 32_768
_MAX_OBJECTS = 32  # starts of objects that are tried, counted from the end

_CHECKS = ("agrees", "leak_free", "plausible")
_START = re.compile(r"\{\s*(?=[\"}])")
_FIRST_KEY = re.compile(r'\{\s*"\s*(\w{1,40})\s*"')
_THOUGHT_OPENS = re.compile(r"\s*<think(?:ing)?>", re.IGNORECASE)
_THOUGHT_CLOSES = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
# A string that never closes matches to the end, so that every character is visited once.
_REPAIRABLE = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|,(?=\s*[}\]])', re.DOTALL)
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})?', re.DOTALL)
# "\frac" is valid JSON for a form feed and "rac". The commands whose first letter is a JSON escape, where the other
# reading is absurd; "\n" and "\t" are undone only before the rest of a well-known command.
_LATEX = re.compile(
    r"[\x08\x0c](?=[A-Za-z])|\t(?=(?:imes|ext|heta|frac|an|au|herefore|o|riangle)(?![a-z]))"
    r"|\r(?=(?:ight|ho|angle|m)(?![a-z]))|\n(?=(?:eq|abla|eg|otin)(?![a-z]))"
)
_UNDO = {"\x08": r"\b", "\x0c": r"\f", "\t": r"\t", "\r": r"\r", "\n": r"\n"}


def parse_review(
    text: str | None,
    request: ReviewRequest,
    *,
    joint: bool,
    finish_reason: str = "stop",
    control_strings: Collection[str] = (),
) -> Review:
    """Read the answer of a Validator, or of a judge that validates and corrects (``joint``).

    Raises:
        JudgeError: refused, truncated, unparseable, step_range, empty_correction, same_correction, too_long.
    """
    found = _find_object(text, ("verdict",), finish_reason)
    if not joint:
        found = {key: value for key, value in found.items() if key != "correction"}
    return review_from_mapping(found, request, needs_correction=joint, control_strings=control_strings)


def parse_correction(
    text: str | None,
    request: ReviewRequest,
    step: int,
    *,
    finish_reason: str = "stop",
    control_strings: Collection[str] = (),
) -> Correction:
    """Read the answer of a Corrector.

    Raises:
        JudgeError: refused, truncated, unparseable, step_range, empty_correction, same_correction, too_long.
    """
    found = _find_object(text, ("correction",), finish_reason)
    return check_correction(Correction(found["correction"]), request, step, control_strings=control_strings)


def parse_verification(text: str | None, *, finish_reason: str = "stop") -> Verification:
    """Read the three checks of a Verifier.

    Raises:
        JudgeError: refused, truncated, unparseable.
    """
    return verification_from_mapping(_find_object(text, _CHECKS, finish_reason))


def review_from_mapping(
    found: Mapping[str, Any],
    request: ReviewRequest,
    *,
    needs_correction: bool,
    control_strings: Collection[str] = (),
) -> Review:
    """The :class:`Review` that a mapping with ``verdict``, ``step``, ``correction`` and ``final`` describes, checked.

    Raises:
        JudgeError: unparseable and the kinds of :func:`check_review`.
    """
    verdict = found.get("verdict")
    step = found.get("step")
    if isinstance(step, str) and re.fullmatch(r"[0-9]{1,9}", step.strip()):
        step = int(step)
    final = _boolean(found.get("final")) is True
    review = Review(verdict, step, found.get("correction"), final)  # type: ignore[arg-type]
    return check_review(review, request, needs_correction=needs_correction, control_strings=control_strings)


def verification_from_mapping(found: Mapping[str, Any]) -> Verification:
    """The :class:`Verification` in a mapping with ``agrees``, ``leak_free`` and ``plausible``.

    Raises:
        JudgeError: unparseable if one is missing or is not a boolean.
    """
    values = []
    for check in _CHECKS:
        value = _boolean(found.get(check))
        if value is None:
            raise JudgeError(
                f"a verification has no boolean {check!r}", f"answer with {', '.join(_CHECKS)}", kind="unparseable"
            )
        values.append(value)
    agrees, leak_free, plausible = values
    return Verification(agrees, leak_free, plausible)


def _boolean(value: object) -> bool | None:
    """A boolean, or one that was written as a string; None for anything else."""
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.strip().lower())
    return value if isinstance(value, bool) else None


def check_review(
    review: Review,
    request: ReviewRequest,
    *,
    needs_correction: bool = False,
    control_strings: Collection[str] = (),
) -> Review:
    """The strict check of a review, whoever made it. Returns it normalised: KEEP carries nothing, text is cleaned.

    Args:
        needs_correction: whether a REVISE must bring its correction (a joint judge); a pure Validator brings none.
        control_strings: special tokens of the policy, which are taken out; a correction of nothing else counts as empty.

    Raises:
        JudgeError: unparseable (no verdict), step_range, empty_correction, same_correction, too_long.
    """
    if not isinstance(review, Review):
        raise JudgeError(f"a judge returned {type(review).__name__}, expected Review", kind="unparseable")
    verdict = _verdict(review.verdict)
    if verdict is Verdict.KEEP:
        return replace(review, verdict=verdict, step=None, correction=None, final=False)
    step = _step(review.step, request)
    if request.focus is not None and step != request.focus:
        raise JudgeError(f"step {step} was named, only step {request.focus} was in question", kind="step_range")
    correction = review.correction
    if correction is not None or needs_correction:
        correction = _correction_text(correction, request, step, control_strings)
    return replace(review, verdict=verdict, step=step, correction=correction)


def check_correction(
    correction: Correction, request: ReviewRequest, step: int, *, control_strings: Collection[str] = ()
) -> Correction:
    """The strict check of a Corrector's answer; returns it with cleaned text.

    Raises:
        JudgeError: unparseable (wrong type), step_range, empty_correction, same_correction, too_long.
    """
    if not isinstance(correction, Correction):
        raise JudgeError(f"a judge returned {type(correction).__name__}, expected Correction", kind="unparseable")
    return replace(correction, text=_correction_text(correction.text, request, _step(step, request), control_strings))


def check_verification(verification: Verification) -> Verification:
    """The strict check of a Verifier's answer.

    Raises:
        JudgeError: unparseable if it is no :class:`Verification` of three booleans.
    """
    if not isinstance(verification, Verification):
        raise JudgeError(f"a judge returned {type(verification).__name__}, expected Verification", kind="unparseable")
    usage = verification.usage
    return replace(verification_from_mapping({check: getattr(verification, check) for check in _CHECKS}), usage=usage)


def _verdict(value: object) -> Verdict:
    if isinstance(value, str) and len(value) <= 32:
        try:
            return Verdict(value.strip().lower())
        except ValueError:
            pass
    raise JudgeError("a review has no verdict keep or revise", kind="unparseable")


def _step(value: object, request: ReviewRequest) -> int:
    steps = len(request.steps)
    if isinstance(value, Integral) and not isinstance(value, bool) and 1 <= int(value) <= steps:
        return int(value)
    seen = str(value) if isinstance(value, int) and abs(value) < 10**9 else f"of type {type(value).__name__}"
    raise JudgeError(f"a REVISE names step {seen}, expected a number from 1 to {steps}", kind="step_range")


def _correction_text(value: object, request: ReviewRequest, step: int, control_strings: Iterable[str]) -> str:
    if value is not None and not isinstance(value, str):
        raise JudgeError(f"a correction is of type {type(value).__name__}, expected str", kind="unparseable")
    if value is not None and len(value) > MAX_CORRECTION_CHARS:
        raise JudgeError(
            f"a correction has {len(value)} characters, at most {MAX_CORRECTION_CHARS} are read",
            "one short step is expected; intervention.budget.max_insertion_tokens is the finer limit",
            kind="too_long",
        )
    text = neutralise(
        clean(value or ""), control_strings
    )  # before every other check: what is checked is what is inserted
    visible = collapse(without_blanks(text))
    if not visible:
        raise JudgeError(f"a REVISE of step {step} brings no text to insert", kind="empty_correction")
    replaced = collapse(clean(request.steps[step - 1]))
    if replaced in (visible, collapse(clean(value or ""))):
        raise JudgeError(f"a correction of step {step} equals the step it replaces", kind="same_correction")
    return text


def _find_object(text: str | None, keys: tuple[str, ...], finish_reason: str) -> dict[str, Any]:
    """The last JSON object of ``text`` that has one of ``keys``; see the module docstring."""
    if text is not None and not isinstance(text, str):
        raise JudgeError(f"an answer is of type {type(text).__name__}, expected str", kind="unparseable")
    cut_off = finish_reason == "length"
    if finish_reason == "content_filter":
        raise JudgeError("a judge's answer was withheld by a content filter", kind="refused")
    if text is None or not text.strip():
        if cut_off:
            raise JudgeError("a judge reached its length limit before it answered", _LONGER, kind="truncated")
        raise JudgeError("a judge answered with nothing", kind="refused")
    for part in _without_thoughts(text):
        found, broken = _last_object(part[-MAX_ANSWER_CHARS:], keys)
        if found is not None and not broken:
            return found
        if broken:
            break
    if cut_off:
        raise JudgeError("a judge reached its length limit before its answer was complete", _LONGER, kind="truncated")
    raise JudgeError(
        f"an answer of {len(text)} characters has no readable JSON object with {' or '.join(keys)}",
        "use a backend with structured output, or a model that follows the JSON instruction of the prompt",
        kind="unparseable",
    )


_LONGER = "raise intervention.judge.max_answer_tokens, or turn the thinking of the judge's model off"


def _without_thoughts(text: str) -> Iterable[str]:
    """Readings of ``text``, best first: what follows the last closing tag, then (a tag inside JSON) everything."""
    opened = _THOUGHT_OPENS.match(text)
    end = -1
    for closed in _THOUGHT_CLOSES.finditer(text):
        end = closed.end()
    if end >= 0:
        yield text[end:]
    if opened is None:
        yield text
    elif end >= 0:
        first = _THOUGHT_CLOSES.search(text, opened.end())
        yield text[first.end() :] if first else ""


def _last_object(text: str, keys: tuple[str, ...]) -> tuple[dict[str, Any] | None, bool]:
    """The last object with one of ``keys``, and whether a broken one of the same kind follows it."""
    starts = [match.start() for match in _START.finditer(text)][-_MAX_OBJECTS:]
    found, broken, position = None, False, 0
    for start in starts:
        if start < position:
            continue
        decoded = _decode(text, start)
        if decoded is None:
            first = _FIRST_KEY.match(text, start)
            broken = broken or (first is not None and first[1].lower() in (*keys, "reason"))
            continue
        value, position = decoded
        if any(key in value for key in keys):
            found, broken = value, False
    return found, broken


def _decode(text: str, start: int) -> tuple[dict[str, Any], int] | None:
    for repaired in (False, True):
        source = _REPAIRABLE.sub(_repair, text[start:]) if repaired else text[start:]
        try:
            value, end = _DECODER.raw_decode(source)
        except (ValueError, RecursionError):
            continue
        # Repairs double backslashes, so the end in the original text is at least this far.
        return value, start + max(1, end - (source.count("\\\\", 0, end) if repaired else 0))
    return None


def _repair(match: re.Match[str]) -> str:
    if match[0] == ",":
        return ""
    return _ESCAPE.sub(lambda escape: escape[0] if len(escape[0]) > 1 else "\\\\", match[0])


def _refuse(literal: str) -> Any:
    raise ValueError(f"{literal} is not JSON")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        name = key.strip().lower()[:40]
        if name in found:
            raise ValueError("a key occurs twice")
        found[name] = _LATEX.sub(lambda match: _UNDO[match[0]], value) if isinstance(value, str) else value
    return found


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= 9 else digits  # a longer one is no step; int() of 5,000 digits raises


_DECODER: json.JSONDecoder = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_constant=_refuse, parse_int=_integer, strict=False
)

"""Steps: the units a judge numbers, keeps or replaces (MInTRL, arXiv 2609.12419; RTI, arXiv 2610.13438).

A segmenter finds them in text; in a conversation with an environment a step is one assistant turn. Offsets are
characters here; :class:`verl_mintrl.trajectory.text.TokenText` turns them into token indices.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from verl_mintrl.errors import ConfigError
from verl_mintrl.trajectory.spans import Author, Span

#: text -> half-open character ranges, ordered, disjoint, leaving out nothing but whitespace. Each includes the
#: delimiter that ends it; the last may be open. Where a step ends must follow from the text up to there and the
#: character after it.
Segmenter = Callable[[str], list[tuple[int, int]]]

_KEY = "intervention.review.segmenter"
_BLANK_LINES = re.compile(r"\n\s*\n")
_LINE_END = re.compile(r"\n(?:\s*\n)?")
_PAIR = (tuple, list)
_FENCE = re.compile(r"[ \t]*(`{3,})([^`\n]*)\n?\Z")


def _split_after(pattern: re.Pattern[str], text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Ranges of ``text[start:end]``, a new one after each match."""
    ends = [match.end() for match in pattern.finditer(text, start, end)]
    if not ends or ends[-1] < end:
        ends.append(end)
    return [(left, right) for left, right in zip([start, *ends], ends, strict=False) if left < right]


def paragraphs(text: str) -> list[tuple[int, int]]:
    """Split at blank lines; all of several blank lines belong to the step before."""
    return _split_after(_BLANK_LINES, text, 0, len(text))


def lines(text: str) -> list[tuple[int, int]]:
    """One step per non-blank line; blank lines belong to the step before."""
    return _split_after(_LINE_END, text, 0, len(text))


def code(text: str) -> list[tuple[int, int]]:
    """Paragraphs outside of fenced blocks, lines inside.

    Fence lines, opening and closing, belong to the step before, like blank lines: replacing the first line of a block
    then leaves the opening fence, and replacing the last one also drops the closing fence that follows it. A fence that
    opens the text belongs to the first step.
    """
    ranges: list[tuple[int, int]] = []
    fence = ""  # the backticks that opened the block, empty outside
    prose = at = 0

    def add(start: int, end: int) -> None:
        ranges.append((start if ranges else 0, end))  # the first step takes what was before it

    def attach(end: int) -> None:
        if ranges:
            ranges[-1] = (ranges[-1][0], end)

    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        end = at + len(line)
        found = _FENCE.match(line)
        if fence:
            closes = found is not None and len(found[1]) >= len(fence) and not found[2].strip()
            if closes or not line.strip():
                attach(end)
            else:
                add(at, end)
            if closes:
                fence, prose = "", end
        elif found:
            if text[prose:at].strip():
                for left, right in _split_after(_BLANK_LINES, text, prose, at):
                    add(left, right)
            attach(end)
            fence = found[1]
        at = end
    if not fence:
        for left, right in _split_after(_BLANK_LINES, text, prose, len(text)):
            add(left, right)
    if text and not ranges:  # nothing but the beginning of a block
        ranges.append((0, len(text)))
    return ranges


#: name in the config -> segmenter
SEGMENTERS: dict[str, Segmenter] = {"paragraph": paragraphs, "line": lines, "code": code}

# what follows the end of a step is split as if the text began there; code is not: a fence may be open
_LOCAL: frozenset[Segmenter] = frozenset({paragraphs, lines})


def get_segmenter(name: str) -> Segmenter:
    """Segmenter of a config value: a key of ``SEGMENTERS`` or an import path ``package.module:function``.

    Raises:
        ConfigError: no such name, nothing to import there, or it is not callable.
    """
    if name in SEGMENTERS:
        return SEGMENTERS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        near = difflib.get_close_matches(name, SEGMENTERS, n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"{_KEY} is {name!r}, known are {sorted(SEGMENTERS)}.",
            f"{guess}An own one is named 'package.module:function'",
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{_KEY} is {name!r}, which cannot be imported: {error}.",
            "the module must be importable in every rollout worker; write 'package.module:function'",
        ) from error
    if not callable(found):
        raise ConfigError(f"{_KEY} is {name!r}, which is a {type(found).__name__}.", "name a function of one str")
    return found


@dataclass(frozen=True)
class Step:
    """One step of a response.

    Attributes:
        number: 1-based, as shown to the judge.
        text: ``response[start:end]``, the delimiter included.
        start: first character.
        end: character after the last.
        complete: ended by a delimiter, or by the end of a finished response; only such steps may be judged.
    """

    number: int
    text: str
    start: int
    end: int
    complete: bool


def _validated(ranges: Sequence[tuple[int, int]], text: str) -> list[tuple[int, int]]:
    at = 0
    for number, found in enumerate(ranges, 1):
        pair = tuple(found) if isinstance(found, _PAIR) else ()
        if len(pair) != 2 or not isinstance(pair[0], int) or not isinstance(pair[1], int):
            raise ConfigError(f"the segmenter returned {found!r} as range {number}.", f"{_KEY}: return pairs of int")
        start, end = pair
        if not at <= start < end <= len(text):
            raise ConfigError(
                f"the segmenter returned {start}..{end} as range {number} after {at} of {len(text)} characters.",
                f"{_KEY}: return ranges that are ordered, disjoint, not empty and inside the text",
            )
        if at < start and text[at:start].strip():
            raise ConfigError(
                f"the segmenter left out {text[at:start].strip()[:40]!r} before range {number}.",
                f"{_KEY}: every character that is not whitespace must be in a range",
            )
        at = end
    if text[at:].strip():
        raise ConfigError(
            f"the segmenter left out {text[at:].strip()[:40]!r} at the end.",
            f"{_KEY}: return the open last step too",
        )
    return [(start, end) for start, end in ranges]


def split_steps(text: str, segmenter: Segmenter, finished: bool) -> list[Step]:
    """Number the steps of ``text``.

    Whitespace-only ranges become part of the step before, at the start of the text of the step after. Whether the last
    step has been ended by a delimiter is found by asking the segmenter again with one more letter: an ended step stays
    as it is.

    Args:
        text: response so far.
        segmenter: see :data:`Segmenter`.
        finished: whether the response has ended; its last step is complete then.

    Raises:
        ConfigError: the segmenter broke its contract.
    """
    ranges = _validated(segmenter(text), text)
    merged: list[tuple[int, int]] = []
    ended = 0  # where the last range with text ends, before whitespace was merged into it
    lead: int | None = None
    for start, end in ranges:
        if not text[start:end].isspace():
            merged.append((start if lead is None else lead, end))
            lead, ended = None, end
        elif merged:
            merged[-1] = (merged[-1][0], end)
        elif lead is None:
            lead = start
    last_complete = finished or any(end == ended for _, end in segmenter(text + "x"))
    return [
        Step(number, text[start:end], start, end, number < len(merged) or last_complete)
        for number, (start, end) in enumerate(merged, 1)
    ]


class StepReader:
    """:func:`split_steps` of a text that is read again and again while it grows, and cut now and then.

    Gives what ``split_steps`` gives. Where the segmenter is one of ``_LOCAL``, only the text from the last step but one on is
    split again, so that reading a response at every step costs no more than its length; with others all of it is.
    """

    def __init__(self, segmenter: Segmenter) -> None:
        self._segmenter = segmenter
        self._text = ""
        self._steps: list[Step] = []

    def read(self, text: str, finished: bool) -> list[Step]:
        """The steps of ``text``; arguments and errors as in :func:`split_steps`."""
        kept = self._still_right(text) if self._segmenter in _LOCAL else []
        at = kept[-1].end if kept else 0
        new = split_steps(text[at:], self._segmenter, finished)
        self._text = text
        self._steps = kept + [
            Step(len(kept) + step.number, step.text, at + step.start, at + step.end, step.complete) for step in new
        ]
        return list(self._steps)

    def _still_right(self, text: str) -> list[Step]:
        """The steps whose end cannot move any more: another step that is still there in full follows them."""
        count = len(self._steps)
        while count and not text.startswith(self._steps[count - 1].text, self._steps[count - 1].start):
            count -= 1
        while count and not text.startswith(self._text[: self._steps[count - 1].end]):
            count -= 1  # changed before its last step too, so not by a cut
        return self._steps[: max(count - 1, 0)]


def turn_steps(spans: Sequence[Span]) -> list[Span]:
    """One step per assistant turn: the maximal runs of tokens that the environment did not write.

    Returns:
        Spans in token indices with the origin of their first part; their author is the policy unless all of the turn
        was inserted.
    """
    turns: list[Span] = []
    for span in spans:
        if span.author is Author.ENVIRONMENT:
            continue
        if turns and turns[-1].end == span.start:
            author = Author.POLICY if Author.POLICY in (turns[-1].author, span.author) else Author.CORRECTOR
            turns[-1] = replace(turns[-1], end=span.end, author=author)
        else:
            turns.append(span)
    return turns

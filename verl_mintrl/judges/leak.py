"""Does a correction give away what only the judge may know? Deterministic, runs before any model is asked. Pure.

RTI (arXiv 2610.13438) leaves the check to its Verifier; the rules and numbers here are ours [inf].
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from verl_mintrl.judges.text import without_blanks

_WORD = re.compile(r"\w+", re.UNICODE)
_NAME = 2  # underscores that a name may have
_NO_LETTER = re.compile(r"[\W_]+", re.UNICODE)
#: phrases that speak of evidence the policy never saw
_REFERENCES = re.compile(
    r"\b(?:gold|golden|reference|expected|provided|confidential|correct|ground[- ]truth)\s+"
    r"(?:answer|solution|result|output|action|label|evidence)\b"
    r"|\baccording to the (?:rubric|evidence|reference|answer key|ground[- ]truth)\b"
    r"|\b(?:answer key|the rubric|ground[- ]truth|the evidence says|the reviewer|the judge)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class LeakRules:
    """What counts as a leak.

    Attributes:
        shortest_gold: characters below which privileged text may stand verbatim in a correction: a number or a letter is the
            result of nearly every right derivation.
        ngram: words in a row that, shared with the privileged text but not with what the policy could see, are a leak.
    """

    shortest_gold: int = 12
    ngram: int = 6


def find_leak(correction: str, privileged: str | None, observable: str, rules: LeakRules, replaced: str = "") -> str:
    """Why ``correction`` leaks, empty if it does not: ``gold``, ``reference`` or ``overlap``.

    Out of reach: letters of another alphabet that look the same, and evidence spread over several corrections.

    Args:
        privileged: what only the judge saw, None if nothing.
        observable: all text the policy could see (problem, steps before, observations). What it implies word for word is no leak.
        replaced: the step that is corrected; its phrases are the policy's own.
    """
    seen = _flat(f"{observable}\n{replaced}")
    match = _REFERENCES.search(correction)
    if match and _flat(match[0]) not in seen:
        return "reference"
    if privileged is None:
        return ""
    for spelled in (_flat, _letters):
        gold = spelled(privileged)
        if len(gold) >= rules.shortest_gold and gold in spelled(correction) and gold not in spelled(observable):
            return "gold"
    known = _ngrams(observable, rules.ngram)
    if (_ngrams(correction, rules.ngram) & _ngrams(privileged, rules.ngram)) - known:
        return "overlap"
    return ""


def _flat(text: str) -> str:
    return " ".join(_plain(text).split())


def _letters(text: str) -> str:
    """Letters and digits alone: ``1,234`` and ``1234``, or words joined by underscores, are one spelling."""
    return _NO_LETTER.sub("", _plain(text))


def _plain(text: str) -> str:
    """``text`` without differences of spelling alone (NFKD: full-width letters, ligatures, accents)."""
    letters = unicodedata.normalize("NFKD", without_blanks(text))
    return "".join(c for c in letters if not unicodedata.combining(c)).lower()


def _ngrams(text: str, n: int) -> set[tuple[str, ...]]:
    words: list[str] = []
    for word in _WORD.findall(_plain(text)):
        words += word.split("_") if word.count("_") > _NAME else [word]  # a name, or words that were joined
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}

"""Steps and a judge that fit the text of a random model: a step is a word, and every look finds one to replace."""

from __future__ import annotations

import re
import time
from typing import Any

from verl_mintrl.judges.protocol import ReviewRequest

CORRECTIONS = ("one two", "three")


def words(text: str) -> list[tuple[int, int]]:
    """Ranges of the words of ``text``, each with the space around it."""
    ends = [match.end() for match in re.finditer(r"\S+\s+(?=\S)", text)]
    ends += [len(text)] if text.strip() and (not ends or ends[-1] < len(text)) else []
    return [(start, end) for start, end in zip([0, *ends], ends, strict=False) if start < end]


def late_review(request: ReviewRequest) -> dict[str, Any]:
    """As :func:`review`, while the policy is in the middle of its next words."""
    time.sleep(0.05)
    return review(request)


def review(request: ReviewRequest) -> dict[str, Any]:
    """Replace the first word at the first look, the last one at the second, nothing later; never in odd groups."""
    if request.attempt >= len(CORRECTIONS) or int(request.sample["index"]) % 2:
        return {"verdict": "keep"}
    step = 1 if request.attempt == 0 else len(request.steps)
    return {"verdict": "revise", "step": step, "correction": CORRECTIONS[request.attempt]}

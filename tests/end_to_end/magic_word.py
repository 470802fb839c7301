"""Judges and reward of runs whose policy is random: only a correction ever earns anything, and it is always the same one."""

from __future__ import annotations

from typing import Any

from verl_mintrl.judges.protocol import Review, ReviewRequest, Verification

WORD = "abracadabra"
CORRECTION = f"Say {WORD} first."


def review(request: ReviewRequest) -> Review:
    """The first step is harmful as long as the word is not in it."""
    return Review.keep() if request.focus not in (None, 1) or WORD in request.steps[0] else Review.revise(1)


def correct(request: ReviewRequest, step: int) -> str:
    return CORRECTION


def verify(request: ReviewRequest, step: int, correction: str) -> Verification:
    assert request.privileged == request.sample["reward_model"]["ground_truth"]
    return Verification(agrees=True, leak_free=True, plausible=True)


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    return float(WORD in solution_str)

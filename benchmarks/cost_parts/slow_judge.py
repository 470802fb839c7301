"""A judge that takes its time; how long is said by the environment, since a config names functions only."""

from __future__ import annotations

import asyncio
import hashlib
import os

from verl_mintrl.judges.protocol import Review, ReviewRequest

LATENCY, REVISE = "SLOW_JUDGE_SECONDS", "SLOW_JUDGE_REVISE"


async def review(request: ReviewRequest) -> Review:
    """Wait, then keep, or replace the last word of a share of the texts that hangs on the text alone."""
    await asyncio.sleep(float(os.environ[LATENCY]))
    chance = hashlib.sha256(repr(request.steps).encode()).digest()[0] / 256
    if chance < float(os.environ[REVISE]):
        return Review.revise(len(request.steps), "so")
    return Review.keep()

"""Ratios with intervals, and how a cost grows."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """An estimate with the bounds of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def bootstrap(samples: Sequence[float], seed: int, draws: int = 5000) -> Interval:
    """Median of ``samples`` with its percentile bootstrap interval."""
    rng = random.Random(f"bootstrap {seed}")
    medians = sorted(statistics.median(rng.choices(samples, k=len(samples))) for _ in range(draws))
    return Interval(statistics.median(samples), medians[int(0.025 * draws)], medians[int(0.975 * draws) - 1])


def paired_ratio(ours: Sequence[float], theirs: Sequence[float], seed: int) -> Interval:
    """Median of the ratios of runs that were made one after the other, with its bootstrap interval."""
    return bootstrap([a / b for a, b in zip(ours, theirs, strict=True)], seed)


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Slope of log cost over log size by least squares: 1 is linear, 2 quadratic."""
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    return statistics.linear_regression(x, y).slope


def spread(values: Sequence[float], form: Callable[[float], str]) -> str:
    """Median and range, e.g. ``2.1 (2.0-2.3)``."""
    return f"{form(statistics.median(values))} ({form(min(values))}-{form(max(values))})"

"""Text of a solver that works in steps, drawn from a seed."""

from __future__ import annotations

import random

_OPENERS = ("First", "Next", "So", "Since the total is known", "From this", "Therefore", "Checking again", "Now")
_NOUNS = ("apples", "the remaining length", "the sum", "the second train", "Σ of both sides", "the 面积", "the angle α")
_ENDS = ("which we keep.", "as wanted ✓.", "and nothing is left over.", "so the claim holds for n ≥ 2.", "→ go on.")


def step(rng: random.Random, number: int) -> str:
    """One step of about fifty tokens, ended by a blank line; some of its characters take several bytes."""
    left, right = rng.randrange(10, 999), rng.randrange(10, 999)
    lines = [
        f"Step {number}. {rng.choice(_OPENERS)}, {rng.choice(_NOUNS)}: {left} + {right} = {left + right},",
        f"{rng.choice(_ENDS)} \\frac{{{left}}}{{{right}}} x^{{{rng.randrange(2, 9)}}} stays.",
    ]
    return (" " if rng.random() < 0.5 else "\n").join(lines) + "\n\n"


def text(rng: random.Random, steps: int) -> str:
    return "".join(step(rng, number) for number in range(1, steps + 1))

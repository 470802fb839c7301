"""Perplexity gate: is a correction something the policy could have written? (RTI, arXiv 2610.13438). Pure.

Log-probs are those of the policy in the original observable context at temperature 1, nats per token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from verl_mintrl.config.schema import GateConfig

_LITERAL = re.compile(r"[^\s,;:!?()\[\]{}<>|=*$\"'`]+")


def perplexity(logprobs: Sequence[float]) -> float:
    """exp of the mean negative log-prob; infinite rather than overflowing, NaN for nothing."""
    if not logprobs:
        return math.nan
    mean = -math.fsum(logprobs) / len(logprobs)
    return math.exp(mean) if mean < 700 else math.inf


@dataclass(frozen=True)
class Judgement:
    """Result of the gate for one proposal.

    Attributes:
        perplexity: of the correction, over the tokens that count.
        bound: what it was compared with.
        fallback: every token was a copied literal, so all of them counted after all.
    """

    accepted: bool
    perplexity: float
    bound: float
    fallback: bool


def judge(
    config: GateConfig,
    logprobs: Sequence[float],
    *,
    counted: Sequence[bool] | None = None,
    replaced: Sequence[float] = (),
    own_steps: Sequence[float] = (),
    backend: str = "",
    domain: str = "",
) -> Judgement:
    """Apply the gate.

    Args:
        logprobs: of the correction's tokens.
        counted: which of them count (see :func:`literal_tokens`); None: all.
        replaced: log-probs of the step that would be replaced, for ``relative``.
        own_steps: perplexities of the policy's own steps, for ``quantile``; without any the bound is that of ``absolute``.
        backend: judge backend, for a delta of its own.
        domain: ``data_source`` of the row, for a delta of its own.
    """
    chosen = [lp for lp, keep in zip(logprobs, counted or [True] * len(logprobs), strict=True) if keep]
    fallback = not chosen
    value = perplexity(chosen or logprobs)
    bound = _bound(config, replaced, own_steps, backend, domain)
    return Judgement(math.isfinite(value) and value <= bound, value, bound, fallback)


def _bound(
    config: GateConfig, replaced: Sequence[float], own_steps: Sequence[float], backend: str, domain: str
) -> float:
    if config.mode == "none":
        return math.inf
    if config.mode == "relative":
        return config.ratio * perplexity(replaced)
    finite = [value for value in own_steps if math.isfinite(value)]
    if config.mode == "quantile" and finite:
        return float(np.quantile(finite, config.quantile))
    for name in (f"{backend}/{domain}", domain, backend):
        if name and name in config.delta_for:
            return config.delta_for[name]
    return config.delta


def literal_tokens(pieces: Sequence[str], observable: str, *, literals: bool, numbers: bool) -> list[bool]:
    """Which tokens of a correction count in the mean: those of copied literals do not.

    A literal is a word that stands in the observable context as a whole and looks like a name or an id: it is capitalised, or
    has an upper-case letter after its first character, a digit next to a letter or a dash, an underscore, @, # or a slash.
    Plain numbers are a flag of their own.

    Args:
        pieces: text of each token, in order; their concatenation is the correction.
        observable: text the policy could see.
        literals: leave out copied literals.
        numbers: leave out copied numbers.
    """
    text = "".join(pieces)
    known = {word.rstrip(".") for word in _LITERAL.findall(observable)} if literals or numbers else set()
    skip = [False] * len(text)
    for match in _LITERAL.finditer(text):
        word = match[0].rstrip(".")
        if word in known and _kind(word)(literals, numbers):
            skip[match.start() : match.start() + len(word)] = [True] * len(word)
    counted, at = [], 0
    for piece in pieces:
        inside = skip[at : at + len(piece)]
        visible = [flag for flag, character in zip(inside, piece, strict=True) if not character.isspace()]
        counted.append(not (visible and all(visible)))
        at += len(piece)
    return counted


def _kind(word: str) -> Callable[[bool, bool], bool]:
    if re.fullmatch(r"[-+]?\d+(?:[.,]\d+)*%?", word):
        return lambda literals, numbers: numbers
    named = re.search(r"\w[A-Z]|[A-Za-z]\d|\d[A-Za-z]|[_@#/]|\d-\d|^[A-Z][a-z]+$", word) is not None
    return lambda literals, numbers: literals and named

"""The perplexity gate: bounds of every mode, and which tokens count."""

from __future__ import annotations

import math

import pytest
from trajectory.toy_tokenizers import byte_level

from verl_mintrl.config.schema import GateConfig
from verl_mintrl.rollout.gate import judge, literal_tokens, perplexity
from verl_mintrl.rollout.propose import pieces


def of(value: float, tokens: int = 3) -> list[float]:
    """Log-probs whose perplexity is ``value``."""
    return [-math.log(value)] * tokens


def test_perplexity():
    assert perplexity([-1.0, -3.0]) == pytest.approx(math.e**2)
    assert perplexity([0.0]) == 1
    assert perplexity([-1e9]) == perplexity([-math.inf]) == math.inf
    assert math.isnan(perplexity([]))


@pytest.mark.parametrize(("value", "accepted"), [(4.99, True), (5.01, False)])
def test_absolute(value, accepted):
    found = judge(GateConfig("absolute"), of(value))
    assert (found.accepted, found.bound, found.fallback) == (accepted, 5.0, False)
    assert found.perplexity == pytest.approx(value)


def test_a_bound_itself_is_accepted():
    assert judge(GateConfig("absolute", delta=1.0), [0.0, 0.0]).accepted


@pytest.mark.parametrize(
    ("backend", "domain", "bound"),
    [
        ("policy", "retail", 2.0),
        ("endpoint", "retail", 3.0),
        ("policy", "math", 4.0),
        ("endpoint", "math", 5.0),
        ("", "", 5.0),
    ],
)
def test_bounds_of_backends_and_domains(backend, domain, bound):
    config = GateConfig("absolute", delta_for={"policy/retail": 2.0, "retail": 3.0, "policy": 4.0})
    assert judge(config, of(1.5), backend=backend, domain=domain).bound == bound


def test_relative():
    config = GateConfig("relative", ratio=2.0)
    assert judge(config, of(19.9), replaced=of(10)).accepted
    assert not judge(config, of(20.1), replaced=of(10)).accepted
    assert not judge(config, of(1.0), replaced=[]).accepted, "nothing to compare with"


def test_quantile():
    config = GateConfig("quantile", quantile=0.5)
    own = [1.0, math.nan, 3.0, math.inf, 9.0]
    assert judge(config, of(2.9), own_steps=own).accepted
    assert judge(config, of(3.1), own_steps=own).bound == 3.0
    assert not judge(config, of(3.1), own_steps=own).accepted


@pytest.mark.parametrize("own", [[], [math.nan], [math.inf]])
def test_quantile_of_nothing_does_not_open_the_gate(own):
    config = GateConfig("quantile", delta=4.0, delta_for={"retail": 6.0})
    assert judge(config, of(3.0), own_steps=own).bound == 4.0
    assert judge(config, of(7.0), own_steps=own, domain="retail").accepted is False


@pytest.mark.parametrize("mode", ["absolute", "relative", "quantile"])
@pytest.mark.parametrize("bad", [-math.inf, math.nan])
def test_impossible_and_unscored_tokens_are_rejected(mode, bad):
    config = GateConfig(mode)
    assert not judge(config, [-0.1, bad], replaced=[-math.inf], own_steps=[2.0]).accepted


def test_tokens_that_do_not_count():
    logprobs, counted = [-0.1, -9.0, -0.3], [True, False, True]
    found = judge(GateConfig("absolute"), logprobs, counted=counted)
    assert found.accepted and found.perplexity == pytest.approx(math.exp(0.2)) and not found.fallback


def test_an_empty_mean_falls_back_to_all_tokens():
    found = judge(GateConfig("absolute"), [-9.0, -9.0], counted=[False, False])
    assert not found.accepted and found.fallback and found.perplexity == pytest.approx(math.exp(9))


OBSERVED = (
    "Hi, I'm Ava Moore (user_id: ava_moore_2033). Please cancel order #W2702727, item 9747045638, paid $54.04 to "
    "ava.moore3325@example.com. My flight is HAT-119 on 2024-05-16, file src/app/main.py, and there are 3 bags."
)


def skipped(correction: str, *, literals: bool = True, numbers: bool = False) -> str:
    """Characters of a correction, one a token, that do not count."""
    counted = literal_tokens(list(correction), OBSERVED, literals=literals, numbers=numbers)
    return "".join(c for c, keep in zip(correction, counted, strict=True) if not keep)


@pytest.mark.parametrize(
    ("correction", "literals"),
    [
        ("I will cancel order #W2702727.", "#W2702727"),
        ('cancel(order_id="#W2702727", user="ava_moore_2033")', "#W2702727ava_moore_2033"),
        ("**#W2702727** is cancelled", "#W2702727"),
        ("order_id=#W2702727", "#W2702727"),
        ("Ava Moore's order", "AvaMoore"),
        ("write to ava.moore3325@example.com now", "ava.moore3325@example.com"),
        ("HAT-119 leaves on 2024-05-16.", "HAT-1192024-05-16"),
        ("look at `src/app/main.py`", "src/app/main.py"),
        ("order #W9999999 of Bob", ""),
        ("#W27027271 and XHAT-119", ""),
        ("cancel the order, please", ""),
        ("9747045638 costs $54.04", ""),
        ("", ""),
    ],
)
def test_copied_literals(correction, literals):
    assert skipped(correction) == literals


def test_numbers_are_a_flag_of_their_own():
    correction = "Item 9747045638 of #W2702727 costs $54.04, 3 bags: 54.05"
    assert skipped(correction, literals=False, numbers=True) == "974704563854.043"
    assert skipped(correction, numbers=True) == "9747045638#W270272754.043"
    assert skipped(correction, literals=False) == ""


def test_tokens_of_real_tokenizers_that_straddle_a_literal_count():
    tokenizer = byte_level()
    correction = "I cancel order #W2702727 of Ava Moore."
    texts = pieces(tokenizer.encode(correction, add_special_tokens=False), tokenizer.decode)
    assert "".join(texts) == correction
    counted = literal_tokens(texts, OBSERVED, literals=True, numbers=False)
    left = "".join(text for text, keep in zip(texts, counted, strict=True) if not keep)
    assert left.replace(" ", "") == "#W2702727AvaMoore"
    kept = "".join(text for text, keep in zip(texts, counted, strict=True) if keep)
    assert kept.replace(" ", "") == "Icancelorderof."

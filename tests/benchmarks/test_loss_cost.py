"""The loss benchmark on a small batch; nothing is timed here."""

from __future__ import annotations

import dataclasses

import torch
from loss_cost import Batch, arms, broken, by_hand, lines, measure


def test_both_ways_to_call_a_loss_agree_and_the_gradient_is_the_one_by_hand():
    batch = Batch.draw(3, 40, seed=1)
    found = arms(batch)
    assert broken(batch, found) == []
    alone, in_worker = found.values()
    for which in alone:
        (loss, gradient), (again, gradient_again) = alone[which](), in_worker[which]()
        assert torch.allclose(loss, again, rtol=1e-4)
        assert torch.allclose(gradient, gradient_again, rtol=1e-4, atol=1e-9)
        assert not gradient[~batch.mask].any()


def test_a_wrong_gradient_is_noticed():
    batch = Batch.draw(2, 20, seed=2)
    other = dataclasses.replace(batch, weights=2 * batch.weights)
    assert not torch.allclose(by_hand(batch), by_hand(other), rtol=1e-3)
    assert any("by hand" in fault for fault in broken(other, arms(batch)))


def test_table():
    batch = Batch.draw(2, 20, seed=0)
    text = "\n".join(lines(measure(arms(batch), pairs=3, seed=0)))
    assert text.count("intervention_regression") == 2 and "ppo_loss" in text

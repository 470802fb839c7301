"""Advantage -> anchor -> weights -> loss on a tabular policy: a table of logits that must write T right symbols."""

import subprocess
import sys

import pytest
import torch

from verl_mintrl.learning.advantage import control_advantage
from verl_mintrl.learning.anchor import relaxed_anchor
from verl_mintrl.learning.loss import regression_loss
from verl_mintrl.learning.schedule import Schedule
from verl_mintrl.learning.weights import pack_weights, unpack_weights

PROMPTS, GROUP, CONTROL, VOCAB = 8, 8, 4, 6


def correct(tokens, target, sessions, max_insertions):
    """Replace the first wrong symbols of the given sessions by right ones."""
    wrong = (tokens != target) & sessions.unsqueeze(-1)
    inserted = wrong & (wrong.cumsum(-1) <= max_insertions)
    return torch.where(inserted, target, tokens), inserted


def train(mode, *, skill, length, updates, stop=None, seed=0):
    """Mean probability of the right answer before and after training."""
    gen = torch.Generator().manual_seed(seed)
    target = torch.randint(0, VOCAB, (PROMPTS, 1, length), generator=gen)
    logits = torch.zeros(PROMPTS, length, VOCAB).scatter_(2, target.squeeze(1).unsqueeze(-1), skill).requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=0.05)
    groups = [prompt for prompt in range(PROMPTS) for _ in range(GROUP)]
    control = (torch.arange(GROUP) < CONTROL).repeat(PROMPTS)
    everyone = torch.ones(PROMPTS * GROUP, dtype=torch.bool)
    target = target.expand(-1, GROUP, -1).reshape(-1, length)
    schedule, beta = Schedule(stop), 1e-3

    def log_prob(tokens):
        table = logits.log_softmax(-1).repeat_interleave(GROUP, 0)
        return table.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)

    def success():
        return log_prob(target)[::GROUP].sum(-1).exp().mean().item()

    before = success()
    for step in range(1, updates + 1):
        with torch.no_grad():
            probs = logits.softmax(-1).repeat_interleave(GROUP, 0).reshape(-1, VOCAB)
            tokens = torch.multinomial(probs, 1, generator=gen).reshape(-1, length)
            treated = ~control & (mode != "never") & schedule.active(step)
            tokens, inserted = correct(tokens, target, treated, max_insertions=2)
            old = log_prob(tokens)
        right = (tokens == target).all(-1)
        mask, weights = torch.ones_like(inserted), torch.ones_like(old)
        estimate = control_advantage(right.float(), groups, control, everyone, v_mode="mean", beta1=1.0)
        anchor = relaxed_anchor(
            old,
            inserted,
            mask,
            weights,
            mode="const" if mode == "const" else "proxy",
            kappa=0.0,
            beta=beta,
            max_bonus=0.5,
            relax="always",
            length_norm="none",
            advantages=estimate.advantages,
            success=right,
        )
        weights, inserted = unpack_weights(pack_weights(weights, inserted))
        result = regression_loss(
            log_prob(tokens),
            anchor.log_probs,
            estimate.advantages.unsqueeze(-1).expand(-1, length),
            mask,
            weights,
            inserted,
            beta=beta,
            loss_scale="reinforce",
            horizon=length,
            length_norm="none",
            global_batch_size=len(tokens),
            dp_size=1,
        )
        optimizer.zero_grad()
        result.loss.backward()
        optimizer.step()
    return before, success()


@pytest.mark.parametrize("mode", ["never", "proxy", "const"])
def test_a_policy_that_sometimes_succeeds_improves(mode):
    before, after = train(mode, skill=3.0, length=5, updates=60)
    assert before < 0.5
    assert after > 0.75


def test_interventions_reach_what_the_policy_alone_cannot():
    alone = train("never", skill=1.5, length=8, updates=60)
    proxy = train("proxy", skill=1.5, length=8, updates=60)
    const = train("const", skill=1.5, length=8, updates=60)
    assert alone[0] < 0.01
    assert min(proxy[1], const[1]) > 5 * alone[1]


def test_early_stop_keeps_what_was_learnt():
    _, stopped = train("proxy", skill=1.5, length=8, updates=100, stop=60)
    _, at_stop = train("proxy", skill=1.5, length=8, updates=60)
    assert stopped > at_stop


def test_the_equations_import_neither_verl_nor_ray():
    modules = ", ".join(
        f"verl_mintrl.learning.{name}" for name in ("advantage", "anchor", "weights", "loss", "schedule")
    )
    code = f"import sys, {modules}; print(sorted({{'verl', 'ray', 'vllm'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

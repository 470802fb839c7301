"""MENTOR: sessions written by two models, and what is learned from them."""

from __future__ import annotations

import math
from contextlib import closing

import pytest
import torch
from lab import tasks
from lab.baselines import Mentor
from lab.decoder import Decoder
from lab.engine import Engine
from lab.mixing import write_mixed
from lab.rollout import Sampler, pieces
from lab.settings import settings
from transformers import AutoModelForCausalLM, AutoTokenizer


def load(folder, seed=None):
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    if seed is not None:
        torch.manual_seed(seed)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def write(policy, expert, threshold, prompts=((1, 2, 3), (4, 5))):
    torch.manual_seed(0)
    return write_mixed(Decoder(policy), Decoder(expert), prompts, limit=12, end_ids={0}, threshold=threshold)


def test_the_expert_writes_where_the_policy_is_unsure(tiny_policy):
    policy, expert = load(tiny_policy), load(tiny_policy, seed=1)
    assert write(policy, expert, math.inf) == write(policy, policy, 1.0)
    assert write(policy, expert, 1e-9) == write(expert, expert, 1.0)
    assert write(policy, expert, math.inf) != write(policy, expert, 1e-9)


def test_a_response_ends_at_its_end_or_at_the_limit(tiny_policy):
    policy = load(tiny_policy)
    for response in write(policy, policy, 1.0, [(1, 2), *[(3, n) for n in range(4, 30)]]):
        assert 1 <= len(response) <= 12
        assert 0 not in response[:-1] and (len(response) == 12 or response[-1] == 0)


@pytest.fixture
def mentor(tiny_policy, monkeypatch):
    monkeypatch.setattr("lab.baselines.teacher_path", lambda: tiny_policy)
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    engine = Engine(load(tiny_policy), [tokenizer.eos_token_id], pieces(tokenizer), max_model_len=256)
    chosen = settings("grpo", {}, prompts=2, n=8)
    with closing(Sampler(engine, tokenizer, chosen.intervention, self_judged=False)) as sampler:
        yield Mentor(sampler, tiny_policy)


def test_half_of_a_group_is_mixed_and_only_gains_are_learned_from(mentor):
    samples = mentor.sample(tasks.make_split("train", 2, 0), 30, 8)
    assert len({(s.record.uid, s.record.session_id) for s in samples}) == 16
    mixed = [s.record.replaced for s in samples]
    assert sum(mixed) == 8
    for s, given in zip(samples, [1, 0, 0, 0, 0, 0, 0, 0, *4 * [0, 1]], strict=True):
        s.row.reward_score = float(given)
    mask = torch.ones(16, 3)
    advantage = mentor.advantage(samples, mask, torch.zeros(16, 3))
    alpha = 0.5 * (1 + math.cos(math.pi / 4))
    assert advantage[8:, 0].tolist() == pytest.approx([0, 0.75 * alpha, 0, 0.75 * alpha, 0, alpha, 0, alpha])
    assert advantage[:4, 0].tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-3)
    assert not advantage[4:8].any(), "a group that failed as a whole"

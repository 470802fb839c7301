"""One update in process: the numbers do not depend on how the batch is cut, and the LUFFY loss is what it says."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace

import pytest
import torch
from lab import tasks
from lab.baselines import Luffy
from lab.engine import Engine
from lab.learner import Learner, Optimisation, score_ids
from lab.rollout import Sampler, pieces
from lab.settings import settings
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_mintrl.trajectory.spans import Author


def sampled(tiny_policy, preset="mintrl_const"):
    overrides = {"intervention.judge.function": "lab.judging:EXACT.review"} if preset != "grpo" else {}
    model = AutoModelForCausalLM.from_pretrained(tiny_policy).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    chosen = settings(preset, overrides, prompts=2, n=4)
    engine = Engine(model, [tokenizer.eos_token_id], pieces(tokenizer), max_model_len=256)
    torch.manual_seed(0)
    with closing(Sampler(engine, tokenizer, chosen.intervention, self_judged=False)) as sampler:
        samples = sampler.train_groups(tasks.make_split("train", 2, 0), 1, 4)
    for number, sample in enumerate(samples):
        sample.row.reward_score = float(number % 3 == 0)
    return model, chosen, samples


def weights(model):
    return torch.cat([weight.flatten() for weight in model.parameters()]).detach()


def test_sampling_and_training_agree_on_every_own_token(tiny_policy):
    model, _, samples = sampled(tiny_policy)
    with torch.no_grad():
        scores = score_ids(model, [s.row.prompt_ids for s in samples], [s.row.response_ids for s in samples])
    for line, sample in zip(scores.log_probs, samples, strict=True):
        own = torch.tensor(sample.row.authors) == int(Author.POLICY)
        given = torch.tensor(sample.row.response_logprobs)
        assert torch.allclose(line[: len(own)][own], given[own], atol=1e-4)
        assert given[~own].isnan().all()


@pytest.mark.parametrize("preset", ["grpo", "mintrl_const"])
def test_micro_batches_change_nothing(tiny_policy, monkeypatch, preset):
    changed = []
    for rows in (3, 32):
        monkeypatch.setattr("lab.learner.MICRO_ROWS", rows)
        model, chosen, samples = sampled(tiny_policy, preset)
        before = weights(model)
        metrics = Learner(model, chosen, Optimisation(warmup=0)).update(samples)
        assert not torch.equal(weights(model), before)
        changed.append((metrics["actor/pg_loss"], metrics["actor/grad_norm"]))
    assert changed[0] == pytest.approx(changed[1], rel=1e-4, abs=1e-7)


def test_several_mini_batches_are_several_steps(tiny_policy):
    model, chosen, samples = sampled(tiny_policy)
    learner = Learner(model, chosen, Optimisation(mini_batches=4))
    metrics = learner.update(samples)
    assert learner.steps == 4
    assert metrics["actor/regression/drift_abs_min"] == pytest.approx(0, abs=1e-6)


def test_luffy_shapes_the_ratio_of_given_tokens_and_clips_that_of_its_own():
    config = SimpleNamespace(
        clip_ratio=0.2,
        clip_ratio_low=0.2,
        clip_ratio_high=0.2,
        get=lambda name, default=None: default,
        global_batch_info={"dp_size": 1, "batch_num_tokens": 4},
    )
    log_prob = torch.log(torch.tensor([[0.5, 0.5], [0.1, 0.9]])).requires_grad_()
    loss, _ = Luffy.loss(
        old_log_prob=log_prob.detach(),
        log_prob=log_prob,
        advantages=torch.tensor([[-1.0, -1.0], [2.0, 2.0]]),
        response_mask=torch.ones(2, 2, dtype=torch.bool),
        loss_agg_mode="token-mean",
        config=config,
        rollout_is_weights=torch.tensor([[1.0, 1.0], [-1.0, -1.0]]),
    )
    expected = (2 * 1.0 - 2 * (0.1 / 0.2 + 0.9 / 1.0)) / 4
    assert loss.item() == pytest.approx(expected)
    loss.backward()
    assert log_prob.grad[1, 0] == pytest.approx(-2 / 4 * 0.1 * 0.1 / 0.2**2)
    assert log_prob.grad[0].tolist() == pytest.approx([0.25, 0.25])

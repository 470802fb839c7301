"""A frozen judge on two of verl's teacher servers, in the Ray cluster of the run, started by config alone."""

from __future__ import annotations

import math

import pytest
from harness import Run, train

STEPS, PROMPTS, N = 2, 2, 4


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_model, sums) -> Run:
    overrides = {
        "actor_rollout_ref.model.path": tiny_model,
        "data.train_files": sums,
        "data.val_files": sums,
        "data.train_batch_size": PROMPTS,
        "actor_rollout_ref.rollout.n": N,
        "actor_rollout_ref.actor.ppo_mini_batch_size": PROMPTS,
        "reward.custom_reward_function.path": "pkg://verl_mintrl.tasks.arithmetic",
        "reward.custom_reward_function.name": "compute_score",
        "intervention.review.every_tokens": 12,
        "intervention.review.segmenter": "judge:words",
        "intervention.judge.backend": "teacher",
        "intervention.judge.max_answer_tokens": 8,
        "intervention.judge.max_error_rate": 1.0,  # two random layers write no JSON
        "distillation.nnodes": 1,
        "distillation.n_gpus_per_node": 2,
        "distillation.teacher_models.teacher_model.model_path": tiny_model,
        "distillation.teacher_models.teacher_model.inference.max_model_len": 2048,
        "ray_kwargs.ray_init.num_gpus": 3,
        "trainer.total_training_steps": STEPS,
    }
    return train(tmp_path_factory.mktemp("teacher"), overrides, "mintrl_const")


def test_the_teacher_answers_every_review(run):
    assert len(run.rows) == STEPS
    for row in run.rows:
        assert row["intervention/judge_calls"] == row["intervention/reviews"] > 0
        assert row["intervention/judge_prompt_tokens"] > 100 * row["intervention/reviews"], (
            "the judge's prompt was read"
        )
        assert row["intervention/judge_completion_tokens"] == 8 * row["intervention/reviews"]


def test_what_it_writes_is_judged_as_that_of_any_judge(run):
    for row in run.rows:
        kinds = {key: value for key, value in row.items() if key.startswith("intervention/judge_errors/") and value}
        assert kinds == {"intervention/judge_errors/truncated": row["intervention/reviews"]}
        assert row["intervention/sessions_masked"] == 0 and math.isfinite(row["actor/grad_norm"])


def test_nothing_is_distilled(run):
    assert not [key for row in run.rows for key in row if "distillation" in key or "teacher" in key]

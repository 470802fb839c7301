"""The rollout computes with the weights of the last update: stock GRPO on the CPU platform."""

from __future__ import annotations

import itertools

import pytest
import yaml
from harness import train

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_model, sums):
    folder = tmp_path_factory.mktemp("weight_sync")
    loops = folder / "agent_loops.yaml"
    loops.write_text(yaml.safe_dump([{"name": "fixed", "_target_": "fixed_response.FixedResponse"}]))
    return train(
        folder,
        {
            "actor_rollout_ref.model.path": tiny_model,
            "data.train_files": sums,
            "data.val_files": sums,
            "trainer.v1.trainer_mode": "sync",
            "actor_rollout_ref.rollout.agent.agent_loop_manager_class": "null",
            "actor_rollout_ref.rollout.agent.default_agent_loop": "fixed",
            "actor_rollout_ref.rollout.agent.agent_loop_config_path": loops,
            "actor_rollout_ref.actor.optim.lr": "1e-2",
            "trainer.total_training_steps": 3,
        },
    )


def test_every_update_changes_the_weights(run):
    assert len(run.rows) == 3
    assert all(row["actor/grad_norm"] > 0 for row in run.rows)


def test_rollout_and_actor_agree_on_fixed_tokens(run):
    for row in run.rows:
        assert row["training/rollout_actor_probs_pearson_corr"] > 1 - TOLERANCE
        assert row["rollout_corr/log_ppl_abs_diff"] < TOLERANCE


def test_the_rollout_follows_the_updates(run):
    log_probs = [row["rollout_corr/rollout_log_ppl"] for row in run.rows]
    assert all(abs(after - before) > 10 * TOLERANCE for before, after in itertools.pairwise(log_probs))

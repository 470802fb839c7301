"""Where nothing is intervened on, the presets with verl's estimator are stock GRPO, to the last bit.

``grpo`` never intervenes; ``rti`` does, but every recorded group has a success.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import yaml
from harness import Run, train
from replay import FILE, record

STEPS, PROMPTS, N = 3, 4, 4
#: wall-clock, memory, and what only one of the two reports
INCOMPARABLE = ("timing", "perf/", "intervention/")


def run(folder: Path, overrides: dict[str, object], recipe: str = "grpo") -> Run:
    return train(folder, overrides, recipe, environment={FILE: str(folder.parent / "rollouts.json")})


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("grpo")
    record(folder / "rollouts.json", STEPS, PROMPTS, N)
    (folder / "agent_loops.yaml").write_text(yaml.safe_dump([{"name": "replay", "_target_": "replay.Replay"}]))
    return folder


@pytest.fixture(scope="module")
def common(folder, tiny_model, sums) -> dict[str, object]:
    return {
        "actor_rollout_ref.model.path": tiny_model,
        "data.train_files": sums,
        "data.val_files": sums,
        "data.train_batch_size": PROMPTS,
        "data.shuffle": "false",
        "actor_rollout_ref.rollout.n": N,
        "actor_rollout_ref.actor.ppo_mini_batch_size": PROMPTS // 2,
        "actor_rollout_ref.actor.use_dynamic_bsz": "false",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
        "actor_rollout_ref.actor.optim.lr": "1e-3",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 8,
        "actor_rollout_ref.rollout.agent.default_agent_loop": "replay",
        "actor_rollout_ref.rollout.agent.agent_loop_config_path": folder / "agent_loops.yaml",
        "trainer.v1.sampler.custom_sampler.path": "pkg://replay",
        "trainer.v1.sampler.custom_sampler.name": "InOrder",
        "trainer.total_training_steps": STEPS,
        "trainer.save_freq": 1,
    }


@pytest.fixture(scope="module")
def stock(folder, common) -> Run:
    """verl's own trainer and manager."""
    manager = "actor_rollout_ref.rollout.agent.agent_loop_manager_class"
    return run(folder / "stock", common | {"trainer.v1.trainer_mode": "sync", manager: "null"})


@pytest.fixture(scope="module", params=["grpo", "rti"])
def ours(request, folder, common) -> Run:
    """The same rollouts."""
    return run(folder / request.param, common, request.param)


@pytest.fixture
def runs(stock, ours) -> tuple[Run, Run]:
    return stock, ours


def parameters(run: Run, step: int) -> dict[str, torch.Tensor]:
    (shard,) = run.log.parent.glob(f"checkpoints/*/*/global_step_{step}/actor/model_world_size_*_rank_0.pt")
    state = torch.load(shard, weights_only=False, map_location="cpu")
    return {name: value.to_local() if hasattr(value, "to_local") else value for name, value in state.items()}


def test_parameters_are_bitwise_equal_after_every_update(runs):
    stock, ours = runs
    for step in range(1, STEPS + 1):
        expected, found = parameters(stock, step), parameters(ours, step)
        assert expected.keys() == found.keys()
        assert [name for name in expected if not torch.equal(expected[name], found[name])] == [], f"update {step}"


def test_parameters_change_with_every_update(runs):
    _, ours = runs
    for step in range(1, STEPS):
        before, after = parameters(ours, step), parameters(ours, step + 1)
        assert [name for name in before if torch.equal(before[name], after[name])] == [], f"update {step + 1}"


def test_metrics_are_equal(runs):
    stock, ours = runs
    assert len(stock.rows) == len(ours.rows) == STEPS
    for expected, found in zip(stock.rows, ours.rows, strict=True):
        names = [name for name in expected if not any(part in name for part in INCOMPARABLE)]
        assert "actor/grad_norm" in names
        assert {name: found[name] for name in names} == {name: expected[name] for name in names}
        assert expected["actor/grad_norm"] > 0
        assert 0 < expected["critic/score/mean"] < 1


def test_ours_reports_that_nothing_was_intervened(ours):
    watching = ours.log.parent.name == "rti"
    for row in ours.rows:
        assert row["intervention/active"] == watching
        assert row["intervention/sessions_treated"] == row["intervention/reviews"] == 0
        assert row.get("intervention/trigger_rate") == (0 if watching else None)
        assert row["intervention/effective_rows"] == PROMPTS * N
        assert all(math.isfinite(value) for name, value in row.items() if name.startswith("intervention/"))

"""Runs of the stock entry on a tiny model, as the end-to-end tests start them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from cost_parts.table import ROOT

sys.path.insert(0, str(ROOT / "tests" / "end_to_end"))

from harness import Run, train, write_sums  # found by the line above

PROMPTS, SESSIONS, RESPONSE = 4, 4, 64
MANAGER = "actor_rollout_ref.rollout.agent.agent_loop_manager_class"


def prepare(folder: Path) -> dict[str, Any]:
    """Write model and data; the overrides that every run needs. Random weights hardly ever end a response by themselves."""
    model, data = folder / "tiny", folder / "sums.parquet"
    script = ROOT / "scripts" / "prepare_model.py"
    subprocess.run([sys.executable, str(script), str(model), "--tiny"], check=True, stdout=subprocess.DEVNULL)
    write_sums(data, 32)
    (folder / "score.py").write_text(
        "def score(data_source, solution_str, **_):\n    return float(len(solution_str) % 2)\n"
    )
    return {
        "actor_rollout_ref.model.path": model,
        "data.train_files": data,
        "data.val_files": data,
        "data.train_batch_size": PROMPTS,
        "data.max_response_length": RESPONSE,
        "actor_rollout_ref.rollout.n": SESSIONS,
        "actor_rollout_ref.rollout.max_model_len": 256,
        "actor_rollout_ref.actor.ppo_mini_batch_size": PROMPTS,
        "reward.custom_reward_function.path": folder / "score.py",
        "reward.custom_reward_function.name": "score",
    }


def run(
    folder: Path, overrides: dict[str, Any], recipe: str = "grpo", environment: dict[str, str] | None = None
) -> Run:
    """One run; its processes can import modules of the benchmarks and of the end-to-end tests."""
    paths = os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT / "tests" / "end_to_end")])
    return train(folder, overrides, recipe, timeout=1800, environment={"PYTHONPATH": paths, **(environment or {})})


def sampler(module: str, name: str) -> dict[str, str]:
    """Overrides that put another replay buffer in place of verl's."""
    key = "trainer.v1.sampler.custom_sampler"
    return {f"{key}.path": f"pkg://cost_parts.{module}", f"{key}.name": name}


def stock() -> dict[str, str]:
    """Overrides that put verl's own trainer and manager in place of the plugin's."""
    return {"trainer.v1.trainer_mode": "sync", MANAGER: "null"}


def watched(folder: Path) -> dict[str, Any]:
    """Overrides that count what the trainer and the rollout workers do, see :mod:`cost_parts.watched`."""
    return sampler("watched", "Counted") | watched_loops(folder)


def watched_loops(folder: Path) -> dict[str, Any]:
    """Only the rollout workers: a counting loop under the name of verl's."""
    loops = folder / "watched.yaml"
    loops.write_text("- {name: single_turn_agent, _target_: cost_parts.watched.CountedLoop}\n")
    return {"actor_rollout_ref.rollout.agent.agent_loop_config_path": loops}

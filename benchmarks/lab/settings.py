"""An arm's configuration: a recipe with an arm's preset and overrides, composed and checked as for a real run."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf, open_dict
from verl.utils.config import omega_conf_to_dataclass

from verl_mintrl.config.schema import InterventionConfig
from verl_mintrl.config.validate import validate

ROOT = Path(__file__).resolve().parents[2]

#: longest prompt and response in tokens: a question of 12 terms; 11 steps and an answer, some of them corrected verbosely
PROMPT_LENGTH, RESPONSE_LENGTH = 32, 96

#: what the laboratory changes in every recipe, on the CPU platform
COMMON: dict[str, Any] = {
    "data.train_files": "train.parquet",
    "data.val_files": "validation.parquet",
    "data.max_prompt_length": PROMPT_LENGTH,
    "data.max_response_length": RESPONSE_LENGTH,
    "actor_rollout_ref.model.path": "policy",
    "actor_rollout_ref.rollout.max_model_len": 256,
    "actor_rollout_ref.actor.use_dynamic_bsz": False,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 32,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 32,
    "intervention.review.segmenter": "line",
    "intervention.review.every_tokens": None,
    "intervention.review.every_steps": 1,
    "intervention.budget.max_reviews": 16,
    "intervention.budget.max_insertions": 2,
    "intervention.budget.max_insertion_tokens": 32,
    "intervention.schedule.stop_after_updates": None,
    # judges run inside the event loop here: no deadline can be missed, and a clock would make runs differ
    "intervention.judge.call_deadline_s": 600.0,
}


@dataclass(frozen=True)
class Settings:
    """What one run is configured with.

    Attributes:
        whole: the composed configuration of verl with the ``intervention:`` node.
        intervention: that node, typed.
        actor: ``verl.workers.config.ActorConfig``, from which verl's policy losses read.
    """

    whole: DictConfig
    intervention: InterventionConfig
    actor: Any


def settings(preset: str, overrides: Mapping[str, Any], *, prompts: int, n: int, mini_batches: int = 1) -> Settings:
    """Compose ``intervention: preset`` for updates of ``prompts`` groups of ``n`` sessions, learned from in ``mini_batches`` steps.

    Raises:
        ConfigError: settings that contradict each other.
    """
    changes = {
        **COMMON,
        "data.train_batch_size": prompts,
        "actor_rollout_ref.rollout.n": n,
        "actor_rollout_ref.actor.ppo_mini_batch_size": prompts // mini_batches,
        **overrides,
    }
    config = copy.deepcopy(_recipe(preset))
    with open_dict(config):
        for key, value in changes.items():
            OmegaConf.update(config, key, value, force_add=True)
    intervention = validate(config)
    return Settings(config, intervention, omega_conf_to_dataclass(config.actor_rollout_ref.actor))


@functools.cache
def _recipe(preset: str) -> DictConfig:
    """The recipes differ in their preset alone."""
    spec = find_spec("verl")
    assert spec is not None and spec.submodule_search_locations
    theirs = Path(spec.submodule_search_locations[0]) / "trainer" / "config"
    with initialize_config_dir(str(ROOT / "recipes"), version_base=None):
        path = f"hydra.searchpath=[pkg://verl_mintrl.config,file://{theirs}]"
        return compose("grpo", overrides=[path, "+platform=cpu", f"intervention={preset}"])

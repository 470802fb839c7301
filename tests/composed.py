"""Recipes composed as ``verl.trainer.main_ppo`` composes them, without importing verl."""

from __future__ import annotations

import copy
import functools
from importlib.util import find_spec
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf, open_dict

RECIPES = Path(__file__).parents[1] / "recipes"
#: what a recipe leaves to the command line
GIVEN = {"data.train_files": "train.parquet", "data.val_files": "test.parquet", "actor_rollout_ref.model.path": "model"}


def verl_defaults() -> Path:
    """Folder of verl's own configs."""
    spec = find_spec("verl")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "trainer" / "config"


@functools.cache
def _composed(name: str, overrides: tuple[str, ...]) -> DictConfig:
    searchpath = f"hydra.searchpath=[pkg://verl_mintrl.config,file://{verl_defaults()}]"
    with initialize_config_dir(str(RECIPES), version_base=None):
        config = compose(name, overrides=[searchpath, *overrides])
    missing = OmegaConf.missing_keys(config)
    return changed(config, {key: value for key, value in GIVEN.items() if key in missing})


def compose_recipe(name: str, *overrides: str) -> DictConfig:
    """A copy of one's own, mandatory values filled in."""
    return copy.deepcopy(_composed(name, overrides))


@functools.cache
def _stock() -> DictConfig:
    with initialize_config_dir(str(verl_defaults()), version_base=None):
        return compose("ppo_trainer")


def compose_stock() -> DictConfig:
    """verl's own config, nothing of ours in it."""
    return copy.deepcopy(_stock())


def changed(config: DictConfig, changes: dict[str, object]) -> DictConfig:
    """``config`` with ``changes`` applied, new keys allowed."""
    with open_dict(config):
        for key, value in changes.items():
            OmegaConf.update(config, key, value)
    return config

"""Recipes and presets compose with verl's own defaults and say what they promise."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from composed import RECIPES, compose_recipe, compose_stock
from omegaconf import OmegaConf

import verl_mintrl.config
from verl_mintrl.config.schema import InterventionConfig
from verl_mintrl.config.validate import LOSS_MODE, LOSS_TARGET, MANAGER_CLASS, validate

PRESETS = Path(verl_mintrl.config.__file__).parent / "intervention"
ALL_RECIPES = sorted(file.stem for file in RECIPES.glob("*.yaml"))
ALL_PRESETS = sorted(file.stem for file in PRESETS.glob("*.yaml"))


def flat(node: dict, prefix: str = "") -> dict[str, object]:
    leaves: dict[str, object] = {}
    for key, value in node.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return leaves


def test_there_are_recipes_and_presets():
    assert {"grpo", "mintrl_const", "mintrl_gated", "mintrl_proxy", "mintrl_self", "quickstart"} <= set(ALL_RECIPES)
    assert {"base", "regression_on_policy"} <= set(ALL_PRESETS)


@pytest.mark.parametrize("overrides", [(), ("+platform=cpu",)], ids=["gpu", "cpu"])
@pytest.mark.parametrize("recipe", ALL_RECIPES)
def test_recipe_composes_and_is_valid(recipe, overrides):
    if recipe.startswith("quickstart"):
        overrides = ()  # has the platform in its defaults list
    config = compose_recipe(recipe, *overrides)
    validate(config)
    assert OmegaConf.missing_keys(config) == OmegaConf.missing_keys(compose_stock()) - {
        "actor_rollout_ref.rollout.name"
    }
    on_cpu = bool(overrides) or recipe.startswith("quickstart")
    assert (config.trainer.device == "cpu") is on_cpu
    assert (config.actor_rollout_ref.rollout.get("enable_sleep_mode", True) is False) is on_cpu


@pytest.mark.parametrize("preset", ALL_PRESETS)
def test_preset_is_valid(preset):
    config = compose_recipe("grpo", f"intervention={preset}")
    validate(config)
    assert config.trainer.v1.trainer_mode == "intervention_sync"
    assert config.actor_rollout_ref.rollout.agent.agent_loop_manager_class == MANAGER_CLASS


#: what tells the presets apart: trigger, gate, estimator, loss, anchor, stop, backend
PROMISES = {
    "grpo": ("never", False, "grpo", "vanilla", "const", None, "python"),
    "regression_on_policy": ("never", False, "control", LOSS_MODE, "const", None, "python"),
    "mintrl_const": ("periodic", False, "control", LOSS_MODE, "const", 200, "python"),
    "mintrl_gated": ("periodic", True, "control", LOSS_MODE, "const", 200, "python"),
    "mintrl_proxy": ("periodic", False, "control", LOSS_MODE, "proxy", 200, "python"),
    "rti": ("group_failure", False, "grpo", "vanilla", "const", None, "policy"),
    "vcv_regression": ("periodic", False, "control", LOSS_MODE, "const", None, "policy"),
    "mintrl_self": ("periodic", False, "control", LOSS_MODE, "proxy", 200, "policy"),
}


def test_every_preset_promises_something():
    assert set(PROMISES) == set(ALL_PRESETS) - {"base", "regression"}


@pytest.mark.parametrize("preset", PROMISES)
def test_preset_keeps_its_promise(preset):
    config = compose_recipe("grpo", f"intervention={preset}")
    node = validate(config)
    assert (
        node.trigger,
        node.only_if_control_fails,
        node.advantage.estimator,
        config.actor_rollout_ref.actor.policy_loss.loss_mode,
        node.anchor.mode,
        node.schedule.stop_after_updates,
        node.judge.backend,
    ) == PROMISES[preset]


@pytest.mark.parametrize("recipe", [name for name in ALL_RECIPES if not name.startswith("quickstart")])
def test_recipe_is_its_preset_and_nothing_else(recipe):
    ours = compose_recipe(recipe)
    preset = compose_recipe("grpo", f"intervention={recipe}")
    preset.trainer.experiment_name = ours.trainer.experiment_name
    assert OmegaConf.to_container(ours) == OmegaConf.to_container(preset)


def test_base_mirrors_the_dataclasses_key_by_key():
    written = yaml.safe_load((PRESETS / "base.yaml").read_text())["intervention"]
    assert flat(written) == flat(asdict(InterventionConfig()))


def test_objective_interpolates_into_the_policy_loss():
    config = compose_recipe(
        "mintrl_const",
        "intervention.objective.beta=0.25",
        "intervention.objective.loss_scale=raw",
        "intervention.objective.length_norm=mean",
        "data.max_response_length=777",
    )
    loss = config.actor_rollout_ref.actor.policy_loss
    assert (loss.beta, loss.loss_scale, loss.length_norm, loss.horizon) == (0.25, "raw", "mean", 777)
    assert loss._target_ == LOSS_TARGET
    validate(config)


def test_plain_grpo_keeps_the_stock_policy_loss():
    loss = compose_recipe("grpo").actor_rollout_ref.actor.policy_loss
    assert loss._target_ == "verl.workers.config.PolicyLossConfig"

"""Every preset of the method's table, and mixes of them by config alone."""

from __future__ import annotations

import itertools

import pytest
from composed import changed, compose_recipe

from verl_mintrl.config.validate import LOSS_MODE, findings, validate

#: trigger, backend and joint judge, verifier, gate, baseline, anchor, token weights, objective
TABLE = {
    "mintrl_const": ("periodic", "python", True, False, "none", "control", "const", "ones", LOSS_MODE),
    "mintrl_proxy": ("periodic", "python", True, False, "none", "control", "proxy", "ones", LOSS_MODE),
    "mintrl_self": ("periodic", "policy", True, False, "none", "control", "proxy", "ones", LOSS_MODE),
    "mintrl_gated": ("periodic", "python", True, False, "none", "control", "const", "ones", LOSS_MODE),
    "rti": ("group_failure", "policy", False, True, "absolute", "grpo", "const", "steering", "vanilla"),
    "vcv_regression": ("periodic", "policy", False, True, "absolute", "control", "const", "steering", LOSS_MODE),
    "grpo": ("never", "python", True, False, "none", "grpo", "const", "ones", "vanilla"),
    "regression_on_policy": ("never", "python", True, False, "none", "control", "const", "ones", LOSS_MODE),
}


@pytest.mark.parametrize("preset", TABLE)
def test_the_table(preset):
    config = compose_recipe("grpo", f"intervention={preset}")
    node = validate(config)
    assert (
        node.trigger,
        node.judge.backend,
        node.judge.joint,
        node.verifier.enabled,
        node.gate.mode,
        node.advantage.estimator,
        node.anchor.mode,
        node.token_weights.mode,
        config.actor_rollout_ref.actor.policy_loss.loss_mode,
    ) == TABLE[preset]
    assert not [finding for finding in findings(config) if finding.fatal]


def test_rti_by_the_paper():
    node = validate(compose_recipe("rti"))
    assert (node.gate.delta, node.group_failure.max_replaced, node.success_threshold) == (5.0, 1, 0.0)
    assert (node.judge.evidence, node.judge.evidence_column) == ("gold", "reward_model.ground_truth")
    assert node.control_size(8) == 0


OBJECTIVES = {"vanilla": "grpo", LOSS_MODE: "regression_on_policy"}
TRIGGERS = ("periodic", "group_failure", "never")
ESTIMATORS = {"control": 4, "grpo": 0}


@pytest.mark.parametrize(
    ("trigger", "estimator", "objective", "weights"),
    list(itertools.product(TRIGGERS, ESTIMATORS, OBJECTIVES, ["ones", "steering"])),
)
def test_any_mix_is_a_config(trigger, estimator, objective, weights):
    changes = {
        "intervention.trigger": trigger,
        "intervention.control.size": ESTIMATORS[estimator],
        "intervention.advantage.estimator": estimator,
        "intervention.token_weights.mode": weights,
        "intervention.judge.backend": "policy",
        "intervention.judge.joint": False,
    }
    config = changed(compose_recipe("grpo", f"intervention={OBJECTIVES[objective]}"), changes)
    node = validate(config)
    assert (node.trigger, node.advantage.estimator, node.token_weights.mode) == (trigger, estimator, weights)
    assert config.actor_rollout_ref.actor.policy_loss.loss_mode == objective


@pytest.mark.parametrize(
    ("recipe", "overrides", "key"),
    [
        ("rti", ["actor_rollout_ref.rollout.enable_rollout_routing_replay=true"], "enable_rollout_routing_replay"),
        ("rti", ["intervention.gate.mode=quantile", "actor_rollout_ref.rollout.temperature=0.7"], "gate.mode"),
        (
            "mintrl_const",
            ["intervention.verifier.enabled=true"],
            "intervention.judge.roles.verifier.function",
        ),
        (
            "vcv_regression",
            ["intervention.judge.roles.validator.evidence=outcome"],
            "intervention.judge.evidence",
        ),
    ],
)
def test_what_could_not_work_is_refused(recipe, overrides, key):
    fatal = [finding.key for finding in findings(compose_recipe(recipe, *overrides)) if finding.fatal]
    assert [name for name in fatal if name.endswith(key)]


def test_quantile_is_fine_with_plain_sampling():
    validate(compose_recipe("rti", "intervention.gate.mode=quantile"))

"""What is compared: name of an arm -> preset, overrides, judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

INTERVENTION = "intervention."


@dataclass(frozen=True)
class Arm:
    """One line of the tables.

    Attributes:
        preset: of ``verl_mintrl/config/intervention``.
        corrector: key of ``lab.correctors.CORRECTORS``, or ``hint``: the policy itself with its hint; empty: nobody.
        overrides: of the ``intervention:`` node, without its name.
        actor: of ``actor_rollout_ref.actor``.
        baseline: key of ``lab.baselines.BASELINES``.
        experiment: what it changes in :class:`lab.loop.Experiment`.
        optimisation: what it changes in :class:`lab.learner.Optimisation`.
    """

    preset: str
    corrector: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    actor: Mapping[str, Any] = field(default_factory=dict)
    baseline: str = ""
    experiment: Mapping[str, Any] = field(default_factory=dict)
    optimisation: Mapping[str, Any] = field(default_factory=dict)

    def configuration(self) -> dict[str, Any]:
        """Overrides of the composed configuration."""
        result = dict(judged_by(self.corrector, self.preset)) if self.corrector not in ("", "hint") else {}
        result |= {INTERVENTION + key: value for key, value in self.overrides.items()}
        return result | {f"actor_rollout_ref.actor.{key}": value for key, value in self.actor.items()}


#: presets whose roles are asked one by one
SEPARATE = ("rti", "vcv_regression")


def judged_by(corrector: str, preset: str, module: str = "lab.judging") -> dict[str, Any]:
    """Overrides that put a corrector into all roles of a preset.

    Args:
        module: where it is found; ``lab.correctors`` for a run under verl.
    """
    names = {role: f"{module}:{corrector.upper()}.{role}" for role in ("review", "correct", "verify")}
    result: dict[str, Any] = {
        "judge.backend": "python",
        "judge.function": names["review"],
        "judge.evidence": "none",
        "judge.evidence_column": None,
    }
    if preset in SEPARATE:
        result |= {
            "judge.roles.corrector.function": names["correct"],
            "judge.roles.verifier.function": names["verify"],
        }
    return {INTERVENTION + key: value for key, value in result.items()}


def _arms() -> dict[str, Arm]:
    const, gated, rti = Arm("mintrl_const", "exact"), Arm("mintrl_gated", "exact"), Arm("rti", "exact")
    proxy = Arm("mintrl_proxy", "exact")

    def but(arm: Arm, **overrides: Any) -> Arm:
        return replace(arm, overrides={**arm.overrides, **{key.replace("__", "."): v for key, v in overrides.items()}})

    arms = {
        # the presets
        "grpo": Arm("grpo"),
        "regression_on_policy": Arm("regression_on_policy"),
        "mintrl_const": const,
        "mintrl_proxy": proxy,
        "mintrl_gated": gated,
        "rti": rti,
        "mintrl_self": Arm("mintrl_self", "hint"),
        "vcv_regression": Arm("vcv_regression", "exact"),
        # what users compare with
        "sft_then_grpo": Arm("grpo", baseline="sft_then_grpo"),
        "gspo": Arm(
            "grpo",
            actor={
                "policy_loss.loss_mode": "gspo",
                "loss_agg_mode": "seq-mean-token-mean",
                "clip_ratio_low": 3e-4,
                "clip_ratio_high": 4e-4,
            },
        ),
        "luffy": Arm("grpo", baseline="luffy"),
        "distil": Arm("grpo", baseline="distil"),
    }
    # judges of lesser quality
    for name in ("noisy", "systematic", "alarmist", "verbose", "leaking"):
        for method, arm in (("const", const), ("gated", gated), ("rti", rti)):
            arms[f"{method}_{name}"] = replace(arm, corrector=name)
    # how much, how often
    for count in (1, 4, 8):
        arms[f"const_insertions_{count}"] = but(const, budget__max_insertions=count)
    for steps in (2, 3):
        arms[f"const_every_{steps}"] = but(const, review__every_steps=steps)
    for size in (2, 6):
        arms[f"const_control_{size}"] = but(const, control__size=size)
    # the relaxed anchor
    for kappa in (-2.0, 1.0):
        arms[f"const_kappa_{kappa:g}"] = but(const, anchor__kappa=kappa)
    for beta in (1e-2, 1e-1):
        arms[f"const_beta_{beta:g}"] = but(const, objective__beta=beta)
        arms[f"proxy_beta_{beta:g}"] = but(proxy, objective__beta=beta)
    arms["const_beta_0.1_success"] = but(const, objective__beta=0.1, anchor__relax="success")
    arms["const_beta_0.1_uncapped"] = but(const, objective__beta=0.1, anchor__max_bonus=1e6)
    strong = {"warm_up": 20}
    arms |= {
        f"{name}_strong": replace(arms[name], experiment=strong) for name in ("grpo", "mintrl_const", "mintrl_proxy")
    }
    arms |= {
        f"{name}_hard": replace(arms[name], experiment={"split": "hard"})
        for name in ("grpo", "sft_then_grpo", "regression_on_policy", "mintrl_const", "mintrl_gated", "rti")
    }
    for method, arm in (("const", const), ("gated", gated)):
        many = but(arm, budget__max_insertions=8)  # as many as RTI may make; a hard problem has up to 9 traps
        arms[f"{method}_hard_insertions_8"] = replace(many, experiment={"split": "hard"})
    # baseline and schedule
    arms["const_group_baseline"] = but(const, advantage__estimator="grpo")
    arms["const_stop"] = but(const, schedule__stop_after_updates=20)
    arms["gated_stop"] = but(gated, schedule__stop_after_updates=20)
    # RTI without its parts
    noisy = replace(rti, corrector="noisy")
    arms["rti_noisy_unverified"] = but(noisy, verifier__enabled=False)
    arms["rti_noisy_ungated"] = but(noisy, gate__mode="none")
    arms["rti_unverified"] = but(rti, verifier__enabled=False)
    arms["rti_ungated"] = but(rti, gate__mode="none")
    arms["rti_unweighted"] = but(rti, token_weights__mode="ones")
    arms["rti_hint"] = Arm("rti", "hint")
    arms["rti_strict"] = but(rti, gate__delta=1.5)
    arms["rti_strict_ignoring_numbers"] = but(rti, gate__delta=1.5, gate__ignore_numbers=True)
    # steps that go far
    rough = {"lr": 1e-3, "mini_batches": 4}
    arms |= {
        f"{name}_rough": replace(arms[name], optimisation=rough)
        for name in ("grpo", "gspo", "regression_on_policy", "mintrl_const")
    }
    return arms


ARMS = _arms()

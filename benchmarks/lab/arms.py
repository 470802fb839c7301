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
        verl: the rest of the configuration, by whole key.
        baseline: key of ``lab.baselines.BASELINES``.
        experiment: what it changes in :class:`lab.loop.Experiment`.
        optimisation: what it changes in :class:`lab.learner.Optimisation`.
    """

    preset: str
    corrector: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    verl: Mapping[str, Any] = field(default_factory=dict)
    baseline: str = ""
    experiment: Mapping[str, Any] = field(default_factory=dict)
    optimisation: Mapping[str, Any] = field(default_factory=dict)

    def configuration(self, judges: str = "lab.judging") -> dict[str, Any]:
        """Overrides of the composed configuration.

        Args:
            judges: module of the correctors; ``lab.correctors`` for a run under verl.
        """
        result = judged_by(self.corrector, self.preset, judges) if self.corrector not in ("", "hint") else {}
        result |= {INTERVENTION + key: value for key, value in self.overrides.items()}
        return {**result, **self.verl}


#: presets whose roles are asked one by one
SEPARATE = ("rti", "vcv_regression")


def judged_by(corrector: str, preset: str, module: str) -> dict[str, Any]:
    """Overrides that put a corrector, found in ``module``, into all roles of a preset."""
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


#: where GRPO finds nothing to learn from, so that arms differ: problems of which the policy solves almost none, and as many
#: insertions as such a problem has traps
HARD: Mapping[str, Any] = {"split": "hard"}
MANY = 8
#: updates of the arms that are compared in single settings; long before the best of them stop rising
SHORT = 20


def _arms() -> dict[str, Arm]:
    def but(arm: Arm, **overrides: Any) -> Arm:
        return replace(arm, overrides={**arm.overrides, **{key.replace("__", "."): v for key, v in overrides.items()}})

    presets = {
        "grpo": Arm("grpo"),
        "regression_on_policy": Arm("regression_on_policy"),
        "mintrl_const": Arm("mintrl_const", "exact"),
        "mintrl_proxy": Arm("mintrl_proxy", "exact"),
        "mintrl_gated": Arm("mintrl_gated", "exact"),
        "rti": Arm("rti", "exact"),
        "mintrl_self": Arm("mintrl_self", "hint"),
        "vcv_regression": Arm("vcv_regression", "exact"),
    }
    # what users compare with
    baselines = {
        "sft_then_grpo": Arm("grpo", baseline="sft_then_grpo"),
        "sft_more_then_grpo": Arm("grpo", baseline="sft_more_then_grpo"),
        "gspo": Arm(
            "grpo",
            verl={
                "actor_rollout_ref.actor.policy_loss.loss_mode": "gspo",
                "actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-mean",
                "actor_rollout_ref.actor.clip_ratio_low": 3e-4,
                "actor_rollout_ref.actor.clip_ratio_high": 4e-4,
            },
        ),
        "luffy": Arm("grpo", baseline="luffy"),
        "mentor": Arm("grpo", baseline="mentor"),
        "distil": Arm("grpo", baseline="distil"),
    }
    many = {name: but(arm, budget__max_insertions=MANY) for name, arm in presets.items()}
    const, gated, proxy = (many[f"mintrl_{name}"] for name in ("const", "gated", "proxy"))
    rti = many["rti"]
    long = {
        **{
            f"{name}_hard": arm
            for name, arm in {**presets, **baselines}.items()
            if name in ("grpo", "sft_then_grpo", "sft_more_then_grpo", "regression_on_policy", "rti")
        },
        "const_hard_insertions_8": const,
        "gated_hard_insertions_8": gated,
        "rti_hard_insertions_8": rti,
        # interventions in the first half only
        "const_stop": but(const, schedule__stop_after_updates=20),
        "gated_stop": but(gated, schedule__stop_after_updates=20),
    }
    short = {f"{name}_hard": baselines[name] for name in ("gspo", "luffy", "mentor", "distil")}
    short |= {"proxy_hard": proxy, "self_hard": many["mintrl_self"], "vcv_hard": many["vcv_regression"]}
    short["vcv_unweighted"] = but(short["vcv_hard"], token_weights__mode="ones")
    # judges of lesser quality
    for name in ("noisy", "systematic", "alarmist", "verbose", "leaking"):
        for method, arm in (("const", const), ("gated", gated), ("rti", rti)):
            short[f"{method}_{name}"] = replace(arm, corrector=name)
    # how much, how often
    for count in (1, 2, 4, 16):
        short[f"const_insertions_{count}"] = but(const, budget__max_insertions=count)
    for steps in (2, 3):
        short[f"const_every_{steps}"] = but(const, review__every_steps=steps)
    for size in (2, 6):
        short[f"const_control_{size}"] = but(const, control__size=size)
    # the relaxed anchor; at the default beta it adds 0.004 to advantages near 1, so its parts are varied at a larger one
    for beta in (1e-2, 1e-1):
        short[f"const_beta_{beta:g}"] = but(const, objective__beta=beta)
    relaxed = short["const_beta_0.1"]
    for kappa in (-2.0, 1.0):
        short[f"const_beta_0.1_kappa_{kappa:g}"] = but(relaxed, anchor__kappa=kappa)
    short["const_beta_0.1_success"] = but(relaxed, anchor__relax="success")
    short["const_beta_0.1_uncapped"] = but(relaxed, anchor__max_bonus=1e6)
    group = but(const, advantage__estimator="grpo")
    short["const_group_baseline"] = group
    short["const_group_mean"] = replace(group, verl={"algorithm.norm_adv_by_std_in_grpo": False})
    # RTI without its parts
    noisy = replace(rti, corrector="noisy")
    short |= {
        "rti_noisy_unverified": but(noisy, verifier__enabled=False),
        # a judge agrees with what it has written itself: only another one can object
        "rti_noisy_checked": but(noisy, judge__roles__verifier__function="lab.judging:EXACT.verify"),
        "rti_noisy_ungated": but(noisy, gate__mode="none"),
        "rti_ungated": but(rti, gate__mode="none"),
        "rti_unweighted": but(rti, token_weights__mode="ones"),
        "rti_eps_cal_0.5": but(rti, token_weights__eps_cal=0.5),
        "rti_hint": replace(rti, corrector="hint"),
        "rti_strict": but(rti, gate__delta=1.5),
    }
    # corrections that make sessions fail (they run out of room): who learns from them all the same
    short["const_verbose_success"] = but(short["const_verbose"], anchor__relax="success")
    short["proxy_verbose"] = replace(proxy, corrector="verbose")
    # a teacher whose words are right but not the policy's, under the narrow bound
    short["rti_verbose_strict"] = but(short["rti_verbose"], gate__delta=1.5)
    # what a judge that errs is shown; without the gate, which stops most answers that come too early
    columns = {"none": None, "outcome": None, "rubric": "extra_info.solution", "gold": "reward_model.ground_truth"}
    for level, column in columns.items():
        evidence = {"judge__evidence": level, "judge__evidence_column": column}
        shown = but(replace(rti, corrector="informed"), gate__mode="none", **evidence)
        short[f"rti_shown_{level}"] = shown
    short["rti_shown_gold_unverified"] = but(shown, verifier__enabled=False)
    brief = {"updates": SHORT, "validate_every": SHORT // 2}
    arms = {**presets, **baselines}
    # where the policy often succeeds by itself, which is where a judge that is wrong can do harm
    for name, preset in (("const", "mintrl_const"), ("gated", "mintrl_gated"), ("rti", "rti")):
        arms[f"{name}_systematic_usual"] = replace(presets[preset], corrector="systematic")
    arms |= {name: replace(arm, experiment=HARD) for name, arm in long.items()}
    arms |= {name: replace(arm, experiment={**HARD, **brief}) for name, arm in short.items()}
    # a policy that solves most problems of the usual length, at a beta at which the anchors differ (proxy is the same at every
    # beta: an update's one step starts at its anchor, where beta cancels)
    strong = {**HARD, **brief, "warm_up": 20, "warm_up_split": "train"}
    for name, arm in (("grpo", presets["grpo"]), ("const", relaxed), ("proxy", but(proxy, objective__beta=0.1))):
        arms[f"{name}_strong"] = replace(arm, experiment=strong)
    # steps that go far, where there is something to learn for everybody
    rough = {"lr": 1e-3, "mini_batches": 4}
    for name in ("grpo", "gspo", "regression_on_policy", "mintrl_const"):
        arms[f"{name}_rough"] = replace(arms[name], experiment=brief, optimisation=rough)
    return arms


ARMS = _arms()

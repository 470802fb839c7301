"""Which arms are run under which seeds, most important claims first: cut anywhere, what was run answers whole claims."""

from __future__ import annotations

from dataclasses import replace

from lab.arms import ARMS, SHORT
from lab.learner import Optimisation
from lab.loop import Experiment

SEEDS = (0, 1, 2)
#: of the arms between which three did not decide what the preset of our own is for
MORE_SEEDS = {"const_systematic_usual": range(6), "gated_systematic_usual": range(6)}
#: the same for every arm; found with stock GRPO
OPTIMISATION = Optimisation()
QUICK = ("grpo_hard", "gated_hard_insertions_8")

#: arms in the order of the claims that need them first (number of the claim, arms)
FULL: tuple[tuple[int, tuple[str, ...]], ...] = (
    (
        1,
        (
            "grpo_hard",
            "rti_hard_insertions_8",
            "gated_hard_insertions_8",
            "const_hard_insertions_8",
            "sft_then_grpo_hard",
            "sft_more_then_grpo_hard",
        ),
    ),
    (1, ("grpo", "mintrl_gated", "mintrl_const", "rti", "sft_then_grpo", "regression_on_policy")),
    (3, ("const_systematic", "gated_systematic", "rti_systematic", "const_noisy", "gated_noisy", "rti_noisy")),
    (3, ("const_systematic_usual", "gated_systematic_usual", "rti_systematic_usual")),
    (1, ("regression_on_policy_hard", "luffy_hard", "mentor_hard", "gspo_hard", "distil_hard")),
    (4, ("const_insertions_1", "const_insertions_2", "const_insertions_4", "const_insertions_16")),
    (4, ("const_every_2", "const_every_3")),
    (6, ("const_group_baseline", "const_group_mean", "const_control_2", "const_control_6")),
    (8, ("self_hard", "rti_hint")),
    (
        9,
        (
            "rti_noisy_unverified",
            "rti_noisy_checked",
            "rti_ungated",
            "rti_unweighted",
            "rti_eps_cal_0.5",
            "rti_noisy_ungated",
        ),
    ),
    (5, ("proxy_hard", "const_beta_0.1", "const_strong", "proxy_strong", "grpo_strong")),
    (11, ("grpo_rough", "gspo_rough", "regression_on_policy_rough", "mintrl_const_rough")),
    (10, ("rti_strict",)),
    (8, ("rti_shown_none", "rti_shown_outcome", "rti_shown_rubric", "rti_shown_gold", "rti_shown_gold_unverified")),
    (9, ("rti_verbose", "rti_verbose_strict")),
    (7, ("const_stop", "gated_stop")),
    (5, ("const_beta_0.01", "const_beta_0.1_kappa_-2", "const_beta_0.1_kappa_1")),
    (5, ("const_beta_0.1_success", "const_beta_0.1_uncapped")),
    (1, ("vcv_hard", "vcv_unweighted", "rti_hard")),
    (5, ("const_verbose", "const_verbose_success", "proxy_verbose")),
    (3, ("const_alarmist", "const_leaking", "gated_alarmist", "rti_leaking")),
)


def experiment(arm: str, seed: int) -> Experiment:
    """The run of an arm under a seed, in the size of the suites."""
    chosen = ARMS[arm]
    return replace(
        Experiment(
            arm,
            seed,
            chosen.preset,
            chosen.configuration(),
            self_judged=chosen.corrector == "hint",
            baseline=chosen.baseline,
            optimisation=replace(OPTIMISATION, **chosen.optimisation),
        ),
        **chosen.experiment,
    )


def suite(name: str) -> list[Experiment]:
    """Runs of a suite, in order.

    Raises:
        ValueError: no such suite.
    """
    if name == "quick":
        return [replace(experiment(arm, 0), updates=SHORT) for arm in QUICK]
    if name == "full":
        return [
            experiment(arm, seed)
            for _, arms in FULL
            for seed in sorted({*SEEDS}.union(*MORE_SEEDS.values()))
            for arm in arms
            if seed in MORE_SEEDS.get(arm, SEEDS)
        ]
    raise ValueError(f"suite {name!r}, known are quick and full")

"""The claims in their order of priority, each with what was measured and a verdict that follows from a rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import stdev

from lab.results import Difference, Number, Results, Run

RULE = (
    "A statement of the form *a above b* **holds** if the difference, paired over at least 3 seeds, is more than twice its "
    "standard error above 0; it **does not hold** if it is as much below 0, or certainly less than 0.02 above; otherwise it is "
    "**not decidable here**. Spreads are standard deviations over seeds."
)


@dataclass(frozen=True)
class Finding:
    """One statement of a claim.

    Attributes:
        numbers: what was measured.
        verdict: holds | does not hold | not decidable here | not run.
    """

    statement: str
    numbers: str
    verdict: str


@dataclass(frozen=True)
class Claim:
    """One row of the table.

    Attributes:
        arms: what it is read from; also what its figure shows.
        judge: results -> findings.
        curve: metric of the figure over updates; empty: bars of the last validation success.
    """

    number: int
    title: str
    arms: tuple[str, ...]
    judge: Callable[[Results], list[Finding]]
    curve: str = "val/success"


def last(name: str) -> Number:
    return lambda run: run.last(name)


def _signed(difference: Difference) -> str:
    if not difference.seeds:
        return "-"
    error = "" if math.isnan(difference.error) else f" ± {difference.error:.3f}"
    return f"{difference.mean:+.3f}{error}"


def above(results: Results, a: str, b: str, number: Number, what: str, other: Number | None = None) -> Finding:
    """The statement that ``number`` of arm ``a`` is above that of arm ``b``."""
    difference = results.difference(a, b, number, other)
    numbers = (
        f"{results.text(a, number)} against {results.text(b, other or number)}; {_signed(difference)}, {difference.seeds} seeds"
        if difference.seeds
        else "-"
    )
    return Finding(f"{a} above {b}: {what}", numbers, difference.verdict())


#: standard deviation of one look at validation success: 48 problems, 4 sessions each, near 0.5
LOOK_ERROR = 0.04
SUCCESS = last("val/success")
BASELINES = ("grpo", "sft_then_grpo", "regression_on_policy")
METHODS = ("mintrl_gated", "mintrl_const", "rti")


def best(run: Run) -> float:
    return run.best()


def speed(run: Run) -> float:
    """Mean validation success over the looks after the first: how soon it is learned."""
    values = [value for _, value in run.curve("val/success")][1:]
    return sum(values) / len(values) if values else math.nan


def final_success(results: Results) -> list[Finding]:
    found = []
    for method in METHODS:
        for baseline in BASELINES:
            found.append(above(results, method, baseline, SUCCESS, "last checkpoint"))
            found.append(above(results, method, baseline, best, "best checkpoint"))
            found.append(above(results, method, baseline, speed, "mean over all looks"))
    for method in METHODS:
        found.append(_at_equal_time(results, method, "grpo"))
    for method in (*(f"{m}_hard" for m in METHODS), "gated_hard_insertions_8", "const_hard_insertions_8"):
        for baseline in BASELINES:
            hard = f"{baseline}_hard"
            found.append(above(results, method, hard, SUCCESS, "last checkpoint, trained on hard problems"))
            found.append(above(results, method, hard, last("hard/success"), "the same, success on hard problems"))
    others = ("luffy", "gspo", "distil", "mintrl_proxy", "mintrl_self", "vcv_regression")
    return found + [above(results, other, "grpo", SUCCESS, "last checkpoint") for other in others]


def _at_equal_time(results: Results, a: str, b: str) -> Finding:
    budget = {run.seed: run.seconds() for run in results.of(a)}
    for run in results.of(b):
        budget[run.seed] = min(budget.get(run.seed, math.inf), run.seconds())

    def number(run: Run) -> float:
        return run.at_seconds(budget[run.seed])

    return above(results, a, b, number, "at equal wall-clock (the shorter of both)")


def coverage(results: Results) -> list[Finding]:
    found = []
    for method in METHODS:
        found += [
            above(results, method, "grpo", last("val/pass@4"), "pass@4, validation"),
            above(results, method, "grpo", last("harder/pass@4"), "pass@4, longer problems"),
            above(results, method, "grpo", last("train/solved_share"), "training problems ever solved without help"),
        ]
    for method in METHODS:
        found.append(
            above(results, f"{method}_hard", "grpo_hard", last("hard/pass@4"), "pass@4, trained on hard problems")
        )
    return found


def gating(results: Results) -> list[Finding]:
    found = []
    for judge in ("", "_noisy", "_systematic"):
        names = {
            m: f"{m}{judge}" if judge else p
            for m, p in (("gated", "mintrl_gated"), ("const", "mintrl_const"), ("rti", "rti"))
        }
        label = {"": "exact judge", "_noisy": "30 % random errors", "_systematic": "systematic errors"}[judge]
        found.append(above(results, names["gated"], names["const"], SUCCESS, label))
        found.append(above(results, names["gated"], names["rti"], SUCCESS, label))
        if judge:
            found += [above(results, name, "grpo", SUCCESS, label) for name in names.values()]
    return found


def intensity(results: Results) -> list[Finding]:
    arms = ("regression_on_policy", "const_insertions_1", "mintrl_const", "const_insertions_4", "const_insertions_8")

    def share(run: Run) -> float:
        return run.mean("intervention/inserted_token_share")

    numbers = "; ".join(
        f"{count}: {results.text(arm, SUCCESS)} (inserted {results.text(arm, share)})"
        for count, arm in zip((0, 1, 2, 4, 8), arms, strict=True)
    )
    means = {arm: results.values(arm, SUCCESS) for arm in arms}
    if all(means.values()):
        top = max(arms[1:-1], key=lambda arm: sum(means[arm]) / len(means[arm]))
        verdicts = [results.difference(top, end, SUCCESS).verdict() for end in (arms[0], arms[-1])]
        verdict = verdicts[0] if verdicts[0] == verdicts[1] else _weaker(verdicts)
    else:
        verdict = "not run"
    found = [Finding("inverted U over insertions per session (0, 1, 2, 4, 8)", numbers, verdict)]
    for arm in ("mintrl_const", "const_every_2", "const_every_3"):
        calls = results.text(arm, lambda r: r.gathered("intervention/judge_calls"), 0)
        per = results.text(
            arm, lambda r: 1000 * (r.last() - r.first()) / max(1.0, r.gathered("intervention/judge_calls"))
        )
        found.append(
            Finding(
                f"{arm}: success per judge call",
                f"success {results.text(arm, SUCCESS)}, {calls} calls, gain per 1000 calls {per}",
                "reported" if results.of(arm) else "not run",
            )
        )
    found.append(
        above(
            results,
            "const_every_3",
            "mintrl_const",
            lambda r: 1000 * (r.last() - r.first()) / max(1.0, r.gathered("intervention/judge_calls")),
            "gain per 1000 judge calls, rarer reviews against every step",
        )
    )
    return found


def _weaker(verdicts: Sequence[str]) -> str:
    order = ("not run", "does not hold", "not decidable here", "holds")
    return min(verdicts, key=order.index)


def anchor(results: Results) -> list[Finding]:
    found = [
        above(results, "mintrl_const", "mintrl_proxy", SUCCESS, "weak policy, beta 0.001"),
        above(results, "const_beta_0.1", "proxy_beta_0.1", SUCCESS, "weak policy, beta 0.1"),
        above(results, "mintrl_proxy_strong", "mintrl_const_strong", SUCCESS, "policy after 20 updates of GRPO"),
    ]
    for arm in (
        "const_kappa_-2",
        "const_kappa_1",
        "const_beta_0.01",
        "const_beta_0.1",
        "const_beta_0.1_success",
        "const_beta_0.1_uncapped",
    ):
        finding = above(results, arm, "mintrl_const", SUCCESS, "last checkpoint")
        extra = (
            f"; bonus {results.text(arm, lambda r: r.mean('intervention/bonus'))}, sign flips per update "
            f"{results.text(arm, lambda r: r.mean('intervention/sign_flips'), 1)}, capped "
            f"{results.text(arm, lambda r: r.mean('intervention/bonus_capped_share'), 2)}"
        )
        found.append(Finding(finding.statement, finding.numbers + extra, finding.verdict))
    return found


def control(results: Results) -> list[Finding]:
    return [
        above(
            results,
            "mintrl_const",
            "const_group_baseline",
            SUCCESS,
            "control sessions against the group mean as baseline",
        ),
        above(results, "mintrl_const", "const_control_2", SUCCESS, "4 against 2 control sessions of 8"),
        above(results, "mintrl_const", "const_control_6", SUCCESS, "4 against 6 control sessions of 8"),
    ]


def schedule(results: Results) -> list[Finding]:
    def own_late(run: Run) -> float:
        return run.mean("train/own_success", 0.8, 1.0)

    def own_early(run: Run) -> float:
        return run.mean("train/own_success", 0.0, 0.2)

    found = [
        above(results, "const_stop", "mintrl_const", SUCCESS, "interventions in the first half only"),
        above(results, "gated_stop", "mintrl_gated", SUCCESS, "interventions in the first half only"),
    ]
    for method in METHODS:
        finding = above(
            results, method, method, own_late, "success before editing, last fifth against first", own_early
        )
        found.append(Finding(f"{method}: success before editing rises", finding.numbers, finding.verdict))
    return found


def self_intervention(results: Results) -> list[Finding]:
    return [
        above(results, "mintrl_self", "regression_on_policy", SUCCESS, "its own judge, with a hint, against none"),
        above(results, "mintrl_self", "grpo", SUCCESS, "its own judge, with a hint"),
        above(results, "mintrl_proxy", "mintrl_self", SUCCESS, "exact judge against itself"),
        above(results, "rti_hint", "grpo", SUCCESS, "its own Validator, Corrector and Verifier"),
        Finding(
            "evidence none / outcome / rubric / gold, with leak rate",
            "this policy reads no prompt but its own questions: it cannot be shown evidence",
            "not run",
        ),
    ]


def rti_parts(results: Results) -> list[Finding]:
    consistent = last("val/pass^4")
    return [
        above(results, "rti_noisy", "rti_noisy_unverified", SUCCESS, "noisy judge, with against without Verifier"),
        above(results, "grpo", "rti_noisy_unverified", SUCCESS, "noisy judge without Verifier is worse than nothing"),
        above(results, "rti", "rti_ungated", consistent, "pass^4, with against without gate"),
        above(results, "rti_noisy", "rti_noisy_ungated", consistent, "pass^4, noisy judge, with against without gate"),
        above(results, "rti", "rti_unweighted", SUCCESS, "with against without steering weights"),
        above(results, "rti", "rti_unweighted", last("harder/success"), "the same on longer problems"),
        above(results, "rti", "rti_unverified", SUCCESS, "exact judge, with against without Verifier"),
        Finding("a stronger teacher with a delta of its own", "one corrector quality only", "not run"),
    ]


def gate(results: Results) -> list[Finding]:
    def passed(run: Run) -> float:
        rejected = run.gathered("intervention/rejected/perplexity")
        offered = rejected + run.gathered("intervention/reviews_inserted")
        return 1 - rejected / offered if offered else math.nan

    return [
        above(results, "rti", "rti_strict", passed, "share of corrections that pass, bound 5 against 1.5"),
        above(
            results,
            "rti_strict_ignoring_numbers",
            "rti_strict",
            passed,
            "share that pass, copied numbers ignored against not",
        ),
        above(results, "rti_strict_ignoring_numbers", "rti_strict", SUCCESS, "copied numbers ignored against not"),
    ]


def stability(results: Results) -> list[Finding]:
    rough = ("regression_on_policy_rough", "mintrl_const_rough")
    found = [
        above(results, a, b, SUCCESS, "10 x learning rate, 4 mini-batches")
        for a in rough
        for b in ("grpo_rough", "gspo_rough")
    ]
    for arm in (*rough, "grpo_rough", "gspo_rough"):
        drop = results.text(arm, lambda r: r.best() - r.last())
        found.append(
            Finding(
                f"{arm}: best minus last",
                f"{drop}; entropy {results.text(arm, last('actor/entropy'))}",
                "reported" if results.of(arm) else "not run",
            )
        )
    return found


def forgetting(results: Results) -> list[Finding]:
    found = [
        above(results, method, "sft_then_grpo", last("old/success"), "old task kept") for method in (*METHODS, "grpo")
    ]
    for arm in ("grpo", "sft_then_grpo", *METHODS):
        found.append(
            Finding(
                f"{arm}: old task, length, steps, before -> after",
                f"old {results.text(arm, lambda r: r.first('old/success'))} -> {results.text(arm, last('old/success'))}; "
                f"length {results.text(arm, lambda r: r.first('val/length'), 1)} -> {results.text(arm, last('val/length'), 1)}; "
                f"steps {results.text(arm, lambda r: r.first('val/steps'), 2)} -> {results.text(arm, last('val/steps'), 2)}",
                "reported" if results.of(arm) else "not run",
            )
        )
    return found


def agreement(results: Results, verl: Results) -> list[Finding]:
    """Runs under verl against those of the in-process loop, at the last look that both had."""
    found = []
    for arm in verl.arms:
        looks = [set(dict(run.curve("val/success"))) for run in (*verl.of(arm), *results.of(arm))]
        common = sorted(set.intersection(*looks)) if results.of(arm) else []
        if not common:
            found.append(Finding(f"{arm}: both tiers agree", "-", "not run"))
            continue

        def at(run: Run, update: int = common[-1]) -> float:
            return dict(run.curve("val/success"))[update]

        theirs, ours = verl.values(arm, at), results.values(arm, at)
        gap = abs(sum(theirs) / len(theirs) - sum(ours) / len(ours))
        spread = max(stdev(ours) if len(ours) > 1 else 0.0, LOOK_ERROR)
        bound = 2 * spread * math.sqrt(1 / len(theirs) + 1 / len(ours))
        found.append(
            Finding(
                f"{arm}: both tiers agree",
                f"after {common[-1]} updates verl {verl.text(arm, at)}, in process {results.text(arm, at)}; "
                f"gap {gap:.3f}, bound {bound:.3f}",
                "holds" if gap <= bound else "does not hold",
            )
        )
    return found


CLAIMS: tuple[Claim, ...] = (
    Claim(
        1,
        "Better validation success than GRPO, SFT then GRPO, and no interventions",
        (
            *(*METHODS, *BASELINES, "grpo_hard", "sft_then_grpo_hard", "rti_hard"),
            *("gated_hard_insertions_8", "const_hard_insertions_8"),
        ),
        final_success,
    ),
    Claim(2, "Larger coverage", (*METHODS, "grpo"), coverage, "val/pass@4"),
    Claim(
        3,
        "Gated interventions under clean, noisy and systematically wrong judges",
        (
            "grpo",
            "mintrl_const",
            "mintrl_gated",
            "rti",
            *(f"{m}_{j}" for j in ("noisy", "systematic") for m in ("const", "gated", "rti")),
        ),
        gating,
    ),
    Claim(
        4,
        "Inverted U over the intensity; review interval",
        (
            "regression_on_policy",
            "const_insertions_1",
            "mintrl_const",
            "const_insertions_4",
            "const_insertions_8",
            "const_every_2",
            "const_every_3",
        ),
        intensity,
        "",
    ),
    Claim(
        5,
        "Const against proxy; kappa, beta, relax, cap, sign flips",
        (
            "mintrl_const",
            "mintrl_proxy",
            "const_beta_0.01",
            "const_beta_0.1",
            "proxy_beta_0.1",
            "const_beta_0.1_success",
            "const_beta_0.1_uncapped",
            "const_kappa_-2",
            "const_kappa_1",
        ),
        anchor,
        "",
    ),
    Claim(
        6,
        "Control baseline against group baseline",
        ("mintrl_const", "const_group_baseline", "const_control_2", "const_control_6"),
        control,
    ),
    Claim(
        7,
        "Early stopping; dependence on the judge falls",
        ("mintrl_const", "const_stop", "mintrl_gated", "gated_stop"),
        schedule,
    ),
    Claim(
        8,
        "Self-intervention",
        ("mintrl_self", "mintrl_proxy", "rti_hint", "grpo", "regression_on_policy"),
        self_intervention,
    ),
    Claim(
        9,
        "RTI without Verifier, gate, weights",
        ("rti", "rti_ungated", "rti_unweighted", "rti_noisy", "rti_noisy_unverified", "rti_noisy_ungated", "grpo"),
        rti_parts,
    ),
    Claim(
        10,
        "The gate kills literal-heavy corrections; ignoring literals cures it",
        ("rti", "rti_strict", "rti_strict_ignoring_numbers"),
        gate,
    ),
    Claim(
        11,
        "The regression is stable where importance-weighted objectives are not",
        ("grpo_rough", "gspo_rough", "regression_on_policy_rough", "mintrl_const_rough"),
        stability,
    ),
    Claim(12, "Forgetting of the old task; behaviour", ("grpo", "sft_then_grpo", *METHODS), forgetting, "old/success"),
)

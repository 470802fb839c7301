"""The claims in their order of priority, each with what was measured and a verdict that follows from a rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import stdev

from lab.arms import SHORT
from lab.evaluate import Examination
from lab.results import Difference, Number, Rate, Results, Run

RULE = (
    "A statement of the form *a above b* **holds** if the difference, paired over at least 3 seeds, is above 0 at 5 % by "
    "Student's t (2.92 standard errors for 3 seeds); **the reverse holds** if it is below 0; it **does not hold** if, for rates, "
    "it is below 0.02, at 5 %; otherwise, and where both are above 0.97 or below 0.03, it is **not decidable here**. The standard "
    "error of a rate is never taken smaller than what its attempts leave to chance. Of so many statements some hold by chance: one "
    "near the bound says little. Spreads are standard deviations over seeds. *Success* is that on held-out problems of the usual "
    "length."
)


@dataclass(frozen=True)
class Finding:
    """One statement of a claim.

    Attributes:
        numbers: what was measured.
        verdict: holds | the reverse holds | does not hold | not decidable here | not run | not looked at | reported.
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
        curve: metric of the figure over updates; empty: bars of ``bar``.
        short: drawn after the updates of the short arms, however long a run was.
        drawn: arms of the figure with their names in it; empty: all of ``arms``.
        bar: what bars show.
    """

    number: int
    title: str
    arms: tuple[str, ...]
    judge: Callable[[Results], list[Finding]]
    curve: str = "val/success"
    short: bool = False
    drawn: Mapping[str, str] = field(default_factory=dict)
    bar: tuple[str, Number] = ("val/success", Run.last)

    def findings(self, results: Results) -> list[Finding]:
        return self.judge(results)

    def figure_arms(self, results: Results) -> dict[str, str]:
        """Arms that were run and are shown, with their names in the figure."""
        names = self.drawn or {arm: arm for arm in self.arms}
        return {arm: name for arm, name in names.items() if results.of(arm)}

    def has_figure(self, results: Results) -> bool:
        return bool(self.figure_arms(results))


_EXAMINATION = Examination()
#: at validation problems at one look
ATTEMPTS = _EXAMINATION.problems * _EXAMINATION.attempts
#: problems of a split at one look
_PROBLEMS = {"val": _EXAMINATION.problems, "harder": _EXAMINATION.problems // 2, "hard": _EXAMINATION.problems // 2}


def last(name: str) -> Number:
    """Value at the last look; a rate where it is a share of attempts, or of problems (pass@k, pass^k)."""

    def read(run: Run) -> float:
        return run.last(name)

    split, _, measure = name.partition("/")
    problems = _PROBLEMS.get(split, 0)
    if problems and measure == "success":
        return Rate(read, problems * _EXAMINATION.attempts)
    if problems and measure.startswith("pass"):
        return Rate(read, problems)
    return read


def first(name: str) -> Number:
    """Value before training."""
    return lambda run: run.first(name)


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
    looked_at = difference.seeds or not (results.of(a) and results.of(b))
    return Finding(f"{a} above {b}: {what}", numbers, difference.verdict() if looked_at else "not looked at")


def reported(results: Results, arm: str, statement: str, numbers: str) -> Finding:
    """Numbers without a verdict, read from ``arm``."""
    return Finding(statement, numbers, "reported" if results.of(arm) else "not run")


#: standard deviation of one look at validation success: 48 problems, 4 sessions each, near 0.5
LOOK_ERROR = 0.04
SUCCESS = last("val/success")
BASELINES = ("grpo", "sft_then_grpo", "regression_on_policy")
HARD_BASELINES = ("grpo_hard", "sft_then_grpo_hard", "sft_more_then_grpo_hard", "regression_on_policy_hard")
METHODS = ("mintrl_gated", "mintrl_const", "rti")
GATED, CONST, RTI = (f"{method}_hard_insertions_8" for method in ("gated", "const", "rti"))
#: the methods on hard problems, with as many insertions as such a problem has traps
HARD_METHODS = (GATED, CONST, RTI)


#: at the best of all looks
BEST = Rate(Run.best, ATTEMPTS)


def speed(run: Run) -> float:
    """Mean validation success over the looks after the first: how soon it is learned."""
    values = [value for _, value in run.curve("val/success")][1:]
    return sum(values) / len(values) if values else math.nan


#: at four looks
SPEED = Rate(speed, 4 * ATTEMPTS)


def final_success(results: Results) -> list[Finding]:
    found = []
    for method in (*HARD_METHODS, "rti_hard"):  # that one with two insertions
        for baseline in HARD_BASELINES:
            found.append(above(results, method, baseline, SUCCESS, "last checkpoint, trained on hard problems"))
            found += [
                above(results, method, baseline, BEST, "the same, best checkpoint"),
                above(results, method, baseline, last("hard/success"), "the same, success on hard problems"),
                above(results, method, baseline, last("val/step_accuracy"), "the same, share of right steps"),
            ]
    for method in HARD_METHODS:
        found += [_at_equal_time(results, method, b) for b in ("grpo_hard", "sft_more_then_grpo_hard")]
    for method in METHODS:
        for baseline in BASELINES:
            found.append(above(results, method, baseline, SUCCESS, "last checkpoint"))
            found.append(above(results, method, baseline, BEST, "best checkpoint"))
            found.append(above(results, method, baseline, SPEED, "mean over the looks after the first"))
    early = results.until(SHORT)
    after = f"after {SHORT} updates, trained on hard problems"
    others = (
        "luffy_hard",
        "mentor_hard",
        "gspo_hard",
        "distil_hard",
        "proxy_hard",
        "self_hard",
        "vcv_hard",
        "vcv_unweighted",
    )
    found += [above(early, other, "grpo_hard", SUCCESS, after) for other in others]
    return found + [
        above(early, m, b, SUCCESS, after) for m in HARD_METHODS for b in ("luffy_hard", "mentor_hard", "distil_hard")
    ]


def _at_equal_time(results: Results, a: str, b: str) -> Finding:
    budget = {run.seed: run.seconds() for run in results.of(a)}
    for run in results.of(b):
        budget[run.seed] = min(budget.get(run.seed, math.inf), run.seconds())

    def number(run: Run) -> float:
        return run.at_seconds(budget[run.seed])

    return above(results, a, b, Rate(number, ATTEMPTS), "at equal CPU time (the shorter of both)")


def coverage(results: Results) -> list[Finding]:
    found = []
    for method, baseline in (*((m, "grpo_hard") for m in HARD_METHODS), *((m, "grpo") for m in METHODS)):
        found += [
            above(results, method, baseline, last("val/pass@4"), "pass@4, validation"),
            above(results, method, baseline, last("harder/pass@4"), "pass@4, longer problems"),
            above(results, method, baseline, last("hard/pass@4"), "pass@4, hard problems"),
            above(results, method, baseline, last("train/solved_share"), "training problems ever solved without help"),
        ]
    before = "; ".join(
        f"{label} {results.text('grpo_hard', first(f'{split}/pass@4'))}"
        for split, label in (("val", "validation"), ("harder", "longer problems"), ("hard", "hard problems"))
    )
    return [*found, reported(results, "grpo_hard", "before training: pass@4", before)]


def gating(whole: Results) -> list[Finding]:
    found, hard = [], last("hard/success")
    results = whole.until(SHORT)
    for judge, label in (("", "exact judge"), ("noisy", "30 % random errors"), ("systematic", "systematic errors")):
        gated, const, rti = (f"{m}_{judge}" for m in ("gated", "const", "rti")) if judge else HARD_METHODS
        found.append(above(results, gated, const, SUCCESS, label))
        found.append(above(results, gated, rti, SUCCESS, label))
        found += [above(results, name, "grpo_hard", SUCCESS, label) for name in (gated, const, rti)]
        if judge:
            exact = zip((gated, const, rti), HARD_METHODS, strict=True)
            found += [above(results, best_case, name, SUCCESS, "what the errors cost") for name, best_case in exact]
            found.append(above(results, gated, const, hard, f"{label}, success on hard problems"))
    # an exact judge needs no more than 8 insertions: 16 are the same procedure, and that arm was looked at after 20 updates
    for name in ("const_noisy", "const_systematic"):
        what = "what the errors cost, success on hard problems"
        found.append(above(results, "const_insertions_16", name, hard, what))
    for name, base in (
        ("const_alarmist", CONST),
        ("gated_alarmist", GATED),
        ("const_verbose", CONST),
        ("const_leaking", CONST),
        ("rti_leaking", RTI),
    ):
        found.append(above(results, base, name, SUCCESS, "what the fault of the judge costs"))
        found.append(above(results, base, name, last("val/step_accuracy"), "the same, share of right steps"))
        found.append(above(results, name, "grpo_hard", SUCCESS, "such a judge against none"))
    # where the policy often succeeds by itself
    usual = "systematic errors, trained on problems of the usual length"
    gated, const, rti = (f"{method}_systematic_usual" for method in ("gated", "const", "rti"))
    for runs, when in ((results, ""), (whole, " to the end (seeds 3 to 5 were added as three had not decided)")):
        found += [above(runs, gated, other, SUCCESS, f"{usual}{when}") for other in (const, rti, "grpo")]
        found += [
            above(runs, best_case, name, SUCCESS, f"what the errors cost there{when}")
            for name, best_case in zip((gated, const, rti), METHODS, strict=True)
        ]
    found.append(
        above(whole, gated, const, last("val/step_accuracy"), f"{usual} to the end, share of right steps (as above)")
    )
    for runs, arm in ((results, GATED), (results, "gated_alarmist"), (whole, GATED), (whole, gated)):
        updates = runs.of(arm)[0].experiment["updates"] if runs.of(arm) else 0
        numbers = f"{runs.text(arm, closed)}, in the last quarter {runs.text(arm, closed_late)}"
        found.append(
            reported(runs, arm, f"{arm}: share of sessions whose gate stays closed, {updates} updates", numbers)
        )
    return found


def closed(run: Run, start: float = 0.0) -> float:
    """Share of the sessions that might have been intervened on and were not, since one of their group succeeded by itself."""
    treated = run.mean("intervention/sessions_treated", start)
    return run.mean("intervention/sessions_gated_off", start) / treated if treated else math.nan


def closed_late(run: Run) -> float:
    return closed(run, 0.75)


def per_thousand_calls(run: Run) -> float:
    """Gain in success per 1000 judge calls."""
    return 1000 * (run.last() - run.first()) / (run.gathered("intervention/judge_calls") or math.nan)


def intensity(results: Results) -> list[Finding]:
    counts = (0, 1, 2, 4, 8, 16)
    arms = ("regression_on_policy_hard", *(f"const_insertions_{n}" for n in (1, 2, 4)), CONST, "const_insertions_16")
    # the middle is named beforehand: the best of several would be above the ends by chance
    middle, least, most = "const_insertions_4", arms[0], arms[-1]

    def share(run: Run) -> float:
        return run.mean("intervention/inserted_token_share")

    def by_count(number: Number) -> str:
        return "; ".join(f"{count}: {results.text(arm, number)}" for count, arm in zip(counts, arms, strict=True))

    verdicts = [results.difference(middle, end, SUCCESS).verdict() for end in (least, most)]
    statement = "inverted U over insertions per session (0, 1, 2, 4, 8, 16): 4 above 0 and above 16"
    hard = last("hard/success")
    found = [
        Finding(statement, by_count(SUCCESS), _weaker(verdicts)),
        reported(results, middle, "the same arms: share of inserted tokens", by_count(share)),
        reported(results, middle, "the same arms: success on hard problems (8: not looked at)", by_count(hard)),
        above(results, middle, "const_insertions_2", SUCCESS, "4 insertions against 2"),
        above(results, middle, "const_insertions_2", hard, "the same, success on hard problems"),
        above(results, most, "const_insertions_2", hard, "16 insertions against 2, success on hard problems"),
    ]
    for arm, treated in (("const_control_6", 25), (CONST, 50), ("const_control_2", 75)):
        numbers = f"success {results.text(arm, SUCCESS)}, inserted {results.text(arm, share)}"
        found.append(reported(results, arm, f"{arm}: {treated} % of the sessions treated", numbers))
    for arm in (CONST, "const_every_2", "const_every_3"):
        calls = results.text(arm, lambda r: r.gathered("intervention/judge_calls"), 0)
        per = results.text(arm, per_thousand_calls)
        numbers = f"success {results.text(arm, SUCCESS)}, {calls} calls, gain per 1000 calls {per}"
        found.append(reported(results, arm, f"{arm}: success per judge call", numbers))
    found.append(
        above(
            results,
            "const_every_3",
            CONST,
            per_thousand_calls,
            "gain per 1000 judge calls, rarer reviews against every step",
        )
    )
    return found


def _weaker(verdicts: Sequence[str]) -> str:
    order = ("not run", "the reverse holds", "does not hold", "not decidable here", "holds")
    return min(verdicts, key=order.index)


def anchor(results: Results) -> list[Finding]:
    found = [
        above(results, CONST, "proxy_hard", SUCCESS, "weak policy, beta 0.001"),
        above(
            results,
            "const_beta_0.1",
            "proxy_hard",
            SUCCESS,
            "weak policy, const at beta 0.1 (proxy is the same at any)",
        ),
        above(
            results,
            "proxy_strong",
            "const_strong",
            SUCCESS,
            "policy after 20 updates of GRPO on usual problems, beta 0.1",
        ),
        above(results, "const_strong", "grpo_strong", SUCCESS, "the same policy"),
        above(results, "proxy_strong", "grpo_strong", SUCCESS, "the same policy"),
    ]
    failing = "judge whose words make sessions fail"
    for a, b in (
        ("proxy_verbose", "const_verbose"),
        ("const_verbose_success", "const_verbose"),
        ("grpo_hard", "const_verbose"),
    ):
        found.append(above(results, a, b, SUCCESS, failing))
        found.append(above(results, a, b, last("val/step_accuracy"), f"{failing}, share of right steps"))
    steps = last("val/step_accuracy")
    before = results.text("const_verbose", first("val/step_accuracy"))
    numbers = f"{before} -> {results.text('const_verbose', steps)}; bonus {results.text('const_verbose', bonus)}"
    found.append(reported(results, "const_verbose", "const_verbose: share of right steps before -> after", numbers))
    preset, larger = "against the preset (beta 0.001)", "against beta 0.1 with the preset's anchor"
    for arm, base, what in (
        ("const_beta_0.01", CONST, preset),
        ("const_beta_0.1", CONST, preset),
        ("const_beta_0.1_kappa_-2", "const_beta_0.1", f"kappa -2 {larger}, kappa 0"),
        ("const_beta_0.1_kappa_1", "const_beta_0.1", f"kappa 1 {larger}, kappa 0"),
        ("const_beta_0.1_success", "const_beta_0.1", f"relaxed in successful sessions {larger}, in all"),
        ("const_beta_0.1_uncapped", "const_beta_0.1", f"no cap {larger}, capped at 0.5"),
    ):
        finding = above(results, arm, base, SUCCESS, what)
        extra = (
            f"; bonus {results.text(arm, bonus)}, sign flips per update "
            f"{results.text(arm, lambda r: r.mean('intervention/sign_flips'), 1)}, capped "
            f"{results.text(arm, lambda r: r.mean('intervention/bonus_capped_share'), 2)}"
        )
        found.append(Finding(finding.statement, finding.numbers + extra, finding.verdict))
    return found


def bonus(run: Run) -> float:
    return run.mean("intervention/bonus")


def control(results: Results) -> list[Finding]:
    against = "control sessions against the group mean as baseline"
    return [
        above(results, CONST, "const_group_mean", SUCCESS, against),
        above(
            results,
            CONST,
            "const_group_baseline",
            SUCCESS,
            f"{against}, divided by its deviation as GRPO does (under Adam nearly the same procedure here)",
        ),
        above(results, CONST, "const_control_2", SUCCESS, "4 against 2 control sessions of 8"),
        above(results, CONST, "const_control_6", SUCCESS, "4 against 6 control sessions of 8"),
    ]


def schedule(results: Results) -> list[Finding]:
    def own_late(run: Run) -> float:
        return run.mean("train/own_success", 0.8, 1.0)

    def own_early(run: Run) -> float:
        return run.mean("train/own_success", 0.0, 0.2)

    def rise(run: Run) -> float:
        return own_late(run) - own_early(run)

    what = "interventions in the first half only"
    found = []
    for stopped, always in (("const_stop", CONST), ("gated_stop", GATED)):
        found += [
            above(results, stopped, always, SUCCESS, what),
            above(results, stopped, always, last("hard/success"), f"{what}, success on hard problems"),
            above(results, stopped, always, own_late, f"{what}, success without help in the last fifth"),
        ]
    for method in HARD_METHODS:
        finding = above(
            results, method, method, own_late, "success before editing, last fifth against first", own_early
        )
        found.append(Finding(f"{method}: success before editing rises", finding.numbers, finding.verdict))
        found.append(above(results, method, "grpo_hard", rise, "how far success without help rises"))
    return found


def self_intervention(results: Results) -> list[Finding]:
    return [
        above(results, "self_hard", "regression_on_policy_hard", SUCCESS, "its own judge, with a hint, against none"),
        above(results, "self_hard", "grpo_hard", SUCCESS, "its own judge, with a hint"),
        above(results, "proxy_hard", "self_hard", SUCCESS, "exact judge against itself"),
        above(results, "rti_hint", "grpo_hard", SUCCESS, "its own Validator, Corrector and Verifier"),
        *evidence(results),
    ]


def evidence(results: Results) -> list[Finding]:
    """A judge that errs in 30 % of the wrong and 10 % of the right steps, and less the more it is shown."""

    def leaked(run: Run) -> float:
        return run.gathered("judge/early_answers") / (run.gathered("judge/corrections") or math.nan)

    def inserted(run: Run) -> float:
        return run.gathered("judge/early_answers_inserted") / (run.gathered("judge/corrections") or math.nan)

    shown = [f"rti_shown_{level}" for level in ("none", "outcome", "rubric", "gold", "gold_unverified")]
    none, *_, gold, unverified = shown
    what = "a judge that errs, shown evidence against none"
    found = [above(results, arm, none, SUCCESS, what) for arm in shown[1:4]]
    found[1] = replace(found[1], numbers=f"{found[1].numbers} (a rubric is the whole solution: such a judge is exact)")
    found.append(above(results, gold, unverified, SUCCESS, "shown the answer, with against without Verifier"))
    found.append(above(results, gold, unverified, last("val/step_accuracy"), "the same, share of right steps"))
    for arm in shown:
        numbers = (
            f"{results.text(arm, leaked)} of the corrections, inserted {results.text(arm, inserted)}; "
            f"success {results.text(arm, SUCCESS)}, steps right "
            f"{results.text(arm, last('val/step_accuracy'))}, steps {results.text(arm, last('val/steps'), 2)}"
        )
        found.append(reported(results, arm, f"{arm}: answers where a step had to stand", numbers))
    return found


def rti_parts(results: Results) -> list[Finding]:
    splits = (
        ("", SUCCESS),
        (", longer problems", last("harder/success")),
        (", hard problems", last("hard/success")),
    )
    found = []
    for a, b, what in (
        ("rti_noisy_checked", "rti_noisy_unverified", "noisy, with exact Verifier against none"),
        # the gate stops nothing of an exact judge, and that arm was looked at in full after 20 updates
        ("rti_ungated", "rti_unweighted", "with against without steering weights"),
        ("rti_ungated", "rti_eps_cal_0.5", "eps_cal 0.2 against 0.5"),
        ("rti_noisy", "rti_noisy_ungated", "noisy judge, with against without gate"),
    ):
        found += [above(results, a, b, number, f"{what}{split}") for split, number in splits]
    what = "noisy, without Verifier, against no interventions"
    found.append(above(results, "rti_noisy_unverified", "grpo_hard", SUCCESS, what))
    consistent = last("val/pass^4")
    teacher = "teacher that is right in words of its own, bound 5 against 1.5"
    return [
        *found,
        _if_anything_was_stopped(
            results, RTI, above(results, RTI, "rti_ungated", consistent, "pass^4, with against without gate")
        ),
        above(results, "rti_noisy", "rti_noisy_ungated", consistent, "pass^4, noisy judge, with against without gate"),
        above(results, "rti_verbose", "rti_verbose_strict", passed, f"{teacher}: share of its corrections that pass"),
        above(results, "rti_verbose", "rti_verbose_strict", SUCCESS, teacher),
    ]


def _if_anything_was_stopped(results: Results, arm: str, finding: Finding) -> Finding:
    if any(share < 1 for share in results.values(arm, passed)) or finding.verdict == "not run":
        return finding
    numbers = f"{finding.numbers}; the gate stopped nothing, so both are the same procedure"
    return Finding(finding.statement, numbers, "not decidable here")


def passed(run: Run) -> float:
    """Share of the corrections that the perplexity gate lets pass."""
    rejected = run.gathered("intervention/rejected/perplexity")
    offered = rejected + run.gathered("intervention/reviews_inserted")
    return 1 - rejected / offered if offered else math.nan


def gate(results: Results) -> list[Finding]:
    return [
        above(results, RTI, "rti_strict", passed, "share of corrections that pass, bound 5 against 1.5"),
        above(results, "rti_strict", "rti_ungated", last("val/pass^4"), "pass^4, bound 1.5 against none"),
        above(results, "rti_strict", RTI, SUCCESS, "bound 1.5 against 5"),
        Finding(
            "ignoring literals lets copied ones pass",
            f"corrections have a median perplexity of {results.text('rti_strict', perplexity, 2)}, and a step is one word, never "
            "copied whole: no rare literals",
            "not decidable here" if results.of("rti_strict") else "not run",
        ),
    ]


def perplexity(run: Run) -> float:
    """Median perplexity of corrections under the policy, mean over the updates."""
    return run.mean("intervention/ppl_correction_p50")


def stability(results: Results) -> list[Finding]:
    rough = ("regression_on_policy_rough", "mintrl_const_rough")
    found = [
        above(results, a, b, SUCCESS, "10 x learning rate, 4 mini-batches")
        for a in rough
        for b in ("grpo_rough", "gspo_rough")
    ]
    for arm in (*rough, "grpo_rough", "gspo_rough"):
        drop = results.text(arm, lambda r: r.best() - r.last())
        numbers = f"{drop}; entropy {results.text(arm, last('actor/entropy'))}"
        found.append(reported(results, arm, f"{arm}: best minus last", numbers))
    return found


def forgetting(results: Results) -> list[Finding]:
    found = [
        above(results, method, "sft_then_grpo_hard", last("old/success"), "old task kept")
        for method in (*HARD_METHODS, "grpo_hard")
    ]
    for arm in ("grpo_hard", "sft_then_grpo_hard", "sft_more_then_grpo_hard", *HARD_METHODS):
        numbers = (
            f"old {results.text(arm, first('old/success'))} -> {results.text(arm, last('old/success'))}; "
            f"length {results.text(arm, first('val/length'), 1)} -> {results.text(arm, last('val/length'), 1)}; "
            f"steps {results.text(arm, first('val/steps'), 2)} -> {results.text(arm, last('val/steps'), 2)}"
        )
        found.append(reported(results, arm, f"{arm}: old task, length, steps, before -> after", numbers))
    return found


def agreement(results: Results, verl: Results) -> list[Finding]:
    """Runs under verl against those of the in-process loop, at the last look that both had."""
    found = []
    for arm in verl.arms:
        looks = [set(dict(run.curve("val/success"))) for run in (*verl.of(arm), *results.of(arm))]
        common = sorted(set.intersection(*looks) - {0}) if results.of(arm) else []
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
                _agreed(gap <= bound, min(len(theirs), len(ours))),
            )
        )
    return found


def _agreed(within: bool, seeds: int) -> str:
    if seeds >= 3:
        return "holds" if within else "does not hold"
    return f"{'consistent' if within else 'not consistent'}, {seeds} seed{'s' * (seeds > 1)}"


def early(judge: Callable[[Results], list[Finding]]) -> Callable[[Results], list[Finding]]:
    """Reads every run as it was after the updates of the short arms."""
    return lambda results: judge(results.until(SHORT))


CLAIMS: tuple[Claim, ...] = (
    Claim(
        1,
        "Better validation success than GRPO, SFT then GRPO, and no interventions",
        (*HARD_METHODS, *HARD_BASELINES, *METHODS, *BASELINES),
        final_success,
        drawn={
            "sft_more_then_grpo_hard": "8 x SFT, then GRPO",
            CONST: "mintrl_const",
            RTI: "rti",
            GATED: "mintrl_gated",
            "sft_then_grpo_hard": "SFT, then GRPO",
            "regression_on_policy_hard": "regression alone",
            "grpo_hard": "GRPO",
        },
    ),
    Claim(2, "Larger coverage", (*HARD_METHODS, "grpo_hard", *METHODS, "grpo"), coverage, "val/pass@4"),
    Claim(
        3,
        "Gated interventions under clean, noisy and systematically wrong judges",
        (
            *("grpo_hard", "grpo", *HARD_METHODS, *METHODS, "const_insertions_16"),
            *(f"{m}_{j}" for j in ("noisy", "systematic", "systematic_usual") for m in ("gated", "const", "rti")),
            *("const_alarmist", "gated_alarmist", "const_verbose", "const_leaking", "rti_leaking"),
        ),
        gating,
        drawn={
            "grpo": "GRPO",
            "mintrl_gated": "mintrl_gated, exact judge",
            "gated_systematic_usual": "mintrl_gated, misled judge",
            "mintrl_const": "mintrl_const, exact judge",
            "const_systematic_usual": "mintrl_const, misled judge",
            "rti_systematic_usual": "rti, misled judge",
        },
    ),
    Claim(
        4,
        "Inverted U over the intensity; review interval",
        (
            "regression_on_policy_hard",
            *(f"const_insertions_{n}" for n in (1, 2, 4)),
            *(CONST, "const_insertions_16", "const_every_2", "const_every_3"),
        ),
        early(intensity),
        "",
        short=True,
    ),
    Claim(
        5,
        "Const against proxy; kappa, beta, relax, cap, sign flips",
        (
            *(CONST, "proxy_hard", "const_beta_0.01", "const_beta_0.1"),
            *("const_beta_0.1_success", "const_beta_0.1_uncapped", "const_beta_0.1_kappa_-2", "const_beta_0.1_kappa_1"),
            *("grpo_strong", "const_strong", "proxy_strong"),
            *("const_verbose", "const_verbose_success", "proxy_verbose"),
        ),
        early(anchor),
        "",
        short=True,
    ),
    Claim(
        6,
        "Control baseline against group baseline",
        (CONST, "const_group_mean", "const_group_baseline", "const_control_2", "const_control_6"),
        early(control),
        "",
        short=True,
    ),
    Claim(
        7,
        "Early stopping; dependence on the judge falls",
        (CONST, "const_stop", GATED, "gated_stop", RTI, "grpo_hard"),
        schedule,
        "train/own_success",
    ),
    Claim(
        8,
        "Self-intervention; evidence and leaks",
        (
            *("self_hard", "proxy_hard", "rti_hint", "grpo_hard", "regression_on_policy_hard"),
            *("rti_shown_none", "rti_shown_outcome", "rti_shown_rubric", "rti_shown_gold", "rti_shown_gold_unverified"),
        ),
        early(self_intervention),
        "",
        short=True,
    ),
    Claim(
        9,
        "RTI without Verifier, gate, weights",
        (
            *("grpo_hard", RTI, "rti_ungated", "rti_unweighted", "rti_eps_cal_0.5"),
            *(
                "rti_noisy",
                "rti_noisy_checked",
                "rti_noisy_unverified",
                "rti_noisy_ungated",
                "rti_verbose",
                "rti_verbose_strict",
            ),
        ),
        early(rti_parts),
        "",
        short=True,
    ),
    Claim(
        10,
        "The gate; literal-heavy corrections",
        (RTI, "rti_strict", "rti_ungated", "rti_noisy", "rti_verbose", "rti_verbose_strict"),
        early(gate),
        "",
        short=True,
        bar=("share of corrections that pass", passed),
    ),
    Claim(
        11,
        "The regression is stable where importance-weighted objectives are not",
        ("grpo_rough", "gspo_rough", "regression_on_policy_rough", "mintrl_const_rough"),
        stability,
    ),
    Claim(
        12,
        "Forgetting of the old task; behaviour",
        ("grpo_hard", "sft_then_grpo_hard", "sft_more_then_grpo_hard", *HARD_METHODS),
        forgetting,
        "old/success",
    ),
)

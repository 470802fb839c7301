"""The claims table in Markdown, one figure per claim, and one line per run, from the files of the runner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lab.arms import SHORT
from lab.claims import CLAIMS, RULE, Claim, Finding, agreement
from lab.results import KEPT, Results, Run

#: name of the file of kept runs under verl
KEPT_VERL = "verl.jsonl"
#: updates that are averaged over in the figure of what is measured at every one
WINDOW = 5


def write_report(results: Results, target: Path, suite: str, verl: Results) -> str:
    """Write ``claims.md``, ``claim-<number>.png`` and what is kept of the runs into ``target``; returns a short summary.

    Args:
        verl: runs under verl.
    """
    target.mkdir(parents=True, exist_ok=True)
    results.keep(target / KEPT)
    if len(verl):
        verl.keep(target / KEPT_VERL)
    results, verl = results.rounded(), verl.rounded()  # whoever makes the table of the kept runs gets the same
    for claim in _claims(suite):
        if claim.has_figure(results):
            draw(claim, results.until(SHORT) if claim.short else results, target / _figure(claim))
    (target / "claims.md").write_text(table(results, suite, verl), encoding="utf-8")
    return "\n".join(_overview(results))


def table(results: Results, suite: str, verl: Results) -> str:
    """The claims and all arms in Markdown."""
    lines = [
        "# Claims",
        "",
        f"Suite `{suite}`, {len(results)} runs. {RULE}",
        "",
        f"Command: `python benchmarks/lab/run.py --suite {suite}`; a row alone: add `--arms` and the arms named in it.",
        "",
    ]
    for claim in _claims(suite):
        lines += [f"## {claim.number}. {claim.title}", ""]
        # the quick suite has two arms, which most statements are not about
        lines += _rows([f for f in claim.findings(results) if suite != "quick" or f.verdict != "not run"])
        if claim.has_figure(results):
            lines += ["", f"![claim {claim.number}]({_figure(claim)})"]
        lines.append("")
    lines += ["## The tiers", "", "Command: `python benchmarks/lab/verl_arm.py ARM`.", ""]
    lines += _rows(agreement(results, verl) or [Finding("both tiers agree", "-", "not run")])
    lines += ["", "## All arms", "", *_overview(results)]
    return "\n".join(lines) + "\n"


def _claims(suite: str) -> tuple[Claim, ...]:
    return CLAIMS[:1] if suite == "quick" else CLAIMS


def _figure(claim: Claim) -> str:
    return f"claim-{claim.number}.png"


def _rows(findings: Sequence[Finding]) -> list[str]:
    rows = [f"| {f.statement} | {f.numbers} | {f.verdict} |" for f in findings]
    return ["| statement | measured | verdict |", "|---|---|---|", *rows]


def _overview(results: Results) -> list[str]:
    columns = {
        "success before": lambda r: r.first(),
        "last": lambda r: r.last(),
        "best": lambda r: r.best(),
        "pass@4": lambda r: r.last("val/pass@4"),
        "steps right": lambda r: r.last("val/step_accuracy"),
        "longer problems": lambda r: r.last("harder/success"),
        "hard": lambda r: r.last("hard/success"),
        "old task": lambda r: r.last("old/success"),
        "inserted": lambda r: r.mean("intervention/inserted_token_share"),
        "CPU s per update": lambda r: r.seconds() / r.experiment["updates"],
    }
    lines = [
        "| arm | seeds | updates | " + " | ".join(columns) + " | commit |",
        "|---|---|" + "---|" * (len(columns) + 2),
    ]
    for arm in sorted(results.arms, key=lambda arm: -float(np.mean(results.values(arm, columns["last"])))):
        numbers = [str(results.of(arm)[0].experiment["updates"])]
        numbers += [results.text(arm, number) for number in columns.values()]
        seeds = " ".join(str(run.seed) for run in results.of(arm))
        commits = " ".join(sorted({run.commit or "-" for run in results.of(arm)}))
        lines.append(f"| {arm} | {seeds} | " + " | ".join(numbers) + f" | {commits} |")
    return lines


def draw(claim: Claim, results: Results, path: Path) -> None:
    """Curves over updates, or bars."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    arms = claim.figure_arms(results)
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    for number, (arm, label) in enumerate(arms.items()):
        runs = results.of(arm)
        if claim.curve:
            updates, lines = _curves(runs, claim.curve)
            # on problems of the usual length everything is higher: a family of curves of its own
            style = "-" if runs[0].experiment["split"] == "hard" else "--"
            (line,) = axes.plot(updates, lines.mean(0), style, color=f"C{number % 10}", label=f"{label} ({len(runs)})")
            if len(runs) > 1:
                spread = lines.std(0, ddof=1)
                axes.fill_between(
                    updates, lines.mean(0) - spread, lines.mean(0) + spread, alpha=0.12, color=line.get_color()
                )
        else:
            values = [claim.bar[1](run) for run in runs]
            axes.barh(number, np.mean(values), xerr=np.std(values, ddof=1) if len(values) > 1 else None, color="C0")
    if claim.curve:
        axes.set_xlabel("update")
        axes.set_ylabel(claim.curve)
        figure.legend(fontsize=7, loc="outside right upper")
    else:
        axes.set_yticks(range(len(arms)), list(arms.values()), fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel(claim.bar[0])
    axes.set_title(f"{claim.number}. {claim.title}", fontsize=9)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def _curves(runs: Sequence[Run], name: str) -> tuple[list[float], np.ndarray]:
    """Updates, and a line of values for each run; what is measured at every update is averaged over windows of some."""
    curves = [dict(run.curve(name)) for run in runs]
    updates = sorted(set.intersection(*(set(curve) for curve in curves)))
    window = WINDOW if len(updates) > 2 * WINDOW else 1
    chunks = [updates[at : at + window] for at in range(0, len(updates), window)]
    lines = [[float(np.mean([curve[u] for u in chunk])) for chunk in chunks] for curve in curves]
    return [float(np.mean(chunk)) for chunk in chunks], np.array(lines)

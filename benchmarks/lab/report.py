"""The claims table in Markdown, one figure per claim, and one line per run, from the files of the runner."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lab.claims import CLAIMS, RULE, Claim, agreement
from lab.results import KEPT, SUCCESS, Results

#: name of the file of kept runs under verl
KEPT_VERL = "verl.jsonl"


def write_report(results: Results, target: Path, suite: str, verl: Path) -> str:
    """Write ``claims.md``, ``claim-<number>.png`` and what is kept of the runs into ``target``; returns a short summary.

    Args:
        verl: folder with the runs under verl, if there are any; those kept in ``target`` count, too.
    """
    tier1 = Results.load(verl, target / KEPT_VERL)
    target.mkdir(parents=True, exist_ok=True)
    wanted = CLAIMS[:1] if suite == "quick" else CLAIMS
    lines = [
        "# Claims",
        "",
        f"Suite `{suite}`, {len(results)} runs. {RULE}",
        "",
        f"Command: `python benchmarks/lab/run.py --suite {suite}`; a row alone: add `--arms` and the arms named in it.",
        "",
    ]
    for claim in wanted:
        lines += _section(claim, results, target)
    rows = [f"| {f.statement} | {f.numbers} | {f.verdict} |" for f in agreement(results, tier1)]
    lines += ["## The tiers", "", "Command: `python benchmarks/lab/verl_arm.py ARM`.", ""]
    lines += [
        "| statement | measured | verdict |",
        "|---|---|---|",
        *(rows or ["| both tiers agree | - | not run |"]),
        "",
    ]
    lines += ["## All arms", "", *_overview(results)]
    (target / "claims.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    results.keep(target / KEPT)
    if len(tier1):
        tier1.keep(target / KEPT_VERL)
    return "\n".join(_overview(results))


def _section(claim: Claim, results: Results, target: Path) -> list[str]:
    figure = target / f"claim-{claim.number}.png"
    drawn = draw(claim, claim.read(results), figure)
    rows = [f"| {f.statement} | {f.numbers} | {f.verdict} |" for f in claim.findings(results)]
    picture = ["", f"![claim {claim.number}]({figure.name})"] if drawn else []
    return [
        f"## {claim.number}. {claim.title}",
        "",
        "| statement | measured | verdict |",
        "|---|---|---|",
        *rows,
        *picture,
        "",
    ]


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
    lines = ["| arm | seeds | " + " | ".join(columns) + " | commit |", "|---|---|" + "---|" * (len(columns) + 1)]
    for arm in sorted(results.arms, key=lambda arm: -float(np.mean(results.values(arm, columns["last"])))):
        numbers = [results.text(arm, number) for number in columns.values()]
        seeds = " ".join(str(run.seed) for run in results.of(arm))
        commits = " ".join(sorted({run.commit or "-" for run in results.of(arm)}))
        lines.append(f"| {arm} | {seeds} | " + " | ".join(numbers) + f" | {commits} |")
    return lines


def draw(claim: Claim, results: Results, path: Path) -> bool:
    """Curves over updates, or bars of the last validation success; False where nothing was run."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    arms = [arm for arm in claim.arms if results.of(arm)]
    if not arms:
        return False
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    for number, arm in enumerate(arms):
        runs = results.of(arm)
        if claim.curve:
            curves = [dict(run.curve(claim.curve)) for run in runs]
            updates = sorted(set.intersection(*(set(curve) for curve in curves)))
            lines = np.array([[curve[u] for u in updates] for curve in curves])
            # on problems of the usual length everything is higher: a family of curves of its own
            style = "-" if runs[0].experiment["split"] == "hard" else "--"
            color = f"C{number % 10}"
            (line,) = axes.plot(updates, lines.mean(0), style, color=color, label=f"{arm} ({len(runs)})")
            if len(runs) > 1:
                spread = lines.std(0, ddof=1)
                axes.fill_between(
                    updates, lines.mean(0) - spread, lines.mean(0) + spread, alpha=0.12, color=line.get_color()
                )
        else:
            values = [run.last() for run in runs]
            axes.barh(number, np.mean(values), xerr=np.std(values, ddof=1) if len(values) > 1 else None, color="C0")
    if claim.curve:
        axes.set_xlabel("update")
        axes.set_ylabel(claim.curve)
        figure.legend(fontsize=7, loc="outside right upper")
    else:
        axes.set_yticks(range(len(arms)), arms, fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel(SUCCESS)
    axes.set_title(f"{claim.number}. {claim.title}", fontsize=9)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return True

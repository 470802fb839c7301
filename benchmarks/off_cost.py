"""What does the plugin cost where it does nothing: preset ``grpo`` through its trainer and workers, against stock verl?

Both run the stock entry on a random model of two layers, so there is little work that the plugin could hide behind: real Ray,
vLLM and FSDP, the same recipe, responses of equal length (such a model hardly ever ends one by itself). Runs alternate. The
stock arm looks into the queue as often as the plugin's trainer does; with the pause that verl ships (2 s instead of 0.2 s) its
steps would be longer. The plugin is installed in both arms: the CPU platform is part of it.

Then one run in which trainer and rollout workers count the time inside the plugin's functions, without that of verl's functions
they call (:mod:`cost_parts.layers`). What stands there for the workers partly overlaps with sampling.

    python benchmarks/off_cost.py --pairs 3 --updates 10

Writes the printed table to benchmarks/results/off_cost.txt. Exit code 1 if a run did not make its updates, or the arms did not
sample as many tokens.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from cost_parts import layers, table, training
from cost_parts.meter import Meter
from cost_parts.statistics import Interval

WARM_UP = 2  # updates at the start of a run that do not count
TARGET = 0.02
STEP = "timing_s/step"


@dataclass(frozen=True)
class Timed:
    """Updates of one run after its warm-up.

    Attributes:
        steps: seconds of each.
        cpu: seconds of all processors over all of them.
        tokens: sampled in each.
        load: load average of the machine when the run ended.
    """

    steps: list[float]
    cpu: float
    tokens: list[float]
    load: float

    @classmethod
    def of(cls, rows: Sequence[dict[str, float]], cpu: Sequence[float]) -> Timed:
        tokens = [row["response_length/mean"] for row in rows]
        taken = sum(after - before for before, after in pairwise(cpu[WARM_UP - 1 :]))
        return cls([row[STEP] for row in rows[WARM_UP:]], taken, tokens[WARM_UP:], os.getloadavg()[0])


def nested_ratio(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], seed: int) -> Interval:
    """Ratio of median step times, median over the pairs of runs; interval by drawing pairs, then steps within each."""
    rng, draws = random.Random(f"pairs {seed}"), 4000

    def ratio(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
        return statistics.median(statistics.median(a) / statistics.median(b) for a, b in pairs)

    pairs = list(zip(ours, theirs, strict=True))
    drawn = sorted(
        ratio([(rng.choices(a, k=len(a)), rng.choices(b, k=len(b))) for a, b in rng.choices(pairs, k=len(pairs))])
        for _ in range(draws)
    )
    return Interval(ratio(pairs), drawn[int(0.025 * draws)], drawn[int(0.975 * draws) - 1])


@dataclass(frozen=True)
class Findings:
    """Runs of both arms, and the time inside the plugin.

    Attributes:
        inside: by process, seconds in the plugin's functions.
        counted: seconds of all updates those were counted in.
    """

    stock: list[Timed]
    ours: list[Timed]
    inside: dict[str, float]
    counted: float

    @property
    def broken(self) -> list[str]:
        runs = [*self.stock, *self.ours]
        faults = []
        if len({len(run.steps) for run in runs}) != 1 or not runs[0].steps:
            faults.append("the runs made different numbers of updates")
        means = [statistics.mean(run.tokens) for run in runs if run.tokens]
        if max(means) > 1.02 * min(means):
            faults.append(f"the runs sampled different numbers of tokens: {means}")
        return faults


def measure(folder: Path, pairs: int, updates: int) -> Findings:
    common = training.prepare(folder) | {"trainer.total_training_steps": updates}

    def run(name: str, overrides: dict[str, Any], environment: dict[str, str] | None = None) -> tuple[Timed, float]:
        with Meter(folder / name / "metrics.jsonl") as meter:
            done = training.run(folder / name, common | overrides, environment=environment)
        assert len(done.rows) == updates, f"{len(done.rows)} of {updates} updates"
        return Timed.of(done.rows, meter.seconds), sum(row[STEP] for row in done.rows[:-1])

    stock, ours = [], []
    arms: list[tuple[str, dict[str, Any], list[Timed]]] = [
        ("stock", training.stock() | training.sampler("quick", "Quick"), stock),
        ("ours", {}, ours),
    ]
    for number in range(pairs):
        for name, overrides, found in arms if number % 2 == 0 else arms[::-1]:
            found.append(run(f"{name}-{number}", overrides)[0])
    counts = folder / "counts"
    counts.mkdir()
    _, counted = run("counted", training.watched(folder), {layers.FOLDER: str(counts)})
    inside = {process: layers.collect(counts, process)["plugin"] for process in ("trainer", "worker")}
    return Findings(stock, ours, inside, counted)


def lines(findings: Findings, seed: int = 0) -> list[str]:
    rows = []
    for number, (theirs, ours) in enumerate(zip(findings.stock, findings.ours, strict=True), 1):
        rows.append(
            [
                f"pair {number}",
                f"{statistics.median(theirs.steps):.2f}",
                f"{statistics.median(ours.steps):.2f}",
                f"{statistics.median(ours.steps) / statistics.median(theirs.steps):.3f}",
                f"{theirs.cpu / len(theirs.steps):.2f}",
                f"{ours.cpu / len(ours.steps):.2f}",
                f"{ours.cpu / theirs.cpu:.3f}",
                f"{theirs.load:.1f}, {ours.load:.1f}",
            ]
        )
    head = ["", "stock s/update", "grpo preset", "ratio", "stock CPU s/update", "grpo preset", "ratio", "load after"]
    wall = nested_ratio([r.steps for r in findings.ours], [r.steps for r in findings.stock], seed)
    cpu = [ours.cpu / theirs.cpu for ours, theirs in zip(findings.ours, findings.stock, strict=True)]
    shares = ", ".join(f"{name} {seconds / findings.counted:.2%}" for name, seconds in findings.inside.items())
    return [
        *table.columns(head, rows),
        "",
        f"step time, ratio: {wall} (95 %, pairs and steps drawn); CPU time, ratio: {statistics.median(cpu):.3f} "
        f"({min(cpu):.3f}-{max(cpu):.3f})",
        f"inside the plugin's functions / step time, in a run of its own: {shares}; target: {TARGET:.0%}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--updates", type=int, default=10, help=f"of each run; the first {WARM_UP} do not count")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        findings = measure(Path(folder), arguments.pairs, arguments.updates)
    title = (
        f"Preset grpo against stock verl, random model of two layers: {arguments.pairs} pairs of runs of {arguments.updates} "
        f"updates ({WARM_UP} to warm up), {training.PROMPTS} x {training.SESSIONS} responses of {training.RESPONSE} tokens"
    )
    table.publish("off_cost", title, lines(findings))
    for fault in findings.broken:
        print(f"broken: {fault}", file=sys.stderr)
    return bool(findings.broken)


if __name__ == "__main__":
    sys.exit(main())

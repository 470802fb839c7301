"""What of a small model's update is waiting: for the next look into the queue, for other processes, for padding?

Runs the quickstart recipe on its model with counters in the trainer, the rollout worker and the training engine
(:mod:`cost_parts.watched`, :mod:`cost_parts.padded`), once for each way to configure it:

- ``verl's pause``: 2 s between two looks into the queue, as verl ships it;
- ``as shipped``: 0.2 s, which the plugin's trainer sets, and micro-batches as in the recipe;
- ``rows alone``: micro-batches of one row, in which nothing is padded.

    python benchmarks/waiting.py --updates 3
    python benchmarks/waiting.py --updates 4 --tiny

Writes the printed table to benchmarks/results/waiting.txt. Exit code 1 if a run did not make its updates, or rows alone are padded.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost_parts import layers, table, training

MODEL = table.ROOT / ".cache" / "smollm2-135m-instruct"
TINY = table.ROOT / ".cache" / "tiny-llama"
ROWS_ALONE: dict[str, Any] = {
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 1,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 1,
}
ARMS: dict[str, dict[str, Any]] = {
    "verl's pause": training.sampler("watched", "Paused"),
    "as shipped": training.sampler("watched", "Counted"),
    "rows alone": training.sampler("watched", "Counted") | ROWS_ALONE,
}
PARTS = ("gen", "old_log_prob", "adv", "update_actor", "update_weights")


@dataclass(frozen=True)
class Waiting:
    """One run.

    Attributes:
        rows: metrics of its updates.
        late: seconds from the last session's end to the look that found it, by update.
        engine: seconds inside the training engine, log-probs and updates.
        real: tokens of the rows given to the engine.
        computed: tokens it computed, padding included.
    """

    rows: list[dict[str, float]]
    late: list[float]
    engine: float
    real: int
    computed: int

    @classmethod
    def read(cls, metrics: Path, counts: Path) -> Waiting:
        rows = [json.loads(line)["data"] for line in metrics.read_text().splitlines()]
        counted: Counter[str] = Counter()
        for path in counts.glob("engine-*.json"):
            counted.update(json.loads(path.read_text())["calls"])
        engine = layers.collect(counts, "engine")["engine"]
        late = lateness(layers.stamps(counts, layers.LOOKED), layers.stamps(counts, layers.PUBLISHED))
        return cls(
            [row for row in rows if "timing_s/step" in row],
            late,
            engine,
            counted["real tokens"],
            counted["computed tokens"],
        )

    def seconds(self, part: str) -> float:
        """Mean over the updates."""
        return statistics.mean(row.get(f"timing_s/{part}", 0.0) for row in self.rows)

    @property
    def padding(self) -> float:
        """Share of the engine's tokens that are padding."""
        return 1 - self.real / self.computed if self.computed else 0.0


def lateness(looked: Sequence[float], published: Sequence[float]) -> list[float]:
    """From the last session published before each batch was found to that moment, seconds."""
    last = [bisect_right(published, moment) for moment in looked]
    return [moment - published[i - 1] for moment, i in zip(looked, last, strict=True) if i]


def run(folder: Path, model: Path, updates: int, overrides: dict[str, Any]) -> Waiting:
    """One run of the quickstart, in a process of its own.

    Raises:
        RuntimeError: it made no metrics.
    """
    out, counts = folder / "run", folder / "counts"
    counts.mkdir(parents=True)
    watched = training.watched_loops(folder) | {"actor_rollout_ref.model.external_lib": "cost_parts.padded"}
    command = [sys.executable, str(table.ROOT / "scripts" / "quickstart.py"), "--model", str(model), "--out", str(out)]
    command += ["--updates", str(updates), *(f"{key}={value}" for key, value in {**watched, **overrides}.items())]
    environment = {**os.environ, "PYTHONPATH": str(table.ROOT / "benchmarks"), layers.FOLDER: str(counts)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if not (out / "metrics.jsonl").is_file():
        raise RuntimeError(f"no metrics: {done.stdout[-500:]}{done.stderr[-2000:]}")
    return Waiting.read(out / "metrics.jsonl", counts)


def broken(found: dict[str, Waiting], updates: int) -> list[str]:
    """What must hold and does not."""
    faults = [f"{arm}: {len(run.rows)} of {updates} updates" for arm, run in found.items() if len(run.rows) != updates]
    alone = found.get("rows alone")
    if alone is not None and alone.real != alone.computed:
        faults.append("rows alone: something was padded")
    return faults


def lines(found: dict[str, Waiting]) -> list[str]:
    head = ["seconds per update", *found]
    runs = list(found.values())

    def row(name: str, values: Sequence[float]) -> list[str]:
        return [name, *(f"{value:.2f}" for value in values)]

    updates = [len(run.rows) for run in runs]
    computing = [run.engine / n for run, n in zip(runs, updates, strict=True)]
    around = [
        run.seconds("old_log_prob") + run.seconds("update_actor") - inside
        for run, inside in zip(runs, computing, strict=True)
    ]
    late = [statistics.mean(run.late) if run.late else 0.0 for run in runs]
    step = [run.seconds("step") for run in runs]
    rows = [
        row("update", step),
        *(row(f"  {part}", [run.seconds(part) for run in runs]) for part in PARTS),
        row("in gen: last session ended -> batch found", late),
        row("in old_log_prob and update_actor: the engine", computing),
        row("in old_log_prob and update_actor: around it", around),
        ["share of waiting (the found late, around the engine)"]
        + [f"{(a + b) / c:.1%}" for a, b, c in zip(late, around, step, strict=True)],
        ["padding, share of the engine's tokens", *(f"{run.padding:.1%}" for run in runs)],
        [
            "tokens computed / engine second",
            *(f"{run.computed / run.engine:.0f}" if run.engine else "-" for run in runs),
        ],
        ["row tokens / engine second", *(f"{run.real / run.engine:.0f}" if run.engine else "-" for run in runs)],
    ]
    return table.columns(head, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument(
        "--tiny", action="store_true", help="two random layers, whose responses hardly ever end by themselves: minutes"
    )
    arguments = parser.parse_args()
    model = TINY if arguments.tiny else MODEL
    command = [sys.executable, str(table.ROOT / "scripts" / "prepare_model.py"), str(model)]
    subprocess.run(command + ["--tiny"] * arguments.tiny, check=True, stdout=subprocess.DEVNULL)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (arm, overrides) in enumerate(ARMS.items()):
            found[arm] = run(Path(folder) / str(number), model, arguments.updates, overrides)
    title = f"Waiting in the quickstart ({model.name}), mean of {arguments.updates} updates, one run an arm, seed 0"
    table.publish("waiting", title, lines(found))
    faults = broken(found, arguments.updates)
    for fault in faults:
        print(f"broken: {fault}", file=sys.stderr)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())

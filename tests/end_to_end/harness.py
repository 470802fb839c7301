"""Runs the stock entry ``verl.trainer.main_ppo`` in a process group of its own and hands back what it logged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOG_TAIL = 60
KILLED = "killed"

#: what every test run changes in a recipe: a few short trajectories, no validation, metrics to a file
SMALL = {
    "data.train_batch_size": 4,
    "data.val_max_samples": 4,
    "data.max_prompt_length": 128,
    "data.max_response_length": 24,
    "actor_rollout_ref.rollout.n": 4,
    "actor_rollout_ref.rollout.max_model_len": 160,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
    "trainer.logger": "[console,file]",
    "trainer.val_before_train": "false",
    "trainer.test_freq": -1,
    "trainer.save_freq": -1,
    "trainer.resume_mode": "disable",
    "+ray_kwargs.ray_init.address": "local",
}


@dataclass(frozen=True)
class Run:
    """One finished run: ``rows[i]`` are the metrics logged at the i-th step."""

    rows: list[dict[str, float]]
    log: Path
    seconds: float
    returncode: int

    @property
    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_TAIL:])


def train(
    folder: Path,
    overrides: dict[str, object],
    recipe: str = "grpo",
    timeout: float = 1200,
    environment: dict[str, str] | None = None,
    check: bool = True,
    kill_when: Callable[[], bool] | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> Run:
    """Run ``recipe`` on the CPU platform inside ``folder``; modules of this folder can be imported in the run.

    Args:
        overrides: Hydra overrides on top of :data:`SMALL`; a key prefixed with ``+`` replaces the one without.
        check: fail with the tail of the log unless the run ends with code 0 (or is killed as asked).
        kill_when: asked every half second; once true, the whole process group is killed without warning.
        meanwhile: called every half second while the run lives.
    """
    merged = {key: value for key, value in SMALL.items() if key.lstrip("+") not in {k.lstrip("+") for k in overrides}}
    merged |= overrides
    command = [sys.executable, "-m", "verl.trainer.main_ppo", "--config-dir", str(ROOT / "recipes")]
    command += ["--config-name", recipe, "+platform=cpu"]
    command += [f"{key}={value}" for key, value in merged.items()]
    folder.mkdir(parents=True, exist_ok=True)
    metrics, log = folder / "metrics.jsonl", folder / "log.txt"
    variables = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    variables |= {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "VERL_PLATFORM": "cpu",
        "VERL_FILE_LOGGER_PATH": str(metrics),
        "HF_HUB_OFFLINE": "1",
        "RAY_worker_niceness": "0",  # Ray gives way to every other process otherwise
        "HYDRA_FULL_ERROR": "1",
        "RAY_DEDUP_LOGS": "0",
        **(environment or {}),
    }
    began = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            why = wait(process, timeout, kill_when, meanwhile)
        finally:
            stop(process)
    rows = [json.loads(line)["data"] for line in read_lines(metrics)]
    run = Run(rows, log, time.monotonic() - began, process.returncode)
    if check and why != ("exit code 0" if kill_when is None else KILLED):
        raise AssertionError(f"{why} after {len(rows)} steps, log {log}:\n{run.tail}")
    return run


def write_sums(target: Path, below: int) -> None:
    """A parquet file of all sums of two numbers under ``below``."""
    import pandas

    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"What is {left} + {right}?"}],
            "reward_model": {"style": "rule", "ground_truth": str(left + right)},
            "extra_info": {"index": below * left + right},
        }
        for left in range(below)
        for right in range(below)
    ]
    pandas.DataFrame(rows).to_parquet(target)


def wait(
    process: subprocess.Popen,
    timeout: float,
    kill_when: Callable[[], bool] | None,
    meanwhile: Callable[[], object],
) -> str:
    """Wait for the end of a run, or bring it about; says which."""
    until = time.monotonic() + timeout
    while process.poll() is None:
        meanwhile()
        if kill_when is not None and kill_when():
            os.killpg(process.pid, signal.SIGKILL)
            return KILLED
        if time.monotonic() > until:
            return f"still running after {timeout:.0f} s"
        time.sleep(0.5)
    return f"exit code {process.returncode}"


def stop(process: subprocess.Popen) -> None:
    """End the trainer and what it started: Ray keeps its daemons in the session of the driver."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        time.sleep(0.5)
    process.wait()


def read_lines(path: Path) -> Iterable[str]:
    return path.read_text().splitlines() if path.is_file() else []

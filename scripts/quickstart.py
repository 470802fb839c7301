"""Train the quickstart recipe with a progress bar and print what happened. Run by ``scripts/quickstart.sh``."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pandas
from tqdm import tqdm

from verl_mintrl.tasks import arithmetic
from verl_mintrl.trajectory.record import read_jsonl

ROOT = Path(__file__).resolve().parents[1]
#: text in the training log -> what it means; shown while there is no update to count yet
STAGES = (
    ("ray init kwargs", "starting Ray"),
    ("dataset len", "loading data"),
    ("actor and ref model engine initialized", "training engine ready, starting vLLM"),
    ("checkpoint engine manager initialized", "vLLM ready"),
    ("Training Progress", "sampling and updating"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="quickstart", help="name of a recipe in recipes/")
    parser.add_argument("--model", type=Path, default=ROOT / ".cache" / "smollm2-135m-instruct")
    parser.add_argument("--out", type=Path, help="default: runs/<recipe>; an earlier run there is replaced")
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument(
        "overrides", nargs="*", help="further Hydra overrides, e.g. intervention.only_if_control_fails=false"
    )
    args = parser.parse_args()
    if not (args.model / "config.json").is_file():
        sys.exit(f"quickstart: no model at {args.model}; run scripts/quickstart.sh, which prepares it.")
    out = (args.out or ROOT / "runs" / args.recipe).resolve()
    if out.exists() and any(out.iterdir()) and not (out / "train.log").is_file():
        sys.exit(f"quickstart: {out} is not empty and holds no earlier run (no train.log); name another --out.")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the training is ended too
    for name, size, seed in (("train", 128, 0), ("val", 16, 1_000_000)):
        pandas.DataFrame(arithmetic.rows(size, seed)).to_parquet(out / f"{name}.parquet")
    started = time.monotonic()
    code = train(args, out)
    if code:
        print((out / "train.log").read_text(errors="replace")[-4000:], file=sys.stderr)
        sys.exit(f"quickstart: training ended with exit code {code}; the whole log is {out / 'train.log'}")
    sys.exit(summarise(out, args.updates, time.monotonic() - started))


def train(args: argparse.Namespace, out: Path) -> int:
    """Run the stock entry of verl; returns its exit code."""
    settings = {
        "actor_rollout_ref.model.path": args.model.resolve(),
        "data.train_files": out / "train.parquet",
        "data.val_files": out / "val.parquet",
        "trainer.default_local_dir": out / "checkpoint",
        "trainer.rollout_data_dir": out / "rollouts",
        "trainer.total_training_steps": args.updates,
        "trainer.save_freq": args.updates,
        "hydra.run.dir": out / "hydra",
        "+ray_kwargs.ray_init.address": "local",
    }
    command = [sys.executable, "-m", "verl.trainer.main_ppo", "--config-dir", str(ROOT / "recipes")]
    command += ["--config-name", args.recipe, *(f"{k}={v}" for k, v in settings.items()), *args.overrides]
    environment = {
        **{k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"},
        "VERL_PLATFORM": "cpu",
        "VERL_FILE_LOGGER_PATH": str(out / "metrics.jsonl"),
        "HF_HUB_OFFLINE": "1",
        "RAY_worker_niceness": "0",  # Ray gives way to every other process otherwise
    }
    with (out / "train.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=out, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            watch(process, out, args.updates)
        finally:
            stop(process)
    return process.returncode


def watch(process: subprocess.Popen, out: Path, updates: int) -> None:
    """Draw the progress bar until the process ends."""
    with tqdm(
        total=updates, desc="quickstart", unit="update", bar_format="{l_bar}{bar}| {n}/{total} [{elapsed}] {postfix}"
    ) as bar:
        shown = ""
        while True:
            ended = process.poll() is not None
            rows = metrics(out)
            if len(rows) > bar.n:
                bar.n = len(rows)
                last = rows[-1]
                bar.set_postfix_str(
                    f"intervened {last['intervention/sessions_intervened']:.0f}, "
                    f"control success {last.get('intervention/success_control', math.nan):.2f}",
                    refresh=False,
                )
            elif not rows:
                log = (out / "train.log").read_text(errors="replace")
                bar.set_postfix_str(
                    next((name for text, name in reversed(STAGES) if text in log), "starting"), refresh=False
                )
            if (
                sys.stderr.isatty() or bar.postfix != shown or ended
            ):  # a log file gets a line per change, not per second
                bar.refresh()
                shown = bar.postfix
            if ended:
                return
            time.sleep(1)


def stop(process: subprocess.Popen) -> None:
    """End the training and the Ray processes it started, which live in its process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        time.sleep(0.5)
    process.wait()


def metrics(out: Path) -> list[dict[str, float]]:
    path = out / "metrics.jsonl"
    rows = [json.loads(line)["data"] for line in path.read_text().splitlines() if line] if path.is_file() else []
    return [row for row in rows if "training/global_step" in row]


def summarise(out: Path, updates: int, seconds: float) -> int:
    """Print the summary table and the last line; returns the exit code."""
    rows = metrics(out)
    sessions = [
        row
        for step in range(1, len(rows) + 1)
        for row in read_jsonl(out / "rollouts" / "trajectories" / f"{step}.jsonl")
    ]
    authors = Counter(author for row in sessions for author in row["authors"])
    intervened = sum(any(review["inserted"] for review in row["reviews"]) for row in sessions)
    share = authors[2] / max(1, sum(authors.values()))
    losses = [row["actor/pg_loss"] for row in rows]
    columns = [
        ("update", "training/global_step", "{:.0f}"),
        ("intervened", "intervention/sessions_intervened", "{:.0f}"),
        ("gated off", "intervention/sessions_gated_off", "{:.0f}"),
        ("inserted share", "intervention/inserted_token_share", "{:.3f}"),
        ("success control", "intervention/success_control", "{:.3f}"),
        ("success treated", "intervention/success_treated", "{:.3f}"),
        ("rescue gain", "intervention/rescue_gain", "{:+.3f}"),
        ("loss", "actor/pg_loss", "{:.4f}"),
        ("grad norm", "actor/grad_norm", "{:.3f}"),
        ("sample s", "timing_s/gen", "{:.1f}"),
        ("update s", "timing_s/update_actor", "{:.1f}"),
        ("step s", "timing_s/step", "{:.1f}"),
    ]
    table = [[name for name, _, _ in columns]]
    table += [[form.format(row[key]) if row.get(key) is not None else "-" for _, key, form in columns] for row in rows]
    widths = [max(len(line[i]) for line in table) for i in range(len(columns))]
    print()
    for line in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    weighted = [
        (sum(r["role"] != "control" for r in sessions if r["step"] == s + 1), row) for s, row in enumerate(rows)
    ]
    gains = [
        (n, row["intervention/rescue_gain"]) for n, row in weighted if row.get("intervention/rescue_gain") is not None
    ]
    gain = sum(n * g for n, g in gains) / max(1, sum(n for n, _ in gains))
    print(
        f"\n{len(sessions)} sessions, {sum(len(r['reviews']) for r in sessions)} reviews, {seconds:.0f} s in all; see {out}\n"
    )
    problem = ""
    if len(rows) != updates:
        problem = f"{len(rows)} of {updates} updates were made"
    elif not all(map(math.isfinite, losses)):
        problem = f"a loss is not finite: {losses}"
    elif not intervened:
        problem = "no session was intervened on"
    state = f"failed ({problem})" if problem else "ok"
    print(
        f"quickstart: {state} updates={len(rows)} intervened={intervened} inserted_share={share:.4f} rescue_gain={gain:+.4f}"
    )
    return int(bool(problem))


if __name__ == "__main__":
    main()

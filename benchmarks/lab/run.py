"""Run the laboratory: do the claims about correcting a policy inside its rollouts hold, for a tiny policy on a CPU?

    python benchmarks/lab/run.py --suite quick          # claim 1, two arms, one seed; minutes
    python benchmarks/lab/run.py --suite full --jobs 2   # hours; started again it goes on where it was

Every run is a file ``<out>/runs/<arm>-<seed>.jsonl``; the table and the figures are made from what is there. The policy is
pretrained first where it is not cached.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from lab.results import KEPT, Refused, Results

if TYPE_CHECKING:
    from lab.loop import Experiment

ROOT = Path(__file__).resolve().parents[2]
_PR_SET_PDEATHSIG = 1  # of Linux
_Result = dict[str, Any]  # last row of a run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--suite", choices=("quick", "full"), default="quick")
    parser.add_argument("--out", type=Path, help="default: .cache/lab/<suite>")
    parser.add_argument(
        "--jobs", type=positive, default=min(2, os.cpu_count() or 1), help="runs at once, one thread each"
    )
    parser.add_argument("--arms", nargs="+", help="only these")
    parser.add_argument("--seeds", type=int, nargs="+", help="only these")
    parser.add_argument("--report-only", action="store_true", help="run nothing, only make table and figures")
    parser.add_argument(
        "--results",
        type=Path,
        help="where table, figures and runs.jsonl go; runs that are in its runs.jsonl are not run again. Default: <out>",
    )
    args = parser.parse_args()
    for name in ("out", "results"):
        path = getattr(args, name)
        if path is not None and path.exists() and not path.is_dir():
            parser.error(f"--{name} {path} is no folder")
    if args.results and args.suite == "quick":
        parser.error("--results is for the suite full: the table of two arms would stand in place of the whole one")
    from lab.suites import suite

    experiments = suite(args.suite)
    for name, chosen_by, known in (
        ("arms", args.arms, {e.arm for e in experiments}),
        ("seeds", args.seeds, {e.seed for e in experiments}),
    ):
        if unknown := sorted(set(chosen_by or ()) - known):
            parser.error(f"--{name} {unknown} are not in the suite {args.suite}, which has {sorted(known)}")
    out = args.out or ROOT / ".cache" / "lab" / args.suite
    try:
        with nullcontext() if args.report_only else _alone(out):  # one may look at what there is so far
            work(args, experiments, out)
    except KeyboardInterrupt:
        sys.exit("lab: interrupted; started again it goes on with the runs that are not finished")
    except (OSError, Refused) as error:
        sys.exit(f"lab: {error}")


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Two of us would make the same runs twice.

    Raises:
        Refused: another one is at work in this folder.
    """
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(f"another run of the laboratory is at work in {out}; wait for it or give --out") from None
        yield


def work(args: argparse.Namespace, experiments: Sequence[Experiment], out: Path) -> None:
    """Make the runs that are missing, then table and figures.

    Raises:
        Refused: there is nothing to report, all runs began with another policy, or a file of kept runs is damaged.
    """
    from lab.pretrain import POLICY, cached, policy_path
    from lab.report import KEPT_VERL, write_report

    started = time.monotonic()
    target, name = args.results or out, cached("policy", POLICY).name
    wanted = [as_json(e) for e in experiments]

    def finished() -> Results:
        found = Results.load(out / "runs", target / KEPT)
        counting = found.only(wanted, name)
        if others := len(found) - len(counting):
            print(
                f"lab: {others} runs are of other arms, configurations or policies than this suite's, and do not count"
            )
        if len(found) and name not in found.policies:
            began = ", ".join(sorted(found.policies))
            raise Refused(
                f"none of {len(found)} runs counts: they began with {began}, and this code makes {name}; undo the change of its "
                "sources (tasks.py, corpus.py, tokenizer.py, pretrain.py), or give --out and --results new folders"
            )
        return counting

    failed: list[str] = []
    before = finished()
    if not args.report_only:
        policy = policy_path()
        chosen = [
            e
            for e in experiments
            if (not args.arms or e.arm in args.arms)
            and (not args.seeds or e.seed in args.seeds)
            and not before.has(as_json(e))
        ]
        print(f"lab: {len(before)} of {len(experiments)} runs are there, {len(chosen)} follow", flush=True)
        failed = execute(chosen, policy, out / "runs", args.jobs)
    results = finished()
    if not len(results) and not failed:
        raise Refused(f"no runs of the suite {args.suite} in {out / 'runs'} or {target / KEPT}: nothing to report")
    if len(results):
        verl = Results.load(ROOT / ".cache" / "lab" / "verl", target / KEPT_VERL).only(wanted, name, any_length=True)
        print(write_report(results, target, args.suite, verl))
    if failed:
        sys.exit(
            f"lab: {len(failed)} runs failed, the reasons are above: {' '.join(failed)}. Where the policy cannot be loaded, delete "
            f"{policy_path()}: it is made again."
        )
    print(f"lab: ok suite={args.suite} runs={len(results)} {time.monotonic() - started:.0f} s")


def positive(text: str) -> int:
    """A type of argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 1")
    return int(text)


def execute(experiments: Sequence[Experiment], policy: Path, out: Path, jobs: int) -> list[str]:
    """Run them; a file of another configuration under the same name is replaced. Returns the names of those that failed."""
    failed: list[str] = []
    if not experiments:
        return failed
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_quiet) as pool:
        running = {pool.submit(_run, e, policy, out): e for e in experiments}
        for number, done in enumerate(_until_interrupted(running), 1):
            name, error = running[done].name, done.exception()
            if error is not None:
                print(f"lab: {name} failed: {type(error).__name__}: {error}", flush=True)
                failed.append(name)
                continue
            last = done.result()
            print(
                f"lab: {number}/{len(experiments)} {name:<28} success {last['val/success']:.3f} "
                f"steps right {last['val/step_accuracy']:.3f} in {last['seconds']:.0f} s",
                flush=True,
            )
    return failed


def _until_interrupted(running: Collection[Future[_Result]]) -> Iterator[Future[_Result]]:
    """Those that are done, as they are; workers do not hear the interruption themselves and are ended."""
    try:
        yield from as_completed(running)
    except KeyboardInterrupt:
        for future in running:
            future.cancel()
        for worker in multiprocessing.active_children():
            worker.kill()
        raise


def as_json(experiment: Experiment) -> dict[str, Any]:
    """An experiment as it is read back from the file of its run."""
    return json.loads(json.dumps(asdict(experiment)))


def _quiet() -> None:
    ctypes.CDLL(None).prctl(
        _PR_SET_PDEATHSIG, signal.SIGKILL
    )  # who started this may be killed: nobody would end it then
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    import logging

    import torch
    import transformers

    torch.set_num_threads(1)  # runs side by side are faster, and only one thread rounds the same way every time
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("verl_mintrl").setLevel(logging.ERROR)


def _run(experiment: Experiment, policy: Path, out: Path) -> dict[str, Any]:
    from lab.loop import run

    started = time.monotonic()
    lines = run(experiment, policy, out).read_text().splitlines()
    return {**json.loads(lines[-1]), "seconds": time.monotonic() - started}


if __name__ == "__main__":
    main()

"""Tier 1: an arm of the laboratory through real verl (Ray, FSDP2, vLLM), with the numbers tier 2 reports.

    python benchmarks/lab/verl_arm.py gated_hard_insertions_8 --updates 20

Same policy, problems, optimiser and configuration as ``run.py``; the order of the problems and the random numbers are verl's.
Writes ``<out>/<arm>-<seed>.jsonl`` in the format of ``run.py``, so that both tiers can be read by the same code. Not for arms
with a hint as judge or as the context of steering weights, a baseline of the laboratory's own, or a warm-up: those are tier 2 only,
and ``rti_unweighted`` and ``vcv_unweighted`` stand for their presets. The start is that of ``scripts/quickstart.py``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import pandas

from lab import tasks
from lab.arms import ARMS
from lab.evaluate import PROBLEM_SEED
from lab.loop import Experiment, commit
from lab.pretrain import policy_path
from lab.run import as_json, positive
from lab.settings import COMMON, ROOT, settings
from lab.suites import experiment
from verl_mintrl.trajectory.record import write_jsonl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("arm", choices=sorted(ARMS), metavar="arm", help="of arms.py")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=positive, help="default: as many as in tier 2")
    parser.add_argument("--out", type=Path, default=ROOT / ".cache" / "lab" / "verl")
    args = parser.parse_args()
    if args.out.exists() and not args.out.is_dir():
        parser.error(f"--out {args.out} is no folder")
    arm = ARMS[args.arm]
    chosen = experiment(args.arm, args.seed)
    steered = settings(arm.preset, chosen.overrides, prompts=8, n=8).intervention.token_weights.mode == "steering"
    if arm.corrector == "hint" or arm.baseline or chosen.warm_up or steered:
        # the prompts of the package are in English words, which this policy cannot read and which do not fit into its context
        sys.exit(
            f"lab: {args.arm} runs in tier 2 only (hint, steering weights, baseline of the laboratory, or warm-up)."
        )
    chosen = replace(chosen, updates=args.updates or chosen.updates)
    folder = args.out / f"{chosen.name}.run"
    folder.mkdir(parents=True, exist_ok=True)
    quickstart = _quickstart()
    for name, problems in (
        ("train", tasks.make_split(chosen.split, chosen.pool, 0)),
        ("val", tasks.make_split("validation", chosen.examination.problems, PROBLEM_SEED)),
    ):
        pandas.DataFrame(tasks.rows(problems, name)).to_parquet(folder / f"{name}.parquet")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    run = SimpleNamespace(recipe="grpo", model=policy_path(), updates=chosen.updates, overrides=list(overrides(chosen)))
    if code := quickstart.train(run, folder.resolve()):
        print((folder / "train.log").read_text(errors="replace")[-4000:], file=sys.stderr)
        sys.exit(f"lab: verl ended with exit code {code}; the whole log is {folder / 'train.log'}")
    rows = list(read(folder / "metrics.jsonl"))
    write_jsonl(
        args.out / f"{chosen.name}.jsonl",
        [
            {
                "experiment": as_json(chosen),
                "policy": policy_path().name,
                "commit": commit(),
            },
            *rows,
        ],
    )
    last = [row for row in rows if "val/success" in row][-1]
    print(f"lab: ok {chosen.name} through verl, {chosen.updates} updates, success {last['val/success']:.3f}")


def overrides(chosen: Experiment) -> Iterator[str]:
    """Hydra overrides of a run under verl."""
    arm, optimisation = ARMS[chosen.arm], chosen.optimisation
    values: dict[str, Any] = {
        **{key: value for key, value in COMMON.items() if "_files" not in key and "model.path" not in key},
        **arm.configuration("lab.correctors"),
        "data.train_batch_size": chosen.prompts,
        "data.val_batch_size": chosen.examination.problems,
        "data.seed": chosen.seed,
        "actor_rollout_ref.rollout.n": chosen.n,
        "actor_rollout_ref.rollout.seed": chosen.seed,
        "actor_rollout_ref.rollout.val_kwargs.n": chosen.examination.attempts,
        "actor_rollout_ref.rollout.val_kwargs.temperature": 1.0,
        "actor_rollout_ref.rollout.val_kwargs.top_p": 1.0,
        "actor_rollout_ref.actor.ppo_mini_batch_size": chosen.prompts // optimisation.mini_batches,
        "actor_rollout_ref.actor.optim.lr": optimisation.lr,
        "actor_rollout_ref.actor.optim.lr_warmup_steps": optimisation.warmup,  # in updates, as verl steps its schedule
        "actor_rollout_ref.actor.optim.weight_decay": optimisation.weight_decay,
        "actor_rollout_ref.actor.grad_clip": optimisation.grad_clip,
        "reward.custom_reward_function.path": "pkg://lab.tasks",
        "reward.custom_reward_function.name": "compute_score",
        "trainer.logger": "[file]",
        "trainer.total_epochs": 1000,
        "trainer.val_before_train": True,
        "trainer.test_freq": chosen.validate_every,
        "trainer.save_freq": -1,
    }
    yield "+platform=cpu"
    yield f"intervention={arm.preset}"
    for key, value in values.items():
        yield f"{key}={'null' if value is None else value}"


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Rows as tier 2 writes them: one per update, the first before any."""
    for line in path.read_text().splitlines():
        data = json.loads(line)["data"]
        row = {"update": int(data.get("training/global_step", 0)), **data}
        success = [value for name, value in data.items() if name.startswith("val-core/") and "/mean@" in name]
        if success:
            row["val/success"] = success[0]
        yield row


def _quickstart() -> ModuleType:
    """``scripts/quickstart.py``, which starts and ends verl."""
    spec = importlib.util.spec_from_file_location("quickstart", ROOT / "scripts" / "quickstart.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()

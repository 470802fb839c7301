"""One run of reinforcement learning in process (tier 2), from an :class:`Experiment` to a file of metrics.

Tier 2 differs from a run under verl in two places only: :mod:`lab.engine` samples instead of vLLM, and :mod:`lab.learner` steps the
optimiser instead of verl's actor. The same experiment under the same seed writes the same numbers, apart from times.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lab import tasks
from lab.baselines import BASELINES, Baseline
from lab.engine import Engine
from lab.evaluate import Examination, solved_share
from lab.learner import Learner, Optimisation
from lab.rollout import Sample, Sampler, pieces
from lab.settings import Settings, settings
from verl_mintrl.bookkeeping import keep_books
from verl_mintrl.trajectory.record import Outcome, Role, write_jsonl


@dataclass(frozen=True)
class Experiment:
    """One run.

    Attributes:
        arm: name in tables.
        preset: of ``verl_mintrl/config/intervention``.
        overrides: of the composed configuration.
        self_judged: the policy with a hint is the judge.
        baseline: key of ``lab.baselines.BASELINES``; empty for the presets.
        updates, prompts, n: optimiser updates of ``prompts`` groups of ``n`` sessions each.
        pool: different training problems; small enough that each is seen several times.
        split: they are taken from.
        validate_every: updates between two looks at ``validation``; on the other splits the policy is examined before the first
            update and after the last.
        warm_up: updates of plain GRPO before the arm begins, for a stronger policy; on problems of ``warm_up_split``.
    """

    arm: str
    seed: int
    preset: str = "grpo"
    overrides: dict[str, Any] = field(default_factory=dict)
    self_judged: bool = False
    baseline: str = ""
    updates: int = 40
    prompts: int = 8
    n: int = 8
    pool: int = 192
    split: str = "train"
    validate_every: int = 10
    optimisation: Optimisation = field(default_factory=Optimisation)
    examination: Examination = field(default_factory=Examination)
    warm_up: int = 0
    warm_up_split: str = "train"

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.arm}-{self.seed}"


def run(
    experiment: Experiment, policy: Path, out: Path, *, on_update: Callable[[dict], None] = lambda row: None
) -> Path:
    """Run it and write ``out/<name>.jsonl``: a line that says what was run, then one per update.

    Args:
        policy: folder of the policy; ``policy.parent`` may hold the teacher that a baseline needs.
        on_update: told of every line as it is made.

    Returns:
        the file, which appears only when the run is complete.
    """
    torch.manual_seed(experiment.seed)
    rows: list[dict[str, Any]] = [{"experiment": asdict(experiment), "policy": policy.name, "commit": commit()}]
    for row in _updates(experiment, policy):
        rows.append(row)
        on_update(row)
    target = out / f"{experiment.name}.jsonl"
    write_jsonl(target, rows)
    return target


def _updates(experiment: Experiment, policy: Path) -> Iterator[dict[str, Any]]:
    e = experiment
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(policy)
    engine = Engine(model, [tokenizer.eos_token_id], pieces(tokenizer), max_model_len=256)
    chosen = _settings(e, e.preset, e.overrides)
    with closing(Sampler(engine, tokenizer, chosen.intervention, self_judged=e.self_judged)) as sampler:
        baseline = BASELINES[e.baseline](sampler, policy) if e.baseline else Baseline(sampler, policy)
        learner = Learner(
            model,
            chosen,
            e.optimisation,
            loss=baseline.loss,
            advantage=baseline.advantage,
            mark_authors=baseline.mark_authors,
        )
        pool = tasks.make_split(e.split, e.pool, seed=0)
        order = random.Random(e.seed)
        queue: list[tasks.Problem] = []
        solved: set[str] = set()
        if e.warm_up:
            _warm_up(e, model, engine, tokenizer)
        yield {"update": 0, **e.examination.everything(sampler)}
        for update in range(1, e.updates + 1):
            # time of this process alone, so that runs side by side and other work on the machine do not count
            started, calls = time.process_time(), engine.calls
            while len(queue) < e.prompts:
                queue += order.sample(pool, len(pool))
            problems, queue = queue[: e.prompts], queue[e.prompts :]
            samples = baseline.sample(problems, update, e.n)
            sampled = time.process_time()
            metrics = baseline.learn(learner, samples, update)
            engine.refresh()
            own = [reward for s in samples if (reward := own_reward(s)) is not None]
            alone = [s for s in samples if not s.record.intervened and not s.record.replaced]
            solved |= {s.problem.text for s in alone if s.reward > 0}
            row: dict[str, Any] = {
                "update": update,
                **metrics,
                "train/reward": float(np.mean([s.reward for s in samples])) if samples else None,
                "train/own_success": float(np.mean(own)) if own else None,
                "train/solved_share": solved_share(solved, pool),
                "train/tokens": sum(len(s.row.response_ids) for s in samples),
                "cpu/sample": sampled - started,
                "cpu/learn": time.process_time() - sampled,
                "engine/calls": engine.calls - calls,
            }
            if samples and any(s.record.triggered for s in samples):
                row["books"] = _books(samples)
            row |= early_answers(samples)
            if update == e.updates:
                row |= e.examination.everything(sampler)
            elif update % e.validate_every == 0:
                row |= e.examination.validation(sampler)
            yield row


def commit() -> str:
    """What is run, as git names it; ``-dirty`` where files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def own_reward(sample: Sample) -> float | None:
    """What the policy gets by itself; None where that is not known.

    Of sessions that a judge looks at, those it leaves alone would be a selection: it changes the wrong ones. Control sessions and
    what a walked session was before it tell.
    """
    record = sample.record
    if record.role == Role.TREATED:
        return None
    if record.replaced:
        return record.reward_before if record.triggered else None
    return sample.reward


def early_answers(samples: Sequence[Sample]) -> dict[str, float]:
    """Corrections, and how many of them state an answer where a step had to stand, whoever stopped them."""
    proposed = [
        (s, note.step, note.correction, note.outcome)
        for s in samples
        for note in s.record.asked
        if note.correction and note.step
    ]
    early = [
        outcome
        for s, step, correction, outcome in proposed
        if step < len(s.problem.terms) and tasks.is_ended(tasks.split_lines(correction)[-1])
    ]
    return {
        "judge/corrections": len(proposed),
        "judge/early_answers": len(early),
        "judge/early_answers_inserted": early.count(Outcome.INSERTED),
    }


def _settings(e: Experiment, preset: str, overrides: dict[str, Any]) -> Settings:
    return settings(preset, overrides, prompts=e.prompts, n=e.n, mini_batches=e.optimisation.mini_batches)


def _warm_up(e: Experiment, model: Any, engine: Engine, tokenizer: Any) -> None:
    """Plain GRPO with an optimiser of its own."""
    plain = _settings(e, "grpo", {})
    learner = Learner(model, plain, e.optimisation)
    pool = tasks.make_split(e.warm_up_split, e.pool, seed=0)
    order = random.Random(f"warm-up {e.seed}")
    with closing(Sampler(engine, tokenizer, plain.intervention, self_judged=False)) as sampler:
        for update in range(1, e.warm_up + 1):
            learner.update(sampler.train_groups(order.sample(pool, e.prompts), update, e.n))
            engine.refresh()


def _books(samples: list[Any]) -> dict[str, float]:
    books = keep_books([s.record for s in samples], [s.reward for s in samples])
    return {
        "triggered": books.triggered,
        "groups": books.groups,
        "edited": books.edited,
        "rescued": books.rescued,
        "replaced": books.replaced,
        "verified": books.verified,
        "unverified": books.unverified,
        "gated": books.gated,
        "over_bound": books.over_bound,
        "advantage_win": books.advantage_win,
        "advantage_lose": books.advantage_lose,
    }

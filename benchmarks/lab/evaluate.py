"""Validation of a policy: sampled at temperature 1, nobody intervenes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab import tasks
from lab.rollout import Sample, Sampler
from lab.tasks import Problem

PROBLEM_SEED = 77  # the same validation problems for every run


@dataclass(frozen=True)
class Examination:
    """What a policy is examined on.

    Attributes:
        problems: of ``validation``; half as many of ``harder``, ``hard`` and ``old``.
        attempts: sessions of each problem of the sums.
    """

    problems: int = 48
    attempts: int = 4

    def validation(self, sampler: Sampler) -> dict[str, float]:
        """Only the held-out problems that are like those of training."""
        return self._split(sampler, "validation", "val", self.problems)

    def _split(self, sampler: Sampler, split: str, prefix: str, problems: int) -> dict[str, float]:
        samples = sampler.plain_groups(tasks.make_split(split, problems, PROBLEM_SEED), self.attempts)
        return {f"{prefix}/{name}": value for name, value in measured(samples, self.attempts).items()}

    def everything(self, sampler: Sampler) -> dict[str, float]:
        """All splits."""
        few = max(4, self.problems // 2)
        result = self.validation(sampler)
        for split in ("harder", "hard"):
            result |= self._split(sampler, split, split, few)
        old = sampler.plain_groups(tasks.make_split("old", few, PROBLEM_SEED), 2)
        return result | {"old/success": float(np.mean([s.reward for s in old]))}


def measured(samples: Sequence[Sample], attempts: int) -> dict[str, float]:
    """Numbers of one split; ``samples`` holds ``attempts`` sessions of each problem, in order.

    success: share of sessions; pass@k: share of problems with a success among the first k sessions, estimated from all
    of them; pass^k: the chance that k sessions all succeed; step_accuracy: share of steps that are right given those before
    them; well_formed: share of responses whose last line states an answer.
    """
    wins = np.array([s.reward > 0 for s in samples]).reshape(-1, attempts).sum(1)
    checks = [tasks.check_lines(s.problem.terms, tasks.split_lines(s.response)) for s in samples]
    right = sum(check.right for lines in checks for check in lines)
    result = {
        "success": float(wins.mean() / attempts),
        "step_accuracy": right / max(1, sum(map(len, checks))),
        "steps": float(np.mean([len(lines) for lines in checks])),
        "length": float(np.mean([len(s.row.response_ids) for s in samples])),
        "well_formed": float(np.mean([_ended(s.response) for s in samples])),
        "entropy": -float(np.mean([np.mean(s.row.response_logprobs or [0.0]) for s in samples])),
    }
    for k in (2, 4, 8):
        if k <= attempts:
            everyone = math.comb(attempts, k)
            result[f"pass@{k}"] = float(np.mean([1 - math.comb(attempts - int(w), k) / everyone for w in wins]))
            result[f"pass^{k}"] = float(np.mean([math.comb(int(w), k) / everyone for w in wins]))
    return result


def _ended(response: str) -> bool:
    lines = tasks.split_lines(response)
    return bool(lines) and tasks.is_ended(lines[-1])


def solved_share(solved: set[str], problems: Sequence[Problem]) -> float:
    """Share of problems in ``solved``."""
    return sum(p.text in solved for p in problems) / max(1, len(problems))

"""What users compare with, on the same policy, problems and optimiser: SFT then GRPO, LUFFY, on-policy distillation.

GSPO needs nothing of its own (``policy_loss.loss_mode: gspo``). Not here: MENTOR and AEPO, which mix two models token by token
while sampling, or steer it by entropy; both need a sampler that the engine does not offer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import AutoModelForCausalLM
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn

from lab.learner import Learner, score_rows
from lab.pretrain import teacher_path
from lab.rollout import Sample, Sampler
from lab.tasks import Problem
from verl_mintrl.rollout.output import InterventionOutput
from verl_mintrl.trajectory.record import SessionRecord
from verl_mintrl.trajectory.spans import Author


class Baseline:
    """How an update samples and learns; as it stands, the arm's own preset."""

    loss: Any = None
    advantage: Any = None
    mark_authors: bool = False

    def __init__(self, sampler: Sampler, policy: Path) -> None:
        self.sampler = sampler

    def sample(self, problems: Sequence[Problem], update: int, n: int) -> list[Sample]:
        self.problems = problems
        return self.sampler.train_groups(problems, update, n)

    def learn(self, learner: Learner, samples: Sequence[Sample], update: int) -> dict[str, float]:
        return learner.update(samples)

    def oracle(self, problem: Problem) -> tuple[list[int], list[int]]:
        """Token ids of a problem and of its right solution, ended."""
        response = [*self.sampler.encode(problem.solution), self.sampler.tokenizer.eos_token_id]
        return self.sampler.encode(problem.text), response


class FineTuneFirst(Baseline):
    """Plain fine-tuning on right solutions in the first updates, then GRPO. An update sees as many texts as groups."""

    updates: ClassVar[int] = 10

    def sample(self, problems: Sequence[Problem], update: int, n: int) -> list[Sample]:
        self.problems = problems
        return [] if update <= self.updates else super().sample(problems, update, n)

    def learn(self, learner: Learner, samples: Sequence[Sample], update: int) -> dict[str, float]:
        if update <= self.updates:
            return learner.imitate([self.oracle(problem) for problem in self.problems])
        return learner.update(samples)


class Luffy(Baseline):
    """LUFFY (arXiv 2504.14945): a right solution in place of one session per group, under the shaped ratio p / (p + 0.1)."""

    gamma: ClassVar[float] = 0.1
    mark_authors = True

    def sample(self, problems: Sequence[Problem], update: int, n: int) -> list[Sample]:
        samples = super().sample(problems, update, n)
        for number, problem in enumerate(problems):
            samples[number * n + n - 1] = self._whole(problem, samples[number * n + n - 1].record)
        return samples

    def _whole(self, problem: Problem, replaced: SessionRecord) -> Sample:
        prompt, response = self.oracle(problem)
        row = InterventionOutput(
            prompt_ids=prompt,
            response_ids=response,
            response_mask=[1] * len(response),
            authors=[int(Author.CORRECTOR)] * len(response),
            token_weights=[1.0] * len(response),
            metrics=AgentLoopMetrics(),
        )
        row.reward_score = 1.0
        record = SessionRecord(replaced.uid, replaced.session_id, replaced.step, replaced=True, reward_before=0.0)
        return Sample(problem, row, record, problem.solution)

    @classmethod
    def loss(cls, *, rollout_is_weights: torch.Tensor, **arguments: Any) -> tuple[torch.Tensor, dict[str, float]]:
        """verl's clipped loss on the policy's own tokens, the shaped ratio without clip on those of the solution.

        ``rollout_is_weights`` tells the authors apart by its sign, as for ``intervention_regression``.
        """
        given = rollout_is_weights < 0
        mask, config = arguments["response_mask"].bool(), arguments["config"]
        own, metrics = get_policy_loss_fn("vanilla")(**{**arguments, "response_mask": mask & ~given})
        ratio = arguments["log_prob"].exp()
        shaped = -arguments["advantages"] * ratio / (ratio + cls.gamma)
        taught = agg_loss(
            loss_mat=shaped,
            loss_mask=mask & given,
            loss_agg_mode=arguments["loss_agg_mode"],
            **config.global_batch_info,
        )
        return own + taught, metrics


class Distil(Baseline):
    """On-policy distillation: own responses, each token's advantage is log p_teacher - log p_policy; rewards are not used."""

    def __init__(self, sampler: Sampler, policy: Path) -> None:
        super().__init__(sampler, policy)
        self._teacher = AutoModelForCausalLM.from_pretrained(teacher_path(), dtype=torch.float32).eval()

    def advantage(self, samples: Sequence[Sample], mask: torch.Tensor, old_log_probs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            taught = score_rows(self._teacher, samples).log_probs
        return (taught - old_log_probs) * mask


BASELINES: dict[str, type[Baseline]] = {"sft_then_grpo": FineTuneFirst, "luffy": Luffy, "distil": Distil}

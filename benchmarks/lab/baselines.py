"""What users compare with, on the same policy, problems and optimiser: SFT then GRPO, LUFFY, on-policy distillation, MENTOR.

GSPO needs nothing of its own (``policy_loss.loss_mode: gspo``). Not here: AEPO, which shares its rollout budget out between
branches at tool calls by entropy; there are no tools here to branch at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import AutoModelForCausalLM
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn

from lab.decoder import Decoder
from lab.learner import Learner, group_advantage, score_rows
from lab.mixing import write_mixed
from lab.pretrain import teacher_path
from lab.rollout import Sample, Sampler
from lab.settings import RESPONSE_LENGTH
from lab.tasks import Problem, score
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
    """Plain fine-tuning on right solutions in the first updates, then GRPO. An update sees as many texts as groups.

    Attributes:
        passes: optimiser steps on these texts an update.
    """

    updates: ClassVar[int] = 10
    passes: ClassVar[int] = 1

    def sample(self, problems: Sequence[Problem], update: int, n: int) -> list[Sample]:
        self.problems = problems
        return [] if update <= self.updates else super().sample(problems, update, n)

    def learn(self, learner: Learner, samples: Sequence[Sample], update: int) -> dict[str, float]:
        if update <= self.updates:
            texts = [self.oracle(problem) for problem in self.problems]
            return [learner.imitate(texts) for _ in range(self.passes)][-1]
        return learner.update(samples)


class FineTuneMoreFirst(FineTuneFirst):
    """The same with as many texts an update as other arms have sessions, eight optimiser steps of them."""

    passes = 8


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
        row = _row(*self.oracle(problem), Author.CORRECTOR)
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


class Mentor(Baseline):
    """MENTOR (arXiv 2510.04140): half of a group's sessions are written together with the teacher where the policy is unsure.

    Own sessions have their group's normalised advantage; a mixed one has ``alpha (R - mean of the own)``, and 0 where that is
    negative. The ratio is that of the policy for every token.
    """

    #: of the entropies of the own sessions' tokens: from there on the teacher writes alone. Their code has a floor of 1.5 nats,
    #: which this policy never reaches, so there is none here
    quantile: ClassVar[float] = 0.95
    #: updates over which alpha falls from 1 to 0, by a cosine
    decay: ClassVar[int] = 120

    def __init__(self, sampler: Sampler, policy: Path) -> None:
        super().__init__(sampler, policy)
        self._teacher = Decoder(AutoModelForCausalLM.from_pretrained(teacher_path(), dtype=torch.float32).eval())
        self._alpha = 1.0

    def sample(self, problems: Sequence[Problem], update: int, n: int) -> list[Sample]:
        self._alpha = 0.5 * (1 + math.cos(math.pi * min(1.0, update / self.decay)))
        mixed = n // 2
        own = super().sample(problems, update, n - mixed)
        policy = self.sampler.engine.decoder
        with torch.no_grad():
            scores = score_rows(policy.model, own)
        entropies = torch.cat([line[: len(s.row.response_ids)] for line, s in zip(scores.entropies, own, strict=True)])
        asked = [problem for problem in problems for _ in range(mixed)]
        responses = write_mixed(
            policy,
            self._teacher,
            [self.sampler.encode(problem.text) for problem in asked],
            limit=RESPONSE_LENGTH,
            end_ids=self.sampler.end_ids,
            threshold=max(float(entropies.quantile(self.quantile)), 1e-6),
        )
        return own + [
            self._together(problem, response, update, n - mixed + number % mixed)
            for number, (problem, response) in enumerate(zip(asked, responses, strict=True))
        ]

    def _together(self, problem: Problem, response: list[int], step: int, session_id: int) -> Sample:
        row = _row(self.sampler.encode(problem.text), response, Author.POLICY)
        text = self.sampler.text(response)
        row.reward_score = score(problem, text)
        record = SessionRecord(f"{step}-{problem.text}", session_id, step, replaced=True, reward_before=0.0)
        return Sample(problem, row, record, text)

    def advantage(self, samples: Sequence[Sample], mask: torch.Tensor, old_log_probs: torch.Tensor) -> torch.Tensor:
        own = [i for i, s in enumerate(samples) if not s.record.replaced]
        result = torch.zeros(mask.shape)
        result[own] = group_advantage([samples[i] for i in own], mask[own], old_log_probs[own]).float()
        for i in set(range(len(samples))) - set(own):
            rewards = [samples[j].reward for j in own if samples[j].record.uid == samples[i].record.uid]
            gain = max(0.0, samples[i].reward - sum(rewards) / len(rewards))
            result[i] = self._alpha * gain * mask[i]
        return result


class Distil(Baseline):
    """On-policy distillation: own responses, each token's advantage is log p_teacher - log p_policy; rewards are not used."""

    def __init__(self, sampler: Sampler, policy: Path) -> None:
        super().__init__(sampler, policy)
        self._teacher = AutoModelForCausalLM.from_pretrained(teacher_path(), dtype=torch.float32).eval()

    def advantage(self, samples: Sequence[Sample], mask: torch.Tensor, old_log_probs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            taught = score_rows(self._teacher, samples).log_probs
        return (taught - old_log_probs) * mask


def _row(prompt: list[int], response: list[int], author: Author) -> InterventionOutput:
    return InterventionOutput(
        prompt_ids=prompt,
        response_ids=response,
        response_mask=[1] * len(response),
        authors=[int(author)] * len(response),
        token_weights=[1.0] * len(response),
        metrics=AgentLoopMetrics(),
    )


BASELINES: dict[str, type[Baseline]] = {
    "sft_then_grpo": FineTuneFirst,
    "sft_more_then_grpo": FineTuneMoreFirst,
    "luffy": Luffy,
    "mentor": Mentor,
    "distil": Distil,
}

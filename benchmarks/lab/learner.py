"""One update as verl's trainer and actor make it, in process: rows -> advantages, anchor and weights -> loss -> optimiser.

Advantages and policy losses are verl's own, targets and metrics the package's (:mod:`verl_mintrl.trainer` is the adapter that does
this in verl); only who steps the optimiser is the laboratory's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, get_policy_loss_fn

from lab.rollout import Sample
from lab.settings import Settings
from verl_mintrl.config.validate import LOSS_MODE
from verl_mintrl.learning.loss import finish_metrics
from verl_mintrl.learning.targets import Rows, Targets, build_targets
from verl_mintrl.learning.weights import pack_weights
from verl_mintrl.metrics import learning_metrics, rollout_metrics
from verl_mintrl.trajectory.record import Role
from verl_mintrl.trajectory.spans import Author

#: rows that go through the network together, sorted by length
MICRO_ROWS = 32

#: as a policy loss of verl: keywords old_log_prob, log_prob, advantages, response_mask, ... -> loss, metrics
Loss = Callable[..., tuple[torch.Tensor, dict[str, float]]]


@dataclass(frozen=True)
class Optimisation:
    """The same for all arms.

    Attributes:
        warmup: updates over which the learning rate rises linearly.
        mini_batches: optimiser steps of one update.
    """

    lr: float = 1e-4
    warmup: int = 5
    weight_decay: float = 0.01
    grad_clip: float = 1.0
    mini_batches: int = 1


@dataclass(frozen=True)
class Scores:
    """Log-probs and entropies of responses, both (N, T), right-padded with 0."""

    log_probs: torch.Tensor
    entropies: torch.Tensor


class Learner:
    """Trains the policy.

    Args:
        model: a ``LlamaForCausalLM``.
        loss: in place of the policy loss that the settings name.
        advantage: of (rows, mask, old log-probs) in place of verl's GRPO advantage; (N, T).
        mark_authors: ``loss`` is told the author of each token by the sign of its weight, as the regression is.
    """

    def __init__(
        self,
        model: Any,
        settings: Settings,
        optimisation: Optimisation,
        *,
        loss: Loss | None = None,
        advantage: Callable[[Sequence[Sample], torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
        mark_authors: bool = False,
    ) -> None:
        self.model = model
        self.settings = settings
        self.optimisation = optimisation
        self.regression = settings.actor.policy_loss.loss_mode == LOSS_MODE
        self._loss = loss or get_policy_loss_fn(settings.actor.policy_loss.loss_mode)
        normalise = settings.whole.algorithm.get("norm_adv_by_std_in_grpo", True)
        self._advantage = advantage or partial(group_advantage, normalise=normalise)
        self._mark_authors = mark_authors
        self.optimiser = torch.optim.AdamW(
            model.parameters(), lr=optimisation.lr, betas=(0.9, 0.999), weight_decay=optimisation.weight_decay
        )
        self.steps = 0

    def update(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Learn from one update's sessions; returns its metrics under the names verl would log them by."""
        config = self.settings.intervention
        # with one mini-batch the log-probs that are trained are the old ones: computed once, graph included
        keep_graph = self.optimisation.mini_batches == 1
        micro = self._micro_batches(samples, range(len(samples)))
        with torch.set_grad_enabled(keep_graph):
            parts = {rows: score_rows(self.model, [samples[i] for i in rows]) for rows in micro}
        width = max(len(s.row.response_ids) for s in samples)
        old, entropies = _gathered(parts, len(samples), width)
        rows = _rows(samples, old, width)
        group = self._advantage(samples, rows.mask, old)
        targets = build_targets(rows, config, group_advantages=group, regression=self.regression)
        if self._mark_authors:
            targets = replace(targets, weight_column=pack_weights(rows.weights, rows.inserted & rows.mask))
        metrics = self._metrics(samples, rows, targets)
        mask = rows.mask
        metrics["actor/entropy"] = (entropies * mask).sum().item() / max(1, int(mask.sum()))
        if keep_graph:
            metrics |= self._step(targets, rows, micro, lambda chosen: parts[chosen].log_probs)
        else:
            order = torch.randperm(len(samples)).tolist()
            logged: dict[str, list[float]] = defaultdict(list)
            for chunk in np.array_split(order, self.optimisation.mini_batches):
                small = self._micro_batches(samples, [int(i) for i in chunk])
                found = self._step(
                    targets, rows, small, lambda chosen: score_rows(self.model, [samples[i] for i in chosen]).log_probs
                )
                for name, value in found.items():
                    logged[name].append(value)
            metrics |= {name: _reduced(name, values) for name, values in logged.items()}
        finish_metrics(metrics)
        return metrics

    def _micro_batches(self, samples: Sequence[Sample], chosen: Sequence[int]) -> list[tuple[int, ...]]:
        def length(i: int) -> int:
            return len(samples[i].row.prompt_ids) + len(samples[i].row.response_ids)

        order = sorted(chosen, key=length)
        return [tuple(order[at : at + MICRO_ROWS]) for at in range(0, len(order), MICRO_ROWS)]

    def _step(
        self,
        targets: Targets,
        rows: Rows,
        micro: Sequence[tuple[int, ...]],
        log_probs: Callable[[tuple[int, ...]], torch.Tensor],
    ) -> dict[str, float]:
        actor = self.settings.actor
        everyone = [i for chosen in micro for i in chosen]
        actor.global_batch_info.update(
            dp_size=1,
            batch_num_tokens=int(rows.mask[everyone].sum()),
            global_batch_size=len(everyone),
            loss_scale_factor=actor.loss_scale_factor,
        )
        old = targets.anchor.log_probs if self.regression else rows.old_log_probs
        logged: dict[str, list[float]] = defaultdict(list)
        loss = torch.zeros(())
        for chosen in micro:
            new = log_probs(chosen)
            index, width = list(chosen), new.shape[1]
            column = targets.weight_column
            part, metrics = self._loss(
                old_log_prob=old[index, :width],
                log_prob=new,
                advantages=targets.advantages[index, :width],
                response_mask=rows.mask[index, :width],
                loss_agg_mode=actor.loss_agg_mode,
                config=actor,
                rollout_is_weights=None if column is None else column[index, :width],
            )
            part.backward()
            loss += part.detach()
            for name, value in metrics.items():
                logged[name].append(float(value))
        result = {name: _reduced(name, values) for name, values in logged.items()}
        return result | {"actor/pg_loss": loss.item(), "actor/grad_norm": self._optimise()}

    def _optimise(self) -> float:
        """One optimiser step; returns the norm of the gradient before it was clipped. verl skips a norm that is not finite, too."""
        optimisation = self.optimisation
        self.steps += 1
        rise = min(1.0, self.steps / max(1, optimisation.warmup * optimisation.mini_batches))
        for group in self.optimiser.param_groups:
            group["lr"] = optimisation.lr * rise
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), optimisation.grad_clip).item()
        if math.isfinite(norm):
            self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return norm

    def imitate(self, texts: Sequence[tuple[list[int], list[int]]]) -> dict[str, float]:
        """One step of plain fine-tuning on (prompt, response) token ids."""
        prompts, responses = [p for p, _ in texts], [r for _, r in texts]
        scores = score_ids(self.model, prompts, responses)
        loss = -scores.log_probs.sum() / sum(map(len, responses))
        loss.backward()
        return {"actor/sft_loss": loss.item(), "actor/grad_norm": self._optimise()}

    def _metrics(self, samples: Sequence[Sample], rows: Rows, targets: Targets) -> dict[str, float]:
        config = self.settings.intervention
        records, rewards = [s.record for s in samples], [s.reward for s in samples]
        success = [r > config.success_threshold for r in rewards]
        intervened = torch.tensor([record.intervened for record in records])
        clip = config.token_weights.eps_cal if config.token_weights.mode == "steering" else None
        return {
            **rollout_metrics(records, success, rewards, config.judge.prices),
            **learning_metrics(rows, targets, intervened, clip),
        }


def group_advantage(
    samples: Sequence[Sample], mask: torch.Tensor, old_log_probs: torch.Tensor, *, normalise: bool = True
) -> torch.Tensor:
    """verl's GRPO advantage, (N, T), divided by the group's standard deviation where it is to ``normalise``. Masked sessions
    are a group of their own, as the trainer makes them."""
    scores = torch.zeros(mask.shape)
    scores[:, 0] = torch.tensor([s.reward for s in samples])
    uids = [s.record.uid + (f"-{s.record.session_id}" if s.record.masked else "") for s in samples]
    groups = np.array(uids, dtype=object)
    return compute_grpo_outcome_advantage(scores, mask, groups, norm_adv_by_std_in_grpo=normalise)[0]


def score_rows(model: Any, samples: Sequence[Sample]) -> Scores:
    """Log-probs of responses under the model; with a graph where gradients are enabled."""
    return score_ids(model, [s.row.prompt_ids for s in samples], [s.row.response_ids for s in samples])


def score_ids(model: Any, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> Scores:
    """See :func:`score_rows`."""
    whole = [torch.tensor([*prompt, *response]) for prompt, response in zip(prompts, responses, strict=True)]
    ids = torch.nn.utils.rnn.pad_sequence(whole, batch_first=True)  # behind the last token nobody looks: no mask needed
    width = max(map(len, responses))
    starts, lengths = torch.tensor([len(p) for p in prompts]), torch.tensor([len(r) for r in responses])
    mask = torch.arange(width) < lengths.unsqueeze(1)
    places = (starts.unsqueeze(1) + torch.arange(width)).clamp(max=ids.shape[1] - 1)
    hidden = model.model(input_ids=ids).last_hidden_state
    before = (places - 1).unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
    logits = model.lm_head(hidden.gather(1, before)).log_softmax(-1)
    log_probs = logits.gather(-1, ids.gather(1, places).unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        entropies = -(logits.exp() * logits).sum(-1) * mask
    return Scores(torch.where(mask, log_probs, 0.0), entropies)


def _gathered(parts: dict[tuple[int, ...], Scores], count: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    old, entropies = torch.zeros(count, width), torch.zeros(count, width)
    for rows, scores in parts.items():
        part = scores.log_probs.shape[1]
        old[list(rows), :part] = scores.log_probs.detach()
        entropies[list(rows), :part] = scores.entropies
    return old, entropies


def _rows(samples: Sequence[Sample], old: torch.Tensor, width: int) -> Rows:
    def column(name: str, fill: float) -> torch.Tensor:
        lines = [list(getattr(s.row, name)) for s in samples]
        return torch.tensor([line + [fill] * (width - len(line)) for line in lines])

    records = [s.record for s in samples]
    rewards = torch.tensor([s.reward for s in samples])
    before = [s.record.reward_before if s.record.replaced else s.reward for s in samples]
    return Rows(
        uids=[record.uid for record in records],
        rewards=rewards,
        baseline_rewards=torch.tensor(before, dtype=rewards.dtype),
        old_log_probs=old,
        mask=column("response_mask", 0).bool(),
        authors=column("authors", int(Author.ENVIRONMENT)),
        weights=column("token_weights", 1.0),
        is_control=torch.tensor([r.role == Role.CONTROL and not r.replaced for r in records]),
        included=torch.tensor([not r.masked for r in records]),
    )


def _reduced(name: str, values: Sequence[float]) -> float:
    """verl reads the reduction from the name."""
    return min(values) if "min" in name.rsplit("/", 1)[-1] else float(np.mean(values))

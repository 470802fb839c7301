"""What does the regression cost against verl's own loss, forward and backward?

Both are called as verl calls them, on the same tensors of 8 responses of up to 8192 tokens: once the loss function alone, once
through ``ppo_loss``, which also pads the rows. Runs alternate and change their order, so that a busy moment hits both.

    python benchmarks/loss_cost.py --pairs 60 --seed 0

Writes the printed table to benchmarks/results/loss_cost.txt. Exit code 1 if a loss or a gradient is not finite, or if the
regression's gradient is not the one worked out by hand.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from cost_parts import table
from cost_parts.statistics import Interval, paired_ratio
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss

import verl_mintrl.objective  # noqa: F401  # importing registers
from verl_mintrl.learning.weights import pack_weights

ROWS, LENGTH = 8, 8192
BETA = 1e-3
TARGET = 1.1
REGRESSION = {"_target_": "verl_mintrl.config.loss.InterventionLossConfig", "beta": BETA}
VANILLA = {"_target_": "verl.workers.config.PolicyLossConfig"}


@dataclass(frozen=True)
class Batch:
    """One micro-batch, (B, T): responses end at random lengths, 3 % of the tokens are inserted."""

    log_prob: torch.Tensor
    old: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor
    weights: torch.Tensor
    inserted: torch.Tensor

    @classmethod
    def draw(cls, rows: int, length: int, seed: int) -> Batch:
        gen = torch.Generator().manual_seed(seed)
        old = -3 * torch.rand(rows, length, generator=gen)
        log_prob = old + 0.05 * torch.randn(rows, length, generator=gen)
        lengths = torch.randint(length // 2, length + 1, (rows, 1), generator=gen)
        lengths[0] = length
        mask = torch.arange(length) < lengths
        inserted = (torch.rand(rows, length, generator=gen) < 0.03) & mask
        weights = torch.where(inserted, 0.8 + 0.4 * torch.rand(rows, length, generator=gen), 1.0)
        advantages = torch.randn(rows, 1, generator=gen).expand(rows, length).contiguous()
        return cls(log_prob, old, advantages, mask, weights, inserted)

    @property
    def column(self) -> torch.Tensor:
        """Weight and author, as the trainer writes them."""
        return pack_weights(self.weights, self.inserted)

    def nested(self, column: torch.Tensor | None) -> tuple[TensorDict, list[int]]:
        """The rows as they travel to a worker, without padding, and their lengths."""
        lengths = self.mask.sum(-1).tolist()

        def jagged(values: torch.Tensor) -> torch.Tensor:
            parts = [row[:n] for row, n in zip(values, lengths, strict=True)]
            return torch.nested.as_nested_tensor(parts, layout=torch.jagged)

        columns = {
            "prompts": torch.nested.as_nested_tensor([torch.zeros(2)] * len(lengths), layout=torch.jagged),
            "responses": jagged(torch.zeros_like(self.old)),
            "response_mask": jagged(self.mask.long()),
            "old_log_probs": jagged(self.old),
            "advantages": jagged(self.advantages),
        }
        if column is not None:
            columns["rollout_is_weights"] = jagged(column)
        data = TensorDict(columns, batch_size=[len(lengths)])
        tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=sum(lengths), global_batch_size=len(lengths))
        return data, lengths


#: runs a loss once, forward and backward -> (loss, gradient of the (B, T) log-probs)
Arm = Callable[[], tuple[torch.Tensor, torch.Tensor]]


def actor_config(policy_loss: dict[str, Any], rows: int) -> Any:
    node = {
        "_target_": "verl.workers.config.ActorConfig",
        "strategy": "fsdp2",
        "rollout_n": rows,
        "ppo_micro_batch_size_per_gpu": rows,
        "policy_loss": policy_loss,
    }
    return omega_conf_to_dataclass(OmegaConf.create(node))


def arms(batch: Batch) -> dict[str, dict[str, Arm]]:
    """``arms[how][which]``: the losses, called alone and through ``ppo_loss``."""
    rows, length = batch.old.shape
    tokens = int(batch.mask.sum())
    kinds: dict[str, tuple[str, dict[str, Any], torch.Tensor | None]] = {
        "vanilla": ("vanilla", VANILLA, None),
        "intervention_regression": ("intervention_regression", {**REGRESSION, "horizon": length}, batch.column),
        "vanilla with weights": ("vanilla", VANILLA, batch.weights),
    }

    def alone(name: str, policy_loss: dict[str, Any], column: torch.Tensor | None) -> Arm:
        config, loss_function = actor_config(policy_loss, rows), get_policy_loss_fn(name)
        config.global_batch_info.update(dp_size=1, batch_num_tokens=tokens, global_batch_size=rows)

        def run() -> tuple[torch.Tensor, torch.Tensor]:
            log_prob = batch.log_prob.detach().requires_grad_()
            loss, _ = loss_function(
                old_log_prob=batch.old,
                log_prob=log_prob,
                advantages=batch.advantages,
                response_mask=batch.mask,
                loss_agg_mode=config.loss_agg_mode,
                config=config,
                rollout_is_weights=column,
            )
            loss.backward()
            assert log_prob.grad is not None
            return loss, log_prob.grad

        return run

    def in_worker(name: str, policy_loss: dict[str, Any], column: torch.Tensor | None) -> Arm:
        config = actor_config(policy_loss, rows)
        data, lengths = batch.nested(column)
        # the model's output covers prompt and response, shifted left by one
        sequences = torch.cat(
            [
                part
                for row, n in zip(batch.log_prob, lengths, strict=True)
                for part in (torch.zeros(1), row[:n], torch.zeros(1))
            ]
        )
        offsets = torch.tensor([0, *(n + 2 for n in lengths)]).cumsum(0)

        def run() -> tuple[torch.Tensor, torch.Tensor]:
            values = sequences.detach().requires_grad_()
            nested = torch.nested.nested_tensor_from_jagged(values, offsets)
            loss, _ = ppo_loss(config, {"log_probs": nested}, data)
            loss.backward()
            assert values.grad is not None
            padded = torch.zeros_like(batch.old)
            for row, (start, n) in enumerate(zip(offsets.tolist(), lengths, strict=False)):
                padded[row, :n] = values.grad[start + 1 : start + 1 + n]
            return loss, padded

        return run

    return {
        "loss function": {which: alone(*kind) for which, kind in kinds.items()},
        "verl's ppo_loss": {which: in_worker(*kind) for which, kind in kinds.items()},
    }


def broken(batch: Batch, found: dict[str, dict[str, Arm]]) -> list[str]:
    """What must hold and does not."""
    faults = []
    for how, by_name in found.items():
        for which, arm in by_name.items():
            loss, gradient = arm()
            if not (torch.isfinite(loss) and torch.isfinite(gradient).all() and gradient.abs().sum() > 0):
                faults.append(f"{which} by {how}: loss or gradient is not finite, or nothing")
        _, gradient = by_name["intervention_regression"]()
        if not torch.allclose(gradient, by_hand(batch), rtol=1e-3, atol=1e-9):
            faults.append(f"{how}: the gradient is not the one worked out by hand")
    return faults


def by_hand(batch: Batch) -> torch.Tensor:
    """Gradient of sum (beta sum w (log_prob - anchor) - A)^2 / (2 beta L B)."""
    rows, length = batch.old.shape
    weights = torch.where(batch.mask, batch.weights, 0.0)
    residual = BETA * (weights * (batch.log_prob - batch.old)).double().sum(-1, keepdim=True) - batch.advantages[:, :1]
    return (residual * weights / (length * rows)).float()


@dataclass(frozen=True)
class Timing:
    """Median milliseconds of one forward and backward, and the ratio to stock vanilla."""

    milliseconds: float
    ratio: Interval


def measure(found: dict[str, dict[str, Arm]], pairs: int, seed: int) -> dict[tuple[str, str], Timing]:
    """Time ``pairs`` rounds; in each, all losses run one after the other, in an order that turns."""
    seconds: dict[tuple[str, str], list[float]] = {(how, which): [] for how in found for which in found[how]}
    for how, by_name in found.items():
        for round_ in range(pairs):
            names = list(by_name)
            for which in names[round_ % len(names) :] + names[: round_ % len(names)]:
                started = time.process_time()
                by_name[which]()
                seconds[how, which].append(time.process_time() - started)
    return {
        (how, which): Timing(1e3 * statistics.median(taken), paired_ratio(taken, seconds[how, "vanilla"], seed))
        for (how, which), taken in seconds.items()
    }


def lines(timings: dict[tuple[str, str], Timing]) -> list[str]:
    rows = [
        [how, which, f"{timing.milliseconds:.2f}", str(timing.ratio) if which != "vanilla" else "1"]
        for (how, which), timing in timings.items()
    ]
    return table.columns(["called by", "loss", "ms", "ratio to stock vanilla [95 %]"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    batch = Batch.draw(ROWS, LENGTH, arguments.seed)
    found = arms(batch)
    faults = broken(batch, found)  # also warms up
    for fault in faults:
        print(f"broken: {fault}", file=sys.stderr)
    if faults:
        return 1
    title = (
        f"Losses of {ROWS} x {LENGTH} tokens, forward and backward, CPU time of one thread, float32: "
        f"{arguments.pairs} interleaved rounds, seed {arguments.seed}; target: ratio <= {TARGET}"
    )
    table.publish("loss_cost", title, lines(measure(found, arguments.pairs, arguments.seed)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

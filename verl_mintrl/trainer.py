"""verl adapter: the trainers ``trainer.v1.trainer_mode: intervention_sync`` and ``intervention_colocate_async``.

Lean on ``verl.trainer.ppo.v1``: ``PPOTrainerSync``, ``PPOTrainerColocateAsync`` and, of their base, ``_build_replay_buffer``,
``_init_dataloader``, ``_init_resource_pool_mgr``, ``get_teacher_client``, ``_compute_old_log_prob``, ``_compute_advantage``,
``_update_actor``, ``_log_rollout_data``, ``fit``; ``register_trainer``;
``verl.experimental.teacher_loop.MultiTeacherModelManager``;
``transfer_queue.kv_batch_get`` and ``kv_batch_put``; ``verl.workers.utils.padding.response_to_nested``;
``verl.utils.debug.metrics.calculate_debug_metrics``.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import torch
import transfer_queue as tq
from tensordict import TensorDict
from verl.experimental.teacher_loop import MultiTeacherModelManager
from verl.protocol import DataProto
from verl.trainer.ppo.v1.trainer_base import PPOTrainer, register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.debug.metrics import calculate_debug_metrics
from verl.workers.utils.padding import response_to_nested

from verl_mintrl.config.validate import LOSS_MODE, check_columns, check_dataset, validate
from verl_mintrl.errors import InterventionError
from verl_mintrl.judges.build import check_sources
from verl_mintrl.learning.loss import finish_metrics
from verl_mintrl.learning.targets import Rows, Targets, build_targets
from verl_mintrl.manifest import Manifest
from verl_mintrl.metrics import PREFIX, judge_costs, judge_counts, learning_metrics, rollout_metrics
from verl_mintrl.rollout.output import RECORD_KEY
from verl_mintrl.trajectory.record import Role, SessionRecord, write_jsonl
from verl_mintrl.trajectory.spans import Author

logger = logging.getLogger(__name__)

#: seconds between two looks into the queue; verl's 2 s are most of a small model's sampling time
POLL_INTERVAL = 0.2
#: Ray placement of the servers of a frozen judge
JUDGE_POOL = "judge_pool"


class InterventionTrainer(PPOTrainer):
    """What every trainer of ours adds to a stock one: authors and control rewards become advantages, anchor and weights.

    Attributes:
        stock_mode: name under which verl knows the trainer this one extends.
        manifest: of the run, while it runs.
    """

    stock_mode: ClassVar[str]
    manifest: Manifest | None = None

    def __init__(self, config: Any) -> None:
        self.intervention = validate(config)
        if self.intervention.trigger != "never":
            check_sources(self.intervention.judge, self.intervention.verifier)
        self._judge_counts = judge_counts([])
        self.regression = config.actor_rollout_ref.actor.policy_loss.loss_mode == LOSS_MODE
        super().__init__(config)

    def _build_replay_buffer(self):
        # verl compares this string in six places, and read parameter_sync_step under our name just before
        self.trainer_mode = self.stock_mode
        self.parameter_sync_step = self.config.trainer.v1.get(self.stock_mode, {}).get("parameter_sync_step", 1)
        replay_buffer = super()._build_replay_buffer()
        replay_buffer.poll_interval = POLL_INTERVAL
        return replay_buffer

    @property
    def _serves_judge(self) -> bool:
        """Whether the judge is a teacher that verl would not start by itself: its switch also turns on distillation."""
        judged = self.intervention.trigger != "never" and "teacher" in self.intervention.judge.backends
        return judged and not self.use_teacher_policy

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        if self._serves_judge:
            settings = self.config.distillation
            self.resource_pool_manager.resource_pool_spec[JUDGE_POOL] = [settings.n_gpus_per_node] * settings.nnodes

    def get_teacher_client(self) -> Any:
        """verl's, or those of the frozen judge models, which the rollout workers are given in the same way."""
        if not self._serves_judge:
            return super().get_teacher_client()
        config = copy.deepcopy(self.config)
        config.distillation.enabled = True
        pool = self.resource_pool_manager.resource_pool_dict[JUDGE_POOL]
        self.teacher_model_manager = MultiTeacherModelManager(config, pool)
        return self.teacher_model_manager.get_client()

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        check_dataset(
            list(self.train_dataset.dataframe.column_names), self.train_dataset[0], self.config, self.intervention
        )
        check_columns(list(self.val_dataset.dataframe.column_names), "data.val_files")

    def fit(self, agent_loop_manager: Any) -> None:
        with Manifest(self.config, Path(self.config.trainer.default_local_dir) / "manifest.json") as self.manifest:
            super().fit(agent_loop_manager)

    def _compute_old_log_prob(self, batch, metrics: dict):
        """After verl's: inserted tokens nobody scored take the actor's log-prob, and the comparison of rollout and actor is
        made on policy tokens only."""
        batch = super()._compute_old_log_prob(batch, metrics)
        if not self.config.actor_rollout_ref.rollout.calculate_log_probs or self.intervention.trigger == "never":
            return batch  # nothing was inserted: verl's comparison stands
        data = self._fetch(batch, "authors", "responses", "response_mask", "rollout_log_probs", "old_log_probs")
        lengths = data["response_mask"].offsets().diff()
        padded = DataProto(batch=data.exclude("authors").to_padded_tensor())
        authors = _aligned(data["authors"], batch, lengths, fill=int(Author.ENVIRONMENT))
        unscored = padded.batch["rollout_log_probs"].isnan()
        padded.batch["rollout_log_probs"] = torch.where(
            unscored, padded.batch["old_log_probs"], padded.batch["rollout_log_probs"]
        )
        if unscored.any():
            batch = self._put(batch, {"rollout_log_probs": padded.batch["rollout_log_probs"]}, data["response_mask"])
        padded.batch["response_mask"] = padded.batch["response_mask"] * (authors == int(Author.POLICY))
        metrics.update(calculate_debug_metrics(padded))
        return batch

    def _compute_advantage(self, batch, metrics: dict):
        """verl's own advantages first; then the columns the objective reads are written over them."""
        records = self._records(batch)
        sampled = [record for record in records if record is not None]
        if self.manifest is not None and self.intervention.trigger != "never":
            self.manifest.count(judge_costs(sampled, self.intervention.judge.prices))
        self._stop_if_fatal(batch, sampled)
        self._isolate_masked(batch, records)
        batch = self._keep_one_token(batch, records, metrics)
        batch = super()._compute_advantage(batch, metrics)
        rows, nested_mask = self._rows(batch, records)
        real = [(i, record) for i, record in enumerate(records) if record is not None]
        targets = build_targets(
            rows, self.intervention, group_advantages=self._advantages(batch), regression=self.regression
        )
        sessions = [record for _, record in real]
        rewards = [rows.rewards[i].item() for i, _ in real]
        success = [r > self.intervention.success_threshold for r in rewards]
        metrics.update(rollout_metrics(sessions, success, rewards, self.intervention.judge.prices))
        intervened = torch.tensor([record is not None and record.intervened for record in records])
        weights = self.intervention.token_weights
        clip = weights.eps_cal if weights.mode == "steering" else None
        metrics.update(learning_metrics(rows, targets, intervened, clip))
        limit = self.config.actor_rollout_ref.rollout.prompt_length
        metrics[PREFIX + "prompts_at_limit"] = float(sum(batch.tags[i]["prompt_len"] >= limit for i, _ in real))
        return self._write_targets(batch, targets, nested_mask)

    def _write_targets(self, batch, targets: Targets, nested_mask: torch.Tensor):
        columns = {}
        if targets.control is not None:
            columns["advantages"] = targets.advantages
        if targets.weight_column is not None:
            columns["rollout_is_weights"] = targets.weight_column
        if self.regression:
            columns["old_log_probs"] = targets.anchor.log_probs
        return self._put(batch, columns, nested_mask) if columns else batch

    def _update_actor(self, batch, metrics: dict):
        if metrics[PREFIX + "updates_skipped"]:
            logger.warning("step %s: no session is learned from; the policy is left as it is.", self.global_steps)
            return batch
        batch = super()._update_actor(batch, metrics)
        finish_metrics(metrics)
        if (norm := metrics.get("actor/grad_norm")) is not None:
            metrics[PREFIX + "grad_clipped"] = float(norm > self.config.actor_rollout_ref.actor.grad_clip)
        return batch

    def _log_rollout_data(self, batch, timing_raw: dict, rollout_data_dir: str) -> None:
        super()._log_rollout_data(batch, timing_raw, rollout_data_dir)
        self._dump_trajectories(batch, rollout_data_dir)

    # --- columns in and out

    @staticmethod
    def _fetch(batch, *fields: str) -> TensorDict:
        return tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields))

    @staticmethod
    def _put(batch, columns: dict[str, torch.Tensor], nested_mask: torch.Tensor):
        """Write padded (N, T) columns back as jagged ones. The returned meta lists all fields: workers fetch by it."""
        fields = TensorDict(
            {name: response_to_nested(column, nested_mask) for name, column in columns.items()}, batch_size=len(batch)
        )
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def _records(self, batch) -> list[SessionRecord | None]:
        """Record of every row, None for verl's padding rows (clones of the first row)."""
        extra = list(self._fetch(batch, "extra_fields")["extra_fields"])
        return [
            None if tag.get("is_padding", False) else SessionRecord.from_dict(_plain(fields)[RECORD_KEY])
            for tag, fields in zip(batch.tags, extra, strict=True)
        ]

    def _isolate_masked(self, batch, records: list[SessionRecord | None]) -> None:
        """Give masked sessions a group of their own, so that verl's group mean does not see their reward."""
        masked = [i for i, record in enumerate(records) if record is not None and record.masked]
        if masked:
            uids = [f"{records[i].uid}-masked-{records[i].session_id}" for i in masked]  # type: ignore[union-attr]
            tq.kv_batch_put(
                keys=[batch.keys[i] for i in masked],
                partition_id=batch.partition_id,
                fields=tu.get_tensordict({"uid": uids}),
            )

    def _keep_one_token(self, batch, records: list[SessionRecord | None], metrics: dict):
        """Where no session is learned from (a long outage of the judge, say) unmask one token: verl's statistics raise on a
        batch without any. :meth:`_update_actor` then leaves the policy as it is."""
        trained = any(r is not None and r.is_trained(self.intervention.control.train) for r in records)
        metrics[PREFIX + "updates_skipped"] = float(not trained)
        if not trained:
            mask = self._fetch(batch, "response_mask")["response_mask"]
            padded = mask.to_padded_tensor(0)
            real = next(i for i, record in enumerate(records) if record is not None)  # verl leaves padding rows out
            padded[real, 0] = 1
            batch = self._put(batch, {"response_mask": padded}, mask)
        return batch

    def _rows(self, batch, records: list[SessionRecord | None]) -> tuple[Rows, torch.Tensor]:
        data = self._fetch(batch, "authors", "token_weights", "response_mask", "rm_scores", "old_log_probs")
        nested_mask = data["response_mask"]
        lengths = nested_mask.offsets().diff()
        padded = data.select("response_mask", "rm_scores", "old_log_probs").to_padded_tensor()
        rewards = padded["rm_scores"].sum(-1)
        before = [
            record.reward_before if record is not None and record.replaced else reward
            for record, reward in zip(records, rewards.tolist(), strict=True)
        ]
        rows = Rows(
            uids=[record.uid if record is not None else f"padding-{i}" for i, record in enumerate(records)],
            rewards=rewards,
            baseline_rewards=torch.tensor(before, dtype=rewards.dtype),
            old_log_probs=padded["old_log_probs"],
            mask=padded["response_mask"].bool(),
            authors=_aligned(data["authors"], batch, lengths, fill=int(Author.ENVIRONMENT)),
            weights=_aligned(data["token_weights"], batch, lengths, fill=1.0),
            is_control=torch.tensor([r is not None and r.role == Role.CONTROL and not r.replaced for r in records]),
            included=torch.tensor([r is not None and not r.masked for r in records]),
        )
        return rows, nested_mask

    def _advantages(self, batch) -> torch.Tensor:
        return self._fetch(batch, "advantages").to_padded_tensor()["advantages"]

    # --- stopping and dumping

    def _stop_if_fatal(self, batch, records: list[SessionRecord]) -> None:
        """Stop the run where the failure policy says so; the trajectories are dumped first.

        Raises:
            InterventionError: ``on_error: fail`` met a failure, or too many calls of the judge or of one of its roles failed.
        """
        message = next((record.fatal for record in records if record.fatal), "")
        hint = ""  # a fatal record brings its own
        judge = self.intervention.judge
        # also by role: a Corrector that always fails is asked far less often than a Validator that finds nothing wrong
        for role, (calls, errors) in judge_counts(records).items():
            before, failed_before = self._judge_counts[role]
            asked, failed = before + calls, failed_before + errors
            enough = asked >= judge.min_calls  # counted over as many updates as it takes
            self._judge_counts[role] = (0, Counter()) if enough else (asked, failed)
            if enough and not message and failed.total() / asked > judge.max_error_rate:
                message = (
                    f"{failed.total()} of {asked} {role or 'judge'} calls failed up to step {self.global_steps} "
                    f"({dict(failed)}); intervention.judge.max_error_rate is {judge.max_error_rate}."
                )
                hint = "repair the judge, or raise intervention.judge.max_error_rate."
        if message:
            if directory := self.config.trainer.get("rollout_data_dir", None):
                self._dump_trajectories(batch, directory, learned=False)
            raise InterventionError(message, hint)

    def _dump_trajectories(self, batch, rollout_data_dir: str, *, learned: bool = True) -> None:
        """One JSON object a session: tokens with their authors and weights, reviews, reward, what was learned from it.

        Args:
            learned: false where the run stops before the session got an advantage.
        """
        fields = ["prompts", "responses", "authors", "token_weights", "response_mask", "rm_scores", "extra_fields"]
        fields += ["advantages", "old_log_probs"] if learned else ["old_log_probs"]
        if self.config.actor_rollout_ref.rollout.calculate_log_probs:
            fields.append("rollout_log_probs")
        data = self._fetch(batch, *fields)
        extra = list(data["extra_fields"])
        rows = []
        for i, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True)):
            if tag.get("is_padding", False):
                continue
            prompt, response = data["prompts"][i].tolist(), data["responses"][i].tolist()
            record = _plain(extra[i])[RECORD_KEY]
            if self.intervention.public_dump:
                record = SessionRecord.from_dict(record).public().to_dict()
            row = {
                "key": key,
                "public": self.intervention.public_dump,
                **record,
                "reward": data["rm_scores"][i].sum().item(),
                "prompt": self.tokenizer.decode(prompt, skip_special_tokens=False),
                "response": self.tokenizer.decode(response, skip_special_tokens=False),
                "prompt_ids": prompt,
                "response_ids": response,
            }
            for name in fields:
                if name not in ("prompts", "responses", "rm_scores", "extra_fields"):
                    row[name] = data[name][i].tolist()
            advantages = row.pop("advantages", [])
            row["advantage"] = next((a for a, m in zip(advantages, row["response_mask"], strict=False) if m), 0.0)
            row["anchor"] = row.pop("old_log_probs")  # what the objective compares with; relaxed at inserted tokens
            rows.append(row)
        rows.sort(key=lambda row: (row["uid"], row["session_id"]))
        write_jsonl(Path(rollout_data_dir) / "trajectories" / f"{self.global_steps}.jsonl", rows)


@register_trainer("intervention_sync")
class InterventionTrainerSync(InterventionTrainer, PPOTrainerSync):
    """``PPOTrainerSync`` with interventions."""

    stock_mode = "sync"


@register_trainer("intervention_colocate_async")
class InterventionTrainerColocateAsync(InterventionTrainer, PPOTrainerColocateAsync):
    """``PPOTrainerColocateAsync`` with interventions; a session may span an exchange of weights."""

    stock_mode = "colocate_async"


def _plain(value: Any) -> Any:
    """The object inside a tensordict ``NonTensorData``."""
    return value.data if hasattr(value, "data") and not isinstance(value, dict) else value


def _aligned(column: torch.Tensor, batch, lengths: torch.Tensor, fill: float) -> torch.Tensor:
    """A jagged column of ours as a padded (N, T) tensor.

    verl's padding rows clone the first row but shorten only the fields verl knows, so they are filled here.
    """
    width = int(lengths.max())
    out = torch.full((len(lengths), width), fill, dtype=column.dtype)
    for i, (row, length) in enumerate(zip(column.unbind(), lengths.tolist(), strict=True)):
        if not batch.tags[i].get("is_padding", False):
            out[i, :length] = row
    return out

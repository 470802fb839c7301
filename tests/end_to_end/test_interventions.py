"""A run with interventions that is killed after its second update and resumed: rows, metrics, schedule, manifest."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import Run, train
from judge import CORRECTIONS
from transformers import AutoTokenizer

from verl_mintrl.trajectory.record import Role, SessionRecord, read_jsonl
from verl_mintrl.trajectory.spans import Author

KILL_AFTER, LAST, STOP_AFTER = 2, 4, 3
PROMPTS, N, LIMIT = 4, 4, 24


@dataclass(frozen=True)
class Runs:
    folder: Path
    killed: Run
    resumed: Run

    @property
    def metrics(self) -> dict[int, dict[str, float]]:
        """Step -> metrics, of the run that completed it last."""
        return {int(row["training/global_step"]): row for row in [*self.killed.rows, *self.resumed.rows]}

    def trajectories(self, step: int) -> list[dict]:
        return list(read_jsonl(self.folder / "rollouts" / "trajectories" / f"{step}.jsonl"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny_model, sums) -> Runs:
    folder = tmp_path_factory.mktemp("interventions")
    checkpoints = folder / "checkpoints"
    overrides = {
        "actor_rollout_ref.model.path": tiny_model,
        "data.train_files": sums,
        "data.val_files": sums,
        "data.train_batch_size": PROMPTS,
        "data.max_response_length": LIMIT,
        "data.shuffle": "false",
        "actor_rollout_ref.rollout.n": N,
        "actor_rollout_ref.actor.use_dynamic_bsz": "false",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
        "actor_rollout_ref.actor.optim.lr": "1e-3",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 8,
        "reward.custom_reward_function.path": "pkg://verl_mintrl.tasks.arithmetic",
        "reward.custom_reward_function.name": "compute_score",
        "intervention.review.every_tokens": 6,
        "intervention.review.segmenter": "judge:words",
        "intervention.review.mode": "overlapped",
        "intervention.judge.function": "judge:late_review",
        "intervention.schedule.stop_after_updates": STOP_AFTER,
        "trainer.total_training_steps": LAST,
        "trainer.save_freq": 1,
        "trainer.resume_mode": "auto",
        "trainer.default_local_dir": checkpoints,
        "trainer.rollout_data_dir": folder / "rollouts",
    }
    latest = checkpoints / "latest_checkpointed_iteration.txt"

    def second_update_saved() -> bool:
        return latest.is_file() and latest.read_text() == str(KILL_AFTER)

    killed = train(folder / "killed", overrides, "mintrl_const", kill_when=second_update_saved)
    resumed = train(folder / "resumed", overrides, "mintrl_const")
    return Runs(folder, killed, resumed)


# --- what was rolled out. The run is killed while it writes down its second update, so that one may be missing.

WRITTEN = [step for step in range(1, LAST + 1) if step != KILL_AFTER]


def test_sessions_are_intervened_on(runs):
    for step in (step for step in WRITTEN if step <= STOP_AFTER):
        row = runs.metrics[step]
        assert row["intervention/active"] == 1
        assert row["intervention/sessions_treated"] == PROMPTS * N / 2
        assert row["intervention/sessions_intervened"] == PROMPTS * N / 4, "even groups only"
        assert row["intervention/reviews_failed"] == 0


def test_interventions_abort_what_the_policy_was_writing(runs):
    rows = [runs.metrics[step] for step in WRITTEN if step <= STOP_AFTER]
    assert sum(row["intervention/requests_aborted"] for row in rows) > 0, "confirmed by vLLM's server"


def test_corrector_tokens_stand_where_the_reviews_say(runs, tiny_model):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    whole = 0
    for step in WRITTEN:
        rows = runs.trajectories(step)
        assert len(rows) == PROMPTS * N
        for row in rows:
            record = SessionRecord.from_dict(row)
            ranges = [range(*review.inserted) for review in record.reviews if review.inserted is not None]
            expected = {position for positions in ranges for position in positions}
            assert {i for i, author in enumerate(row["authors"]) if author == Author.CORRECTOR} == expected
            assert set(row["authors"]) <= {Author.POLICY, Author.CORRECTOR}
            assert len(row["authors"]) == len(row["response_ids"]) == len(row["response_mask"]) <= LIMIT
            assert record.role == Role.TREATED or not expected
            for review in record.reviews:
                if review.inserted is not None and review.inserted[1] - review.inserted[0] == review.inserted_tokens:
                    text = tokenizer.decode(row["response_ids"][slice(*review.inserted)])
                    assert text.strip().endswith(review.correction), "good characters of a cut token may stand before"
                    whole += 1
    assert whole > PROMPTS
    assert {review["correction"] for row in runs.trajectories(1) for review in row["reviews"]} == {None, *CORRECTIONS}


def test_inserted_tokens_are_trained(runs):
    for step in (step for step in WRITTEN if step <= STOP_AFTER):
        row = runs.metrics[step]
        assert 0 < row["intervention/off_policy_token_share"] < 0.5
        assert math.isfinite(row["actor/regression/inserted_log_prob"])
        assert row["intervention/bonus"] > 0
        for entry in runs.trajectories(step):
            for author, mask, anchor, log_prob in zip(
                entry["authors"], entry["response_mask"], entry["anchor"], entry["rollout_log_probs"], strict=True
            ):
                assert mask == 1
                if author == Author.CORRECTOR:
                    assert anchor > log_prob, "relaxed towards kappa = 0"
                else:
                    assert abs(anchor - log_prob) < 1e-3, "log pi_t"


def test_updates_are_finite_and_the_rollout_agrees_with_the_actor(runs):
    for step, row in runs.metrics.items():
        assert math.isfinite(row["actor/grad_norm"])
        assert row["actor/grad_norm"] > 0 or step > STOP_AFTER, "a random model earns no reward: only corrections teach"
        assert row["training/rollout_probs_diff_max"] < 1e-3


# --- killed and resumed


def test_steps_go_on_at_the_right_number(runs):
    assert [int(row["training/global_step"]) for row in runs.resumed.rows] == [KILL_AFTER + 1, LAST]
    assert len(runs.killed.rows) <= KILL_AFTER
    saved = {path.name for path in (runs.folder / "checkpoints").iterdir()}
    assert {f"global_step_{step}" for step in range(1, LAST + 1)} <= saved


def test_no_prompt_is_seen_twice(runs):
    prompts = [row["prompt"] for step in WRITTEN for row in runs.trajectories(step)]
    assert len(set(prompts)) == PROMPTS * len(WRITTEN)
    assert {prompts.count(prompt) for prompt in prompts} == {N}


def test_the_schedule_ends_at_its_step(runs):
    row = runs.metrics[LAST]
    assert row["intervention/active"] == row["intervention/sessions_treated"] == row["intervention/reviews"] == 0
    assert row["intervention/effective_rows"] == PROMPTS * N
    assert "intervention/advantage_control" in row, "the baseline stays what it was"
    assert all(set(entry["authors"]) == {Author.POLICY} for entry in runs.trajectories(LAST))


def test_the_manifest_tells_both_runs(runs):
    entries = json.loads((runs.folder / "checkpoints" / "manifest.json").read_text())["runs"]
    assert [entry["status"] for entry in entries] == ["running", "finished"]

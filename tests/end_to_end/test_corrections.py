"""Validator, Corrector, Verifier, gate and steering weights under both triggers, with real scoring by the rollout servers.

The policy is random and never succeeds by itself; :mod:`magic_word` has its judges and its reward.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import magic_word
import pytest
from harness import Run, train

UPDATES = 3
GROUPS, SESSIONS = 4, 4
EPS_CAL = 0.2


def corrected(folder: Path, recipe: str, tiny_model: Path, sums: Path, **overrides: object) -> Run:
    judges = f"{magic_word.__file__}:"
    return train(
        folder,
        {
            "actor_rollout_ref.model.path": tiny_model,
            "actor_rollout_ref.rollout.n": SESSIONS,
            "actor_rollout_ref.rollout.max_model_len": 1024,  # the context of pi_cal is a whole prompt of its own
            "actor_rollout_ref.actor.optim.lr": "1e-3",
            "data.train_files": sums,
            "data.val_files": sums,
            "data.train_batch_size": GROUPS,
            "intervention.judge.backend": "python",
            "intervention.judge.function": f"{judges}review",
            "intervention.judge.roles.corrector.function": f"{judges}correct",
            "intervention.judge.roles.verifier.function": f"{judges}verify",
            "intervention.gate.delta": "1e9",
            "reward.custom_reward_function.path": magic_word.__file__,
            "reward.custom_reward_function.name": "compute_score",
            "trainer.rollout_data_dir": folder / "rollouts",
            "trainer.total_training_steps": UPDATES,
            **overrides,
        },
        recipe=recipe,
    )


@pytest.fixture(scope="module")
def rti(tmp_path_factory, tiny_model, sums):
    return corrected(tmp_path_factory.mktemp("rti"), "rti", tiny_model, sums)


@pytest.fixture(scope="module")
def vcv_regression(tmp_path_factory, tiny_model, sums):
    """Under the other trainer, whose server client drops prompt log-probs: scoring goes past it."""
    changes = {
        "intervention.review.every_tokens": 8,
        "intervention.budget.max_insertions": 1,
        "trainer.v1.trainer_mode": "intervention_colocate_async",
    }
    return corrected(tmp_path_factory.mktemp("vcv"), "vcv_regression", tiny_model, sums, **changes)


@pytest.fixture(params=["rti", "vcv_regression"])
def run(request):
    return request.getfixturevalue(request.param)


def value(row: dict[str, float], name: str) -> float:
    return row[f"intervention/{name}"]


def dumped(run: Run) -> list[list[dict]]:
    files = [run.log.parent / "rollouts" / "trajectories" / f"{step}.jsonl" for step in range(1, UPDATES + 1)]
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def test_every_update_learns_from_corrections(run):
    assert [row["training/global_step"] for row in run.rows] == list(range(1, UPDATES + 1))
    for row in run.rows:
        assert 0 < row["actor/grad_norm"] < math.inf
        assert value(row, "off_policy_token_share") > 0
        assert 1 - EPS_CAL <= value(row, "inserted_weight") <= 1 + EPS_CAL
        assert value(row, "reviews_failed") == value(row, "sessions_masked") == 0
        assert value(row, "calls_validator") >= value(row, "calls_corrector") == value(row, "calls_verifier") > 0


def test_corrected_text_becomes_likelier_from_update_to_update(run):
    """All insertions are one text, and nothing but them is ever rewarded: the loss reaches inserted tokens."""
    log_probs = [value(row, "inserted_log_prob") for row in run.rows]
    assert all(after > before + 0.01 for before, after in itertools.pairwise(log_probs)), log_probs


def test_perplexities_are_of_a_random_policy(run):
    for number, row in enumerate(run.rows):
        low, middle, high = (value(row, f"ppl_correction_p{q}") for q in (10, 50, 90))
        assert 1 < low <= middle <= high < math.inf
        assert value(row, "ppl_replaced_p50") > 1
        # mean log-probs: of the rollout servers at temperature 1 for the proposals, of the actor for what was trained on
        # (an asynchronous trainer may have had them scored before the last update)
        recent = [value(r, "inserted_log_prob") for r in run.rows[max(0, number - 1) : number + 1]]
        assert min(abs(math.log(middle) + log_prob) for log_prob in recent) < 1


def test_dumped_rows_are_consistent(run):
    for rows in dumped(run):
        assert len(rows) == GROUPS * SESSIONS
        for row in rows:
            inserted = {t for note in row["reviews"] if note["inserted"] for t in range(*note["inserted"])}
            assert {t for t, author in enumerate(row["authors"]) if author == 2} == inserted
            for name in ("authors", "token_weights", "response_mask", "rollout_log_probs", "anchor"):
                assert len(row[name]) == len(row["response_ids"])
            for t, weight in enumerate(row["token_weights"]):
                assert abs(weight - 1) <= EPS_CAL + 1e-6 if t in inserted else weight == 1
            assert row["reward"] == float(bool(inserted)) == float(magic_word.WORD in row["response"])
            assert all(row["response_mask"])
        assert any(row["token_weights"][0] != 1 for row in rows)


def test_scored_log_probs_are_the_actors(rti):
    for rows in dumped(rti):
        differences = [
            abs(scored - recomputed)
            for row in rows
            for scored, recomputed in zip(row["rollout_log_probs"], row["anchor"], strict=True)
        ]
        assert max(differences) < 1e-2 and sum(differences) / len(differences) < 1e-3


def test_one_session_of_every_failed_group_is_replaced(rti):
    for row in rti.rows:
        assert value(row, "trigger_rate") == value(row, "rescue_rate") == 1
        assert value(row, "sessions_replaced") == value(row, "groups_triggered") == GROUPS
        assert value(row, "success_before") == value(row, "group_success_before") == 0
    for rows in dumped(rti):
        for _, group in itertools.groupby(rows, lambda row: row["uid"]):
            advantages = [(row["replaced"], row["advantage"]) for row in group]
            assert sorted(flag for flag, _ in advantages) == [False] * (SESSIONS - 1) + [True]
            assert all((advantage > 0) == flag for flag, advantage in advantages)


def test_treated_sessions_are_measured_against_control_sessions(vcv_regression):
    for row in vcv_regression.rows:
        assert value(row, "success_control") == value(row, "value") == 0
        assert value(row, "success_treated") == value(row, "rescue_gain") == value(row, "advantage_intervened") == 1
        assert value(row, "bonus") > 0
        assert row["actor/regression/drift_abs_min"] < 1e-4

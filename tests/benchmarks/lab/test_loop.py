"""Runs of a random policy: they repeat to the last bit, and every arm goes through."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from lab import tasks
from lab.arms import ARMS
from lab.evaluate import Examination
from lab.loop import Experiment, early_answers, own_reward, run

from verl_mintrl.trajectory.record import Outcome, ReviewRecord, Role, SessionRecord

SMALL = {"updates": 2, "prompts": 2, "n": 4, "pool": 8, "validate_every": 2, "examination": Examination(4, 2)}
TIMES = ("cpu/", "latency", "wait_share")


def experiment(name, seed=0, **changes):
    arm = ARMS[name]
    return Experiment(
        name,
        seed,
        arm.preset,
        arm.configuration(),
        self_judged=arm.corrector == "hint",
        baseline=arm.baseline,
        **{**SMALL, **changes},
    )


def rows(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in line.items() if not any(word in k for word in TIMES)} for line in lines]


@pytest.mark.parametrize("name", ["mintrl_gated", "rti"])
def test_a_seed_repeats_itself(tiny_policy, tmp_path, name):
    first = rows(run(experiment(name), tiny_policy, tmp_path / "a"))
    again = rows(run(experiment(name), tiny_policy, tmp_path / "b"))
    other = rows(run(experiment(name, seed=1), tiny_policy, tmp_path / "c"))
    assert json.dumps(first) == json.dumps(again)
    assert json.dumps(first[1:]) != json.dumps(other[1:])
    assert [row["update"] for row in first[1:]] == [0, 1, 2]


def test_interventions_reach_the_rows(tiny_policy, tmp_path):
    row = rows(run(experiment("mintrl_const"), tiny_policy, tmp_path))[2]
    assert row["intervention/sessions_treated"] == 4
    assert row["intervention/sessions_intervened"] > 0
    assert 0 < row["intervention/inserted_token_share"] < 1
    assert row["actor/regression/drift_abs_min"] == 0, "the log-probs are those of the policy that sampled"


@pytest.mark.parametrize("name", ["sft_then_grpo", "sft_more_then_grpo", "luffy", "mentor", "distil"])
def test_baselines_learn(tiny_policy, tmp_path, monkeypatch, name):
    monkeypatch.setattr("lab.baselines.teacher_path", lambda: tiny_policy)
    last = rows(run(experiment(name), tiny_policy, tmp_path))[-1]
    assert last["update"] == 2 and math.isfinite(last["actor/grad_norm"])


def sample(role=Role.POLICY, reward=1.0, notes=(), **fields):
    record = SessionRecord("a", 0, 1, role.value, reviews=list(notes), **fields)
    return SimpleNamespace(record=record, reward=reward, problem=tasks.sum_problem((3, 8, 7)))


def test_what_the_policy_gets_by_itself_is_no_selection():
    assert own_reward(sample()) == own_reward(sample(Role.CONTROL)) == 1.0
    assert own_reward(sample(Role.TREATED)) is None, "left alone because it was right"
    assert own_reward(sample(Role.TREATED, gated_off=True)) is None, "left alone because the others were right"
    assert own_reward(sample(triggered=True, replaced=True, reward_before=0.0)) == 0.0
    assert own_reward(sample(replaced=True, reward_before=0.0)) is None, "written by somebody else altogether"


def test_answers_that_come_too_early_are_counted_whoever_stops_them():
    def note(step, correction, outcome):
        return ReviewRecord(at_tokens=8, finished=False, steps=2, outcome=outcome, step=step, correction=correction)

    notes = [
        note(1, "03b8=11", Outcome.INSERTED),
        note(2, "#18", Outcome.INSERTED),
        note(2, "11c7=18\n#18", Outcome.REJECTED),
        note(3, "#18", Outcome.INSERTED),
        note(None, None, Outcome.KEPT),
    ]
    found = early_answers([sample(), sample(notes=notes)])
    assert found == {"judge/corrections": 4, "judge/early_answers": 2, "judge/early_answers_inserted": 1}


@pytest.mark.parametrize("name", ["mintrl_const", "rti"])
def test_judges_with_fewer_places_than_sessions_are_asked_in_every_update(tiny_policy, tmp_path, name):
    few = experiment(name)
    few = replace(few, overrides={**few.overrides, "intervention.judge.max_concurrency": 1})
    for row in rows(run(few, tiny_policy, tmp_path))[2:]:
        assert row["intervention/judge_calls"] > 1
        assert row.get("intervention/walks_failed", 0) == row["intervention/reviews_failed"] == 0


def test_a_walk_that_fails_ends_the_run(tiny_policy, tmp_path, monkeypatch):
    async def gone(*_, **__):
        raise ConnectionError("server gone")

    monkeypatch.setattr("verl_mintrl.judges.roles.RolesJudge.review", gone)
    with pytest.raises(RuntimeError, match="server gone"):
        run(experiment("rti"), tiny_policy, tmp_path)

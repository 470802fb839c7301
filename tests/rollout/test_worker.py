"""The rollout worker: roles, gate, masking and rows, with verl's own worker class and queue."""

from __future__ import annotations

import asyncio
import math

import numpy
import pytest
import stub_judges
from adapters import CONTROL, CORRECTED, END, INSERTED, RESPONSE_LENGTH, SCRIPT, N, Rewards
from scripted import follow

from verl_mintrl.config.validate import RESERVED_COLUMNS
from verl_mintrl.trajectory.record import Role
from verl_mintrl.trajectory.spans import Author


async def test_roles_reach_the_sessions(roll):
    done = await roll()
    assert done.status == "finished"
    assert [record.role for record in done.records] == [Role.CONTROL] * CONTROL + [Role.TREATED] * (N - CONTROL)
    assert [record.session_id for record in done.records] == list(range(N))
    assert all(record.active and record.step == 1 and record.uid == done.uid for record in done.records)
    assert done.texts == [SCRIPT] * CONTROL + [CORRECTED] * (N - CONTROL)


async def test_control_sessions_run_the_stock_loop(roll):
    done = await roll()
    ours = {call["request_id"] for call in done.servers.calls if call["request_id"].startswith(done.uid)}
    assert ours == {f"{done.uid}-{session}" for session in range(CONTROL, N)}
    stock = [call for call in done.servers.calls if call["request_id"] not in ours]
    assert len(stock) == CONTROL, "one call a session"
    assert all("stop" not in call for call in stock)
    assert {request.session_id for request in stub_judges.ASKED} == set(range(CONTROL, N))


async def test_columns_of_every_row_agree(roll):
    done = await roll()
    columns = {name: done.column(name) for name in ("authors", "token_weights", "response_mask", "rollout_log_probs")}
    for session, text in enumerate(done.texts):
        assert {len(column[session]) for column in columns.values()} == {len(text)}
        authors = columns["authors"][session].tolist()
        inserted = [i for i, author in enumerate(authors) if author == Author.CORRECTOR]
        assert inserted == (list(INSERTED) if session >= CONTROL else [])
        assert columns["response_mask"][session].tolist() == [1] * len(text)
        assert columns["token_weights"][session].tolist() == [1.0] * len(text)
        unscored = [i for i, value in enumerate(columns["rollout_log_probs"][session].tolist()) if math.isnan(value)]
        assert unscored == inserted


async def test_no_column_of_a_row_can_come_from_the_dataset(roll):
    """A dataset column of the same name would overwrite it silently."""
    done = await roll()
    given = {"raw_prompt", "index", "reward_model", "agent_name"}
    columns = set(done.tq.kv_batch_get(keys=done.keys, partition_id="train").keys()) - given
    assert {"authors", "token_weights", "extra_fields", "rm_scores"} <= columns
    assert columns <= RESERVED_COLUMNS


async def test_validation_is_never_intervened_on(roll):
    done = await roll({"actor_rollout_ref.rollout.val_kwargs.n": 3}, validate=True)
    assert done.partition == "val"
    assert done.texts == [SCRIPT] * 3
    assert [record.role for record in done.records] == [Role.POLICY] * 3
    assert not any(record.active for record in done.records)
    assert stub_judges.ASKED == []
    assert done.column("authors")[0].tolist() == [Author.POLICY] * len(SCRIPT), "the same columns as in training"


async def test_the_schedule_ends_interventions_and_keeps_the_control_sessions(roll):
    stop = {"intervention.schedule.stop_after_updates": 5}
    after = await roll(stop, step=6)
    assert [record.role for record in after.records] == [Role.CONTROL] * CONTROL + [Role.POLICY] * (N - CONTROL)
    assert not any(record.active for record in after.records)
    assert after.texts == [SCRIPT] * N
    assert stub_judges.ASKED == []
    last = await roll(stop, step=5)
    assert last.records[-1].intervened


async def test_evidence_reaches_the_judge_only(roll):
    changes = {
        "intervention.judge.evidence": "gold",
        "intervention.judge.evidence_column": "reward_model.ground_truth",
    }
    done = await roll(changes, row={"reward_model": {"ground_truth": "42-secret", "style": "rule"}})
    assert {request.privileged for request in stub_judges.ASKED} == {"42-secret"}
    assert all("42-secret" not in "".join(map(chr, call["prompt_ids"])) for call in done.servers.calls)


# --- the gate on control success

GATED = {"intervention.only_if_control_fails": True}


async def test_gated_sessions_wait_for_the_control_rewards(roll):
    released = asyncio.Event()

    async def late(session: int, text: str) -> float:
        if session < CONTROL:
            await released.wait()
        return 0.0

    async def look(servers) -> None:
        await asyncio.sleep(1.0)
        seen = len(servers.calls)
        released.set()
        assert seen == CONTROL, "treated sessions started before the control rewards were known"

    done = await roll(GATED, rewards=Rewards(late), meanwhile=look)
    assert done.texts == [SCRIPT] * CONTROL + [CORRECTED] * (N - CONTROL)
    assert not any(record.gated_off for record in done.records)


async def test_a_successful_control_session_gates_the_treated_ones_off(roll):
    done = await roll(GATED, rewards=Rewards(lambda session, text: float(session == 1)))
    assert done.texts == [SCRIPT] * N
    assert [record.gated_off for record in done.records] == [False] * CONTROL + [True] * (N - CONTROL)
    assert stub_judges.ASKED == []


async def test_the_gate_compares_with_the_threshold(roll):
    changes = GATED | {"intervention.success_threshold": 0.5}
    done = await roll(changes, rewards=Rewards(lambda session, text: 0.5))
    assert done.texts[-1] == CORRECTED


@pytest.mark.parametrize("failing", [(0,), (0, 1)])
async def test_a_failing_control_session_does_not_hang_the_others(roll, failing):
    def score(session: int, text: str) -> float:
        if session in failing:
            raise RuntimeError("the reward function is broken")
        return 0.0

    done = await roll(GATED, rewards=Rewards(score))
    assert done.status == "finished", "no session is lost"
    assert [record.session_id for record in done.records] == list(range(N))
    stopping = [record.session_id for record in done.records if record.fatal]
    assert stopping == list(failing) and all(done.records[i].masked for i in failing)
    assert done.uid in done.records[0].fatal and "raised RuntimeError" in done.records[0].fatal
    assert done.texts[-1] == CORRECTED


# --- rows that must not be learned from


async def test_an_empty_response_is_one_untrained_token_whoever_sampled_it(roll):
    done = await roll(policy=lambda text: "")
    assert done.status == "finished"
    assert {record.role for record in done.records} == {Role.CONTROL, Role.TREATED}
    assert all(record.masked and record.mask_reason == "empty_response" for record in done.records)
    assert done.texts == [END] * N
    for column in ("response_mask", "loss_mask"):
        assert [row.tolist() for row in done.column(column)] == [[0]] * N


async def test_an_empty_response_keeps_the_columns_of_the_other_rows(roll):
    calls = []

    def policy(text: str) -> str:
        calls.append(text)
        return "" if len(calls) == 1 else follow(SCRIPT)(text)

    done = await roll({"intervention.trigger": "never"}, policy=policy)
    assert done.status == "finished"
    (empty,) = [i for i, record in enumerate(done.records) if record.masked]
    assert done.texts[empty] == END
    assert [len(row) for row in done.column("rollout_log_probs")] == [len(text) for text in done.texts]


async def test_a_masked_session_has_no_trained_token(roll):
    done = await roll({"intervention.judge.function": "stub_judges:broken", "intervention.judge.on_error": "mask"})
    assert [record.masked for record in done.records] == [False] * CONTROL + [True] * (N - CONTROL)
    for column in ("response_mask", "loss_mask"):
        trained = [row.sum().item() for row in done.column(column)]
        assert trained == [len(SCRIPT)] * CONTROL + [0] * (N - CONTROL)
    assert done.texts == [SCRIPT] * N, "the policy went on"
    assert done.records[-1].mask_reason == "judge_exception"


async def test_kept_errors_are_trained_on(roll):
    done = await roll({"intervention.judge.function": "stub_judges:broken", "intervention.judge.on_error": "keep"})
    assert not any(record.masked for record in done.records)
    assert done.records[-1].reviews[0].reason == "exception"
    assert done.column("response_mask")[-1].sum() == len(SCRIPT)


async def test_control_sessions_can_be_left_untrained(roll):
    done = await roll({"intervention.control.train": False})
    trained = [row.sum().item() > 0 for row in done.column("response_mask")]
    assert trained == [False] * CONTROL + [True] * (N - CONTROL)
    assert not any(record.masked for record in done.records), "they still make the baseline"


async def test_a_response_never_exceeds_its_limit(roll):
    done = await roll(policy=lambda text: "x. bad\n\n" * 20)
    assert max(len(text) for text in done.texts) == RESPONSE_LENGTH
    assert done.status == "finished"


# --- rewards


async def test_a_validation_reward_that_is_no_number_fails_its_session(roll):
    rewards = Rewards(lambda session, text: math.nan if session == 1 else 0.0)
    done = await roll({"actor_rollout_ref.rollout.val_kwargs.n": 3}, rewards=rewards, validate=True)
    assert done.status == "failure"
    assert [record.session_id for record in done.records] == [0, 2]


async def test_rewards_may_be_booleans_and_numpy_numbers(roll):
    values = [True, numpy.float32(0.5), numpy.int64(2), 0]
    done = await roll(rewards=Rewards(lambda session, text: values[session]))
    assert [row.sum().item() for row in done.column("rm_scores")] == [1.0, 0.5, 2.0, 0.0]

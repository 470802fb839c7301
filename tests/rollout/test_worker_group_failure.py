"""The rollout worker under the trigger ``group_failure``, with verl's own worker and queue."""

from __future__ import annotations

import math

import stub_judges
from adapters import CORRECTED, INSERTED, SCRIPT, N, Rewards

from verl_mintrl.trajectory.record import Role
from verl_mintrl.trajectory.spans import Author

#: judges that are functions, and nothing that needs scoring
PLAIN = {
    "intervention.judge.backend": "python",
    "intervention.judge.evidence": "none",
    "intervention.verifier.enabled": False,
    "intervention.gate.mode": "none",
    "intervention.token_weights.mode": "ones",
}


async def test_a_failed_group_publishes_one_edited_session(roll):
    done = await roll(PLAIN, recipe="rti")
    assert done.status == "finished" and len(done.keys) == N
    assert sorted(done.texts) == sorted([SCRIPT] * (N - 1) + [CORRECTED])
    (number,) = [i for i, text in enumerate(done.texts) if text == CORRECTED]
    record = done.records[number]
    assert record.replaced and record.triggered and (record.reward_before, record.reward_after) == (0.0, 1.0)
    assert [row.sum().item() for row in done.column("rm_scores")] == [float(i == number) for i in range(N)]
    names = ("authors", "token_weights", "response_mask", "loss_mask", "rollout_log_probs", "rm_scores", "responses")
    columns = {name: done.column(name) for name in names}
    for session in range(N):
        assert len({len(column[session]) for column in columns.values()}) == 1
        authors = columns["authors"][session].tolist()
        inserted = [t for t, author in enumerate(authors) if author == Author.CORRECTOR]
        assert inserted == (list(INSERTED) if session == number else [])
    assert all(row.bool().all() for row in columns["response_mask"])


async def test_a_group_with_a_success_is_published_as_sampled(roll):
    done = await roll(PLAIN, recipe="rti", rewards=Rewards(lambda session, text: float(session == 3)))
    assert done.texts == [SCRIPT] * N and stub_judges.ASKED == []
    assert [record.reward_before for record in done.records] == [0.0, 0.0, 0.0, 1.0]


async def test_validation_is_never_held(roll):
    done = await roll(PLAIN, recipe="rti", validate=True)
    assert set(done.texts) == {SCRIPT} and stub_judges.ASKED == []
    assert not any(record.triggered for record in done.records)


async def test_a_group_in_which_a_session_failed_is_published_unchanged(roll):
    def score(session: int, text: str) -> float:
        if session == 1:
            raise RuntimeError("the reward function is broken")
        return 0.0

    done = await roll(PLAIN, recipe="rti", rewards=Rewards(score))
    assert done.status == "finished" and done.texts == [SCRIPT] * N and stub_judges.ASKED == []
    assert [bool(record.fatal) for record in done.records] == [session == 1 for session in range(N)]


async def test_a_replaced_control_session_is_trained_on(roll):
    changes = PLAIN | {
        "intervention.advantage.estimator": "control",
        "intervention.control.size": N,
        "intervention.control.train": False,
    }
    done = await roll(changes, recipe="rti")
    trained = [bool(row.any()) for row in done.column("response_mask")]
    assert trained == [record.replaced for record in done.records] and sum(trained) == 1
    assert {record.role for record in done.records} == {Role.CONTROL}


async def test_a_sampled_reward_that_is_no_number_leaves_the_group_as_it_was(roll):
    done = await roll(PLAIN, recipe="rti", rewards=Rewards(lambda session, text: math.nan if session == 2 else 0.0))
    assert done.status == "finished" and done.texts == [SCRIPT] * N and stub_judges.ASKED == []
    assert [record.mask_reason for record in done.records] == ["", "", "reward", ""]
    assert "reward of session 2" in done.records[2].fatal and not done.column("response_mask")[2].any()


async def test_an_edited_reward_that_is_no_number_stops_the_run(roll):
    done = await roll(PLAIN, recipe="rti", rewards=Rewards(lambda session, text: 0.0 if "bad" in text else "1"))
    assert done.texts == [SCRIPT] * N
    assert all("is '1'" in record.fatal and "custom_reward_function" in record.fatal for record in done.records)

"""What is reported, and under which names."""

from __future__ import annotations

import math

import pytest
import torch

from verl_mintrl.config.schema import InterventionConfig
from verl_mintrl.errors import JUDGE_ERROR_KINDS
from verl_mintrl.learning.targets import Rows, build_targets
from verl_mintrl.metrics import REJECTIONS, judge_counts, learning_metrics, rescue_gain, rollout_metrics
from verl_mintrl.trajectory.record import Outcome, ReviewRecord, Role, SessionRecord

REDUCED_BY_NAME = ("min", "max", "sum", "total")


def review(outcome: str, reason: str = "", **fields) -> ReviewRecord:
    return ReviewRecord(at_tokens=8, finished=False, steps=2, outcome=outcome, reason=reason, **fields)


def session(number: int, role: Role, *reviews: ReviewRecord, uid: str = "a", **fields) -> SessionRecord:
    return SessionRecord(uid=uid, session_id=number, step=3, role=role.value, reviews=list(reviews), **fields)


def inserted(calls: int = 1, seconds: float = 1.0) -> ReviewRecord:
    return review(Outcome.INSERTED, inserted=(2, 4), inserted_tokens=2, judge_calls=calls, judge_seconds=seconds)


def everything() -> list[SessionRecord]:
    """A group in which every kind of thing happened."""
    return [
        session(0, Role.CONTROL),
        session(1, Role.CONTROL, masked=True),
        session(2, Role.TREATED, *(review(Outcome.ERROR, kind) for kind in sorted(JUDGE_ERROR_KINDS)), active=True),
        session(3, Role.TREATED, *(review(Outcome.REJECTED, reason) for reason in REJECTIONS), review(Outcome.KEPT)),
        session(
            4,
            Role.TREATED,
            *(inserted(), inserted()),
            generate_seconds=2.0,
            judge_wait_seconds=2.0,
            superseded=[review(Outcome.KEPT, judge_calls=1)],
            speculative_tokens=7,
            aborted_requests=1,
        ),
        session(5, Role.TREATED, gated_off=True),
        session(6, Role.POLICY),
    ]


def rows(authors: list[list[int]], rewards: list[float], controls: list[bool], included: list[bool]) -> Rows:
    tensor = torch.tensor(authors)
    trained = (tensor > 0) & torch.tensor(included).unsqueeze(-1)
    return Rows(
        uids=["a"] * len(authors),
        rewards=torch.tensor(rewards),
        baseline_rewards=torch.tensor(rewards),
        old_log_probs=torch.full(tensor.shape, -2.0),
        mask=trained,
        authors=tensor,
        weights=torch.ones(tensor.shape),
        is_control=torch.tensor(controls),
        included=torch.tensor(included),
    )


def learned(data: Rows, **config) -> dict[str, float]:
    node = InterventionConfig(**config)
    targets = build_targets(data, node, group_advantages=torch.zeros(data.mask.shape), regression=True)
    return learning_metrics(data, targets, (data.authors == 2).any(-1))


def test_no_name_is_reduced_by_accident():
    records = everything()
    names = set(rollout_metrics(records, [True] * 7, [1.0] * 7))
    data = rows([[1, 1], [1, 2], [1, 1], [1, 1]], [0, 1, 1, 0], [True, False, False, True], [True, True, True, False])
    names |= set(learned(data))
    assert len(names) > 50, "the records above no longer reach every metric"
    assert {"intervention/rescue_gain", "intervention/judge_wait_share", "intervention/sign_flips"} <= names
    assert all(name.startswith("intervention/") for name in names)
    assert [name for name in names for word in REDUCED_BY_NAME if word in name] == []


def test_every_error_kind_and_rejection_is_reported_whether_or_not_it_happened():
    names = set(rollout_metrics([session(0, Role.POLICY)], [True], [1.0]))
    assert {f"intervention/judge_errors/{kind}" for kind in JUDGE_ERROR_KINDS} <= names
    assert {f"intervention/rejected/{reason}" for reason in REJECTIONS} <= names


def test_judge_counts():
    calls, errors = judge_counts(everything())[""]
    assert calls == len(JUDGE_ERROR_KINDS) + len(REJECTIONS) + 1 + 2
    assert errors == dict.fromkeys(JUDGE_ERROR_KINDS, 1)


def test_judge_counts_of_a_role():
    asked = {"validator": 1, "corrector": 1}
    records = [
        session(0, Role.TREATED, *[review(Outcome.KEPT, calls_by_role={"validator": 1}) for _ in range(7)]),
        session(
            1,
            Role.TREATED,
            review(Outcome.INSERTED, calls_by_role=asked),
            review(Outcome.ERROR, "context", calls_by_role=asked, failed_role="corrector"),
            review(Outcome.ERROR, "timeout", calls_by_role={"validator": 1}, failed_role="corrector"),  # no usage told
            review(Outcome.ERROR, "timeout", failed_role="validator"),
        ),
    ]
    assert judge_counts(records)[""] == (11, {"context": 1, "timeout": 2})
    assert judge_counts(records)["validator"] == (11, {"timeout": 1})
    assert judge_counts(records)["corrector"] == (3, {"context": 1, "timeout": 1})
    assert judge_counts(records)["verifier"] == (0, {})


def test_counts_of_sessions_and_reviews():
    metrics = rollout_metrics(everything(), [False] * 7, [0.0] * 7)

    def value(name: str) -> float:
        return metrics[f"intervention/{name}"]

    assert value("active") == 1
    assert (value("sessions_treated"), value("sessions_intervened")) == (4, 1)
    assert (value("sessions_gated_off"), value("sessions_masked")) == (1, 1)
    assert value("reviews") == sum(
        value(f"reviews_{outcome}") for outcome in ("kept", "inserted", "rejected", "failed")
    )
    assert (value("reviews_kept"), value("reviews_inserted"), value("reviews_rejected")) == (1, 2, len(REJECTIONS))
    assert value("judge_error_rate") == len(JUDGE_ERROR_KINDS) / value("reviews")
    assert value("judge_calls") == 3, "superseded reviews cost, too"
    assert (value("reviews_superseded"), value("speculative_tokens"), value("requests_aborted")) == (1, 7, 1)
    assert value("judge_wait_share") == 0.5  # two seconds of judge, two of writing
    assert value("insertions_per_intervened_session") == 2


def test_means_over_nothing_are_left_out():
    metrics = rollout_metrics([session(0, Role.POLICY)], [True], [1.0])
    for name in ("judge_error_rate", "judge_latency_p50", "judge_wait_share", "rescue_gain", "success_control"):
        assert f"intervention/{name}" not in metrics
    assert metrics["intervention/active"] == 0


def test_gated_off_sessions_are_not_the_treated_arm():
    records = [
        session(0, Role.CONTROL),
        session(1, Role.TREATED, gated_off=True),
        session(2, Role.TREATED, inserted(), uid="b"),
        session(3, Role.TREATED, uid="b"),
    ]
    metrics = rollout_metrics(records, [False, True, True, False], [0.0, 1.0, 1.0, 0.25])
    assert metrics["intervention/success_treated"] == 0.5
    assert metrics["intervention/reward_treated"] == 0.625
    assert metrics["intervention/success_intervened"] == 1
    assert metrics["intervention/success_control"] == 0


def test_rescue_gain_compares_within_groups():
    records = [
        session(0, Role.CONTROL, uid="a"),
        session(1, Role.CONTROL, uid="a"),
        session(2, Role.TREATED, uid="a"),
        session(3, Role.POLICY, uid="a"),
        session(0, Role.CONTROL, uid="b"),
        session(1, Role.TREATED, uid="b"),
        session(0, Role.TREATED, uid="no control"),
    ]
    rewards = [0.0, 1.0, 1.0, 0.25, 0.0, 1.0, 100.0]
    assert rescue_gain(records, rewards) == pytest.approx(((1 - 0.5) + (0.25 - 0.5) + 1.0) / 3)


def test_rescue_gain_leaves_masked_sessions_out():
    records = [
        session(0, Role.CONTROL),
        session(1, Role.CONTROL, masked=True),
        session(2, Role.TREATED),
        session(3, Role.TREATED, masked=True),
    ]
    assert rescue_gain(records, [0.0, 9.0, 1.0, 9.0]) == 1.0
    assert rescue_gain(records[1:], [9.0, 1.0, 9.0]) is None


def test_shares_of_inserted_tokens():
    data = rows(
        [[1, 2, 2, 1], [1, 1, 0, 0], [2, 2, 1, 1]],  # the last session is masked out
        [1.0, 0.0, 0.0],
        [False, True, False],
        [True, True, False],
    )
    metrics = learned(data)
    assert metrics["intervention/effective_rows"] == 2
    assert metrics["intervention/inserted_token_share"] == pytest.approx(4 / 10)  # of what was written
    assert metrics["intervention/off_policy_token_share"] == pytest.approx(2 / 6)  # of what is trained
    assert metrics["intervention/inserted_log_prob"] == -2
    assert metrics["intervention/lone_controls"] == 1


def test_bonus_of_a_failed_session_is_reported_with_its_flip():
    data = rows([[1, 1], [1, 1], [1, 2]], [1.0, 1.0, 0.0], [True, True, False], [True, True, True])
    node = {"objective": InterventionConfig().objective, "anchor": InterventionConfig().anchor}
    node["objective"].beta, node["anchor"].max_bonus = 1.0, 5.0
    metrics = learned(data, **node)
    # A* = 0 - 1; the anchor 0 instead of -2 adds beta * 2
    assert metrics["intervention/advantage_intervened"] == -1
    assert metrics["intervention/bonus"] == pytest.approx(2)
    assert metrics["intervention/sign_flips"] == 1
    assert metrics["intervention/bonus_capped_share"] == 0


def test_metrics_are_plain_finite_numbers():
    metrics = rollout_metrics(everything(), [True] * 7, [1.0] * 7)
    assert all(type(value) is float and math.isfinite(value) for value in metrics.values())


def test_a_replaced_control_session_is_no_control_any_more():
    """Trigger group_failure with the control estimator: the baseline stays what the policy reached alone."""
    records = [
        SessionRecord("a", i, 1, role="control" if i < 2 else "policy", triggered=True, reward_before=0.0)
        for i in range(4)
    ]
    records[0].replaced, records[0].reward_after = True, 1.0
    metrics = rollout_metrics(records, [True, False, False, False], [1.0, 0.0, 0.0, 0.0])
    assert metrics["intervention/rescue_rate"] == 1
    assert metrics["intervention/success_control"] == 0
    assert rescue_gain(records, [1.0, 0.0, 0.0, 0.0]) == pytest.approx(1 / 3)

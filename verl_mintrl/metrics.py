"""What is reported about interventions, computed on the driver. Pure.

Every name starts with ``intervention/``. verl picks a reduction by substring, so no name contains min, max, sum or total.
A mean over nothing is left out rather than reported as 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from verl_mintrl.config.judge import PricesConfig
from verl_mintrl.errors import JUDGE_ERROR_KINDS
from verl_mintrl.learning.targets import Rows, Targets
from verl_mintrl.trajectory.record import Outcome, ReviewRecord, Role, SessionRecord

PREFIX = "intervention/"
#: reasons for which a correction is not used although the judge answered properly
REJECTIONS = (
    "insertions",
    "share",
    "no_room",
    "disagrees",
    "leak",
    "implausible",
    "perplexity",
    "replay",
    "environment",
)
ROLES = ("validator", "corrector", "verifier")


def judge_counts(records: Iterable[SessionRecord]) -> dict[str, tuple[int, Counter[str]]]:
    """Reviews asked for, and how many of them failed, by kind: under "" all of them, under a role those in which it was
    asked, and the errors that are its own."""
    roles = ("", *ROLES)
    calls, errors = Counter[str](), {role: Counter[str]() for role in roles}
    for review in (review for record in records for review in record.asked):
        for role in roles:
            own = role in ("", review.failed_role)
            calls[role] += own or role in review.calls_by_role
            if own and review.outcome == Outcome.ERROR:
                errors[role][review.reason] += 1
    return {role: (calls[role], errors[role]) for role in roles}


def judge_costs(records: Sequence[SessionRecord], prices: PricesConfig | None = None) -> dict[str, float]:
    """What the judge was asked and what that cost; every entry may be added up over updates.

    Args:
        prices: of the judge's tokens; the cost is left out without them.
    """
    paid = [review for record in records for review in record.paid]
    counts = judge_counts(records)
    total, errors = counts[""]
    calls = Counter[str]()
    for review in paid:
        calls.update(review.calls_by_role)
    costs: dict[str, float] = {
        "reviews": total,
        "reviews_failed": errors.total(),
        "judge_calls": sum(review.judge_calls for review in paid),
        "judge_prompt_tokens": sum(review.judge_prompt_tokens for review in paid),
        "judge_completion_tokens": sum(review.judge_completion_tokens for review in paid),
        "judge_cached_tokens": sum(review.judge_cached_tokens for review in paid),
    }
    costs |= {f"calls_{role}": calls[role] for role in ROLES}
    costs |= {f"errors_{role}": counts[role][1].total() for role in ROLES}
    costs |= {f"judge_errors/{kind}": errors[kind] for kind in sorted(JUDGE_ERROR_KINDS)}
    tokens = (int(costs[f"judge_{kind}_tokens"]) for kind in ("prompt", "completion", "cached"))
    if (cost := (prices or PricesConfig()).cost(*tokens)) is not None:
        costs["judge_cost"] = cost
    return costs


def rollout_metrics(
    records: Sequence[SessionRecord],
    success: Sequence[bool],
    rewards: Sequence[float],
    prices: PricesConfig | None = None,
) -> dict[str, float]:
    """Metrics of how the sessions were sampled.

    Args:
        records: one per session, padding excluded.
        success: whether each session's reward is above the success threshold.
        rewards: outcome reward of each session.
        prices: of the judge's tokens; the cost is left out without them.
    """
    reviews = [review for record in records for review in record.asked]
    paid = [review for record in records for review in record.paid]
    outcomes = Counter(review.outcome for review in reviews)
    total, errors = judge_counts(records)[""]
    rejected = Counter(review.reason for review in reviews if review.outcome == Outcome.REJECTED)
    treated = [record for record in records if record.role == Role.TREATED]
    intervened = [record for record in records if record.intervened]
    metrics: dict[str, float] = {
        "active": float(any(record.active for record in records)),
        "sessions_treated": len(treated),
        "sessions_intervened": len(intervened),
        "sessions_gated_off": sum(record.gated_off for record in records),
        "sessions_masked": sum(record.masked for record in records),
        "reviews_kept": outcomes[Outcome.KEPT],
        "reviews_inserted": outcomes[Outcome.INSERTED],
        "reviews_rejected": outcomes[Outcome.REJECTED],
        "reviews_superseded": len(paid) - total,
        "speculative_tokens": sum(record.speculative_tokens for record in records),
        "requests_aborted": sum(record.aborted_requests for record in records),
    }
    metrics |= judge_costs(records, prices)
    metrics |= {f"rejected/{reason}": rejected[reason] for reason in REJECTIONS}
    if total:
        latency = [review.judge_seconds for review in reviews]
        metrics["judge_error_rate"] = errors.total() / total
        metrics["judge_latency_p50"], metrics["judge_latency_p95"] = np.quantile(latency, (0.5, 0.95)).tolist()
    waiting = sum(record.judge_wait_seconds for record in records)
    writing = sum(record.generate_seconds for record in records if record.asked)
    if waiting + writing > 0:
        metrics["judge_wait_share"] = waiting / (waiting + writing)
    if intervened:
        insertions = sum(review.inserted is not None for record in intervened for review in record.reviews)
        metrics["insertions_per_intervened_session"] = insertions / len(intervened)
    for name, chosen in (
        ("control", [r.role == Role.CONTROL and not r.replaced for r in records]),
        ("treated", [r.role == Role.TREATED and not r.gated_off for r in records]),
        ("intervened", [r.intervened for r in records]),
    ):
        if any(chosen):
            metrics[f"success_{name}"] = float(np.mean([s for s, c in zip(success, chosen, strict=True) if c]))
            metrics[f"reward_{name}"] = float(np.mean([r for r, c in zip(rewards, chosen, strict=True) if c]))
    if (gain := rescue_gain(records, rewards)) is not None:
        metrics["rescue_gain"] = gain
    if any(record.reward_before is not None for record in records):
        metrics |= _failed_groups(records, success)
    metrics |= _perplexities(reviews)
    return {PREFIX + name: float(value) for name, value in metrics.items()}


def _failed_groups(records: Sequence[SessionRecord], success: Sequence[bool]) -> dict[str, float]:
    """Trigger ``group_failure``: what the walks over all-failed groups came to; rates are exact here."""
    groups = {record.uid for record in records}
    triggered = {record.uid for record in records if record.triggered}
    rescued = {record.uid for record, ok in zip(records, success, strict=True) if record.replaced and ok}
    edited = [record for record in records if record.reward_after is not None]
    before = [ok and not record.replaced for record, ok in zip(records, success, strict=True)]
    result: dict[str, float] = {
        "groups_triggered": len(triggered),
        "trigger_rate": len(triggered) / len(groups),
        "sessions_edited": len(edited),
        "sessions_replaced": sum(record.replaced for record in records),
        "walks_failed": sum(bool(record.walk_error) for record in records),
        "steps_walked": sum(len(record.walk) for record in records),
        "success_before": sum(before) / len(records),
        "group_success_before": 1 - len(triggered) / len(groups),
    }
    if triggered:
        result["rescue_rate"] = len(rescued) / len(triggered)
    return result


def _perplexities(reviews: Sequence[ReviewRecord]) -> dict[str, float]:
    """Quantiles over all proposals, accepted or not."""
    result: dict[str, float] = {}
    for name, values in (
        ("ppl_correction", [r.perplexity for r in reviews if r.perplexity is not None]),
        ("ppl_replaced", [r.replaced_perplexity for r in reviews if r.replaced_perplexity is not None]),
    ):
        if values:
            for quantile in (0.1, 0.5, 0.9):
                # an observed value, since between infinite ones there is no number
                result[f"{name}_p{round(100 * quantile)}"] = float(np.quantile(values, quantile, method="nearest"))
    fallbacks = [r.gate_fallback for r in reviews if r.perplexity is not None]
    return result | ({"gate_fallbacks": float(sum(fallbacks))} if fallbacks else {})


def rescue_gain(records: Sequence[SessionRecord], rewards: Sequence[float]) -> float | None:
    """Mean over all non-control sessions of (reward - mean reward of the group's control sessions), in reward units.

    Not only the intervened sessions: which of them would have failed anyway cannot be observed under the periodic trigger.
    None if no group has both.
    """
    controls: dict[str, list[float]] = {}
    for record, reward in zip(records, rewards, strict=True):
        if _is_control(record):
            controls.setdefault(record.uid, []).append(reward)
    gains = [
        reward - float(np.mean(controls[record.uid]))
        for record, reward in zip(records, rewards, strict=True)
        if not _is_control(record) and not record.masked and record.uid in controls
    ]
    return float(np.mean(gains)) if gains else None


def _is_control(record: SessionRecord) -> bool:
    """An edited session that replaced a control session is none any more."""
    return record.role == Role.CONTROL and not record.masked and not record.replaced


def learning_metrics(
    rows: Rows, targets: Targets, intervened: torch.Tensor, clip: float | None = None
) -> dict[str, float]:
    """Metrics of what is learned from.

    Args:
        rows: the update's rows, padding included (it is not counted).
        targets: what the loss will read.
        intervened: (N,) bool, corrector tokens stand in the response.
        clip: half-width of the clip of steering weights, None without them.
    """
    mask = rows.mask.bool()
    trained = mask.any(-1)
    inserted = rows.inserted & mask
    per_row = (targets.advantages * mask).sum(-1) / mask.sum(-1).clamp(min=1)
    metrics: dict[str, float] = {"effective_rows": int(trained.sum())}
    if tokens := int(mask.sum()):
        metrics["off_policy_token_share"] = int(inserted.sum()) / tokens
    if responses := int((rows.authors > 0).sum()):
        metrics["inserted_token_share"] = int(rows.inserted.sum()) / responses
    for name, chosen in (
        ("control", trained & rows.is_control),
        ("intervened", trained & intervened),
        ("other", trained & ~rows.is_control & ~intervened),
    ):
        if chosen.any():
            metrics[f"advantage_{name}"] = per_row[chosen].mean().item()
    if targets.control is not None:
        metrics["lone_controls"] = targets.control.lone_controls
        metrics["empty_controls"] = targets.control.empty_controls
        if rows.included.any():
            metrics["value"] = targets.control.values[rows.included].mean().item()
    chosen = trained & intervened
    if chosen.any():
        metrics["bonus"] = targets.anchor.bonus[chosen].mean().item()
        metrics["bonus_capped_share"] = (targets.anchor.scale[chosen] < 1).float().mean().item()
        metrics["sign_flips"] = int(targets.anchor.flipped[chosen].sum())
    if inserted.any():
        metrics["inserted_log_prob"] = rows.old_log_probs[inserted].mean().item()
        metrics["inserted_weight"] = rows.weights[inserted].mean().item()
        if clip is not None:
            at_bound = ((rows.weights[inserted] - 1).abs() >= clip * (1 - 1e-5)).float()
            metrics["inserted_weight_clipped_share"] = at_bound.mean().item()
    return {PREFIX + name: float(value) for name, value in metrics.items()}

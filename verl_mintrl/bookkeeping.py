"""What group-failure intervention costs and gives, in the units of RTI (arXiv 2610.13438, Table 6: per 1000 groups). Pure.

The paper leaves out most of what decides whether its numbers carry over: how often the trigger fires, what becomes of
edited sessions, and the Validator calls on steps that were fine. Those are counted here beside the paper's own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from verl_mintrl.trajectory.record import Outcome, ReviewRecord, SessionRecord

ROLES = ("validator", "corrector", "verifier")
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
_EPSILON = 1e-6  # of verl's GRPO advantage


@dataclass(frozen=True)
class Books:
    """Counts of one set of groups. Shares and means of nothing are NaN.

    Attributes:
        groups, sessions: everything that was sampled.
        successful_groups: Pass@G before editing; ``successful_sessions`` is p@1 before editing.
        triggered: groups that failed as a whole; ``processed`` their sessions, ``walked`` those of which a step was looked at:
            a group is left once enough of its sessions have succeeded.
        successes_after: successes k of a triggered group as published -> number of such groups.
        advantage_win, advantage_lose: mean GRPO advantage of successes and failures in triggered groups with k >= 1.
        edited: sessions with at least one insertion, ``rescued`` those that ended in success, ``replaced`` those trained on.
        trained: sessions not masked.
        looked_at: steps shown to the Validator; ``invalid`` of them were judged harmful.
        calls: usable answers by role.
        failed_calls: calls that gave no usable answer; their role is not recorded.
        verified: proposals the Verifier judged; ``unverified`` of them it rejected.
        gated: proposals with a perplexity, ``over_bound`` those rejected for it, ``quantiles`` over all of them.
        rejections: proposals not used, by reason. errors: judge errors by kind.
        judge_seconds, generate_seconds: time spent waiting.
    """

    groups: int
    sessions: int
    successful_groups: int
    successful_sessions: int
    triggered: int
    processed: int
    walked: int
    successes_after: Mapping[int, int]
    advantage_win: float
    advantage_lose: float
    edited: int
    rescued: int
    replaced: int
    trained: int
    looked_at: int
    invalid: int
    calls: Mapping[str, int]
    failed_calls: int
    verified: int
    unverified: int
    gated: int
    over_bound: int
    quantiles: Mapping[float, float] = field(default_factory=dict)
    rejections: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    judge_seconds: float = 0.0
    generate_seconds: float = 0.0

    @property
    def paper_calls(self) -> int:
        """Extra calls as the paper counts them: three for every step judged invalid."""
        return 3 * self.invalid

    @property
    def valid_step_calls(self) -> int:
        """Validator calls that found nothing, which the paper does not count."""
        return self.calls["validator"] - self.invalid

    def per_1000(self, count: float) -> float:
        return _ratio(1000 * count, self.groups)


def keep_books(records: Sequence[SessionRecord], rewards: Sequence[float], success_threshold: float = 0.0) -> Books:
    """Count.

    Args:
        records: one per session; sessions of a group share their ``uid``.
        rewards: published outcome reward of each, after replacement.
        success_threshold: a reward above it is a success.
    """
    groups: dict[str, list[tuple[SessionRecord, float]]] = {}
    for record, reward in zip(records, rewards, strict=True):
        groups.setdefault(record.uid, []).append((record, reward))

    def before(record: SessionRecord, reward: float) -> bool:
        return (reward if record.reward_before is None else record.reward_before) > success_threshold

    triggered = [group for group in groups.values() if any(record.triggered for record, _ in group)]
    after = [[reward for _, reward in group] for group in triggered]
    wins, losses = _advantages(after, success_threshold)
    notes = [note for record in records for note in record.walk]
    calls = Counter({role: 0 for role in ROLES})
    for note in notes:
        calls.update(note.calls_by_role)
    edited = [record for record in records if record.reward_after is not None]
    perplexities = [note.perplexity for note in notes if note.perplexity is not None]
    return Books(
        groups=len(groups),
        sessions=len(records),
        successful_groups=sum(any(before(*session) for session in group) for group in groups.values()),
        successful_sessions=sum(before(*session) for session in zip(records, rewards, strict=True)),
        triggered=len(triggered),
        processed=sum(len(group) for group in triggered),
        walked=sum(bool(record.walk) for record in records),
        successes_after=dict(sorted(Counter(sum(r > success_threshold for r in group) for group in after).items())),
        advantage_win=_mean(wins),
        advantage_lose=_mean(losses),
        edited=len(edited),
        rescued=sum((record.reward_after or 0.0) > success_threshold for record in edited),
        replaced=sum(record.replaced for record in records),
        trained=sum(not record.masked for record in records),
        looked_at=len(notes),
        invalid=sum(note.step is not None for note in notes),
        calls=dict(calls),
        failed_calls=sum(note.judge_calls for note in notes) - calls.total(),
        verified=sum(note.checks is not None for note in notes),
        unverified=sum(_unverified(note) for note in notes),
        gated=len(perplexities),
        over_bound=sum(note.outcome == Outcome.REJECTED and note.reason == "perplexity" for note in notes),
        quantiles=dict(zip(QUANTILES, map(float, np.quantile(perplexities, QUANTILES)), strict=True))
        if perplexities
        else {},
        rejections=dict(Counter(note.reason for note in notes if note.outcome == Outcome.REJECTED)),
        errors=dict(Counter(note.reason for note in notes if note.outcome == Outcome.ERROR)),
        prompt_tokens=sum(note.judge_prompt_tokens for note in notes),
        completion_tokens=sum(note.judge_completion_tokens for note in notes),
        judge_seconds=sum(note.judge_seconds for note in notes),
        generate_seconds=sum(record.generate_seconds for record in records),
    )


def _unverified(note: ReviewRecord) -> bool:
    """Read from the checks: what was rejected may have become an error when it was encoded."""
    return note.checks is not None and not all(note.checks.values())


def _advantages(groups: Sequence[Sequence[float]], threshold: float) -> tuple[list[float], list[float]]:
    """GRPO advantages of successes and failures, with the unbiased standard deviation verl computes."""
    wins: list[float] = []
    losses: list[float] = []
    for rewards in groups:
        if len(rewards) < 2 or not any(reward > threshold for reward in rewards):
            continue
        mean, std = float(np.mean(rewards)), float(np.std(rewards, ddof=1))
        for reward in rewards:
            (wins if reward > threshold else losses).append((reward - mean) / (std + _EPSILON))
    return wins, losses


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def table(books: Books) -> str:
    """Line by line beside the paper's numbers ("-" where it gives none)."""
    b = books
    rows: list[tuple[str, str, str]] = [
        ("groups sampled", "1000", str(b.groups)),
        ("success before editing, p@1", "-", _share(b.successful_sessions, b.sessions)),
        ("success before editing, Pass@G", "-", _share(b.successful_groups, b.groups)),
        ("groups triggered per 1000", "150", _number(b.per_1000(b.triggered))),
        ("trigger rate", "15.00 %", _share(b.triggered, b.groups)),
        ("sessions processed per 1000", "1200", _number(b.per_1000(b.processed))),
        ("  of these walked before one succeeded", "-", _share(b.walked, b.processed)),
        ("steps judged invalid per 1000", "8739", _number(b.per_1000(b.invalid))),
        ("steps judged invalid per session processed", "7.28", _number(_ratio(b.invalid, b.processed))),
        ("steps judged invalid per session walked", "-", _number(_ratio(b.invalid, b.walked))),
        ("extra calls per 1000, 3 x invalid", "26217", _number(b.per_1000(b.paper_calls))),
        ("extra calls per 1000, all of them", "-", _number(b.per_1000(sum(b.calls.values()) + b.failed_calls))),
    ]
    rows += [(f"  {role} calls per 1000", "-", _number(b.per_1000(b.calls[role]))) for role in ROLES]
    rows += [
        ("  of these validator, step kept", "-", _number(b.per_1000(b.valid_step_calls))),
        ("  failed calls per 1000", "-", _number(b.per_1000(b.failed_calls))),
        ("rejected by the verifier", "40.89 %", _share(b.unverified, b.verified)),
        ("rejected by the gate", "-", _share(b.over_bound, b.gated)),
        ("perplexity of all proposals, bound 5", "-", _quantiles(b.quantiles)),
        ("rejections by reason", "-", _counts(b.rejections)),
        ("judge errors by kind", "-", _counts(b.errors)),
        ("edited sessions that end in success", "-", _share(b.rescued, b.edited)),
        ("processed sessions replaced", "<= 12.50 %", _share(b.replaced, b.processed)),
        ("trained sessions edited", "-", _share(b.replaced, b.trained)),
        ("successes k per triggered group", "<= 1", _counts({f"k={k}": n for k, n in b.successes_after.items()})),
        ("A_win / A_lose", "2.475 / -0.354 (k=1)", f"{_number(b.advantage_win, 3)} / {_number(b.advantage_lose, 3)}"),
        (
            "judge tokens per 1000, in / out",
            "-",
            f"{_number(b.per_1000(b.prompt_tokens))} / {_number(b.per_1000(b.completion_tokens))}",
        ),
        ("time waiting for judges", "-", _waiting(b)),
    ]
    names, paper = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
    lines = [f"{'per 1000 groups':<{names}}  {'paper':>{paper}}  here"]
    return "\n".join(lines + [f"{name:<{names}}  {theirs:>{paper}}  {ours}" for name, theirs, ours in rows])


def _number(value: float, digits: int = 2) -> str:
    if math.isnan(value):
        return "-"
    return str(round(value)) if value == round(value) else f"{value:.{digits}f}"


def _share(part: float, whole: float) -> str:
    if not whole:
        return "-"
    counts = f" ({part}/{whole})" if isinstance(part, int) and isinstance(whole, int) else ""
    return f"{100 * part / whole:.2f} %{counts}"


def _waiting(books: Books) -> str:
    """Says nothing where the policy's time was not measured."""
    return _share(books.judge_seconds, books.judge_seconds + books.generate_seconds if books.generate_seconds else 0)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def _quantiles(quantiles: Mapping[float, float]) -> str:
    return " ".join(f"p{100 * q:g}={value:.2f}" for q, value in quantiles.items()) or "-"

"""What happened in one session, as plain data: travels with the row, feeds the metrics, is dumped as JSONL. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any


class Role(StrEnum):
    """Part a session plays in its group."""

    CONTROL = "control"  # never intervened on; its reward is the baseline
    TREATED = "treated"  # reviewed by the judge
    POLICY = "policy"  # neither: interventions were off for it (schedule, gate on control success, trigger never)


class Outcome(StrEnum):
    """What became of one review."""

    KEPT = "kept"  # the judge found nothing harmful
    INSERTED = "inserted"  # the correction stands (or stood) in the response
    REJECTED = "rejected"  # a correction was proposed and not used; ``reason`` says why
    ERROR = "error"  # no usable answer; ``reason`` is the kind of judge error


@dataclass
class ReviewRecord:
    """One look of the judge. Token positions count from the start of the response.

    Attributes:
        at_tokens: response length when the judge was asked.
        finished: whether the response had ended by then.
        steps: number of steps shown.
        outcome: see :class:`Outcome`.
        reason: rejection reason or judge error kind, empty otherwise.
        detail: human-readable cause of an error.
        step: 1-based step the judge named.
        correction: text the judge proposed.
        final: whether the judge meant it as the final answer.
        question: hash of what was asked (problem and steps shown), by which a recording is found again.
        cut_at: first dropped token.
        dropped_ids: tokens the cut removed.
        inserted_tokens: length of the insertion when it was made.
        inserted: half-open range of the corrector tokens in the final response, None where nothing of it is left.
        checks: the Verifier's three checks, separately.
        perplexity: of the correction under the policy, whether or not it was accepted.
        replaced_perplexity: of the step it would replace.
        gate_fallback: all its tokens were copied literals, so all of them counted.
        calls_by_role: judge calls of validator, corrector and verifier.
        failed_role: which of them an error is of; a correction that cannot be used is its author's.
    """

    at_tokens: int
    finished: bool
    steps: int
    outcome: str
    reason: str = ""
    detail: str = ""
    step: int | None = None
    correction: str | None = None
    final: bool = False
    question: str = ""
    cut_at: int | None = None
    dropped_ids: list[int] = field(default_factory=list)
    inserted_tokens: int = 0
    inserted: tuple[int, int] | None = None
    checks: dict[str, bool] | None = None
    perplexity: float | None = None
    replaced_perplexity: float | None = None
    gate_fallback: bool = False
    calls_by_role: dict[str, int] = field(default_factory=dict)
    failed_role: str = ""
    judge: str = ""
    judge_calls: int = 0
    judge_prompt_tokens: int = 0
    judge_completion_tokens: int = 0
    judge_cached_tokens: int = 0
    judge_seconds: float = 0.0


@dataclass
class SessionRecord:
    """One session.

    Attributes:
        step: global step the session was sampled for.
        active: whether the schedule allowed interventions at that step.
        gated_off: the group's control sessions succeeded, so a session meant to be treated ran on-policy.
        masked: left out of loss and baselines; ``mask_reason`` says why.
        fatal: the run has to stop, with this message.
        generate_seconds: time spent waiting for the policy.
        judge_wait_seconds: time in which nothing was done but wait for the judge.
        superseded: reviews of text that an earlier intervention replaced while the judge still read or had just read it
            (``review.mode: overlapped``); only their cost counts.
        speculative_tokens: tokens the policy had written past the reviewed text when an intervention cut back, as far as they
            were received.
        aborted_requests: requests to the policy that an intervention stopped on the server.
        triggered: the whole group had failed (trigger ``group_failure``).
        walk: reviews of a failed session; became ``reviews`` where the edited version replaced it.
        walk_error: why a walk ended early although no judge failed (a policy server went away), empty otherwise.
        replaced: the published tokens are those of the edited version.
        reward_before: reward as sampled, under the trigger ``group_failure``; None where nobody looked at the group.
        reward_after: reward at the end of the walk, None where nothing was inserted.
    """

    uid: str
    session_id: int
    step: int
    role: str = Role.POLICY.value
    active: bool = False
    gated_off: bool = False
    masked: bool = False
    mask_reason: str = ""
    fatal: str = ""
    generate_seconds: float = 0.0
    judge_wait_seconds: float = 0.0
    superseded: list[ReviewRecord] = field(default_factory=list)
    speculative_tokens: int = 0
    aborted_requests: int = 0
    triggered: bool = False
    walk_error: str = ""
    replaced: bool = False
    reward_before: float | None = None
    reward_after: float | None = None
    reviews: list[ReviewRecord] = field(default_factory=list)
    walk: list[ReviewRecord] = field(default_factory=list)

    @property
    def intervened(self) -> bool:
        """Whether corrector tokens stand in the final response."""
        return any(review.inserted is not None for review in self.reviews)

    def is_trained(self, train_control: bool) -> bool:
        """Whether the session is learned from; ``train_control``: ``intervention.control.train``."""
        return not self.masked and (self.role != Role.CONTROL or self.replaced or train_control)

    @property
    def asked(self) -> list[ReviewRecord]:
        """Every look a judge had at the session, whether or not anything of it was published."""
        return self.walk or self.reviews

    @property
    def paid(self) -> list[ReviewRecord]:
        """Every look that cost something, also at text that did not stand."""
        return self.asked + self.superseded

    def stop_run(self, reason: str, message: str) -> None:
        """The run cannot go on: the trainer stops with ``message``, and the session is not learned from.

        Sessions must not raise instead: verl would train on the rest of the group.
        """
        self.masked, self.mask_reason, self.fatal = True, reason, message

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def public(self) -> SessionRecord:
        """A copy without any text of a judge that is not part of the response."""
        return replace(
            self,
            reviews=[_silenced(note, True) for note in self.reviews],
            walk=[_silenced(note, self.replaced) for note in self.walk],
            superseded=[_silenced(note, False) for note in self.superseded],
            fatal="the run stopped" if self.fatal else "",
            walk_error=self.walk_error.split(":")[0] if ":" in self.walk_error else "",
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SessionRecord:
        known = {f.name for f in fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        for name in ("reviews", "walk", "superseded"):
            values[name] = [_review(review) for review in values.get(name, [])]
        return cls(**values)


def clip_insertions(reviews: Iterable[ReviewRecord], end: int) -> None:
    """A response was cut at token ``end``: of earlier insertions only what lies before it is left."""
    for review in reviews:
        if review.inserted is not None:
            start, stop = review.inserted
            review.inserted = (start, min(stop, end)) if start < end else None


def _silenced(note: ReviewRecord, stands: bool) -> ReviewRecord:
    whole = note.inserted is not None and note.inserted[1] - note.inserted[0] == note.inserted_tokens
    return replace(note, detail="", dropped_ids=[], correction=note.correction if stands and whole else None)


def _review(data: dict[str, Any]) -> ReviewRecord:
    inserted = data.get("inserted")
    return ReviewRecord(**{**data, "inserted": tuple(inserted) if inserted is not None else None})


def write_jsonl(path: str | Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object a line; the file appears whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    # half a surrogate pair in a message, which UTF-8 cannot hold, becomes its JSON escape
    with partial.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    partial.replace(path)


def read_jsonl(path: str | Path) -> Iterator[dict[str, Any]]:
    """Rows of a JSONL file."""
    with Path(path).open(encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)

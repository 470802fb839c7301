"""Backend ``recorded``: the answers of an earlier run, from the trajectories it dumped (``trainer.rollout_data_dir``).

A question is found by global step, session, number of the review within the session, and a hash of the problem and the
steps shown. So a run whose rollouts are those of the recorded one gets the same answers, errors included, and a run that
diverged is told so (kind ``unrecorded``) instead of being corrected in steps it did not write. Privileged text is not part
of the hash: it does not stand in the dump, and the answer was given with it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verl_mintrl.errors import JUDGE_ERROR_KINDS, ConfigError, JudgeError
from verl_mintrl.judges.protocol import Correction, Judge, Review, ReviewRequest, Usage, Verification
from verl_mintrl.trajectory.record import Outcome, ReviewRecord, SessionRecord, read_jsonl

_KEY = "intervention.judge.recorded"
# errors that may have come after a verdict, and do not come again by themselves
_AFTERWARDS = ("session_timeout", "exception")
_CHECKS = {"agrees", "leak_free", "plausible"}
_KEPT_STEPS = 2  # sessions of the next step may start while the last of this one run

_Question = tuple[int, int, int, str]  # global step, session, attempt, hash


def question_id(request: ReviewRequest) -> str:
    """Hash of what a request asks about: the problem, the steps shown, whether they are all, and the one in question."""
    content = [request.problem, request.steps, request.observations, request.finished, request.focus]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:32]


class RecordedJudge(Judge):
    """Answers with what stands in a recording; costs nothing.

    Args:
        path: ``trainer.rollout_data_dir`` of the recorded run, its folder ``trajectories``, or one file of it.
        verified: whether a Verifier is asked in this run.
        informed: whether Corrector or Verifier see evidence in this run, so that leaks are looked for.

    Raises:
        ConfigError: there is no recording at ``path``.
    """

    name = "recorded"

    def __init__(self, path: str | Path, *, verified: bool, informed: bool) -> None:
        self._verified, self._informed = verified, informed
        path = Path(path).expanduser()
        self._folder = path / "trajectories" if (path / "trajectories").is_dir() else path
        if not self._folder.is_file() and not (self._folder.is_dir() and any(self._folder.glob("*.jsonl"))):
            raise ConfigError(
                f"{_KEY}: there are no trajectories at {path}",
                f"set {_KEY} to trainer.rollout_data_dir of an earlier run, readable on every node.",
            )
        self._loaded: OrderedDict[Path, dict[_Question, ReviewRecord]] = OrderedDict()
        self._lock = asyncio.Lock()

    async def review(self, request: ReviewRequest) -> Review:
        """The recorded verdict, with its correction.

        Raises:
            JudgeError: unrecorded, or the kind of the recorded error.
        """
        note = await self._note(request)
        if note.outcome == Outcome.ERROR and note.reason in _AFTERWARDS:
            raise _error(note.reason, note.detail)
        self._refuse_unchecked(note)
        if note.step is not None:  # also where the correction was of no use; it will be again
            return Review.revise(note.step, note.correction, note.final)
        if note.outcome == Outcome.ERROR:
            raise _error(note.reason, note.detail)
        return Review.keep()

    def _refuse_unchecked(self, note: ReviewRecord) -> None:
        """What was rejected must not be inserted because the check that rejected it is off now."""
        if note.outcome != Outcome.REJECTED:
            return
        by_verifier = note.checks is not None and not all(note.checks.values())
        by_leak_check = note.checks is None and note.reason == "leak"
        if (by_verifier and not self._verified) or (by_leak_check and not self._informed):
            raise _error(
                "unrecorded",
                f"the recorded correction was rejected ({note.reason}) by a check that is off in this run; replay it with "
                "intervention.verifier and the evidence it had",
            )

    async def correct(self, request: ReviewRequest, step: int) -> Correction:
        """Raises :class:`JudgeError`, the recorded one: a correction that was made comes with its verdict."""
        raise _failure(await self._note(request))

    async def verify(self, request: ReviewRequest, step: int, correction: str) -> Verification:
        """The recorded checks.

        Raises:
            JudgeError: unrecorded, or the kind of the recorded error.
        """
        note = await self._note(request)
        if note.checks is None:
            raise _failure(note)
        checks = note.checks
        return Verification(checks["agrees"], checks["leak_free"], checks["plausible"])

    async def _note(self, request: ReviewRequest) -> ReviewRecord:
        path = self._folder if self._folder.is_file() else self._folder / f"{request.global_step}.jsonl"
        async with self._lock:
            if path not in self._loaded:
                self._loaded[path] = await asyncio.to_thread(_load, path)
                if len(self._loaded) > _KEPT_STEPS:
                    self._loaded.popitem(last=False)
            notes = self._loaded[path]
        note = notes.get((request.global_step, request.session_id, request.attempt, question_id(request)))
        if note is None:
            raise _error(
                "unrecorded",
                f"the recording holds no answer for step {request.global_step}, session {request.session_id}, review "
                f"{request.attempt} of these steps; the rollouts diverged from the recorded ones, or it is incomplete",
            )
        return note


def _load(path: Path) -> dict[_Question, ReviewRecord]:
    notes: dict[_Question, ReviewRecord] = {}
    for row in _rows(path) if path.exists() else ():
        if isinstance(row, dict) and row.get("public"):
            raise ConfigError(
                f"{path} was dumped with intervention.public_dump: true; the answers of its judge are not all in it",
                f"set {_KEY} to a run with intervention.public_dump: false.",
            )
        try:
            record = SessionRecord.from_dict(row)
            if not isinstance(record.step, int) or not isinstance(record.session_id, int):
                raise TypeError("the step or the session is no number")
        except (TypeError, AttributeError, ValueError, KeyError) as error:
            raise _unreadable(path, error) from error
        for looks in (record.reviews, record.walk):
            for attempt, note in enumerate(looks):
                if fault := _fault(note):
                    raise _unreadable(path, ValueError(fault))
                note.dropped_ids = []
                notes.setdefault((record.step, record.session_id, attempt, note.question), note)
    return notes


def _fault(note: ReviewRecord) -> str:
    """What no run of ours would have written of a review, empty if nothing."""
    if note.outcome not in tuple(Outcome):
        return f"a review has the outcome {note.outcome!r}"
    if note.outcome == Outcome.ERROR and str(note.reason) not in JUDGE_ERROR_KINDS:
        return f"an error of the judge is of the kind {note.reason!r}"
    if note.checks is not None and not (isinstance(note.checks, dict) and _CHECKS == set(note.checks)):
        return f"a Verifier's checks are {str(note.checks)[:100]}"
    if not isinstance(note.question, str) or not isinstance(note.step, int | None) or not isinstance(note.final, bool):
        return "a review has a question that is no text, a step that is no number, or a final that is neither true nor false"
    return ""


def _rows(path: Path) -> Iterator[Any]:
    try:
        yield from read_jsonl(path)
    except (ValueError, OSError, RecursionError) as error:  # no JSON, no text, no file
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"{path} is no file of dumped trajectories: {type(error).__name__}: {str(error)[:200]}",
        f"set {_KEY} to trainer.rollout_data_dir of an earlier run, or its folder trajectories; a file that was cut off is lost.",
    )


def _failure(note: ReviewRecord) -> JudgeError:
    """Why a role gave no answer; without a recorded error it was not asked."""
    if note.outcome == Outcome.ERROR:
        return _error(note.reason, note.detail)
    return _error("unrecorded", "this role was not asked in the recorded run; replay it with the settings it had")


def _error(kind: str, detail: str) -> JudgeError:
    error = JudgeError(detail, kind=kind)
    error.usage = Usage()
    return error

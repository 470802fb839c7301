"""Who plays which role, and what each may see: the one place where privileged text enters a question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from verl_mintrl.errors import DataError, JudgeError
from verl_mintrl.judges.leak import LeakRules, find_leak
from verl_mintrl.judges.prompts import content_text
from verl_mintrl.judges.protocol import Correction, Evidence, Judge, Review, ReviewRequest, Verification


def lookup(sample: Mapping[str, Any], dotted: str) -> str:
    """Text at a dotted path of a dataset row, e.g. ``reward_model.ground_truth``.

    Raises:
        DataError: the path does not exist in the row, or holds nothing.
    """
    value = _value(sample, dotted)
    if value is None or str(value) == "":
        raise DataError(f"the dataset row holds nothing at {dotted!r}.", "fill intervention.judge.evidence_column.")
    return str(value)


def _value(sample: Mapping[str, Any], dotted: str) -> Any:
    value: Any = sample
    for part in dotted.split("."):
        if not isinstance(value, Mapping) or part not in value:
            known = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            raise DataError(
                f"the dataset row has no {dotted!r}: {part!r} is missing, found {known}.",
                "set intervention.judge.evidence_column to an existing column, or intervention.judge.evidence: none.",
            )
        value = value[part]
    return value


@dataclass(frozen=True)
class Sight:
    """What one role may see.

    Attributes:
        column: dotted path of the rubric or gold text in the dataset row.
    """

    evidence: Evidence = Evidence.NONE
    column: str | None = None

    @property
    def from_row(self) -> bool:
        """Whether the evidence comes from the dataset row."""
        return self.evidence in (Evidence.RUBRIC, Evidence.GOLD)

    def show(self, request: ReviewRequest) -> ReviewRequest:
        """The request with this role's evidence, and no other.

        Raises:
            DataError: the row lacks the column.
        """
        privileged = None
        if self.evidence is Evidence.OUTCOME and request.outcome is not None:
            privileged = f"The finished response got the reward {request.outcome:g}."
        elif self.from_row and self.column:
            privileged = lookup(request.sample, self.column)
        evidence = self.evidence if privileged is not None else Evidence.NONE
        return replace(request, evidence=evidence, privileged=privileged)


@dataclass(frozen=True)
class Part:
    """One role: who plays it and what it may see."""

    judge: Judge
    sight: Sight

    def question(self, request: ReviewRequest) -> ReviewRequest:
        """The request as this role may see it.

        Raises:
            JudgeError: the row lacks the evidence.
        """
        try:
            return self.sight.show(request)
        except DataError as error:
            raise JudgeError(error.message, error.hint, kind="evidence") from error

    def secrets(self, request: ReviewRequest) -> list[str]:
        """What of it must not stand in a correction: the evidence, and each entry of one that is a list.

        Raises:
            JudgeError: the row lacks the evidence.
        """
        privileged = self.question(request).privileged
        if privileged is None:
            return []
        entries: Any = _value(request.sample, self.sight.column) if self.sight.from_row and self.sight.column else None
        entries = entries.tolist() if hasattr(entries, "tolist") else entries  # an array of numpy, as parquet gives
        return [privileged, *(map(str, entries) if isinstance(entries, list | tuple) else ())]


class RolesJudge(Judge):
    """Sends each question to the judge that plays the role, with the evidence that role may see.

    Args:
        validator: also plays the joint reviewer; then it is the corrector too.
        rules: of the leak check that runs before the Verifier is asked, against what Corrector or Verifier saw.
    """

    def __init__(self, validator: Part, corrector: Part, verifier: Part, rules: LeakRules) -> None:
        self.name = validator.judge.name
        self.corrector_name = corrector.judge.name
        self._validator, self._corrector, self._verifier = validator, corrector, verifier
        self._rules = rules

    async def review(self, request: ReviewRequest) -> Review:
        """A correction that comes along is kept only where the Corrector is the same judge."""
        review = await self._validator.judge.review(self._validator.question(request))
        return review if self._corrector.judge is self._validator.judge else replace(review, correction=None)

    async def correct(self, request: ReviewRequest, step: int) -> Correction:
        return await self._corrector.judge.correct(self._corrector.question(request), step)

    def correction_context(self, request: ReviewRequest) -> ReviewRequest:
        """The request as the Corrector sees it: what steering weights condition on (RTI's pi_cal) [inf].

        Raises:
            JudgeError: the row lacks the evidence.
        """
        return self._corrector.question(request)

    def leaks(self, request: ReviewRequest, step: int, correction: str) -> bool:
        """Whether a correction gives away what only Corrector or Verifier may see; nothing seen, nothing leaked.

        Raises:
            JudgeError: the row lacks the evidence.
        """
        seen = [*map(content_text, request.problem), *request.observations[:step], *request.steps[: step - 1]]
        secrets = [secret for part in (self._corrector, self._verifier) for secret in part.secrets(request)]
        replaced = request.steps[step - 1]
        return any(find_leak(correction, s, "\n".join(seen), self._rules, replaced) for s in secrets)

    async def verify(self, request: ReviewRequest, step: int, correction: str) -> Verification:
        if self.leaks(request, step, correction):
            return Verification(agrees=True, leak_free=False, plausible=True)
        return await self._verifier.judge.verify(self._verifier.question(request), step, correction)

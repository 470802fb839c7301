"""Judges of known quality for running sums, named in a configuration like

    intervention.judge.function:
        review: lab.correctors:EXACT.review
        correct: lab.correctors:EXACT.correct
        verify: lab.correctors:EXACT.verify

with the folder ``benchmarks`` on the Python path. Whether one of them errs at a place follows from the problem and the
steps up to there and from nothing else, so that a run can be repeated, and asking again does not help.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from lab import tasks
from verl_mintrl.judges.protocol import Evidence, Review, ReviewRequest, Verification

_SHORTEST_BOUND = 16  # characters that a correction may always have


@dataclass(frozen=True)
class Corrector:
    """Finds the first wrong step and writes it anew, as well as it can.

    Attributes:
        error_rate: share of wrong steps that it gets wrong itself: one half are overlooked, one half "corrected" into
            another wrong result.
        false_alarm_rate: share of right steps that it "corrects" into a wrong result.
        misbelief: a term with which it never carries: a *systematic* error. It overlooks such steps where they are wrong
            and makes them wrong where they are right. None: it has no such belief.
        verbose: a correction says the sum twice.
        leaks: a correction is the final answer, whatever step it replaces.
        salt: other errors at the same rates.
    """

    error_rate: float = 0.0
    false_alarm_rate: float = 0.0
    misbelief: int | None = None
    verbose: bool = False
    leaks: bool = False
    salt: int = 0

    def review(self, request: ReviewRequest) -> Review:
        """The first step that it believes to be wrong, with a correction; never raises for any text."""
        terms = tasks.terms_of_sample(request.problem)
        if not terms:
            return Review.keep()
        for index, check in enumerate(tasks.check_lines(terms, request.steps, self._add)):
            if request.focus in (None, index + 1) and self._objects(request, index, check.right):
                return self._revision(request, terms, index, check.expected)
        if request.finished and request.steps and not tasks.is_ended(request.steps[-1]):
            return self._continuation(request, terms)
        return Review.keep()

    def correct(self, request: ReviewRequest, step: int) -> str:
        """Its text for ``step``; empty, which is a judge error, if this is no running sum."""
        terms = tasks.terms_of_sample(request.problem)
        if not terms:
            return ""
        expected = tasks.check_lines(terms, request.steps[:step], self._add)[-1].expected
        return self._revision(request, terms, step - 1, expected).correction or ""

    def verify(self, request: ReviewRequest, step: int, correction: str) -> Verification:
        """Check a rewrite by the same beliefs; what it would have written itself always agrees."""
        terms = tasks.terms_of_sample(request.problem)
        if not terms:
            return Verification(agrees=False, leak_free=True, plausible=True)
        lines = [*request.steps[: step - 1], *tasks.split_lines(correction)]
        checks = tasks.check_lines(terms, lines, self._add)[step - 1 :]
        agrees = bool(checks) and all(check.right for check in checks)
        own = self.correct(request, step) == correction.strip()
        answered = any(tasks.is_ended(line) for line in tasks.split_lines(correction))
        may_answer = bool(checks) and tasks.is_ended(checks[0].expected)
        return Verification(
            agrees=agrees or own,
            leak_free=may_answer or not answered,
            plausible=len(correction.strip()) <= max(_SHORTEST_BOUND, 2 * len(request.steps[step - 1].strip())),
        )

    def _add(self, total: int, term: int) -> int:
        return tasks.dropped_carry(total, term) if term == self.misbelief else tasks.plus(total, term)

    def _objects(self, request: ReviewRequest, index: int, right: bool) -> bool:
        if right:
            return self._chance(request, index, "alarm") < self.false_alarm_rate
        return self._chance(request, index, "error") >= self.error_rate / 2

    def _revision(self, request: ReviewRequest, terms: Sequence[int], index: int, expected: str) -> Review:
        if self.leaks:
            answer = tasks.ending_line(sum(terms))
            if answer != request.steps[index].strip():
                return Review.revise(index + 1, answer, final=True)
        right = request.steps[index].strip() == expected
        slip = right or self.error_rate / 2 <= self._chance(request, index, "error") < self.error_rate
        text = self._mistaken(expected, request, terms, index) if slip else expected
        return Review.revise(index + 1, self._worded(text), final=tasks.is_ended(text))

    def _continuation(self, request: ReviewRequest, terms: Sequence[int]) -> Review:
        """What a response that ended too early lacks, on a line below its last step."""
        missing = tasks.check_lines(terms, [*request.steps, ""], self._add)[-1].expected
        text = tasks.ending_line(sum(terms)) if self.leaks else self._worded(missing)
        return Review.revise(len(request.steps), f"{request.steps[-1].rstrip()}\n{text}", final=tasks.is_ended(text))

    def _mistaken(self, line: str, request: ReviewRequest, terms: Sequence[int], index: int) -> str:
        """What it writes where it does not know better."""
        return self._slipped(line, request, index)

    def _slipped(self, line: str, request: ReviewRequest, index: int) -> str:
        """``line`` with a result that is neither right nor what the step says."""
        head = line.rstrip("0123456789")
        result = int(line[len(head) :])
        candidates = [f"{head}{result + offset:02d}" for offset in (1, -1, 2) if result + offset >= 0]
        candidates = [text for text in candidates if text != request.steps[index].strip()]
        return candidates[int(self._chance(request, index, "slip") * min(2, len(candidates)))]

    def _worded(self, line: str) -> str:
        return tasks.restated(line) if self.verbose and not tasks.is_ended(line) else line

    def _chance(self, request: ReviewRequest, index: int, purpose: str) -> float:
        """A number in [0, 1) that hangs on the problem, the steps up to ``index``, and ``purpose``."""
        steps = "\n".join(step.strip() for step in request.steps[: index + 1])
        key = f"{self.salt}|{purpose}|{request.problem[-1].get('content')}|{steps}"
        return int.from_bytes(hashlib.sha256(key.encode("utf-8", "replace")).digest()[:7], "big") / 2**56


class Informed(Corrector):
    """A corrector that errs less the more it is shown: a model of ours of what evidence does, not a measurement.

    Told the *outcome*, it looks a second time where it found nothing wrong. With a *rubric*, the worked solution, it errs nowhere.
    With the *gold* answer it is tempted: where it does not know the step it writes the answer, which is a leak.
    """

    def _objects(self, request: ReviewRequest, index: int, right: bool) -> bool:
        if request.evidence is Evidence.RUBRIC:
            return not right
        if super()._objects(request, index, right):
            return True
        again = request.evidence is Evidence.OUTCOME and not right
        return again and self._chance(request, index, "again") >= self.error_rate / 2

    def _mistaken(self, line: str, request: ReviewRequest, terms: Sequence[int], index: int) -> str:
        answer = tasks.ending_line(sum(terms))
        if request.evidence is Evidence.RUBRIC:
            return line
        if request.evidence is Evidence.GOLD and answer != request.steps[index].strip():
            return answer
        return super()._mistaken(line, request, terms, index)


EXACT = Corrector()
NOISY = Corrector(error_rate=0.3)
SYSTEMATIC = Corrector(misbelief=7)
ALARMIST = Corrector(false_alarm_rate=0.1)
VERBOSE = Corrector(verbose=True)
LEAKING = Corrector(leaks=True)
INFORMED = Informed(error_rate=0.3, false_alarm_rate=0.1)

#: name -> corrector
CORRECTORS = {
    "exact": EXACT,
    "noisy": NOISY,
    "systematic": SYSTEMATIC,
    "alarmist": ALARMIST,
    "verbose": VERBOSE,
    "leaking": LEAKING,
    "informed": INFORMED,
}

"""An exact checker of chains of sums or products, named in the configuration by

    intervention.judge.function: verl_mintrl.judges.arithmetic:review

It knows the goal from the dataset row (``extra_info.terms``, a list of integers, and optionally
``extra_info.operator``, ``+`` or ``*``), else from the last user message if that holds one expression and no other
number ("Calculate 3 + 9 - 5."). Steps are read in order and the first that meets one of these is revised:

1. It holds a false equation. -> The same equation, true.
2. (goal known) It holds a true equation whose operands are not at hand: a term used twice, a made-up number, the wrong
   operation. At hand are the terms, and after every equation its result in place of its operands; any order and any
   number of operands is fine, also going back to an earlier state, and so is whatever equals the goal. -> The next
   equation: the running value with the first unused term.
3. It states a wrong final answer ("answer is 19", "Answer: 19", ``\\boxed{19}``, ``#### 19``, ``<answer>19``), compared
   with the goal, or without one with the result of the last equation. -> The same statement with the right value.
4. The response is finished, its goal known, and no answer was stated. -> What is missing: the next equation, or, once
   all terms are used, the answer. It replaces a last step without an equation, else it goes on a line below it.

Everything else is kept; in particular style, true side remarks, rounding of infinite decimals, "3 + 9 = 12 + 5 = 17"
read as two equations, equations with letters, units or powers, and all equations after the right answer. If prose
brings in a number that is neither term nor result ("Adding 3 and 9 gives 12."), rule 2 is off from there on, for lack
of certainty. Limit: a term taken apart without saying so (20 + 10 for 23 + 19) falls under rule 2.

Where one step is in question (a walk over a failed response) only that one is revised; a harmful one before it, whose
correction was not used, counts as not written.

A correction is the step up to the flagged equation, with that equation replaced in place and nothing after it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from numbers import Integral

from verl_mintrl.judges.expressions import Expression, Stretch, is_finite_decimal, read, write
from verl_mintrl.judges.protocol import Review, ReviewRequest, Verdict, Verification

MAX_STEP_CHARS = 10_000  # of a step that are read
MAX_TERMS = 64
_MAX_STATES = 64
_MAX_KEPT_CHARS = 2_000  # of a step that a correction repeats

_ANSWER = re.compile(r"\banswer(?:\s{1,3}(?:is|equals)\b|\s{0,3}[:=])|\\boxed\{|####|<answer>", re.IGNORECASE)
_ANSWER_PREFIX = re.compile(r"\s{0,3}(?:[:=$*_(\s]|\\boxed\{|\\text\{|\\\(|\\\[){0,8}")
_NUMBER_STARTS = tuple("0123456789-−(.\\")
_CLOSERS = re.compile(r"(?:[ \t]?(?:\\\)|\\\]|[$*_`}.;!]|</answer>)){0,6}")
_LABEL = re.compile(r"\s{0,8}(?:[-*•]\s{1,3})?(?:\**\w{1,12}\s{0,2}[0-9]{1,3}\s{0,2}[:.)]\**|[0-9]{1,3}[.):])\s{0,3}")
_WORDED = re.compile(
    r"\b(?:twice|thrice|half|double|triple|square|squared|cube|cubed|percent|plus|minus|times|divided|multiplied|mod|modulo"
    r"|remainder|power|root|average|mean|negative)\b|[%^!√]",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class _Goal:
    value: Fraction
    terms: tuple[Fraction, ...]  # empty if only the value is known
    operator: str  # "+" or "*"


@dataclass(frozen=True)
class _Answer:
    start: int
    end: int
    value: Fraction


def review(request: ReviewRequest) -> Review:
    """Find the first harmful step and rewrite it; never raises for any text."""
    chain = _Chain(_goal(request), request)
    for number, text in enumerate(request.steps, 1):
        correction = chain.read(text)
        if correction is not None and request.focus in (None, number):
            return Review.revise(number, correction, final=bool(_ANSWER.search(correction)))
    if request.finished and request.steps:
        ending = chain.missing_ending(request.steps[-1])
        if ending is not None:
            return Review.revise(len(request.steps), ending, final=bool(_ANSWER.search(ending)))
    return Review.keep()


def correct(request: ReviewRequest, step: int) -> str:
    """The Corrector's part of :func:`review`: its text for ``step``; empty, which is a judge error, where it has none."""
    answer = review(replace(request, focus=step))
    return answer.correction or ""


def verify(request: ReviewRequest, step: int, correction: str) -> Verification:
    """An exact Verifier: the rewrite agrees if, in the place of ``step``, it is not harmful itself.

    Evidence plays no part in :func:`review`, so nothing can leak; plausible is a rewrite of at most twice the step's length.
    """
    steps = (*request.steps[: step - 1], correction)
    agrees = review(replace(request, steps=steps, finished=False, focus=step)).verdict is Verdict.KEEP
    plausible = len(correction) <= max(40, 2 * len(request.steps[step - 1]))
    return Verification(agrees=agrees, leak_free=True, plausible=plausible)


class _Chain:
    """What the steps read so far have established."""

    def __init__(self, goal: _Goal | None, request: ReviewRequest) -> None:
        self.goal = goal
        self.states: list[tuple[Fraction, ...]] = [goal.terms] if goal and goal.terms else []  # the newest is last
        self.known = set(goal.terms) if goal else set()
        self.answered = False
        self.last_result: Fraction | None = None
        self.last_step_has_equation = False
        self._question = _question(request)
        self._times = next((s for s in ("×", "·", r"\times", " x ") if any(s in t for t in request.steps)), "*").strip()

    def read(self, text: str) -> str | None:
        """Take in one step; the text to replace it with if it is harmful."""
        shown = text[:MAX_STEP_CHARS]
        stretches = read(shown)
        answers = {answer.start: answer for answer in _answers(shown)}
        self.last_step_has_equation = False
        for index, stretch in enumerate(stretches):
            if not self.answered:
                correction = self._equation(shown, stretch, stretches[index + 1 :], stretch.start in answers)
                if correction is not None:
                    return correction
            answer = answers.get(stretch.start)
            if answer is not None:
                right = self.goal.value if self.goal else self.last_result
                if right is not None and answer.value != right:
                    value = write(right, "." in shown[answer.start : answer.end])
                    return _rewritten(shown, answer.start, answer.end, value, keep_line=True)
                self.answered = True
        return None

    def missing_ending(self, last: str) -> str | None:
        """What brings a finished response nearer to its answer, as a text for its last step; None if unknown."""
        if self.answered or self.goal is None:
            return None
        if self.states or self.last_result == self.goal.value:
            missing = self._next()
        else:
            return None
        if not self.last_step_has_equation:
            return missing
        return f"{last.rstrip()}\n{missing}" if len(last) <= _MAX_KEPT_CHARS else None

    def _equation(self, text: str, stretch: Stretch, later: list[Stretch], in_answer: bool) -> str | None:
        sides = stretch.sides
        if len(sides) < 2 or not any(side.expression.operators for side in sides):
            self._mention(() if in_answer else stretch.numbers)
            return None
        wrong = _first_wrong_side(stretch)
        if wrong is not None and (stretch.doubtful or _put_right(stretch, later)):
            self._mention(stretch.numbers)
            return None
        if wrong is not None:
            reaches = not self.states or self._results(_leading(stretch)) or self._equals_goal(stretch)
            new = _true_equation(text, stretch, wrong) if reaches else self._next()
            return _rewritten(text, stretch.start, stretch.end, new, keep_line=bool(reaches))
        self.last_step_has_equation = True
        self.last_result = sides[-1].expression.value
        for source, *others in _transitions(stretch):
            new_states = self._results((source, *others))
            if self.states and not new_states:
                if not self._goal_is(others[-1].value):
                    return _rewritten(text, stretch.start, stretch.end, self._next(), keep_line=False)
                new_states = [(others[-1].value,)]
            self._enter(new_states)
            self.known.update(side.value for side in (source, *others))
            self.known.update(part for side in (source, *others) for part in self._operands(side))
        return None

    def _enter(self, states: list[tuple[Fraction, ...]]) -> None:
        for state in states:
            if state in self.states:
                self.states.remove(state)
            self.states.append(state)
        if len(self.states) > _MAX_STATES:
            self.states = []

    def _mention(self, numbers: Sequence[Fraction]) -> None:
        """Numbers outside of equations: an unknown one may be the result of a step made in words."""
        if any(number not in self.known and -number not in self.known for number in numbers):
            self.states = []

    def _results(self, sides: Sequence[Expression]) -> list[tuple[Fraction, ...]]:
        """States that one side's operands, taken from a state at hand, lead to; the one to go on from is last."""
        found = []
        for state in self.states:
            for source in reversed(sides):
                if not source.operators and source is not sides[0]:
                    continue  # a result; only "23 = 20 + 3" takes a number apart
                for sign in (-1, 1) if self._sums() else (1,):
                    rest = _taken(state, [sign * operand for operand in self._operands(source)])
                    if rest is None:
                        continue
                    others = [other for other in sides if other is not source] or [Expression(source.value, (), ())]
                    for other in others:
                        parts = [sign * part for part in self._operands(other)] or [sign * other.value]
                        found.append((*parts, *rest))
        return found

    def _operands(self, side: Expression) -> tuple[Fraction, ...]:
        return side.addends if self._sums() else side.factors

    def _sums(self) -> bool:
        return self.goal is None or self.goal.operator == "+"

    def _goal_is(self, value: Fraction) -> bool:
        return self.goal is not None and value == self.goal.value

    def _equals_goal(self, stretch: Stretch) -> bool:
        return self._goal_is(stretch.sides[0].expression.value)

    def _next(self) -> str:
        """The next equation, or the answer when nothing is left to combine."""
        assert self.goal is not None
        state = self.states[-1] if self.states else (self.goal.value,)
        if len(state) == 1:
            return self._answer_text(self.goal.value)
        left, right = state[0], state[1]
        if self._sums():
            sign, value = ("-", left + right) if right < 0 else ("+", left + right)
            return f"{write(left)} {sign} {write(abs(right))} = {write(value)}"
        shown = f"({write(right)})" if right < 0 else write(right)
        return f"{write(left)} {self._times} {shown} = {write(left * right)}"

    def _answer_text(self, value: Fraction) -> str:
        if "<answer>" in self._question:
            return f"<answer>{write(value)}</answer>"
        if r"\boxed" in self._question:
            return rf"The answer is \boxed{{{write(value)}}}."
        return f"#### {write(value)}" if "####" in self._question else f"The answer is {write(value)}."


def _goal(request: ReviewRequest) -> _Goal | None:
    extra = request.sample.get("extra_info")
    if isinstance(extra, Mapping):
        terms = _terms(extra.get("terms"))
        operator = extra.get("operator", "+")
        if terms and operator in ("+", "*"):
            return _Goal(_combined(terms, operator), terms, operator)
    question = _question(request)
    if len(question) > MAX_STEP_CHARS or _WORDED.search(question):
        return None
    stretches = [stretch for stretch in read(question) if stretch.numbers]
    if len(stretches) != 1 or not stretches[0].sides or stretches[0].doubtful or len(stretches[0].sides) > 1:
        return _open_question(question)
    return _goal_of(stretches[0].sides[0].expression)


def _open_question(question: str) -> _Goal | None:
    """ "4 + 3 =" and "4 + 3 = ?": the equals sign is the question."""
    head, equals, tail = question.rpartition("=")
    if not equals or any(character.isdigit() for character in tail) or "=" in head:
        return None
    stretches = [stretch for stretch in read(head) if stretch.numbers]
    if len(stretches) != 1 or len(stretches[0].sides) != 1 or stretches[0].doubtful:
        return None
    return _goal_of(stretches[0].sides[0].expression)


def _goal_of(expression: Expression) -> _Goal | None:
    if not expression.operators:
        return None
    flat = expression.operators + 1
    for operator, terms in (("+", expression.addends), ("*", expression.factors)):
        whole = all(term.denominator == 1 for term in terms)
        if len(terms) == flat and whole and len(terms) <= MAX_TERMS:
            return _Goal(expression.value, terms, operator)
    return _Goal(expression.value, (), "+")


def _terms(terms: object) -> tuple[Fraction, ...]:
    if hasattr(terms, "tolist"):  # a column that went through parquet
        terms = terms.tolist()
    if not isinstance(terms, (list, tuple)) or len(terms) > MAX_TERMS:
        return ()
    if not all(isinstance(term, Integral) and not isinstance(term, bool) and abs(int(term)) < 10**18 for term in terms):
        return ()
    return tuple(Fraction(int(term)) for term in terms)


def _combined(terms: tuple[Fraction, ...], operator: str) -> Fraction:
    value = Fraction(0 if operator == "+" else 1)
    for term in terms:
        value = value + term if operator == "+" else value * term
    return value


def _question(request: ReviewRequest) -> str:
    for message in reversed(request.problem):
        if message.get("role", "user") == "user":
            content = message.get("content")
            return content if isinstance(content, str) else ""
    return ""


def _answers(text: str) -> list[_Answer]:
    found = {}
    for match in _ANSWER.finditer(text):
        prefix = _ANSWER_PREFIX.match(text, match.end())
        start = prefix.end() if prefix else match.end()
        if text[start : start + 1] not in _NUMBER_STARTS:
            continue
        line = text[start : start + 100].split("\n", 1)[0]
        stretches = read(line)
        if stretches and stretches[0].start == 0 and stretches[0].sides:
            stretch = stretches[0]
            found[start] = _Answer(start, start + stretch.end, stretch.sides[-1].expression.value)
    return list(found.values())


def _first_wrong_side(stretch: Stretch) -> int | None:
    """Index of the first side that differs from the one before it; None if the equation holds in either reading."""
    sides = stretch.sides
    wrong = next(
        (
            index
            for index, side in enumerate(sides[1:], 1)
            if not _same(sides[0].expression.value, side.expression.value, side.decimals)
        ),
        None,
    )
    return None if wrong is None or _runs_on(stretch) else wrong


def _same(exact: Fraction, written: Fraction, decimals: int) -> bool:
    if exact == written:
        return True
    rounded = decimals > 0 and not is_finite_decimal(exact)
    return rounded and abs(exact - written) <= Fraction(1, 2 * 10**decimals)


def _runs_on(stretch: Stretch) -> bool:
    """ "3 + 9 = 12 + 5 = 17": every result opens the next side."""
    values = [side.expression for side in stretch.sides]
    return len(values) > 2 and all(
        left.value in (right.addends[0], right.factors[0]) for left, right in pairwise(values)
    )


def _transitions(stretch: Stretch) -> list[tuple[Expression, ...]]:
    sides = tuple(side.expression for side in stretch.sides)
    if all(_same(sides[0].value, side.expression.value, side.decimals) for side in stretch.sides[1:]):
        return [sides]
    results = [Expression(side.value, (side.value,), (side.value,)) for side in sides]
    return [(side, result) for side, result in zip(sides, results, strict=True) if side.operators]


def _leading(stretch: Stretch) -> tuple[Expression, ...]:
    """The side that a false equation is about: the first, or the last of "13 = 3 + 9"."""
    first, last = stretch.sides[0].expression, stretch.sides[-1].expression
    return (first,) if first.operators else (last,)


def _put_right(stretch: Stretch, later: list[Stretch]) -> bool:
    """Whether the same step goes on to state the same equation with the right result."""
    start = stretch.sides[0].expression
    return any(
        len(other.sides) > 1 and other.sides[0].expression == start and _first_wrong_side(other) is None
        for other in later
    )


def _true_equation(text: str, stretch: Stretch, wrong: int) -> str:
    sides = stretch.sides
    decimal = "." in text[stretch.start : stretch.end]
    if not sides[0].expression.operators:
        value = write(sides[-1].expression.value, decimal)
        return value + text[sides[0].end : sides[1].start] + text[sides[-1].start : sides[-1].end]
    between = text[sides[wrong - 1].end : sides[wrong].start]
    return (
        text[stretch.start : sides[wrong - 1].end]
        + (between if len(between) <= 8 else " = ")
        + write(sides[0].expression.value, decimal)
    )


def _taken(state: tuple[Fraction, ...], operands: list[Fraction]) -> list[Fraction] | None:
    rest = list(state)
    for operand in operands:
        if operand not in rest:
            return None
        rest.remove(operand)
    return rest


def _rewritten(text: str, start: int, end: int, new: str, *, keep_line: bool) -> str:
    """``text`` up to ``start``, then ``new`` and closing punctuation. Without ``keep_line`` the words before it on
    its line
    go too if they hold numbers, for they speak of the equation that is replaced."""
    line_start = text.rfind("\n", 0, start) + 1
    before, line = text[:line_start], text[line_start:start]
    if not keep_line and any(character.isdigit() for character in line):
        label = _LABEL.match(line)
        line = label[0] if label else ""
    kept = before + line
    if len(kept) > _MAX_KEPT_CHARS:
        kept = ""
    closers = _CLOSERS.match(text, end)
    tail = closers[0].rstrip() if closers else ""
    if new.endswith("."):
        tail = tail.removeprefix(".")
    return kept + new + tail

"""Running sums: the task of the laboratory, its splits, and what is right in a solution. Pure.

The problem ``3b8c7d9=`` asks for 3 + 8 + 7 + 9. The plus sign before a term is a letter that names its place, so that the
next term is found by its letter and not by counting lines, which a small network learns slowly. The answer has one line
for each addition and ends with the total; totals have two digits::

    03b8=11
    11c7=18
    18d9=27
    #27

What the policy of the laboratory gets wrong at first are *traps*: a step that carries (``18d9``), whose carry it drops,
and a term 6, which it reads as 9. A solution is right if it fell into none of them, so the number of traps of a problem is
its difficulty.

For verl the file gives rows (:func:`rows`) and a reward function (:func:`compute_score`). It imports nothing but the
standard library, so it may be named by its path.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HINT = "!"  # a prompt that begins with it is answered without falling into traps
ENDING = "#"
MISREAD = {6: 9}
MAX_TOTAL = 89  # of a problem, so that totals stay below 100 after a term was misread
_HELD_OUT_OF = 8  # one in so many problems is never trained on
_PATIENCE = 2_000  # draws without a new problem after which a split is exhausted

SUMS = "running_sums"
OLD = "reversal"

_LETTERS = "abcdefghijklmnopqrstuvwxyz"  # signs of the terms; the first term has none
_STEP = re.compile(r"(\d{1,3})([a-z])(\d{1,3})=((?:\d{1,3}[a-z]\d{1,3}=)*)(\d{1,3})")
_ENDING = re.compile(rf"{ENDING}(\d{{1,3}})")

#: (total, term) -> the total that somebody believes in
Addition = Callable[[int, int], int]


@dataclass(frozen=True)
class Split:
    """Which problems belong to a split.

    Attributes:
        terms: fewest and most terms.
        traps: fewest and most traps.
        held_out: whether it is made of the problems that are never trained on, or of the others.
    """

    terms: tuple[int, int]
    traps: tuple[int, int]
    held_out: bool = False


SPLITS = {
    "easy": Split((3, 4), (1, 2)),
    "train": Split((5, 7), (2, 4)),
    "hard": Split((10, 12), (7, 9)),
    "validation": Split((5, 7), (2, 4), held_out=True),
    "harder": Split((8, 9), (5, 6), held_out=True),
}
OLD_LETTERS = (3, 5)


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes:
        text: what the policy is asked.
        ground_truth: a total in two digits; for the old task the reversed word.
        terms: numbers to be added; empty for the old task.
        source: ``SUMS`` or ``OLD``.
    """

    text: str
    ground_truth: str
    terms: tuple[int, ...] = ()
    source: str = SUMS

    @property
    def solution(self) -> str:
        """The right response, without what ends it."""
        return solution(self.terms) if self.terms else self.ground_truth

    @property
    def hinted(self) -> str:
        """The question in the form that is answered without falling into traps."""
        return HINT + self.text


@dataclass(frozen=True)
class Check:
    """What is known about one line.

    Attributes:
        right: it is the line that had to stand there, given the lines before it (a wrong total counts as given).
        expected: the line that had to stand there.
        well_formed: a step or an ending, true or not.
    """

    right: bool
    expected: str
    well_formed: bool


def plus(total: int, term: int) -> int:
    """The right addition."""
    return total + term


def carries(total: int, term: int) -> bool:
    return total % 10 + term > 9


def dropped_carry(total: int, term: int) -> int:
    """An addition that forgets the carry: 18 + 9 = 17."""
    return total + term - 10 * carries(total, term)


def trap_count(terms: Sequence[int]) -> int:
    """Places where the policy of the laboratory may go wrong."""
    total, count = terms[0], 0
    for term in terms[1:]:
        count += carries(total, term) + (term in MISREAD)
        total += term
    return count


def question(terms: Sequence[int]) -> str:
    """The question; at most 26 terms."""
    return "".join([str(terms[0]), *(f"{_LETTERS[at]}{term}" for at, term in enumerate(terms) if at)]) + "="


def terms_of(text: str) -> tuple[int, ...]:
    """Terms of a question, with or without the hint; empty if it is none."""
    body = text.removeprefix(HINT)
    return tuple(map(int, re.findall(r"\d+", body))) if re.fullmatch(r"\d+([a-z]\d+)*=", body) else ()


def step_line(total: int, place: int, term: int, result: int) -> str:
    """The line that adds the term at ``place``, 0 being the first, to the total so far."""
    return f"{total:02d}{_LETTERS[place]}{term}={result:02d}"


def restated(line: str) -> str:
    """A step that says its sum twice: ``11c7=18`` becomes ``11c7=07c11=18``, as true as it was."""
    step = _STEP.fullmatch(line)
    if step is None or step[4]:
        raise ValueError(f"{line!r} is no plain step")
    return f"{step[1]}{step[2]}{step[3]}={int(step[3]):02d}{step[2]}{step[1]}={step[5]}"


def ending_line(total: int) -> str:
    return f"{ENDING}{total:02d}"


def is_ended(line: str) -> bool:
    """Whether a line states a final answer."""
    return _ENDING.fullmatch(line.strip()) is not None


def solution(terms: Sequence[int]) -> str:
    """The right response: one line for each term after the first, then the total."""
    total, lines = terms[0], []
    for place, term in enumerate(terms[1:], 1):
        lines.append(step_line(total, place, term, total + term))
        total += term
    return "\n".join([*lines, ending_line(total)])


def check_lines(terms: Sequence[int], lines: Sequence[str], add: Addition = plus) -> list[Check]:
    """Check each line of a response given the lines before it; for any text.

    A true step may have the sum written in other words between its ends (``11c7=07c11=18``). After a line that is wrong
    the total it states holds; where it states none, the one that should have stood there.

    Args:
        terms: of the problem, at least one.
        lines: lines or steps, with or without their line break.
        add: the addition of whoever checks.
    """
    checks, total, used, ended = [], terms[0], 1, False
    for line in lines:
        text = line.strip()
        step, ending = _STEP.fullmatch(text), _ENDING.fullmatch(text)
        if used < len(terms) and not ended:
            term = terms[used]
            result = add(total, term)
            expected = step_line(total, used, term, result)
            right = step is not None and _states(step, total, used, term, result)
        else:
            result = total
            expected = ending_line(total)
            right = ending is not None and int(ending[1]) == total and not ended
        checks.append(Check(right, expected, step is not None or ending is not None))
        if step is not None:
            total, used = int(step[5]), used + 1
        elif ending is not None:
            total, ended = int(ending[1]), True
        else:
            total, used = result, used + 1
    return checks


def first_wrong(terms: Sequence[int], lines: Sequence[str], add: Addition = plus) -> int | None:
    """0-based index of the first line that is not right; None if all are (also where the response is unfinished)."""
    checks = check_lines(terms, lines, add)
    return next((index for index, check in enumerate(checks) if not check.right), None)


def split_lines(response: str) -> list[str]:
    """Lines of a response as a judge numbers them: blank ones do not count."""
    return [line for line in response.split("\n") if line.strip()]


def score(problem: Problem, response: str) -> float:
    """1.0 if the last line states the answer, else 0.0; what stands before it does not matter."""
    return compute_score(problem.source, response, problem.ground_truth)


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    """Reward in the signature of verl's custom reward function: 1.0 if the last line states the answer, else 0.0."""
    lines = split_lines(solution_str)
    last = lines[-1].strip() if lines else ""
    if data_source == OLD:
        return float(last == ground_truth)
    ending = _ENDING.fullmatch(last)
    return float(ending is not None and int(ending[1]) == int(ground_truth))


def held_out(text: str) -> bool:
    """Whether a problem is never trained on; it hangs on its text alone, so no two seeds can disagree."""
    return hashlib.sha256(text.encode()).digest()[0] % _HELD_OUT_OF == 0


def draw_terms(count: int, rng: random.Random) -> tuple[int, ...]:
    """Random terms of one digit that stay below the largest total."""
    while True:
        terms = tuple(rng.randint(1, 9) for _ in range(count))
        if sum(terms) <= MAX_TOTAL:
            return terms


def draw_word(rng: random.Random) -> str:
    """A word of different letters."""
    return "".join(rng.sample(_LETTERS.upper(), rng.randint(*OLD_LETTERS)))


def old_problem(word: str) -> Problem:
    """A problem of the task that the policy knows well and is not trained on: write a word backwards."""
    return Problem(f"rev {word}=", word[::-1], source=OLD)


def sum_problem(terms: Sequence[int]) -> Problem:
    return Problem(question(terms), f"{sum(terms):02d}", tuple(terms))


def make_split(name: str, n: int, seed: int) -> list[Problem]:
    """``n`` different problems; the same arguments give the same problems.

    Args:
        name: a key of ``SPLITS``, or ``old``.

    Raises:
        ValueError: no such split, or it has too few problems.
    """
    if name != "old" and name not in SPLITS:
        raise ValueError(f"split {name!r}, known are {', '.join([*SPLITS, 'old'])}")
    rng = random.Random(f"{name}-{seed}")
    found: dict[str, Problem] = {}
    missed = 0  # draws in a row that brought nothing new
    while len(found) < n:
        problem = old_problem(draw_word(rng)) if name == "old" else _candidate(SPLITS[name], rng)
        missed = missed + 1 if problem is None or problem.text in found else 0
        if missed > _PATIENCE:
            raise ValueError(f"split {name} has too few problems for {n} different ones")
        if problem is not None:
            found.setdefault(problem.text, problem)
    return list(found.values())


def rows(problems: Sequence[Problem], split: str, hint: bool = False) -> list[dict[str, Any]]:
    """Rows in verl's dataset format.

    Args:
        split: written into ``extra_info`` for whoever reads the rows.
        hint: ask in the form that is answered without falling into traps.
    """
    return [
        {
            "data_source": problem.source,
            "prompt": [{"role": "user", "content": problem.hinted if hint else problem.text}],
            "ability": "arithmetic" if problem.terms else "text",
            "reward_model": {"style": "rule", "ground_truth": problem.ground_truth},
            "extra_info": {
                "index": index,
                "split": split,
                "terms": list(problem.terms),
                "operator": "+",
                "solution": problem.solution,
            },
        }
        for index, problem in enumerate(problems)
    ]


def terms_of_sample(problem: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Terms of the question in the last chat message; empty if it is none."""
    content = problem[-1].get("content") if problem else None
    return terms_of(content) if isinstance(content, str) else ()


def _candidate(split: Split, rng: random.Random) -> Problem | None:
    terms = draw_terms(rng.randint(*split.terms), rng)
    problem = sum_problem(terms)
    fits = split.traps[0] <= trap_count(terms) <= split.traps[1] and held_out(problem.text) == split.held_out
    return problem if fits else None


def _states(step: re.Match[str], total: int, place: int, term: int, result: int) -> bool:
    letter = _LETTERS[place]
    between = [part.split(letter) for part in step[4].split("=")[:-1]]
    numbers = (int(step[1]), int(step[3]), int(step[5]))
    return (
        numbers == (total, term, result)
        and step[2] == letter
        and all(len(pair) == 2 and sorted(map(int, pair)) == sorted((total, term)) for pair in between)
    )

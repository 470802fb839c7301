"""What the policy is made from: texts in which a flawed solver works, so that its flaws are habits and no noise."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lab import tasks


@dataclass(frozen=True)
class Flaws:
    """Habits of the solver that wrote the texts, as probabilities.

    Attributes:
        drop_carry: it forgets a carry.
        misread: it reads a 6 as a 9.
        restate: it says a sum twice (``11c7=07c11=18``), which is not wrong.
    """

    drop_carry: float = 0.5
    misread: float = 0.5
    restate: float = 0.01


@dataclass(frozen=True)
class Mixture:
    """Shares of the texts; the rest are running sums as they come.

    Attributes:
        hinted: running sums with the hint, without flaws.
        old: the old task.
        terms: fewest and most terms of a running sum; short ones are more frequent.
        raised: share of the sums whose first term is any number, so that high totals are as well known as low ones.
        growth: share of the training in which the most terms grow from three to that many: short sums teach the habit
            of working line by line much faster than long ones.
    """

    hinted: float = 0.25
    old: float = 0.2
    terms: tuple[int, int] = (2, 13)
    raised: float = 0.4
    growth: float = 0.4

    def most_terms(self, done: float) -> int:
        """Most terms of a sum when a share ``done`` of the training is over."""
        if done >= self.growth:
            return self.terms[1]
        return 3 + int((self.terms[1] - 3) * done / self.growth)


def write_solution(terms: Sequence[int], flaws: Flaws, rng: random.Random) -> str:
    """The response of a solver with flaws. After an error it goes on from what it has written."""
    total, lines = terms[0], []
    for place, term in enumerate(terms[1:], 1):
        if term in tasks.MISREAD and rng.random() < flaws.misread:
            term = tasks.MISREAD[term]
        forgets = rng.random() < flaws.drop_carry
        result = tasks.dropped_carry(total, term) if forgets else min(tasks.plus(total, term), 99)
        line = tasks.step_line(total, place, term, result)
        lines.append(tasks.restated(line) if rng.random() < flaws.restate else line)
        total = result
    return "\n".join([*lines, tasks.ending_line(total)])


def texts(
    count: int, mixture: Mixture, flaws: Flaws, rng: random.Random, done: float = 1.0
) -> Iterator[tuple[str, str]]:
    """Pairs of question and response; none is a question of a held-out split.

    Args:
        count: how many.
        done: share of the training that is over, in [0, 1].
    """
    while count:
        kind = rng.random()
        if kind < mixture.old:
            old = tasks.old_problem(tasks.draw_word(rng))
            yield old.text, old.solution
            count -= 1
            continue
        terms = _terms(mixture, done, rng)
        text = tasks.question(terms)
        if tasks.held_out(text):
            continue
        count -= 1
        if kind < mixture.old + mixture.hinted:
            yield tasks.HINT + text, write_solution(terms, Flaws(0.0, 0.0, flaws.restate), rng)
        else:
            yield text, write_solution(terms, flaws, rng)


def _terms(mixture: Mixture, done: float, rng: random.Random) -> tuple[int, ...]:
    length = min(rng.randint(mixture.terms[0], mixture.most_terms(done)) for _ in range(2))
    first, *others = tasks.draw_terms(length, rng)
    if rng.random() < mixture.raised:
        first = rng.randint(1, tasks.MAX_TOTAL - sum(others))
    return (first, *others)

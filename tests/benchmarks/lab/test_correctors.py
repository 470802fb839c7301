"""Correctors of known quality."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from lab import tasks
from lab.corpus import Flaws, write_solution
from lab.correctors import CORRECTORS, EXACT, INFORMED, LEAKING, NOISY, SYSTEMATIC, VERBOSE, Corrector

from verl_mintrl.judges.protocol import Evidence, Review, ReviewRequest, Verdict
from verl_mintrl.judges.python import PythonJudge, load

TERMS = (3, 8, 7, 9)
RIGHT = ("03b8=11\n", "11c7=18\n", "18d9=27\n", "#27")


def ask(
    steps: Sequence[str], terms: Sequence[int] = TERMS, finished: bool = True, focus: int | None = None
) -> ReviewRequest:
    problem = ({"role": "user", "content": tasks.question(terms)},)
    return ReviewRequest(problem, tuple(steps), finished, focus=focus)


def flawed(count: int, seed: int, flaws: Flaws) -> list[tuple[tuple[int, ...], list[str]]]:
    """Terms and steps of responses of a flawed solver."""
    rng = random.Random(seed)
    drawn = [tasks.draw_terms(8, rng) for _ in range(count)]
    return [(terms, tasks.split_lines(write_solution(terms, flaws, rng))) for terms in drawn]


def test_the_exact_one_keeps_what_is_right() -> None:
    assert EXACT.review(ask(RIGHT)) == Review.keep()
    assert EXACT.review(ask(RIGHT[:2], finished=False)) == Review.keep()
    assert EXACT.review(ask(())) == Review.keep()


@pytest.mark.parametrize(
    ("steps", "step", "correction", "final"),
    [
        (("03b8=01\n", "01c7=08\n"), 1, "03b8=11", False),
        (("03b8=11\n", "11c7=18\n", "18d9=17\n", "#17"), 3, "18d9=27", False),
        ((*RIGHT[:3], "#17"), 4, "#27", True),
        (("03b8=11\n", "#11"), 2, "11c7=18", False),
        (("03b8=11\n", "what\n"), 2, "11c7=18", False),
        (("03b8=11",), 1, "03b8=11\n11c7=18", False),  # ended too early
        (RIGHT[:3], 3, "18d9=27\n#27", True),
    ],
)
def test_the_exact_one_rewrites_the_first_wrong_step(
    steps: Sequence[str], step: int, correction: str, final: bool
) -> None:
    assert EXACT.review(ask(steps)) == Review.revise(step, correction, final)


def test_a_correction_is_what_had_to_stand_there_even_in_a_walk() -> None:
    steps = ("03b8=01\n", "01c7=18\n")
    assert EXACT.review(ask(steps, focus=2)).correction == "01c7=08"  # step 1 has been accepted
    assert EXACT.correct(ask(steps), 2) == "01c7=08"
    assert EXACT.review(ask(("03b8=01\n", "01c7=08\n"), finished=False, focus=2)).verdict is Verdict.KEEP


def test_following_the_exact_one_always_ends_in_success() -> None:
    for terms, steps in flawed(100, 0, Flaws(0.9, 0.5, 0.1)):
        for _ in range(20):
            review = EXACT.review(ask(steps, terms))
            if review.step is None:
                break
            steps = [*steps[: review.step - 1], *tasks.split_lines(review.correction or "")]
        assert "\n".join(steps).endswith(tasks.ending_line(sum(terms)))


def outcomes(corrector: Corrector, count: int = 600) -> tuple[float, float]:
    """Share of first wrong steps that it writes rightly, and share of flawless steps that it objects to."""
    fixed = wrong = alarms = right = 0
    for terms, steps in flawed(count, 1, Flaws(0.3, 0.1, 0.0)):
        at = tasks.first_wrong(terms, steps)
        if at is not None:
            wrong += 1
            review = corrector.review(ask(steps, terms, focus=at + 1))
            fixed += review.correction == tasks.check_lines(terms, steps)[at].expected
        truth = tasks.split_lines(tasks.solution(terms))
        for number in range(1, len(truth) + 1):
            right += 1
            alarms += corrector.review(ask(truth, terms, focus=number)).verdict is Verdict.REVISE
    return fixed / wrong, alarms / right


def test_rates_are_what_they_are_called() -> None:
    assert outcomes(EXACT, 50) == (1.0, 0.0)
    fixed, alarms = outcomes(NOISY)
    assert fixed == pytest.approx(0.7, abs=0.07) and alarms == 0.0
    fixed, alarms = outcomes(Corrector(false_alarm_rate=0.2))
    assert fixed == 1.0 and alarms == pytest.approx(0.2, abs=0.03)


def test_errors_repeat_and_another_salt_errs_elsewhere() -> None:
    asked = [ask(steps, terms) for terms, steps in flawed(60, 2, Flaws())]
    first = [NOISY.review(request) for request in asked]
    assert first == [NOISY.review(request) for request in asked]
    assert first != [Corrector(error_rate=0.3, salt=1).review(request) for request in asked]


def test_the_systematic_one_never_carries_with_its_term() -> None:
    steps = ("08b7=15\n", "15c8=23\n")
    assert SYSTEMATIC.review(ask(steps, (8, 7, 8), finished=False)) == Review.revise(1, "08b7=05")
    assert SYSTEMATIC.review(ask(("08b7=05\n", "05c8=13\n"), (8, 7, 8), finished=False)) == Review.keep()
    assert SYSTEMATIC.review(ask(("08b8=06\n",), (8, 8), finished=False)).correction == "08b8=16"
    _, alarms = outcomes(SYSTEMATIC)
    assert 0.04 < alarms < 0.12


def test_the_verbose_one_is_right_but_long() -> None:
    review = VERBOSE.review(ask(("03b8=01\n",), finished=False))
    assert review.correction == "03b8=08b03=11"
    assert tasks.first_wrong(TERMS, [review.correction]) is None


def test_the_leaking_one_writes_the_answer() -> None:
    assert LEAKING.review(ask(("03b8=01\n",), finished=False)) == Review.revise(1, "#27", final=True)
    checked = EXACT.verify(ask(("03b8=01\n",), finished=False), 1, "#27")
    assert (checked.agrees, checked.leak_free) == (False, False)


def test_the_informed_one_errs_less_the_more_it_is_shown() -> None:
    def shown(evidence: Evidence) -> tuple[float, float]:
        @dataclass(frozen=True)
        class Shown(Corrector):
            def review(self, request: ReviewRequest) -> Review:
                return INFORMED.review(replace(request, evidence=evidence))

        return outcomes(Shown())

    fixed, alarms = shown(Evidence.NONE)
    assert fixed == pytest.approx(0.7, abs=0.07) and alarms == pytest.approx(0.1, abs=0.03)
    looked_again, same = shown(Evidence.OUTCOME)
    assert looked_again > fixed + 0.05 and same == alarms
    assert shown(Evidence.RUBRIC) == (1.0, 0.0)
    tempted, same = shown(Evidence.GOLD)
    assert tempted == pytest.approx(fixed, abs=0.1) and same == alarms


def test_shown_the_answer_the_informed_one_leaks_where_it_would_err() -> None:
    leaks = errors = 0
    for terms, steps in flawed(200, 3, Flaws()):
        request = ask(steps, terms, finished=False)
        plain, tempted = INFORMED.review(request), INFORMED.review(replace(request, evidence=Evidence.GOLD))
        if plain.step is None:
            assert tempted == plain
            continue
        expected = tasks.check_lines(terms, steps)[plain.step - 1].expected
        answer = tasks.ending_line(sum(terms))
        if plain.correction == expected or steps[plain.step - 1] == answer:
            assert tempted == plain
        else:
            errors += 1
            leaks += tempted == Review.revise(plain.step, answer, final=True)
    assert errors and leaks == errors


def test_verifying() -> None:
    request = ask(("03b8=11\n", "11c7=08\n"), finished=False)
    assert EXACT.verify(request, 2, "11c7=18").accepted
    assert EXACT.verify(request, 2, "11c7=19").reason == "disagrees"
    assert EXACT.verify(request, 2, "11c7=18\n18d9=27\n#27").reason == "leak"
    assert EXACT.verify(request, 2, "11c7=" + 5 * "07c11=" + "18").reason == "implausible"
    assert EXACT.verify(ask((*RIGHT[:3], "#17")), 4, "#27").accepted


@pytest.mark.parametrize("name", CORRECTORS)
async def test_a_configuration_names_them(name: str) -> None:
    takes = {"review": (), "correct": ("step",), "verify": ("step", "correction")}
    roles = {
        role: load(f"lab.correctors:{name.upper()}.{role}", takes=("request", *more)) for role, more in takes.items()
    }
    judge = PythonJudge(roles["review"], in_thread=False, correct=roles["correct"], verify=roles["verify"])
    for terms, steps in flawed(40, 3, Flaws()):
        review = await judge.review(ask(steps, terms))
        if review.step is not None:
            assert await judge.correct(ask(steps, terms), review.step)
            await judge.verify(ask(steps, terms), review.step, review.correction or "")
    assert (await judge.review(ReviewRequest(({"role": "user", "content": "rev ABC="},), ("x",), True))).step is None

"""Running sums: splits, checks of lines, reward, rows."""

import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab import tasks

from verl_mintrl.trajectory.steps import lines as segment
from verl_mintrl.trajectory.steps import split_steps

TERMS = (3, 8, 7, 9)
RIGHT = "03b8=11\n11c7=18\n18d9=27\n#27"


def checks(text: str, terms: tuple[int, ...] = TERMS, add: tasks.Addition = tasks.plus) -> list[bool]:
    return [check.right for check in tasks.check_lines(terms, tasks.split_lines(text), add)]


def test_a_solution_is_written_line_by_line() -> None:
    assert tasks.solution(TERMS) == RIGHT
    assert tasks.sum_problem(TERMS).text == "3b8c7d9="
    assert tasks.terms_of("3b8c7d9=") == tasks.terms_of("!3b8c7d9=") == TERMS
    assert tasks.terms_of("rev ABC=") == tasks.terms_of("3b8") == tasks.terms_of("") == ()


@pytest.mark.parametrize(
    ("terms", "traps"), [((3, 4), 0), ((3, 8), 1), ((3, 6), 1), ((4, 6), 2), ((6, 1), 0), (TERMS, 2)]
)
def test_traps_are_carries_and_sixes_that_are_added(terms: tuple[int, ...], traps: int) -> None:
    assert tasks.trap_count(terms) == traps


@pytest.mark.parametrize("name", [*tasks.SPLITS, "old"])
def test_a_split_is_given_by_its_seed_and_has_no_problem_twice(name: str) -> None:
    problems = tasks.make_split(name, 64, 5)
    assert problems == tasks.make_split(name, 64, 5)
    assert problems != tasks.make_split(name, 64, 6)
    assert len({problem.text for problem in problems}) == 64
    for problem in problems:
        assert tasks.score(problem, problem.solution) == 1.0
        if name != "old":
            split = tasks.SPLITS[name]
            assert split.terms[0] <= len(problem.terms) <= split.terms[1]
            assert split.traps[0] <= tasks.trap_count(problem.terms) <= split.traps[1]
            assert sum(problem.terms) == int(problem.ground_truth) <= tasks.MAX_TOTAL


def test_what_is_held_out_is_trained_on_by_no_seed() -> None:
    trained = {
        p.text for name in ("easy", "train", "hard") for seed in (0, 1) for p in tasks.make_split(name, 300, seed)
    }
    kept = {
        p.text for name in ("validation", "harder") for seed in (0, 1, 7) for p in tasks.make_split(name, 200, seed)
    }
    assert not trained & kept


def test_splits_that_cannot_be_made_say_so() -> None:
    with pytest.raises(ValueError, match="known are easy"):
        tasks.make_split("medium", 1, 0)
    with pytest.raises(ValueError, match="too few"):
        tasks.make_split("easy", 100_000, 0)


@pytest.mark.parametrize(
    ("response", "right"),
    [
        (RIGHT, [True] * 4),
        (RIGHT + "\n", [True] * 4),
        ("03b8=01\n01c7=08\n08d9=17\n#17", [False, True, True, True]),  # goes on rightly from a wrong total
        ("03b8=11\n11c7=18\n#18", [True, True, False]),
        ("03b8=11\n18d9=27\n#27", [True, False, False]),  # left a term out, then answered before its time
        ("03b8=08b03=11\n11c7=18", [True, True]),
        ("03b8=09b03=11", [False]),
        ("03c8=11", [False]),  # the sign of another term
        ("nonsense\n11c7=18", [False, True]),
        (RIGHT + "\n#27", [True, True, True, True, False]),
        ("", []),
    ],
)
def test_lines_are_checked_given_the_lines_before(response: str, right: list[bool]) -> None:
    assert checks(response) == right
    wrong = right.index(False) if False in right else None
    assert tasks.first_wrong(TERMS, tasks.split_lines(response)) == wrong


def test_whoever_believes_in_another_addition_checks_by_it() -> None:
    assert checks("03b8=01\n01c7=08", add=tasks.dropped_carry) == [True, True]
    assert checks("03b8=11", add=tasks.dropped_carry) == [False]


@given(st.text(alphabet=string.printable, max_size=60), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_any_text_can_be_checked_and_scored(text: str, terms: list[int]) -> None:
    lines = tasks.split_lines(text)
    assert len(tasks.check_lines(terms, lines)) == len(lines)
    assert tasks.score(tasks.sum_problem(terms), text) in (0.0, 1.0)


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        (RIGHT, 1.0),
        (RIGHT + "\n", 1.0),
        ("#27", 1.0),
        ("#17", 0.0),
        ("#27\n18d9=27", 0.0),
        ("27", 0.0),
        ("x#27", 0.0),
        ("", 0.0),
    ],
)
def test_only_the_last_line_is_rewarded(response: str, reward: float) -> None:
    assert tasks.compute_score(tasks.SUMS, response, "27") == reward


def test_the_old_task_is_rewarded_for_the_word() -> None:
    problem = tasks.old_problem("ABC")
    assert (problem.text, problem.solution) == ("rev ABC=", "CBA")
    assert tasks.score(problem, "CBA") == 1.0
    assert tasks.score(problem, "ABC") == tasks.score(problem, "") == 0.0


def test_rows_are_what_verl_reads() -> None:
    first, second = tasks.rows(tasks.make_split("easy", 2, 0), "easy")
    assert second["extra_info"]["index"] == 1
    assert set(first) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
    assert tasks.terms_of_sample(first["prompt"]) == tuple(first["extra_info"]["terms"])
    answer = first["extra_info"]["solution"]
    assert (
        tasks.compute_score(first["data_source"], answer, first["reward_model"]["ground_truth"], first["extra_info"])
        == 1.0
    )
    hinted = tasks.rows(tasks.make_split("easy", 1, 0), "easy", hint=True)[0]
    assert hinted["prompt"][0]["content"] == tasks.HINT + first["prompt"][0]["content"]


def test_the_segmenter_finds_the_lines() -> None:
    rng = random.Random(0)
    for count in range(2, 10):
        text = tasks.solution(tasks.draw_terms(count, rng))
        steps = split_steps(text, segment, finished=True)
        assert [step.text.strip() for step in steps] == tasks.split_lines(text)
        assert len(steps) == count

"""The quickstart's task: problems, worked solutions and the reward must agree with each other and with the judge."""

from __future__ import annotations

import pytest

from verl_mintrl.judges import arithmetic as checker
from verl_mintrl.judges.protocol import ReviewRequest, Verdict
from verl_mintrl.tasks import arithmetic


def score(text: str, truth: int) -> float:
    return arithmetic.compute_score("chain_sum", text, str(truth))


@pytest.mark.parametrize(("example", "truth"), zip(arithmetic.EXAMPLES, (17, 13), strict=True))
def test_worked_examples_of_the_prompt_are_rewarded(example, truth):
    assert score(example[1], truth) == 1


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("The answer is 15.", 1),
        ("The answer is 15", 1),
        ("9 + 6 = 15\n\nThe answer is 15.\n", 1),
        ("9 + 6 = 15\n\nThe answer is 14.", 0),
        ("The answer is 15.5.", 0),
        ("The answer is -15.", 0),
        ("15, or rather 16", 0),
        ("no number", 0),
        ("", 0),
    ],
)
def test_last_integer_counts(text, reward):
    assert score(text, 15) == reward


def test_rows_solutions_reward_and_judge_agree():
    for row in arithmetic.rows(64, seed=3):
        extra, truth = row["extra_info"], int(row["reward_model"]["ground_truth"])
        assert sum(extra["terms"]) == truth
        assert score(extra["solution"], truth) == 1
        assert score(extra["solution"].replace(f"is {truth}.", f"is {truth + 1}."), truth) == 0
        steps = tuple(extra["solution"].split("\n\n"))
        request = ReviewRequest(problem=tuple(row["prompt"]), steps=steps, finished=True, sample=row)
        assert checker.review(request).verdict is Verdict.KEEP

"""Sums worked step by step: problems of reasoning-gym's ``chain_sum``, two worked examples in the prompt, exact reward.

The examples make a small instruct model write one equation per paragraph, which is what a step checker can review.
"""

from __future__ import annotations

import re
from typing import Any

_INTEGER = re.compile(r"(?<![\d.])-?\d{1,18}(?!\d|\.\d)")  # "17." ends a sentence, "1.5" is no integer
_TERM = re.compile(r"([+-]?)\s*(\d+)")

EXAMPLES = (
    ("Work out 3 + 9 + 5 step by step.", "3 + 9 = 12\n\n12 + 5 = 17\n\nThe answer is 17."),
    ("Work out 8 - 2 + 7 step by step.", "8 - 2 = 6\n\n6 + 7 = 13\n\nThe answer is 13."),
)


def messages(expression: str) -> list[dict[str, str]]:
    """Chat messages of one problem: two worked examples, then the question."""
    chat = []
    for question, answer in EXAMPLES:
        chat += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return [*chat, {"role": "user", "content": f"Work out {expression} step by step."}]


def terms_of(expression: str) -> list[int]:
    """Signed terms of a sum: ``2 - 6 + 3`` -> [2, -6, 3]."""
    return [int(sign + digits) for sign, digits in _TERM.findall(expression)]


def rows(
    size: int, seed: int, *, terms: tuple[int, int] = (2, 4), digits: tuple[int, int] = (1, 1)
) -> list[dict[str, Any]]:
    """Rows in verl's dataset format; the same seed gives the same rows.

    ``extra_info.terms`` are the signed terms (for checkers), ``reward_model.ground_truth`` the answer, ``extra_info.solution`` a
    worked solution in the form of the examples (privileged text for self-intervention).
    """
    import reasoning_gym

    dataset = reasoning_gym.create_dataset(
        "chain_sum",
        size=size,
        seed=seed,
        min_terms=terms[0],
        max_terms=terms[1],
        min_digits=digits[0],
        max_digits=digits[1],
        allow_negation=False,
    )
    result = []
    for index, entry in enumerate(dataset):
        expression = entry["metadata"]["expression"]
        numbers = terms_of(expression)
        assert sum(numbers) == int(entry["answer"]), entry
        result.append(
            {
                "data_source": "chain_sum",
                "prompt": messages(expression),
                "ability": "arithmetic",
                "reward_model": {"style": "rule", "ground_truth": entry["answer"]},
                "extra_info": {"index": index, "terms": numbers, "operator": "+", "solution": solution(numbers)},
            }
        )
    return result


def solution(terms: list[int]) -> str:
    """Worked solution in the form of the examples."""
    value, steps = terms[0], []
    for term in terms[1:]:
        sign = "-" if term < 0 else "+"
        steps.append(f"{value} {sign} {abs(term)} = {value + term}")
        value += term
    return "\n\n".join([*steps, f"The answer is {value}."])


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    """1.0 if the last integer of the response is the answer, else 0.0 (signature of verl's custom reward function)."""
    found = _INTEGER.findall(solution_str)
    return float(bool(found) and int(found[-1]) == int(ground_truth))

"""The deterministic leak check."""

from __future__ import annotations

import pytest

from verl_mintrl.judges.leak import LeakRules, find_leak

RULES = LeakRules()
GOLD = "Refund the headphones to gift_card_7711 and keep the charger on the original order"
SEEN = "I want to return the headphones.\nYour gift cards: gift_card_7711."


@pytest.mark.parametrize(
    ("correction", "why"),
    [
        ("I will look up your order first.", ""),
        ("I refund the headphones to gift_card_7711.", ""),
        (GOLD, "gold"),
        (f"Next: {GOLD.upper()}.", "gold"),
        (GOLD.replace(" ", "\n  "), "gold"),
        ("So keep the charger on the original order, I suppose.", "overlap"),
        ("keep the charger on the other order", ""),
        ("The correct answer is to refund.", "reference"),
        ("According to the rubric, we refund.", "reference"),
        ("The ground-truth label says so.", "reference"),
        ("The answer key says so.", "reference"),
        ("The reviewer wants a refund.", "reference"),
        ("That gives the correct result", "reference"),
        ("The answer is 17.", ""),
        ("", ""),
    ],
)
def test_what_is_a_leak(correction, why):
    assert find_leak(correction, GOLD, SEEN, RULES) == why


@pytest.mark.parametrize("gold", ["17", "B", "forty-two"])
def test_short_results_may_be_derived(gold):
    assert find_leak(f"12 + 5 = 17, so B. That is {gold}.", gold, "", RULES) == ""
    assert find_leak(f"That is {gold}.", gold, "", LeakRules(shortest_gold=1)) == "gold"


def test_what_the_policy_could_see_is_no_leak():
    assert find_leak(GOLD, GOLD, f"{SEEN}\n{GOLD}", RULES) == ""
    assert find_leak("The expected output is 3.", "x", "Print the expected output.", RULES) == ""
    assert find_leak("The expected output is 3.", "x", "Print the output.", RULES) == "reference"


def test_references_are_looked_for_without_evidence_too():
    assert find_leak("The provided solution says so.", None, "", RULES) == "reference"
    assert find_leak(GOLD, None, "", RULES) == ""


def test_length_of_shared_runs():
    shared = "keep the charger on the"
    assert find_leak(shared, GOLD, "", LeakRules(ngram=5)) == "overlap"
    assert find_leak(shared, GOLD, "", LeakRules(ngram=6)) == ""
    assert find_leak(shared, GOLD, f"please {shared}", LeakRules(ngram=5)) == ""


def test_words_of_any_script():
    gold = "первый второй третий четвёртый пятый шестой"
    assert find_leak(f"Так: {gold}!", gold + " седьмой", "", RULES) == "overlap"


def test_long_texts_take_no_time():
    assert find_leak("a b " * 50_000, "c d " * 50_000, "e f " * 50_000, RULES) == ""


@pytest.mark.parametrize(
    ("gold", "correction"),
    [
        ("Paris is the capital", "It is Paris_is_the_capital."),
        ("Paris is the capital", "Paris is the capi\u200dtal"),
        ("Paris is the capital", "Paris is\u00ad the cap\ufe0fital"),
        ("Paris is the capital", "Ｐａｒｉｓ is the capital"),
        ("1234567890123", "that is 1,234,567,890,123"),
        ("Paris is the capital", "Pa\u0301ris is the capital"),
        ("x = 1; y = 2; z = 3", "X=1; Y=2; z = 3 -> x = 1; y = 2; z = 3"),
    ],
)
def test_another_spelling_is_a_leak_too(gold, correction):
    assert find_leak(correction, gold, "", RULES) == "gold"
    assert find_leak(correction, gold, f"given: {gold}", RULES) == ""


def test_joined_words_are_words_and_a_name_is_one():
    joined = "so keep_the_charger_on_the_original_order"
    assert find_leak(joined, GOLD, SEEN, RULES) == "overlap"
    assert find_leak("the headphones to gift_card_7711 please", GOLD, SEEN, RULES) == ""


def test_phrases_of_the_replaced_step_are_the_policys():
    assert find_leak("The correct answer is 17.", "17", "", RULES, "The correct answer is 18.") == ""
    assert find_leak("The correct answer is 17.", "17", "", RULES, "It is 18.") == "reference"

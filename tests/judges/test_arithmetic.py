import random
import re
import time
from math import prod

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from injection_corpus import CORPUS

from verl_mintrl.judges import arithmetic
from verl_mintrl.judges.arithmetic import review
from verl_mintrl.judges.expressions import read
from verl_mintrl.judges.parsing import check_review
from verl_mintrl.judges.protocol import ReviewRequest


def ask(steps, terms=(3, 9, 5), operator="+", question="Add step by step.", finished=False):
    sample = {"extra_info": {"terms": list(terms), "operator": operator}} if terms else {}
    steps = tuple(steps.split("|")) if isinstance(steps, str) else tuple(steps)
    request = ReviewRequest(({"role": "user", "content": question},), steps, finished, sample=sample)
    found = check_review(review(request), request, needs_correction=True)
    return (found.step, found.correction) if found.step else None


KEPT = [
    "3 + 9 = 12|12 + 5 = 17|The answer is 17.",
    "9 + 5 = 14|14 + 3 = 17|The answer is 17.",
    "5 + 3 = 8|8 + 9 = 17",
    "3 + 9 + 5 = 17|The answer is 17.",
    "The answer is 17.",
    "3 + 9 = 12|3 + 5 = 8|8 + 9 = 17",
    "3 + 9 = 12|12 + 5 = 17|3 + 9 + 5 = 17",
    "3 + 9 = 12 + 5 = 17",
    "3 + 9 + 5 = 12 + 5 = 17",
    "12 = 3 + 9|17 = 12 + 5",
    "9 + 8 = 17",
    "(3 + 9) + 5 = 17",
    "3 + 9 = 12|= 12|12 + 5 = 17",
    "We add 3, 9 and 5.|First: 3 + 9 = 12.|Then 12 + 5 = 17!",
    "1. 3 + 9 = 12\n2. 12 + 5 = 17",
    "Step 1 - 3 + 9 = 12|Step 2 - 12 + 5 = 17",
    "- 3 + 9 = 12\n- 12 + 5 = 17",
    "* 3 + 9 = 12|**12 + 5 = 17**",
    r"\(3 + 9 = 12\)|$$12 + 5 = 17$$|\boxed{17}",
    "Adding 3 and 9 gives 12.|12 + 5 = 17",
    "3 plus 9 = 12|12 plus 5 = 17",
    "3 + 9 = 13, no, 3 + 9 = 12|12 + 5 = 17",
    "Is 3 + 9 = 13?|3 + 9 = 12",
    "x + 3 = 7|2x + 3 = 9|5 apples + 3 = 9|sqrt(9) + 3 = 7|3! + 2 = 9|2^3 + 1 = 4|9**9**9 = 3|5 + 1 = 6km",
    "The sum of 3 and 9 + 1 = 13",
    "12 + 5 =",
    "|   |...",
    "The answer is 17.|Now 4 + 4 = 9.",
    "7 / 0 = 3",
    "1 000 + 1 = 1 002|1,5 + 1 = 2,5|1 1/2 + 1 = 3",
]


@pytest.mark.parametrize("steps", KEPT)
def test_kept(steps):
    assert ask(steps) is None


REVISED = [
    ("3 + 9 = 13", 1, "3 + 9 = 12"),
    ("3 + 9 = 12|12 + 5 = 18|The answer is 18.", 2, "12 + 5 = 17"),
    ("3 + 9 = 12|12 + 9 = 21", 2, "12 + 5 = 17"),
    ("3 + 9 = 12|12 + 3 = 15", 2, "12 + 5 = 17"),
    ("3 + 9 = 12|12 + 9 = 22", 2, "12 + 5 = 17"),
    ("3 + 9 + 5 = 18", 1, "3 + 9 + 5 = 17"),
    ("3 + 9 + 5 = 12 + 5 = 18", 1, "3 + 9 + 5 = 12 + 5 = 17"),
    ("2 + 2 = 4", 1, "3 + 9 = 12"),
    ("3 * 9 = 27", 1, "3 + 9 = 12"),
    ("3 + 9 = 12|12 + 5 = 17|17 + 5 = 22", 3, "The answer is 17."),
    ("3 + 9 = 12|The answer is 12.", 2, "The answer is 17."),
    ("The answer is: **18**.", 1, "The answer is: **17**."),
    ("12 + 5 = 17|The final answer is 12 + 5 = 17.|So the answer is 19, thanks to 9.", 3, "So the answer is 17"),
    (r"So \boxed{18}.", 1, r"So \boxed{17}."),
    ("#### 18", 1, "#### 17"),
    ("<answer>18</answer>", 1, "<answer>17</answer>"),
    ("Answer: -17", 1, "Answer: 17"),
    ("First, 3 + 9 = 13.", 1, "First, 3 + 9 = 12."),
    ("Add 9 to 3: 3 + 9 = 13, so we have 13.", 1, "Add 9 to 3: 3 + 9 = 12"),
    ("1. 3 + 9 = 12\n2. 12 + 5 = 16\nSo we get 16.", 1, "1. 3 + 9 = 12\n2. 12 + 5 = 17"),
    ("2. Take 9 again: 9 + 9 = 18", 1, "2. 3 + 9 = 12"),
    (r"\(3 + 9 = 13\)", 1, r"\(3 + 9 = 12\)"),
    ("$3 + 9 = 13$.", 1, "$3 + 9 = 12$."),
    ("**3 + 9 = 13**", 1, "**3 + 9 = 12**"),
    ("3+9=13", 1, "3+9=12"),
    ("13 = 3 + 9", 1, "12 = 3 + 9"),
    ("3 + 9\n= 13", 1, "3 + 9\n= 12"),
    ("3 + 9 = 1,200", 1, "3 + 9 = 12"),
    ("The answer is 17.|The answer is 18.", 2, "The answer is 17."),
    ("Adding 3 and 9 gives 12.|12 + 9 = 21|The answer is 21.", 3, "The answer is 17."),
]


@pytest.mark.parametrize(("steps", "step", "correction"), REVISED)
def test_revised(steps, step, correction):
    assert ask(steps) == (step, correction)


ENDINGS = [
    ("3 + 9 = 12", (1, "3 + 9 = 12\n12 + 5 = 17")),
    ("3 + 9 = 12|12 + 5 = 17", (2, "12 + 5 = 17\nThe answer is 17.")),
    ("3 + 9 = 12|12 + 5 =", (2, "12 + 5 = 17")),
    ("3 + 9 = 12|I stop here.", (2, "12 + 5 = 17")),
    ("3 + 9 = 12|12 + 5 = 17|Done.", (3, "The answer is 17.")),
    ("", (1, "3 + 9 = 12")),
    ("I do not know.", (1, "3 + 9 = 12")),
    ("3 + 9 = 12|12 + 5 = 17|The answer is 17.", None),
    ("The answer is 17.|Bye.", None),
    ("Adding 3 and 9 gives 12.", None),
    ("Adding 3 and 9 gives 12.|12 + 5 = 17", (2, "12 + 5 = 17\nThe answer is 17.")),
]


@pytest.mark.parametrize(("steps", "expected"), ENDINGS)
def test_endings(steps, expected):
    assert ask(steps, finished=True) == expected
    assert ask(steps) is None


@pytest.mark.parametrize(
    ("steps", "correction"),
    [
        (["3 + 9 = 13"], "3 + 9 = 12"),
        (["3 + 9 = 13", "13 + 5 = 18"], "3 + 9 = 12"),  # what came before was not put right
        (["3 + 9 = 13", "13 + 5 = 18", "The answer is 18."], "The answer is 17."),
        (["3 + 9 = 12", "12 + 5 = 18"], "12 + 5 = 17"),
        (["3 + 9 = 13", "9 + 3 = 12"], None),
    ],
)
def test_only_the_step_in_question_is_revised(steps, correction):
    asked = ReviewRequest((), tuple(steps), False, sample={"extra_info": {"terms": [3, 9, 5]}}, focus=len(steps))
    found = review(asked)
    assert (found.step, found.correction) == ((len(steps), correction) if correction else (None, None))


def test_endings_follow_the_question_and_need_a_goal():
    assert ask([], finished=True) is None
    assert ask("3 + 9 = 12|bye", terms=None, finished=True) is None
    full = "3 + 9 = 12|12 + 5 = 17|Done."
    assert ask(full, question="Use <answer> tags.", finished=True) == (3, "<answer>17</answer>")
    assert ask(full, question=r"Put it in \boxed{}.", finished=True) == (3, r"The answer is \boxed{17}.")


@pytest.mark.parametrize(
    ("question", "steps", "expected"),
    [
        ("Calculate 3 + 9 - 5.", "3 + 9 = 12|12 - 5 = 7|The answer is 8.", (3, "The answer is 7.")),
        ("Calculate 3 + 9 - 5.", "3 + 9 = 12|12 + 5 = 17", (2, "12 - 5 = 7")),
        ("State the final answer to the following arithmetic problem: 3 + 9 - 5 =", "Answer: 6", (1, "Answer: 7")),
        ("What is 3 - 9 + 5?", "3 - 9 = -6|-6 + 5 = 1", (2, "-6 + 5 = -1")),
        ("What is 10 - 3 - 2 = ?", "3 + 2 = 5|10 - 5 = 5|The answer is 5.", None),
        ("Solve: 4 * 3 * 2 =", "4 * 3 = 12|12 * 3 = 36", (2, "12 * 2 = 24")),
        ("Solve: 4 + 3 * 2", "3 * 2 = 6|4 + 6 = 10|The answer is 14.", (3, "The answer is 10.")),
        ("What is 3/4 of 20?", "3 / 4 = 0.75|0.75 * 20 = 15|The answer is 15.", None),
        ("What is 3 + 4 squared?", "4 * 4 = 16|3 + 16 = 19|The answer is 19.", None),
        ("Tom had 3 + 4 apples and ate 2.", "3 + 4 = 7|7 - 2 = 4", (2, "7 - 2 = 5")),
        ("A word problem.", "10 / 3 = 3.33|10 / 4 = 2.6", (2, "10 / 4 = 2.5")),
        ("A word problem.", "0.1 + 0.2 = 0.4", (1, "0.1 + 0.2 = 0.3")),
        ("A word problem.", "6 * 7 = 42|The answer is 41.", (2, "The answer is 42.")),
        ("A word problem.", "The answer is 41.", None),
    ],
)
def test_goal_from_the_question(question, steps, expected):
    assert ask(steps, terms=None, question=question) == expected


@pytest.mark.parametrize("sign", ["*", "×", "·", r"\times", "x"])
def test_products_keep_their_sign(sign):
    assert ask(f"3 {sign} 9 = 27|27 {sign} 5 = 135", operator="*") is None
    assert ask(f"3 {sign} 9 = 28", operator="*") == (1, f"3 {sign} 9 = 27")
    assert ask(f"3 {sign} 9 = 27|27 {sign} 9 = 243", operator="*") == (2, f"27 {sign} 5 = 135")


def test_negative_terms_and_splits():
    assert ask("10 - 3 = 7|7 - 4 = 3|The answer is 3.", terms=(10, -3, -4)) is None
    assert ask("10 + 3 = 13", terms=(10, -3, -4)) == (1, "10 - 3 = 7")
    assert ask("3 * 9 = 27", terms=(3, -9), operator="*") == (1, "3 * (-9) = -27")
    assert ask("23 = 20 + 3|20 + 19 = 39|39 + 3 = 42", terms=(23, 19)) is None
    assert ask("- 5 + 3 = -2", terms=(-5, 3)) is None


@pytest.mark.parametrize("terms", [None, "3,9", [1.5, 2], [True, 2], [[1]], [10**30], [1] * 100, {"a": 1}, []])
def test_useless_terms_are_ignored(terms):
    request = ReviewRequest(
        ({"role": "user", "content": "?"},), ("2 + 2 = 4",), False, sample={"extra_info": {"terms": terms}}
    )
    assert review(request).step is None


def chain(rng, count, shuffled):
    """A right chain: terms, equations as (left, right, result), in any order of combination if ``shuffled``."""
    terms = [rng.randint(1, 99) for _ in range(count)]
    pool, equations = list(terms), []
    while len(pool) > 1:
        if shuffled:
            rng.shuffle(pool)
        left, right = pool.pop(0), pool.pop(0)
        equations.append((left, right))
        pool.insert(0, left + right)
    return terms, equations


FORMS = [
    "{0} + {1} = {2}",
    "Next, {0} + {1} = {2}.",
    "{0}+{1}={2}",
    r"\({0} + {1} = {2}\)",
    "- {0} + {1} = {2}",
    "**{0} + {1} = {2}**",
]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**9), st.integers(2, 7), st.booleans(), st.sampled_from(FORMS), st.booleans())
def test_one_false_equation_is_found_and_put_right(seed, count, shuffled, form, known):
    rng = random.Random(seed)
    terms, equations = chain(rng, count, shuffled)
    right = [form.format(a, b, a + b) for a, b in equations] + [f"The answer is {sum(terms)}."]
    given_terms = terms if known else None
    assert ask(right, terms=given_terms, finished=True) is None
    place = rng.randrange(len(equations))
    a, b = equations[place]
    wrong = list(right)
    result = a + b + rng.choice([-10, -2, -1, 1, 2, 10])
    assume(result != b - a or not form.startswith("-"))  # "- 5 + 36 = 31" is true with a minus in front
    wrong[place] = form.format(a, b, result)
    for steps in (wrong, wrong[: place + 1]):
        assert ask(steps, terms=given_terms) == (place + 1, right[place])
    wrong = [*right[:-1], f"The answer is {sum(terms) + 1}."]
    assert ask(wrong, terms=given_terms, finished=True) == (len(right), right[-1])


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**9), st.integers(3, 7))
def test_a_repeated_term_is_found_unless_it_does_no_harm(seed, count):
    rng = random.Random(seed)
    terms, equations = chain(rng, count, False)
    place = rng.randrange(1, len(equations))
    running, repeated = equations[place][0], terms[rng.randrange(place + 1)]
    steps = [f"{a} + {b} = {a + b}" for a, b in equations[:place]]
    steps.append(f"{running} + {repeated} = {running + repeated}")
    assume(not {a for a, _ in equations[1:]} & set(terms))  # else another order of the same steps uses each term once
    found = ask(steps, terms=terms)
    if repeated in terms[place + 1 :] or running + repeated == sum(terms):
        assert found is None
    else:
        a, b = equations[place]
        assert found == (place + 1, f"{a} + {b} = {a + b}")


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.text("0123456789+-*/=().,x \n$\\×é?", max_size=40) | st.text(max_size=30), max_size=6), st.booleans()
)
def test_junk_never_raises(steps, finished):
    ask(steps, finished=finished)
    ask(steps, terms=None, question=" ".join(steps), finished=finished)
    ask(steps, terms=(2, -3, 4), operator="*", finished=finished)


@pytest.mark.parametrize("index", range(len(CORPUS)))
def test_hostile_text_is_fast(index):
    text = CORPUS[index]
    started = time.perf_counter()
    for terms in ((3, 9, 5), None):
        ask([text, f"3 + 9 = {text}", f"{text} = 12"], terms=terms, question=text, finished=True)
    assert time.perf_counter() - started < 3


def test_caps():
    started = time.perf_counter()
    huge = "9" * 30
    product = " * ".join([huge] * 50)
    assert ask([f"{product} = 1", f"{'9' * 10_000} + 1 = 3", "9**9**9 = 2", "9^9^9 = 2"], terms=None) is None
    assert ask([" = ".join(["1 + 1"] * 3_000)], terms=None) is None
    assert ask(["(" * 30 + "1 + 1" + ")" * 30 + " = 3"], terms=None) is None
    many = [f"{a} + 1 = {a + 1}" for a in range(1, 3_000)]
    assert ask(many, terms=[1] * 64) == (64, "The answer is 64.")
    assert time.perf_counter() - started < 3


def test_values_agree_with_python():
    rng = random.Random(0)
    for _ in range(2_000):
        text = str(rng.randint(1, 50))
        for _ in range(rng.randint(1, 5)):
            operand = str(rng.randint(1, 50))
            if rng.random() < 0.3:
                operand = f"({operand} {rng.choice('+-*')} {rng.randint(1, 50)})"
            text += f" {rng.choice('+-*')} {operand}"
        (stretch,) = read(f"Then {text} = {eval(text)}.")
        assert stretch.sides[0].expression.value == eval(text) == stretch.sides[1].expression.value
        expression = stretch.sides[0].expression
        assert sum(expression.addends) == prod(expression.factors) == expression.value
        assert not re.search("[a-z]", text)


def test_roles_of_the_checker_agree_with_each_other():
    steps = ("3 + 9 = 12", "12 + 5 = 18", "The answer is 18.")
    request = ReviewRequest(
        problem=({"role": "user", "content": "Add 3 + 9 + 5."},),
        steps=steps[:2],
        finished=False,
        sample={"extra_info": {"terms": [3, 9, 5]}},
        focus=2,
    )
    text = arithmetic.correct(request, 2)
    assert text == "12 + 5 = 17"
    assert arithmetic.verify(request, 2, text).accepted
    assert arithmetic.verify(request, 2, "12 + 5 = 19").reason == "disagrees"
    assert arithmetic.verify(request, 2, text + " because " * 50).reason == "implausible"
    assert arithmetic.correct(request, 1) == "", "a right step has no correction, which is a judge error"

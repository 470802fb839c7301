"""Who plays which role, and what each may see."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from verl_mintrl.config.schema import VerifierConfig, parse
from verl_mintrl.errors import ConfigError, DataError, JudgeError
from verl_mintrl.judges.build import Surroundings, build_judge
from verl_mintrl.judges.leak import LeakRules
from verl_mintrl.judges.prompts import PromptSet
from verl_mintrl.judges.protocol import Correction, Evidence, Review, ReviewRequest, Verification
from verl_mintrl.judges.roles import Part, RolesJudge, Sight, lookup
from verl_mintrl.judges.servers import ServedModel

RUBRIC, GOLD = "RUBRIC-must-name-the-unit", "GOLD-forty-two-metres"
SAMPLE = {"reward_model": {"ground_truth": GOLD}, "extra_info": {"rubric": RUBRIC}}


class Witness:
    """Finds step 2 harmful, and keeps every question it was asked."""

    def __init__(self, name: str = "witness", correction: str = "40 + 2 = 42") -> None:
        self.name = name
        self.correction = correction
        self.seen: dict[str, list[ReviewRequest]] = {"review": [], "correct": [], "verify": []}

    async def review(self, request: ReviewRequest) -> Review:
        self.seen["review"].append(request)
        return Review.revise(2)

    async def correct(self, request: ReviewRequest, step: int) -> Correction:
        self.seen["correct"].append(request)
        return Correction(self.correction)

    async def verify(self, request: ReviewRequest, step: int, correction: str) -> Verification:
        self.seen["verify"].append(request)
        return Verification(True, True, True)


def question(sample: dict[str, Any] | None = None, **more: Any) -> ReviewRequest:
    problem = ({"role": "user", "content": "How long is it?"},)
    return ReviewRequest(problem, ("First.", "40 + 2 = 41", "So 41."), True, sample=sample or SAMPLE, **more)


NOTHING = Sight()
OUTCOME = Sight(Evidence.OUTCOME)
SEES_RUBRIC = Sight(Evidence.RUBRIC, "extra_info.rubric")
SEES_GOLD = Sight(Evidence.GOLD, "reward_model.ground_truth")


def roles(witness: Witness, validator: Sight, corrector: Sight, verifier: Sight) -> RolesJudge:
    return RolesJudge(Part(witness, validator), Part(witness, corrector), Part(witness, verifier), LeakRules())


async def ask(judge: RolesJudge, request: ReviewRequest) -> None:
    review = await judge.review(request)
    assert review.step == 2
    correction = await judge.correct(request, 2)
    await judge.verify(request, 2, correction.text)


async def test_each_role_sees_its_own_evidence_and_no_other():
    witness = Witness()
    request = question(outcome=0.0)
    await ask(roles(witness, OUTCOME, SEES_RUBRIC, SEES_GOLD), request)
    privileged = {role: [(r.evidence, r.privileged) for r in asked] for role, asked in witness.seen.items()}
    assert privileged == {
        "review": [(Evidence.OUTCOME, "The finished response got the reward 0.")],
        "correct": [(Evidence.RUBRIC, RUBRIC)],
        "verify": [(Evidence.GOLD, GOLD)],
    }
    assert request.privileged is None, "the question itself is left as it was"


async def test_evidence_that_came_with_the_question_is_taken_out():
    witness = Witness()
    leaked = question(evidence=Evidence.GOLD, privileged=GOLD)
    await ask(roles(witness, NOTHING, NOTHING, NOTHING), leaked)
    assert all(r.privileged is None and r.evidence is Evidence.NONE for asked in witness.seen.values() for r in asked)


async def test_an_outcome_that_is_not_known_yet_is_not_shown():
    witness = Witness()
    await roles(witness, OUTCOME, NOTHING, NOTHING).review(question())
    assert (witness.seen["review"][0].evidence, witness.seen["review"][0].privileged) == (Evidence.NONE, None)


async def test_prompts_hold_the_evidence_of_their_role_alone():
    witness, prompts = Witness(), PromptSet()
    await ask(roles(witness, NOTHING, SEES_RUBRIC, SEES_GOLD), question())
    names = {"review": "validator", "correct": "corrector", "verify": "verifier"}
    for role, expected in (("review", ()), ("correct", (RUBRIC,)), ("verify", (GOLD,))):
        messages = prompts.messages(names[role], witness.seen[role][0], step=2, correction="x")
        text = "\n".join(message["content"] for message in messages)
        assert [secret for secret in (RUBRIC, GOLD) if secret in text] == list(expected)


async def test_the_steering_context_is_the_correctors():
    judge = roles(Witness(), SEES_GOLD, SEES_RUBRIC, SEES_GOLD)
    text = str(PromptSet().messages("steering", judge.correction_context(question()), step=2))
    assert RUBRIC in text and GOLD not in text


@pytest.mark.parametrize("leak", [GOLD, RUBRIC, "the reference answer says 42"])
async def test_leaks_are_found_before_any_model_is_asked(leak):
    witness = Witness(correction=f"It is {leak}.")
    judge = roles(witness, NOTHING, SEES_RUBRIC, SEES_GOLD)
    found = await judge.verify(question(), 2, witness.correction)
    assert (found.accepted, found.reason, found.usage.calls) == (False, "leak", 0)
    assert witness.seen["verify"] == []


async def test_what_the_policy_saw_is_no_leak_and_what_comes_later_is_not_seen():
    witness = Witness()
    judge = roles(witness, NOTHING, NOTHING, SEES_GOLD)
    observed = question(observations=("", f"The tool says {GOLD}."))
    assert (await judge.verify(observed, 2, f"It is {GOLD}.")).accepted
    later = question(observations=("", "", f"The tool says {GOLD}."))
    assert (await judge.verify(later, 2, f"It is {GOLD}.")).reason == "leak"


@pytest.mark.parametrize("row", [{"extra_info": {}}, {"reward_model": None}, {"reward_model": {"ground_truth": ""}}])
@pytest.mark.parametrize("role", ["review", "correct", "verify"])
async def test_missing_evidence_is_an_error_of_the_judge(role, row):
    witness = Witness()
    judge = roles(witness, *(SEES_GOLD if role == name else NOTHING for name in ("review", "correct", "verify")))
    arguments = {"review": (), "correct": (2,), "verify": (2, "x")}[role]
    with pytest.raises(JudgeError, match=r"ground_truth|reward_model") as caught:
        await getattr(judge, role)(question(sample={"id": 1, **row}), *arguments)
    assert caught.value.kind == "evidence"
    assert witness.seen[role] == []


def test_lookup():
    assert lookup({"a": {"b": 0}}, "a.b") == "0"
    with pytest.raises(DataError, match=r"'a\.c'.*found \['b'\]"):
        lookup({"a": {"b": 0}}, "a.c")
    with pytest.raises(DataError, match="found str"):
        lookup({"a": "text"}, "a.b")


# --- from the configuration


def built(**judge: Any) -> RolesJudge:
    around = Surroundings(ServedModel(None, None, 4096), ())
    return build_judge(parse({"judge": {"joint": False, **judge}}).judge, VerifierConfig(), around)


HERE = f"{__file__}:"
ASKED: list[tuple[str, str | None]] = []


def review(request: ReviewRequest) -> Review:
    ASKED.append(("validator", request.privileged))
    return Review.revise(2)


def review_and_correct(request: ReviewRequest) -> Review:
    return Review.revise(2, "from the validator")


def correct(request: ReviewRequest, step: int) -> str:
    ASKED.append(("corrector", request.privileged))
    return "from the corrector"


def verify(request: ReviewRequest, step: int, correction: str) -> Verification:
    ASKED.append(("verifier", request.privileged))
    return Verification(True, True, True)


async def test_functions_and_evidence_of_their_own():
    judge = built(
        function=f"{HERE}review",
        evidence_column="extra_info.rubric",
        roles={
            "corrector": {"function": f"{HERE}correct", "evidence": "rubric"},
            "verifier": {
                "function": f"{HERE}verify",
                "evidence": "gold",
                "evidence_column": "reward_model.ground_truth",
            },
        },
    )
    await ask(judge, question())
    (module,) = [m for name, m in sys.modules.items() if name.startswith("verl_mintrl_user_test_roles")]
    assert module.ASKED == [("validator", None), ("corrector", RUBRIC), ("verifier", GOLD)]


async def test_backends_of_their_own():
    judge = built(
        function=f"{HERE}review",
        endpoint={"base_url": "http://127.0.0.1:9/v1", "model": "m"},
        roles={"corrector": {"backend": "policy"}, "verifier": {"backend": "endpoint", "temperature": 0.5}},
    )
    assert (judge.name, judge.corrector_name) == ("python", "policy")
    assert (await judge.review(question())).step == 2, "a pure Validator need not correct"


@pytest.mark.parametrize("joint", [True, False])
async def test_who_corrects(joint):
    """A joint judge is the corrector too, a separate Corrector is asked even if the Validator has a proposal."""
    corrector = {} if joint else {"corrector": {"function": f"{HERE}correct"}}
    judge = built(function=f"{HERE}review_and_correct", joint=joint, roles=corrector)
    review = await judge.review(question())
    text = review.correction or (await judge.correct(question(), 2)).text
    assert text == ("from the validator" if joint else "from the corrector")


async def test_leaks_of_a_joint_judge_are_found():
    validator = {"evidence": "gold", "evidence_column": "reward_model.ground_truth"}
    judge = built(
        function=f"{HERE}review_and_correct",
        joint=True,
        roles={"validator": validator, "verifier": {"function": f"{HERE}verify"}},
    )
    assert (await judge.verify(question(), 2, f"It is {GOLD}.")).reason == "leak"
    assert judge.correction_context(question()).privileged == GOLD


@pytest.mark.parametrize(
    ("judge", "key"),
    [
        ({"roles": {"verifier": {"evidence": "gold"}}}, "judge.roles.verifier.evidence_column"),
        ({"roles": {"corrector": {"evidence": "rubric"}}}, "judge.roles.corrector.evidence_column"),
        ({"backend": "policy", "roles": {"verifier": {"function": "a:b"}}}, "judge.roles.verifier.backend"),
        ({"roles": {"validator": {"backend": "policy", "function": "a:b"}}}, "judge.roles.validator.backend"),
        ({"joint": True, "roles": {"corrector": {"temperature": 1.0}}}, "judge.joint"),
    ],
)
def test_roles_that_could_not_do_what_they_say_are_refused(judge, key):
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        built(**{"function": f"{HERE}review", **judge})


class Named:
    name = "nobody"


def test_each_entry_of_evidence_that_is_a_list_is_a_secret():
    for entries in (["the treasure is near the oak", "under the third oak"], np.array(["a", "under the third oak"])):
        request = ReviewRequest((), ("x",), True, sample={"answers": entries})
        part = Part(Named(), Sight(Evidence.GOLD, "answers"))
        judge = RolesJudge(part, part, part, LeakRules())
        assert judge.leaks(request, 1, "well, under the third oak")
        assert not judge.leaks(request, 1, "well, under that oak")

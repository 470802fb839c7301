"""Judges that are functions: one that knows the golden actions, and hostile ones. They see a ReviewRequest, no more."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from tau2_parts.turns import Call, farewell, read, tells
from verl_mintrl.judges.leak import LeakRules
from verl_mintrl.judges.protocol import Evidence, ReviewRequest
from verl_mintrl.judges.python import PythonJudge
from verl_mintrl.judges.roles import Part, RolesJudge, Sight

Answer = dict[str, Any] | None

#: In tau2 the correction of a tool call *is* a golden action, so shared words in a row cannot count as a leak here.
LEAK_RULES = LeakRules(ngram=10_000)


class Exact:
    """Validator, Corrector and Verifier over golden actions.

    A turn is harmful if it makes the goal unreachable: an acting call that is none of the golden ones still to be made,
    or an end while one of those is missing or the user was not told something. Look-ups and the order of golden actions
    are free.

    Args:
        acting: tools that change something.
    """

    def __init__(self, acting: frozenset[str]) -> None:
        self._acting = acting

    def review(self, request: ReviewRequest) -> Answer:
        left, information = self._left(request, len(request.steps))
        call = read(request.steps[-1])
        if call is None:
            unfinished = any(golden.name in self._acting for golden in left)
            harmful = unfinished or not tells(request.steps, information)
        else:
            harmful = call.name in self._acting and call not in left
        return {"verdict": "revise", "step": len(request.steps)} if harmful else None

    def correct(self, request: ReviewRequest, step: int) -> str:
        left, information = self._left(request, step)
        return left[0].write() if left else farewell(information)

    def verify(self, request: ReviewRequest, step: int, correction: str) -> dict[str, bool]:
        left, information = self._left(request, step)
        call = read(correction)
        if call is None:
            told = tells([*request.steps[: step - 1], correction], information)
            agrees = told and not any(golden.name in self._acting for golden in left)
        else:
            agrees = call in left
        plausible = call is not None or correction in (farewell(), farewell(information))
        return {"agrees": agrees, "leak_free": True, "plausible": plausible}

    def _left(self, request: ReviewRequest, step: int) -> tuple[list[Call], list[str]]:
        """Golden calls not made before ``step``, and what the user must be told."""
        assert request.privileged is not None
        evidence = json.loads(request.privileged)
        left = [Call(action["by"], action["name"], action["arguments"]) for action in evidence["actions"]]
        for turn in request.steps[: step - 1]:
            call = read(turn)
            if call in left:
                left.remove(call)
        return left, evidence["information"]


def always(request: ReviewRequest) -> Answer:
    """Finds every step harmful."""
    return {"verdict": "revise", "step": len(request.steps)}


def never(request: ReviewRequest) -> Answer:
    """Keeps every step."""
    return None


def at_random(request: ReviewRequest) -> Answer:
    """Finds three steps of ten harmful, whichever they are."""
    chance = random.Random(f"{request.uid} {request.attempt} {request.steps}").random()
    return always(request) if chance < 0.3 else None


def give_up(request: ReviewRequest, step: int) -> str:
    """The worst of corrections: ends the conversation."""
    return farewell()


def waste(request: ReviewRequest, step: int) -> str:
    """Puts a call that does nothing in the place of the turn; the conversation goes on without what stood there."""
    return Call("assistant", "no_such_tool").write()


def accept(request: ReviewRequest, step: int, correction: str) -> dict[str, bool]:
    return {"agrees": True, "leak_free": True, "plausible": True}


def roles(review: Callable[..., Any], correct: Callable[..., Any], verify: Callable[..., Any], name: str) -> RolesJudge:
    """A judge whose three roles see the golden evidence."""
    judge = PythonJudge(review, name, in_thread=False, correct=correct, verify=verify)
    part = Part(judge, Sight(Evidence.GOLD, "gold"))
    return RolesJudge(part, part, part, LEAK_RULES)


def exact(acting: frozenset[str]) -> RolesJudge:
    judge = Exact(acting)
    return roles(judge.review, judge.correct, judge.verify, "exact")


def hostile(acting: frozenset[str]) -> dict[str, RolesJudge]:
    """Hostile Validators by name, with an exact or a harmful Corrector, and a Verifier that helps or does not."""
    judge = Exact(acting)
    return {
        "always, exact corrector": roles(always, judge.correct, judge.verify, "always"),
        "always, corrector wastes turns": roles(always, waste, accept, "always"),
        "always, corrector ends it": roles(always, give_up, accept, "always"),
        "always, corrector ends it, exact verifier": roles(always, give_up, judge.verify, "always"),
        "random, exact corrector": roles(at_random, judge.correct, judge.verify, "random"),
        "random, corrector wastes turns": roles(at_random, waste, accept, "random"),
        "never": roles(never, judge.correct, judge.verify, "never"),
    }

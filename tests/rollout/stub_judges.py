"""Judges that are functions, named by ``intervention.judge.function`` in the adapter tests."""

from __future__ import annotations

from typing import Any

from verl_mintrl.judges.protocol import ReviewRequest

#: every question asked in this process
ASKED: list[ReviewRequest] = []


def god_for_bad(request: ReviewRequest) -> dict[str, Any]:
    """Replace the first step that says "bad" by one of the same length."""
    ASKED.append(request)
    for number, step in enumerate(request.steps, start=1):
        if "bad" in step:
            return {"verdict": "revise", "step": number, "correction": step.replace("bad", "god").strip()}
    return {"verdict": "keep"}


def bad_in_focus(request: ReviewRequest) -> dict[str, Any]:
    """As a Validator in a walk: looks at the step that is asked about, and at no other."""
    assert request.focus is not None
    wrong = "bad" in request.steps[request.focus - 1]
    return {"verdict": "revise", "step": request.focus} if wrong else {"verdict": "keep"}


def broken(request: ReviewRequest, *question: Any) -> dict[str, Any]:
    ASKED.append(request)
    raise RuntimeError("the judge is broken")


def broken_for_session_2(request: ReviewRequest) -> dict[str, Any]:
    if request.session_id == 2:
        return broken(request)
    return god_for_bad(request)


SECRET = "the number nobody may know"


def telltale(request: ReviewRequest) -> dict[str, Any]:
    """Gives the privileged text away: in a correction, and to session 3 in an error."""
    if request.session_id == 3:
        raise RuntimeError(f"I only know that it is {SECRET}")
    return {"verdict": "revise", "step": 1, "correction": f"It is {SECRET}."}

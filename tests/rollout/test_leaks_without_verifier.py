"""Evidence must not reach a training token, whether or not a Verifier is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_periodic import END, PROMPT, session, text_of

from verl_mintrl.judges.protocol import Evidence, Review, ReviewRequest
from verl_mintrl.judges.roles import Part, Sight
from verl_mintrl.trajectory.record import Outcome

SECRET = "the treasure lies under the third oak"


@pytest.mark.parametrize("split", ["", END, END + END, "\u200d", "_"])
async def test_a_correction_that_repeats_the_evidence_is_rejected(split: str) -> None:
    """Also where something stands in it that is not inserted, or not seen."""
    script = "ab\n\ncd" + END

    def judge(request: ReviewRequest) -> Review | None:
        told = str(request.privileged)
        told = split.join(told[i : i + 4] for i in range(0, len(told), 4))
        return Review.revise(1, f"well, {told}") if request.attempt == 0 else None

    run = session(lambda text: script[len(text) - len(PROMPT) :], judge)
    sight = Sight(Evidence.GOLD, "secret")
    roles = run.shared.judge
    for name in ("_validator", "_corrector", "_verifier"):
        setattr(roles, name, Part(getattr(roles, name).judge, sight))
    run.request = replace(run.request, sample={"secret": SECRET})
    await run.run()
    assert text_of(run) == script
    assert next((n.outcome, n.reason) for n in run.record.reviews) == (Outcome.REJECTED, "leak")

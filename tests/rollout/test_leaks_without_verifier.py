"""Evidence must not reach a training token, whether or not a Verifier is asked."""

from __future__ import annotations

from dataclasses import replace

from test_periodic import END, PROMPT, session, text_of

from verl_mintrl.judges.protocol import Evidence, Review
from verl_mintrl.judges.roles import Part, Sight
from verl_mintrl.trajectory.record import Outcome

SECRET = "the treasure lies under the third oak"


async def test_a_correction_that_repeats_the_evidence_is_rejected() -> None:
    script = "ab\n\ncd" + END
    run = session(
        lambda text: script[len(text) - len(PROMPT) :],
        lambda request: Review.revise(1, f"well, {request.privileged}") if request.attempt == 0 else None,
    )
    sight = Sight(Evidence.GOLD, "secret")
    roles = run.shared.judge
    for name in ("_validator", "_corrector", "_verifier"):
        setattr(roles, name, Part(getattr(roles, name).judge, sight))
    run.request = replace(run.request, sample={"secret": SECRET})
    await run.run()
    assert text_of(run) == script
    assert next((n.outcome, n.reason) for n in run.record.reviews) == (Outcome.REJECTED, "leak")

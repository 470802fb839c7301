"""Verifier, gate and steering weights under the trigger ``periodic`` (preset vcv_regression)."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest
from rollout.scripted import END, ScriptedClient
from rollout.test_group_failure import EPS, FIX, GOLD, PROMPT, RIGHT, WRONG, Scorer, Setting, group

from verl_mintrl.config.schema import ReviewConfig
from verl_mintrl.judges.protocol import Review, ReviewRequest, Verification
from verl_mintrl.rollout.periodic import PeriodicSession
from verl_mintrl.rollout.propose import own_step_perplexities
from verl_mintrl.rollout.writer import ServerWriter
from verl_mintrl.trajectory.record import Outcome, Role, SessionRecord
from verl_mintrl.trajectory.spans import Author


def validator(request: ReviewRequest) -> Review:
    wrong = [number for number, step in enumerate(request.steps, 1) if "= 13" in step]
    return Review.revise(wrong[0]) if wrong else Review.keep()


def session(setting: Setting, **request: Any) -> PeriodicSession:
    shared = replace(setting.work.shared, review=ReviewConfig(every_tokens=None, every_steps=1))
    held = setting.held[0].payload
    writer = ServerWriter(
        setting.client, {"temperature": 1.0, "logprobs": True}, "r", shared.end_ids, shared.proposer.decode
    )
    asked = ReviewRequest(tuple(held.sample["raw_prompt"]), (), False, sample={**held.sample, **request})
    record = SessionRecord(uid="u", session_id=1, step=1, role=Role.TREATED.value)
    return PeriodicSession(shared, writer, [ord(c) for c in PROMPT], 100, asked, record, sampled_as_scored=True)


def text_of(run: PeriodicSession) -> str:
    return "".join(map(chr, run.trajectory.ids))


async def test_a_correction_brings_its_log_probs_and_weights():
    setting = group(review=validator, trigger="periodic")
    run = session(setting)
    trajectory = await run.run()
    assert text_of(run) == RIGHT
    (note,) = [note for note in run.record.reviews if note.outcome == Outcome.INSERTED]
    n = len(FIX + "\n\n")
    assert note.inserted == (0, n) and trajectory.authors() == [2] * n + [1] * (len(RIGHT) - n)
    ratios = [1.0, 1.1, 1 - EPS, 1 + EPS]
    assert trajectory.weights == pytest.approx([ratios[t % 4] for t in range(n)] + [1.0] * (len(RIGHT) - n))
    assert trajectory.logprobs == [-1.0] * n + [-0.5] * (len(RIGHT) - n)
    assert (note.perplexity, note.replaced_perplexity) == pytest.approx((math.e, math.exp(0.5)))
    assert note.calls_by_role == {"validator": 1, "corrector": 1, "verifier": 1}


async def test_evidence_is_in_the_context_of_pi_cal_alone():
    setting = group(review=validator, trigger="periodic")
    run = session(setting)
    await run.run()
    assert [GOLD in context for context in setting.scorer.contexts] == [False, True]
    assert setting.scorer.contexts[0] == PROMPT
    assert all(GOLD not in "".join(map(chr, call["prompt_ids"])) for call in setting.client.calls)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scorer": Scorer(perplexity=5.1)}, "perplexity"),
        ({"verify": lambda request, step, correction: Verification(False, True, True)}, "disagrees"),
        ({"correct": lambda request, step: f"Since {GOLD}, 12."}, "leak"),
    ],
)
async def test_a_rejected_correction_leaves_the_rollout_as_it_was(changes, reason):
    setting = group(review=validator, trigger="periodic", **changes)
    run = session(setting)
    trajectory = await run.run()
    assert text_of(run) == WRONG and set(trajectory.authors()) == {Author.POLICY}
    rejected = [note for note in run.record.reviews if note.step]
    assert {(note.outcome, note.reason) for note in rejected} == {(Outcome.REJECTED, reason)}
    assert all(note.perplexity > 1 for note in rejected), "recorded for every proposal"
    assert len(run.record.reviews) == 3 and not run.record.masked


async def test_a_config_error_stops_the_run_and_not_the_group():
    setting = group(review=validator, trigger="periodic", verify=None)
    run = session(setting)
    await run.run()
    assert text_of(run) == WRONG
    assert run.record.masked and "no `verify` function" in run.record.fatal
    assert [note.outcome for note in run.record.reviews] == [Outcome.ERROR]


async def test_own_steps_are_those_the_policy_wrote():
    setting = group(review=validator, trigger="periodic", scorer=Scorer(perplexity=4.0))
    run = session(setting)
    await run.run()
    own = own_step_perplexities(run.trajectory, run.text, run.shared.segmenter)
    assert own == pytest.approx([math.exp(0.5)] * 2), "the inserted step is none of them"


async def test_scoring_is_not_the_judges_time():
    class Slow(Scorer):
        async def score(self, context: Any, ids: Any) -> list[float]:
            await asyncio.sleep(0.2)
            return await super().score(context, ids)

    setting = group(review=validator, trigger="periodic", scorer=Slow())
    run = session(setting)
    await run.run()
    (note,) = [note for note in run.record.reviews if note.outcome == Outcome.INSERTED]
    assert note.judge_seconds < 0.2


async def test_two_corrections_in_one_session_keep_their_own_weights():
    """Each of the first two steps is corrected; the second context holds the first correction."""

    def review(request: ReviewRequest) -> Review:
        last = len(request.steps)
        return Review.revise(last) if request.steps[-1].startswith("x") else Review.keep()

    client = ScriptedClient(lambda text: "x\n\n" if text.count("\n\n") < 2 else END)
    setting = group(review=review, correct=lambda request, step: f"fix {step}", trigger="periodic", client=client)
    run = session(setting)
    trajectory = await run.run()
    assert text_of(run) == "fix 1\n\nfix 2\n\n" + END
    assert setting.scorer.contexts[2] == PROMPT + "fix 1\n\n"
    ratios = [1.0, 1.1, 1 - EPS, 1 + EPS]
    assert trajectory.weights == pytest.approx([ratios[t % 4] for t in range(7)] * 2 + [1.0])

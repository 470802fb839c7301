"""Generate - review - intervene with a scripted policy and judges that are functions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout.scripted import END, ScriptedClient
from trajectory.toy_tokenizers import Characters

from verl_mintrl.config.judge import JudgeConfig
from verl_mintrl.config.schema import GateConfig, ReviewConfig, TokenWeightsConfig
from verl_mintrl.judges.arithmetic import review as arithmetic
from verl_mintrl.judges.leak import LeakRules
from verl_mintrl.judges.limits import GuardedJudge
from verl_mintrl.judges.protocol import Review, ReviewRequest
from verl_mintrl.judges.python import PythonJudge
from verl_mintrl.judges.roles import Part, RolesJudge, Sight
from verl_mintrl.rollout.periodic import PeriodicSession, Reviewing
from verl_mintrl.rollout.propose import Proposer
from verl_mintrl.rollout.writer import ServerWriter
from verl_mintrl.trajectory.record import Outcome, SessionRecord
from verl_mintrl.trajectory.spans import Author
from verl_mintrl.trajectory.splice import Budget
from verl_mintrl.trajectory.steps import get_segmenter

PROMPT = "3+9+5?"
CONTROL = ("<|im_end|>", END)


class NoScorer:
    async def score(self, context: Any, ids: Any) -> list[float]:
        raise AssertionError("nothing is scored where gate and weights are off")


def session(
    policy: Any,
    judge: Any,
    *,
    limit: int = 200,
    review: ReviewConfig | None = None,
    budget: Budget | None = None,
    **judge_config: Any,
) -> PeriodicSession:
    config = JudgeConfig(function="unused:unused", **judge_config)
    guarded = GuardedJudge(
        PythonJudge(judge, "test"), timeout=config.call_deadline_s, concurrency=8, control_strings=CONTROL
    )
    part = Part(guarded, Sight())
    tokenizer = Characters()
    shared = Reviewing(
        judge=RolesJudge(part, part, part, LeakRules()),
        judge_config=config,
        verify=False,
        review=review or ReviewConfig(every_tokens=None, every_steps=1),
        budget=budget or Budget(8, 2, 40, 1.0),
        segmenter=get_segmenter("paragraph"),
        proposer=Proposer(
            scorer=NoScorer(),
            gate=GateConfig(),
            token_weights=TokenWeightsConfig(),
            decode=tokenizer.decode,
            encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
            control_strings=CONTROL,
            steering_context=lambda request, step: [],
        ),
        end_ids={ord(END)},
    )
    writer = ServerWriter(
        ScriptedClient(policy), {"temperature": 1.0, "logprobs": True}, "r", shared.end_ids, tokenizer.decode
    )
    request = ReviewRequest(
        problem=({"role": "user", "content": PROMPT},),
        steps=(),
        finished=False,
        sample={"extra_info": {"terms": [3, 9, 5], "operator": "+"}},
    )
    record = SessionRecord(uid="u", session_id=0, step=1)
    return PeriodicSession(shared, writer, [ord(c) for c in PROMPT], limit, request, record)


def text_of(session: PeriodicSession) -> str:
    return "".join(map(chr, session.trajectory.ids))


def after_correction(text: str) -> str:
    """A policy that adds 3 + 9 wrongly but goes on rightly from a right first step."""
    answer = text.split("?", 1)[1]
    if "= 12" in answer:
        rest = "12 + 5 = 17\n\nThe answer is 17." + END
        done = answer.split("= 12\n\n", 1)[1] if "= 12\n\n" in answer else ""
        return rest[len(done) :]
    script = "3 + 9 = 13\n\n13 + 5 = 18\n\nThe answer is 18." + END
    return script[len(answer) :]


@pytest.mark.parametrize("review", [ReviewConfig(None, 1), ReviewConfig(15, None), ReviewConfig(500, None)])
async def test_wrong_step_is_replaced_and_the_policy_goes_on(review: ReviewConfig) -> None:
    run = session(after_correction, arithmetic, review=review)
    trajectory = await run.run()
    assert text_of(run) == "3 + 9 = 12\n\n12 + 5 = 17\n\nThe answer is 17." + END
    inserted = [i for i, author in enumerate(trajectory.authors()) if author == Author.CORRECTOR]
    (note,) = [n for n in run.record.reviews if n.outcome == Outcome.INSERTED]
    assert note.inserted == (0, len("3 + 9 = 12\n\n")) and inserted == list(range(*note.inserted))
    assert note.step == 1 and "".join(map(chr, note.dropped_ids)).startswith("3 + 9 = 13\n\n")
    assert run.record.intervened and not run.record.masked


async def test_policy_prompt_is_always_the_accepted_prefix() -> None:
    run = session(after_correction, arithmetic)
    await run.run()
    calls = run.writer.client.calls
    final = [ord(c) for c in PROMPT] + run.trajectory.ids
    after = [call for call in calls if "= 12" in "".join(map(chr, call["prompt_ids"]))]
    assert after and all(call["prompt_ids"] == final[: len(call["prompt_ids"])] for call in after)
    assert len({call["request_id"] for call in calls}) == 1  # sticky: one replica holds the prefix
    assert all(call["max_tokens"] <= 200 - (len(call["prompt_ids"]) - len(PROMPT)) for call in calls)


async def test_right_response_is_left_alone() -> None:
    script = "3 + 9 = 12\n\n12 + 5 = 17\n\nThe answer is 17." + END
    run = session(lambda text: script[len(text) - len(PROMPT) :], arithmetic)
    await run.run()
    assert text_of(run) == script and not run.record.intervened
    assert {n.outcome for n in run.record.reviews} == {Outcome.KEPT}


async def test_wrong_ending_is_cut_with_its_end_of_sequence() -> None:
    script = "3 + 9 = 12\n\n12 + 5 = 17\n\nThe answer is 18." + END

    def policy(text: str) -> str:
        answer = text.split("?", 1)[1]
        return END if answer.endswith("17.") else script[len(answer) :]

    run = session(policy, arithmetic, review=ReviewConfig(500, None))
    await run.run()
    assert text_of(run) == "3 + 9 = 12\n\n12 + 5 = 17\n\nThe answer is 17." + END
    (note,) = [n for n in run.record.reviews if n.outcome == Outcome.INSERTED]
    assert note.finished and note.dropped_ids[-1] == ord(END)


async def test_no_review_at_the_end_when_switched_off() -> None:
    script = "3 + 9 = 13\n\nThe answer is 13." + END
    run = session(
        lambda text: script[len(text) - len(PROMPT) :], arithmetic, review=ReviewConfig(500, None, at_end=False)
    )
    await run.run()
    assert text_of(run) == script and run.record.reviews == []


async def test_budget_of_insertions_ends_an_always_revising_judge() -> None:
    def judge(request: ReviewRequest) -> Review:
        return Review.revise(len(request.steps), f"fix {request.attempt}")

    run = session(lambda text: "a\n\nb\n\nc\n\n" * 20, judge, limit=120, budget=Budget(50, 3, 40, 1.0))
    trajectory = await run.run()
    assert sum(n.outcome == Outcome.INSERTED for n in run.record.reviews) == 3
    assert len(trajectory.ids) == 120


async def test_budget_of_reviews() -> None:
    run = session(lambda text: "a\n\n" * 60, lambda r: None, limit=150, budget=Budget(5, 3, 40, 1.0))
    await run.run()
    assert len(run.record.reviews) == 5 and len(run.trajectory.ids) == 150


async def test_share_and_room_reject_but_do_not_fail() -> None:
    fix = lambda request: Review.revise(1, "a much longer replacement")  # noqa: E731
    run = session(lambda text: "ab\n\ncd\n\n" + END, fix, budget=Budget(1, 2, 40, 0.5))
    await run.run()
    assert [(n.outcome, n.reason) for n in run.record.reviews] == [(Outcome.REJECTED, "share")]
    run = session(lambda text: "ab\n\ncd\n\n" + END, fix, limit=12, budget=Budget(1, 2, 40, 1.0))
    await run.run()
    assert [(n.outcome, n.reason) for n in run.record.reviews] == [(Outcome.REJECTED, "no_room")]
    assert not run.record.masked


BAD = {
    "exception": lambda request: 1 / 0,
    "step_range": lambda request: Review.revise(7, "x"),
    "empty_correction": lambda request: Review.revise(1, "  \n"),
    "same_correction": lambda request: Review.revise(1, request.steps[0]),
    "too_long": lambda request: Review.revise(1, "y" * 1_000_000),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("policy", ["keep", "mask", "fail"])
async def test_judge_failure_is_never_a_verdict(kind: str, policy: str) -> None:
    script = "ab\n\ncd\n\nef" + END
    run = session(lambda text: script[len(text) - len(PROMPT) :], BAD[kind], on_error=policy)
    await run.run()
    assert text_of(run) == script
    assert {n.outcome for n in run.record.reviews} == {Outcome.ERROR}
    assert {n.reason for n in run.record.reviews} == {kind}
    assert run.record.masked == (policy != "keep")
    assert bool(run.record.fatal) == (policy == "fail")
    assert len(run.record.reviews) == (3 if policy == "keep" else 1)


async def test_hanging_judge_meets_its_deadlines() -> None:
    async def hang(request: ReviewRequest) -> Review:
        await asyncio.sleep(60)
        return Review.keep()

    script = "ab\n\ncd\n\nef" + END
    run = session(lambda text: script[len(text) - len(PROMPT) :], hang, call_deadline_s=0.05)
    await run.run()
    assert text_of(run) == script and {n.reason for n in run.record.reviews} == {"timeout"}
    run = session(lambda text: script[len(text) - len(PROMPT) :], hang, call_deadline_s=30.0, session_deadline_s=0.05)
    await run.run()
    assert text_of(run) == script and [n.reason for n in run.record.reviews] == ["session_timeout"]


@pytest.mark.parametrize("correction", [f"ok{END}", "<|im_end|>ok", "<|im_<|im_end|>end|>ok", "o\x00k"])
async def test_control_strings_never_reach_a_token(correction: str) -> None:
    script = "ab\n\ncd" + END
    judge = lambda request: Review.revise(1, correction) if request.attempt == 0 else None  # noqa: E731
    run = session(lambda text: script[len(text) - len(PROMPT) :], judge)
    await run.run()
    assert text_of(run).startswith("ok\n\n") and text_of(run).count(END) <= 1


@pytest.mark.parametrize("script", [END, "", "\n\n\n\n" + END, "\ufffd"])
async def test_responses_without_a_step(script: str) -> None:
    run = session(lambda text: script, lambda request: Review.keep(), limit=10)
    trajectory = await run.run()
    assert len(trajectory.ids) <= 10


async def test_seeds_differ_by_call_under_full_determinism() -> None:
    run = session(lambda text: "a\n\n" * 9 + END, lambda request: None)
    run.writer.seed_parts = (0, 1, 2, 3)
    await run.run()
    calls = run.writer.client.calls
    assert len({c["seed"] for c in calls}) == len(calls) == len({c["request_id"] for c in calls})


async def test_aborted_generation_goes_on_from_what_was_written() -> None:
    client = ScriptedClient(lambda text: "abcdef"[len(text) - 1 :] + END)
    real, seen = client.generate, []

    async def flaky(*args: Any, **kwargs: Any) -> Any:
        output = await real(*args, **kwargs)
        seen.append(kwargs["prompt_ids"])
        if len(seen) == 1:
            output.token_ids, output.log_probs, output.stop_reason = (
                output.token_ids[:2],
                output.log_probs[:2],
                "aborted",
            )
        return output

    client.generate = flaky  # type: ignore[method-assign]
    chunk = await ServerWriter(client, {}, "r", {ord(END)}, Characters().decode).write([ord("?")], 20)
    assert "".join(map(chr, chunk.ids)) == "abcdef" + END and chunk.ended and len(chunk.logprobs or []) == 7


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_bookkeeping_holds_for_any_policy_and_judge(data: st.DataObject) -> None:
    """Lengths agree, the limit holds, corrector tokens stand exactly where the surviving insertions say."""
    pieces = st.sampled_from(["a", "🙂", "b\n\n", "\n\n", "c 1 = 2\n\n", END, "ϕ∀", "  x\n\n"])
    script = "".join(data.draw(st.lists(pieces, min_size=1, max_size=12)))

    def judge(request: ReviewRequest) -> Review | None:
        if data.draw(st.booleans()):
            return None
        return Review.revise(
            data.draw(st.integers(0, len(request.steps) + 1)),
            data.draw(st.sampled_from(["x", "yy\n\nz", "", "w" * 50, END])),
        )

    limit = data.draw(st.integers(1, 60))
    review = data.draw(st.sampled_from([ReviewConfig(None, 1), ReviewConfig(None, 2), ReviewConfig(3, None)]))
    budget = Budget(
        data.draw(st.integers(1, 9)), data.draw(st.integers(1, 5)), 40, data.draw(st.sampled_from([0.3, 1.0]))
    )
    run = session(
        lambda text: script[data.draw(st.integers(0, len(script))) :] or END,
        judge,
        limit=limit,
        review=review,
        budget=budget,
    )
    run.shared.judge._validator.judge._judge._in_thread = False  # hypothesis draws must stay in one thread
    trajectory = asyncio.run(run.run())
    trajectory.check()
    assert len(trajectory.ids) <= limit
    expected = set()
    for note in run.record.reviews:
        if note.inserted is not None:
            expected |= set(range(*note.inserted))
    assert {i for i, author in enumerate(trajectory.authors()) if author == Author.CORRECTOR} == expected
    assert sum(n.outcome == Outcome.INSERTED for n in run.record.reviews) <= budget.max_insertions
    assert len(run.record.reviews) <= budget.max_reviews

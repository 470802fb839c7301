"""``review.mode: overlapped``: the same responses as blocking, without waiting for a judge that keeps."""

from __future__ import annotations

import asyncio
import hashlib
import random
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout.scripted import END, ScriptedClient
from rollout.test_periodic import PROMPT, after_correction, session, text_of

from verl_mintrl.config.schema import ReviewConfig
from verl_mintrl.errors import JudgeError
from verl_mintrl.judges.arithmetic import review as arithmetic
from verl_mintrl.judges.protocol import Review, ReviewRequest, Usage
from verl_mintrl.rollout.abort import ABORTED
from verl_mintrl.rollout.periodic import PeriodicSession
from verl_mintrl.rollout.propose import own_step_perplexities
from verl_mintrl.trajectory.record import Outcome
from verl_mintrl.trajectory.splice import Budget

LETTERS = "ab1= 🙂ϕ\n\n\n\n"


class SlowClient(ScriptedClient):
    """Takes time for every token; counts what it was still writing when a request was cancelled."""

    def __init__(self, policy: Any, seconds_a_token: float = 0.0) -> None:
        super().__init__(policy)
        self.pace, self.running, self.cancelled = seconds_a_token, 0, 0

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        output = await super().generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params)
        self.running += 1
        try:
            await asyncio.sleep(self.pace * len(output.token_ids))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise asyncio.CancelledError(ABORTED) from None
        finally:
            self.running -= 1
        return output


def chance(*parts: Any) -> random.Random:
    return random.Random(hashlib.sha256(repr(parts).encode()).digest())


def by_content(seed: int) -> Any:
    """A policy whose next character depends on all that stands before it, and on nothing else."""

    def policy(text: str) -> str:
        written = ""
        while len(written) < 90 and not written.endswith(END):
            draw = chance(seed, text + written)
            written += END if draw.random() < 0.02 else draw.choice(LETTERS)
        return written

    return policy


def judging_by_content(seed: int) -> Any:
    def judge(request: ReviewRequest) -> Review | None:
        draw = chance(seed, request.steps, request.finished)
        if draw.random() < 0.1:
            raise JudgeError("nobody home", kind="http")
        if draw.random() < 0.6:
            return None
        return Review.revise(draw.randint(0, len(request.steps)), draw.choice(["y", "zz 🙂", "", "w" * 50]))

    return judge


def pair(seed: int, limit: int, review: tuple[Any, ...], budget: Budget, on_error: str) -> list[PeriodicSession]:
    runs = []
    for mode in ("blocking", "overlapped"):
        run = session(
            by_content(seed),
            judging_by_content(seed),
            limit=limit,
            review=ReviewConfig(*review, mode=mode),
            budget=budget,
            on_error=on_error,
        )
        draw = random.Random(seed)
        run.writer.client = SlowClient(run.writer.client.policy, 1e-5 if draw.random() < 0.5 else 0.0)
        run.shared.judge._validator.judge._judge = Late(run.shared.judge._validator.judge._judge, draw)
        runs.append(run)
    return runs


class Late:
    """A judge whose answers take a random time."""

    name = "late"

    def __init__(self, judge: Any, draw: random.Random) -> None:
        self.judge, self.draw = judge, draw
        judge._in_thread = False

    async def review(self, request: ReviewRequest) -> Review:
        for _ in range(self.draw.randint(0, 12)):
            await asyncio.sleep(0)
        if self.draw.random() < 0.3:
            await asyncio.sleep(self.draw.random() * 0.002)
        return await self.judge.review(request)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    limit=st.integers(1, 90),
    review=st.sampled_from([(None, 1), (None, 2), (3, None), (11, None), (5, None, "paragraph", False)]),
    reviews=st.integers(1, 9),
    insertions=st.integers(1, 5),
    share=st.sampled_from([0.3, 1.0]),
    on_error=st.sampled_from(["keep", "mask", "fail"]),
)
def test_both_modes_write_the_same_response(
    seed: int, limit: int, review: Any, reviews: int, insertions: int, share: float, on_error: str
) -> None:
    blocking, overlapped = pair(seed, limit, review, Budget(reviews, insertions, 40, share), on_error)
    for run in (blocking, overlapped):
        asyncio.run(run.run())
    assert overlapped.trajectory.ids == blocking.trajectory.ids
    assert overlapped.trajectory.authors() == blocking.trajectory.authors()
    assert overlapped.trajectory.logprobs == pytest.approx(blocking.trajectory.logprobs, nan_ok=True)
    assert overlapped.ledger == blocking.ledger
    ours, theirs = asdict(overlapped.record), asdict(blocking.record)
    for record in (ours, theirs):
        for name in (
            "superseded",
            "speculative_tokens",
            "aborted_requests",
            "judge_wait_seconds",
            "generate_seconds",
        ):
            record.pop(name)
        for note in record["reviews"]:
            note.pop("judge_seconds")
    assert ours == theirs
    assert not blocking.record.superseded and not blocking.record.speculative_tokens
    assert overlapped.writer.client.running == 0


async def test_keep_costs_no_waiting() -> None:
    """Judge and policy both take 20 ms a step: one after the other is 40 ms a step."""
    script = "a\n\n" * 12 + END
    times = {}
    for mode in ("blocking", "overlapped"):
        steps = 0

        async def keep(request: ReviewRequest) -> Review:
            nonlocal steps
            steps += 1
            await asyncio.sleep(0.02)
            return Review.keep()

        run = session(
            lambda text: script[len(text) - len(PROMPT) :],
            lambda request: None,
            review=ReviewConfig(None, 1, at_end=False, mode=mode),
            budget=Budget(50, 5, 40, 1.0),
        )
        run.writer.client = SlowClient(run.writer.client.policy, 0.02 / 3)
        run.shared.judge._validator.judge._judge = SimpleNamespace(review=keep, name="keep")
        await run.run()
        times[mode] = run.record.judge_wait_seconds
        assert steps == 12 == len(run.record.reviews)
    assert times["blocking"] >= 12 * 0.02
    assert times["overlapped"] < times["blocking"] / 4  # only the last answers are waited for


async def test_revise_aborts_the_running_request_and_cuts_back() -> None:
    """The judge reads while the policy is in the middle of its next step."""
    run = session(after_correction, arithmetic, review=ReviewConfig(None, 1, mode="overlapped"))
    client = run.writer.client = SlowClient(after_correction, 0.01)
    await run.run()
    assert text_of(run) == "3 + 9 = 12\n\n12 + 5 = 17\n\nThe answer is 17." + END
    assert client.cancelled == 1 == run.writer.aborted and client.running == 0
    (note,) = [n for n in run.record.reviews if n.outcome == Outcome.INSERTED]
    assert "".join(map(chr, note.dropped_ids)) == "3 + 9 = 13\n\n"


async def test_what_was_written_past_the_review_is_dropped_and_its_reviews_are_superseded() -> None:
    """The judge is slow about the first step; by then it has been asked about later ones."""
    script = "bad\n\nb\n\nc\n\nd" + END
    asked = []

    async def judge(request: ReviewRequest) -> Review:
        asked.append(len(request.steps))
        await asyncio.sleep(0.05)
        answer = Review.revise(1, "good") if request.steps[0].startswith("bad") else Review.keep()
        return answer.with_usage(Usage(calls=1))

    def policy(text: str) -> str:
        answer = text[len(PROMPT) :]
        return script[len(answer) :] if answer == script[: len(answer)] else "z" + END

    run = session(policy, lambda request: None, review=ReviewConfig(None, 1, mode="overlapped"))
    run.shared.judge._validator.judge._judge = SimpleNamespace(review=judge, name="slow")
    await run.run()
    assert text_of(run) == "good\n\nz" + END
    assert asked[:4] == [1, 2, 3, 4]
    assert [note.steps for note in run.record.superseded] == [2, 3, 4]
    assert [note.outcome for note in run.record.reviews] == [Outcome.INSERTED, Outcome.KEPT]
    assert run.record.speculative_tokens == len("b\n\nc\n\nd" + END)
    assert "".join(map(chr, run.record.reviews[0].dropped_ids)) == "bad\n\n"
    assert run.ledger.reviews == 2, "what was superseded gives its review back"
    assert [note.judge_calls for note in run.record.superseded] == [1, 1, 1], "and is paid for all the same"


@pytest.mark.parametrize("mode", ["blocking", "overlapped"])
async def test_the_judge_time_of_a_session_is_the_same_in_both_modes(mode: str) -> None:
    """Three answers of 0.2 s fit into 0.7 s, whether or not the policy waits for them."""

    async def judge(request: ReviewRequest) -> Review:
        await asyncio.sleep(0.2)
        return Review.keep()

    script = "a\n\n" * 8 + END
    run = session(
        lambda text: script[len(text) - len(PROMPT) :],
        lambda request: None,
        review=ReviewConfig(None, 1, mode=mode),
        budget=Budget(20, 2, 40, 1.0),
        session_deadline_s=0.7,
    )
    run.shared.judge._validator.judge._judge = SimpleNamespace(review=judge, name="slow")
    await run.run()
    assert [note.reason for note in run.record.reviews] == ["", "", "", "session_timeout"]
    assert text_of(run) == script


async def test_a_writer_that_writes_nothing_ends_the_response() -> None:
    run = session(lambda text: "", lambda request: None, review=ReviewConfig(None, 1))

    async def nothing(prefix: Any, limit: int, stop: Any = ()) -> Any:
        return SimpleNamespace(ids=[], logprobs=None, ended=False)

    run.writer.write = nothing  # type: ignore[method-assign]
    assert len(await asyncio.wait_for(run.run(), 5)) == 0


async def test_a_failing_policy_server_leaves_nothing_running() -> None:
    async def judge(request: ReviewRequest) -> Review:
        await asyncio.sleep(60)
        raise AssertionError("still asked")

    calls = 0

    def policy(text: str) -> str:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("the server is gone")
        return "a\n\n"

    run = session(policy, lambda request: None, review=ReviewConfig(None, 1, mode="overlapped"))
    run.shared.judge._validator.judge._judge = SimpleNamespace(review=judge, name="slow")
    before = asyncio.all_tasks()
    with pytest.raises(RuntimeError, match="server is gone"):
        await asyncio.wait_for(run.run(), 10)
    assert asyncio.all_tasks() == before


async def test_a_cancelled_session_leaves_nothing_running() -> None:
    run = session(lambda text: "a\n\n", lambda request: None, review=ReviewConfig(None, 1, mode="overlapped"))
    client = run.writer.client = SlowClient(lambda text: "a\n\n", 10.0)
    before = asyncio.all_tasks()
    task = asyncio.ensure_future(run.run())
    while not client.running:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == before and client.running == 0 and client.cancelled == 1


async def test_the_gate_sees_the_response_as_it_was_when_asked() -> None:
    """Own steps of the quantile gate must not depend on how far the policy has got meanwhile."""
    run = session(
        lambda text: "a\n\nb\n\nc" + END, lambda request: None, review=ReviewConfig(None, 1, mode="overlapped")
    )
    seen = []
    prepare = run._prepare

    async def spy(request: Any, steps: Any, text: Any, *rest: Any) -> Any:
        own = own_step_perplexities(run.trajectory, text, run.shared.segmenter)
        await asyncio.sleep(0.02)
        later = own_step_perplexities(run.trajectory, text, run.shared.segmenter)
        seen.append((own == later, text.text, len(run.trajectory.ids)))
        return await prepare(request, steps, text, *rest)

    run._prepare = spy  # type: ignore[method-assign]
    script = "a\n\nb\n\nc" + END
    run.writer.client.policy = lambda text: script[len(text) - len(PROMPT) :] if "?a" in text else END
    answers = iter([Review.revise(1, "good")])
    run.shared.judge._validator.judge._judge = SimpleNamespace(
        review=lambda request: asyncio.sleep(0, next(answers, Review.keep())), name="fast"
    )
    run.writer.client.policy = lambda text: (script + END)[len(text) - len(PROMPT) :] if "good" not in text else END
    await run.run()
    (shown,) = seen
    assert shown == (True, "a\n\n", len(script))
    assert text_of(run) == "good\n\n" + END

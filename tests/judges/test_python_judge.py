import asyncio
import gc
import math
import pickle
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from judges.driving import SCRIPT
from rollout.test_periodic import PROMPT, session, text_of

from verl_mintrl.config.schema import ReviewConfig
from verl_mintrl.errors import ConfigError, JudgeError
from verl_mintrl.judges import python
from verl_mintrl.judges.limits import GuardedJudge
from verl_mintrl.judges.protocol import Correction, Evidence, Judge, Review, ReviewRequest, Usage, Verification
from verl_mintrl.judges.python import PythonJudge, load
from verl_mintrl.metrics import rollout_metrics
from verl_mintrl.rollout.propose import propose
from verl_mintrl.trajectory.record import ReviewRecord

REQUEST = ReviewRequest(
    ({"role": "user", "content": "Add 3 + 9 + 5."},),
    ("3 + 9 = 12", "12 + 5 = 18"),
    True,
    Evidence.GOLD,
    "SECRET-17",
    sample={"ground_truth": "SECRET-17"},
)
FIX = {"verdict": "revise", "step": 2, "correction": "12 + 5 = 17"}


def guarded(function, timeout=5.0, **more):
    return GuardedJudge(PythonJudge(function, **more), timeout=timeout, concurrency=4)


async def fails(call):
    with pytest.raises(JudgeError) as caught:
        await call
    return caught.value


@pytest.mark.parametrize("in_thread", [True, False])
async def test_what_a_function_may_return(in_thread):
    async def coroutine(request):
        return FIX

    class Callable:
        async def __call__(self, request):
            return Review.revise(2, "12 + 5 = 17")

    for function in (lambda r: FIX, lambda r: Review.revise(2, "12 + 5 = 17"), coroutine, Callable()):
        review = await guarded(function, in_thread=in_thread).review(REQUEST)
        assert (review.step, review.correction, review.usage.calls) == (2, "12 + 5 = 17", 1)
        assert review.usage.seconds > 0
    for function in (lambda r: None, lambda r: Review.keep(), lambda r: {"verdict": "KEEP"}):
        assert (await guarded(function, in_thread=in_thread).review(REQUEST)).step is None
    assert isinstance(guarded(lambda r: None), Judge)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (True, "unparseable"),
        ("keep", "unparseable"),
        ((2, "x"), "unparseable"),
        ({}, "unparseable"),
        (Correction("x"), "unparseable"),
        (Review("nonsense"), "unparseable"),
        (Review.revise(2), "empty_correction"),
        (Review.revise(3, "x"), "step_range"),
        (Review.revise(0, "x"), "step_range"),
        (Review.revise(True, "x"), "step_range"),
        (Review.revise(1.0, "x"), "step_range"),
        (FIX | {"step": None}, "step_range"),
        (FIX | {"correction": ""}, "empty_correction"),
        (FIX | {"correction": " \n\u200b"}, "empty_correction"),
        (FIX | {"correction": None}, "empty_correction"),
        (FIX | {"correction": b"12 + 5 = 17"}, "unparseable"),
        (FIX | {"correction": " 12 + 5  = 18\n"}, "same_correction"),
        (FIX | {"correction": "x" * 1_000_000}, "too_long"),
    ],
)
async def test_unusable_answers(answer, kind):
    judge = guarded(lambda request: answer)
    error = await fails(judge.review(REQUEST))
    assert error.kind == kind and error.usage.calls == 1
    assert len(str(error)) < 500 and "SECRET" not in f"{error!r}"


async def test_control_strings():
    controls = ("<|im_end|>", "<|endoftext|>")

    def judge(text):
        inner = PythonJudge(lambda request: FIX | {"correction": text})
        return GuardedJudge(inner, timeout=5, concurrency=1, control_strings=controls)

    assert (await judge("12 + <|im_end|>5 = 17<|im_end|>").review(REQUEST)).correction == "12 + 5 = 17"
    assert (await fails(judge("<|endoftext|> <|im_end|>").review(REQUEST))).kind == "empty_correction"


ERRORS = [ValueError("seen SECRET-17"), KeyError("x"), StopIteration(), TimeoutError()]
CASES = [(error, in_thread) for error in ERRORS for in_thread in (True, False)]


# On the event loop SystemExit and CancelledError mean what they say; in a thread they are the function's own.
@pytest.mark.parametrize(("raised", "in_thread"), [*CASES, (SystemExit(3), True), (asyncio.CancelledError(), True)])
async def test_a_function_that_raises(raised, in_thread):
    def function(request):
        raise raised

    error = await fails(guarded(function, in_thread=in_thread).review(REQUEST))
    assert error.kind == "exception" and error.__cause__ is not None
    assert type(raised).__name__ in str(error) or isinstance(raised, StopIteration)
    assert "SECRET" not in f"{error} {error!r}"


async def test_judge_and_config_errors_pass_through():
    for raised in (JudgeError("down", kind="unavailable"), ConfigError("wrong")):

        def function(request, raised=raised):
            raise raised

        with pytest.raises(type(raised)) as caught:
            await guarded(function).review(REQUEST)
        assert (str(caught.value), getattr(caught.value, "kind", "")) == (str(raised), getattr(raised, "kind", ""))


async def test_what_a_judge_says_of_evidence_is_hidden_and_our_own_words_are_not():
    request = replace(REQUEST, privileged="forty-two")

    def function(request):
        raise JudgeError("I know it is forty-two", "read forty-two", kind="refused")

    error = await fails(guarded(function).review(request))
    assert error.kind == "refused" and "forty" not in str(error)
    short = replace(REQUEST, privileged="e")
    error = await fails(guarded(lambda request: 3).review(short))
    assert "`review` function returned int" in str(error)

    def confused(request):
        raise ConfigError(f"bad {request.privileged}")

    with pytest.raises(ConfigError, match=r"bad \[hidden"):
        await guarded(confused).review(request)


async def test_odd_costs_are_made_plain_numbers():
    usage = Usage(calls=np.int64(1), prompt_tokens=np.float64(5), completion_tokens=-3, cached_tokens=math.nan)
    answer = await guarded(lambda request: Review.keep().with_usage(usage)).review(REQUEST)
    counts = (
        answer.usage.calls,
        answer.usage.prompt_tokens,
        answer.usage.completion_tokens,
        answer.usage.cached_tokens,
    )
    assert counts == (2, 5, 0, 0) and all(type(count) is int for count in counts)

    huge = await guarded(lambda request: Review.keep().with_usage(Usage(1, 10**400))).review(REQUEST)
    assert huge.usage.prompt_tokens == 0

    def function(request):
        error = JudgeError("down", kind="unavailable")
        error.usage = {"calls": 1}
        raise error

    error = await fails(guarded(function).review(REQUEST))
    assert error.kind == "unavailable" and error.usage.calls == 1


async def test_a_base_exception_of_an_async_judge_ends_nothing():
    class Weird(BaseException):
        pass

    async def function(request):
        raise Weird("odd")

    error = await fails(guarded(function).review(REQUEST))
    assert error.kind == "exception" and "Weird" in str(error)


async def test_a_hanging_function_meets_its_deadline_and_the_loop_lives(monkeypatch, caplog):
    monkeypatch.setattr(python, "_POOL", python._Pool(2))
    release = threading.Event()
    judge = guarded(lambda request: release.wait(10) and None, timeout=0.2)
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    started = time.monotonic()
    errors = await asyncio.gather(*(fails(judge.review(REQUEST)) for _ in range(2)))
    assert [error.kind for error in errors] == ["timeout", "timeout"]
    assert time.monotonic() - started < 1 and ticks > 5
    assert "2 of 2 threads held" in caplog.text and "SECRET" not in caplog.text
    error = await fails(judge.review(REQUEST))
    assert error.kind == "unavailable" and "intervention.judge.function" in str(error)
    release.set()
    while python._POOL.held:
        await asyncio.sleep(0.01)
    assert (await guarded(lambda request: None).review(REQUEST)).step is None
    ticking.cancel()


async def test_an_abandoned_call_that_has_not_started_never_runs(monkeypatch):
    monkeypatch.setattr(python, "_POOL", python._Pool(1))
    release, ran = threading.Event(), []
    first = asyncio.create_task(PythonJudge(lambda request: release.wait(5) and None).review(REQUEST))
    await asyncio.sleep(0.05)
    second = await fails(guarded(lambda request: ran.append(1), timeout=0.1).review(REQUEST))
    assert second.kind == "timeout"
    release.set()
    await first
    assert await PythonJudge(lambda request: None).review(REQUEST) and not ran


class Stubborn:
    """A coroutine that takes being cancelled for a hiccup, and only ends when it is released, or after 10 s."""

    def __init__(self):
        self.released = False

    async def review(self, request):
        cancelled, ends = False, time.monotonic() + 10
        while not self.released and time.monotonic() < ends:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise RuntimeError("too late for anybody to hear it")


@pytest.mark.parametrize("mode", ["blocking", "overlapped"])
@pytest.mark.parametrize("in_thread", [True, False])
async def test_a_judge_that_cannot_be_interrupted_does_not_hold_its_session(in_thread, mode, monkeypatch):
    monkeypatch.setattr(python, "_POOL", python._Pool(4))
    release, stubborn = threading.Event(), Stubborn()
    run = session(
        lambda text: SCRIPT[len(text) - len(PROMPT) :],
        (lambda request: release.wait(10) and None) if in_thread else stubborn.review,
        review=ReviewConfig(None, 1, mode=mode),
        call_deadline_s=0.2,
        on_error="mask",
    )
    started = time.monotonic()
    await run.run()
    took = time.monotonic() - started
    release.set()
    stubborn.released = True
    assert took < 2, "0.2 s, and 0.3 s to clean up"
    assert text_of(run) == SCRIPT and run.record.mask_reason == "judge_timeout"
    (note,) = run.record.reviews
    assert (note.outcome, note.reason, note.judge_calls) == ("error", "timeout", 1)
    assert rollout_metrics([run.record], [True], [1.0])["intervention/judge_errors/timeout"] == 1


async def test_calls_that_cannot_be_interrupted_are_counted_until_they_end(caplog):
    stubborn = Stubborn()
    judge = GuardedJudge(PythonJudge(stubborn.review), timeout=0.05, concurrency=2)
    errors = await asyncio.gather(*(fails(judge.review(REQUEST)) for _ in range(6)))
    assert [error.kind for error in errors] == ["timeout"] * 2 + ["unavailable"] * 4, "nobody waits for a place in vain"
    assert "runs on although it was cancelled" in str(errors[0]) and "CancelledError" in str(errors[-1])
    stubborn.released = True
    while judge._abandoned:
        await asyncio.sleep(0.01)
    assert (await judge.review(REQUEST)).step is None, "they gave their places back"
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_cancelled_session_does_not_wait_for_its_judge():
    stubborn = Stubborn()
    task = asyncio.create_task(guarded(stubborn.review).review(REQUEST))
    await asyncio.sleep(0.05)
    started = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    stubborn.released = True
    assert time.monotonic() - started < 2
    assert caught.value.usage.calls == 1


async def test_an_answer_after_the_deadline_does_not_count():
    async def late(request):
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            return FIX

    error = await fails(guarded(late, timeout=0.05).review(REQUEST))
    assert error.kind == "timeout" and "runs on" not in str(error)


def test_a_hung_call_does_not_keep_the_interpreter_alive():
    code = (
        "import asyncio, time\n"
        "from verl_mintrl.judges.limits import GuardedJudge\n"
        "from verl_mintrl.judges.protocol import ReviewRequest\n"
        "from verl_mintrl.judges.python import PythonJudge\n"
        "judge = GuardedJudge(PythonJudge(lambda r: time.sleep(60)), timeout=0.1, concurrency=1)\n"
        "try: asyncio.run(judge.review(ReviewRequest((), ('a',), True)))\n"
        "except Exception as error: print(error.kind)\n"
        "import sys; print([m for m in ('verl', 'ray', 'torch', 'vllm') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=15)
    assert done.stdout.split("\n")[:2] == ["timeout", "[]"], done.stderr


async def test_cancellation_is_not_an_error():
    judge = guarded(lambda request: time.sleep(0.3))
    task = asyncio.create_task(judge.review(REQUEST))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_judge_that_cancels_itself_is_an_error(is_async):
    """E.g. one that awaits what somebody else cancelled: the session must not be taken for a cancelled one."""

    def function(request):
        raise asyncio.CancelledError

    async def coroutine(request):
        function(request)

    error = await fails(guarded(coroutine if is_async else function).review(REQUEST))
    assert error.kind == "exception" and error.usage.calls == 1


async def test_a_cancelled_call_tells_that_it_was_made():
    task = asyncio.create_task(guarded(lambda request: time.sleep(0.3)).review(REQUEST))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert caught.value.usage.calls == 1


async def test_concurrency_is_bounded():
    running = most = 0

    async def function(request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    judge = guarded(function)
    await asyncio.gather(*(judge.review(REQUEST) for _ in range(20)))
    assert most == 4


async def test_correct():
    joint = guarded(lambda request: FIX)
    assert (await joint.correct(REQUEST, 2)).text == "12 + 5 = 17"
    assert (await fails(joint.correct(REQUEST, 1))).kind == "step_range"
    assert (await fails(guarded(lambda request: None).correct(REQUEST, 1))).kind == "step_range"
    for answer in ("12 + 5 = 17", Correction("12 + 5 = 17", Usage(completion_tokens=3))):
        judge = guarded(lambda request: None, correct=lambda request, step, answer=answer: answer)
        assert (await judge.correct(REQUEST, 2)).text == "12 + 5 = 17"
    for answer, kind in ((None, "unparseable"), ("", "empty_correction"), ("12 + 5 = 18", "same_correction")):
        judge = guarded(lambda request: None, correct=lambda request, step, answer=answer: answer)
        assert (await fails(judge.correct(REQUEST, 2))).kind == kind
    validator = PythonJudge(lambda request: Review.revise(2), correct=lambda request, step: "x")
    guard = GuardedJudge(validator, timeout=5, concurrency=1, joint=False)
    assert (await guard.review(REQUEST)).correction is None


async def test_verify():
    with pytest.raises(ConfigError, match=r"no `verify` function.*intervention\.judge\.roles\.verifier\.function"):
        await guarded(lambda request: None).verify(REQUEST, 2, "x")
    for answer in (Verification(True, False, True), {"agrees": True, "leak_free": False, "plausible": True}):
        judge = guarded(lambda request: None, verify=lambda request, step, text, answer=answer: answer)
        verification = await judge.verify(REQUEST, 2, "x")
        assert (verification.reason, verification.usage.calls) == ("leak", 1)
    for answer in (True, None, {"agrees": True}, Verification(1, 1, 1)):
        judge = guarded(lambda request: None, verify=lambda request, step, text, answer=answer: answer)
        assert (await fails(judge.verify(REQUEST, 2, "x"))).kind == "unparseable"


def test_load(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 1\n"
        "def review(request): return None\ndef verify(request, step, text):\n"
        "    return {'agrees': True, 'leak_free': True, 'plausible': True}\nnumber = 3\n"
    )
    assert load(f"{path}:review") is load(f"{path}:review")
    assert load("verl_mintrl.judges.arithmetic:review").__name__ == "review"
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "exits.py").write_text("import sys; sys.exit('bye')")
    (tmp_path / "odd.py").write_text("class A: pass\ndef none(): pass\ndef two(a, b): pass\ndef more(a, *b): pass\n")
    assert load(f"{tmp_path}/odd.py:more", takes=("request", "step")) and load("builtins:print")
    for spec, expected in (
        ("nothing", "package.module:function"),
        (":", "package.module:function"),
        (3, "package.module:function"),
        ("no_such_module_here:f", "cannot import"),
        (f"{tmp_path}/none.py:f", "there is no file"),
        (f"{tmp_path}/broken.py:f", "ZeroDivisionError"),
        (f"{path}:missing", "functions there: review, verify"),
        (f"{path}:number", "of type int"),
        (f"{tmp_path}/exits.py:f", "SystemExit"),
        (f"{tmp_path}/odd.py:A", "is a class"),
        (f"{tmp_path}/odd.py:none", "cannot be called with (request)"),
        (f"{tmp_path}/odd.py:two", "cannot be called with (request)"),
    ):
        with pytest.raises(ConfigError) as caught:
            load(spec, "intervention.judge.roles.verifier.function")
        assert expected in str(caught.value) and "intervention.judge.roles.verifier.function" in str(caught.value)


def test_limits_are_checked():
    for limits in (
        {"timeout": 0, "concurrency": 1},
        {"timeout": float("nan"), "concurrency": 1},
        {"timeout": 1, "concurrency": 0},
    ):
        with pytest.raises(ConfigError, match=r"intervention\.judge"):
            GuardedJudge(PythonJudge(lambda request: None), **limits)


def test_judge_errors_keep_their_usage_across_processes():
    error = JudgeError("a", "b", kind="timeout")
    error.usage = Usage(1, 2, 3)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.kind, copy.hint, copy.usage) == ("timeout", "b", Usage(1, 2, 3))


async def test_waiting_for_a_turn_is_no_judge_time():
    """A limit of ours must not be charged to a judge that answers at once."""

    async def slow(request):
        await asyncio.sleep(0.1)

    judge = GuardedJudge(PythonJudge(slow), timeout=5, concurrency=1)
    notes = [ReviewRecord(0, True, 1, "kept") for _ in range(8)]
    await asyncio.gather(*(propose(judge, False, REQUEST, note, None, 0.4) for note in notes))
    assert {(note.outcome, note.reason) for note in notes} == {("kept", "")}
    assert all(0.05 < note.judge_seconds < 0.4 for note in notes)


async def test_the_deadline_of_a_session_still_counts_what_the_judge_takes():
    async def slow(request):
        await asyncio.sleep(0.1 if request.session_id else 5)

    judge = GuardedJudge(PythonJudge(slow), timeout=60, concurrency=1)
    notes = [ReviewRecord(0, True, 1, "kept") for _ in range(2)]
    requests = [replace(REQUEST, session_id=i) for i in range(2)]
    ended = await asyncio.gather(
        *(propose(judge, False, request, note, None, 0.3) for request, note in zip(requests, notes, strict=True)),
        return_exceptions=True,
    )
    assert [getattr(error, "kind", None) for error in ended] == ["session_timeout", None]
    assert 0.25 < notes[0].judge_seconds < 1.5 and notes[1].judge_seconds < 0.3


async def test_a_judge_that_exits_ends_no_event_loop():
    async def leave(request):
        raise SystemExit(3)

    assert (await fails(guarded(leave).review(REQUEST))).kind == "exception"


async def test_a_judge_error_of_ones_own_gives_nothing_away():
    async def tell(request):
        raise JudgeError(f"gold: {request.privileged}", kind="exception")

    request = replace(REQUEST, privileged="the very long gold answer")
    error = await fails(guarded(tell).review(request))
    assert "very long" not in str(error)

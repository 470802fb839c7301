"""The walk on real multi-turn tasks: a small run of benchmarks/tau2_replay.py, and what its judges are shown."""

import asyncio
import dataclasses
import random
import sys

import pytest
import tau2_replay
from tau2_parts.judges import Exact, exact, roles
from tau2_parts.players import Assistant, Mistake, golden_calls, mistakes, plan
from tau2_parts.trial import Case, find_case, question, run, start, walk
from tau2_parts.turns import Call, farewell, read, tells
from tau2_parts.world import Conversation, Domain, KeptConversation

from verl_mintrl.judges.protocol import ReviewRequest
from verl_mintrl.rollout.environment import History


@pytest.fixture(scope="module")
def findings() -> tau2_replay.Findings:
    return asyncio.run(tau2_replay.measure(tasks=5, seed=1, group_tasks=2))


@pytest.fixture(scope="module")
def telecom() -> Domain:
    return Domain.load("telecom")


async def first_case(domain: Domain, seed: int = 0, kind: str = "tool") -> Case:
    for task in domain.tasks:
        case = await find_case(domain, task, random.Random(seed))
        if isinstance(case, Case) and case.mistake.kind == kind and case.mistake.position > 0:
            return case
    raise AssertionError("no case")


def test_needs_no_client_of_a_model():
    assert "litellm" not in sys.modules


def test_the_exact_judge_finds_corrects_and_reaches_the_reward(findings):
    assert [result.domain for result in findings.results] == ["airline", *2 * ["retail"], *2 * ["telecom"]]
    assert all(result.located and result.corrected for result in findings.results)
    assert all(result.rescued == {"replay": True, "snapshot": True} for result in findings.results)
    assert all(result.restored["snapshot"] for result in findings.results)
    assert not any(result.false_alarms for result in findings.results)
    assert findings.broken == []


def test_hostile_validators_cost_the_correction_not_the_session(findings):
    for result in findings.results:
        assert all(fate["survived"] for fate in result.hostile.values())
        assert all(fate["inserted"] <= 2 for fate in result.hostile.values())
        assert result.hostile["never"]["rewarded"] == 0
        assert result.hostile["always, corrector ends it, exact verifier"]["inserted"] == 0


def test_report(findings):
    text = tau2_replay.report(findings, 5, 1)
    assert "located" in text and "seed 1" in text
    assert "groups triggered per 1000" in text


async def test_where_the_mistake_is_does_not_reach_the_judge(telecom):
    """Everything in a request follows from turns, observations and task; the runs with and without mistake differ in no more."""
    case = await first_case(telecom)
    seen: list[ReviewRequest] = []

    class Watching(Exact):
        def review(self, request):
            seen.append(request)
            return super().review(request)

        def correct(self, request, step):
            seen.append(request)
            return super().correct(request, step)

        def verify(self, request, step, correction):
            seen.append(request)
            return super().verify(request, step, correction)

    judge = Watching(telecom.acting)
    session = (await start(case)).session
    walked = await walk(session, roles(judge.review, judge.correct, judge.verify, "watching"))
    clean = await run(telecom, case.task)
    assert walked.ended.reward == 1.0
    assert len(seen) == case.mistake.position + 3
    at_call = 0
    for request in seen:
        step = len(request.steps)
        base = question(telecom, case.task)  # built from the task alone
        expected = dataclasses.replace(
            base,
            steps=walked.session.steps[:step],
            observations=tuple(o.text for o in walked.session.observations[:step]),
            focus=step,
            attempt=step - 1,
            outcome=0.0,
            evidence=request.evidence,
            privileged=base.sample["gold"],
            finished=False,
        )
        assert request == expected
        at_call += step == case.mistake.position + 1
    assert at_call == 3
    # before the mistake it is the same request that a clean run would give
    before = case.mistake.position
    assert walked.session.request(before) == clean.request(before)
    assert case.mistake.turn not in question(telecom, case.task).sample["gold"]


async def test_states_hash_alike_after_replay_and_snapshot(telecom):
    case = await first_case(telecom)
    for mode in ("replay", "snapshot"):
        started, at = await start(case, mode, traced=True), case.mistake.position
        await walk(started.session, exact(telecom.acting))
        first, again = (conversation.trace for conversation in started.made)
        assert again[at] == first[at]
        assert again[at + 1] != first[at + 1]


async def test_the_fingerprint_tells_what_tau2s_hash_tells(telecom):
    task = next(t for t in telecom.tasks if any(c.by == "user" for c in golden_calls(t)))
    conversation = Conversation(telecom, task)
    await conversation.reset()
    pairs = []
    for turn in ["", *plan(task)]:
        if turn:
            await conversation.step(turn)
        world = conversation._world
        pairs.append((conversation.fingerprint(), world.get_db_hash() + world.get_user_db_hash()))
    assert len({ours for ours, _ in pairs}) == len({theirs for _, theirs in pairs}) == len(set(pairs)) > 1


async def test_a_generated_bill_id_is_restored_by_a_snapshot_only(telecom):
    """tau2 draws a random id for a customer's first draft bill and shows it to nobody: a replay differs where none can see."""
    database = telecom.fresh().tools.db
    drafts = {bill.bill_id for bill in database.bills if bill.status.value == "Draft"}
    customer = next(c for c in database.customers if c.line_ids and not drafts & set(c.bill_ids))
    arguments = {"customer_id": customer.customer_id, "line_id": customer.line_ids[0], "gb_amount": 1.0}

    async def after(make: type[Conversation]) -> Conversation:
        conversation = make(telecom, telecom.tasks[0])
        await conversation.reset()
        await conversation.step(Call("assistant", "refuel_data", arguments).write())
        return conversation

    one, other = await after(Conversation), await after(Conversation)
    assert one.observe() == other.observe()
    assert "Successfully added" in one.observe().text
    assert one.fingerprint() != other.fingerprint()
    kept, twin = await after(KeptConversation), KeptConversation(telecom, telecom.tasks[0])
    await twin.restore(await kept.snapshot())
    assert twin.fingerprint() == kept.fingerprint()


async def test_the_plan_goes_on_from_where_the_history_stands():
    a, b, c = (Call("assistant", name).write() for name in "abc")
    assistant = Assistant((a, b, c, farewell()), Mistake(1, "tool", "x"))

    def history(*turns: str) -> History:
        return History(("",) * (len(turns) + 1), turns)

    assert await assistant(history()) == a
    assert await assistant(history(a)) == "x"  # the lapse
    assert await assistant(history(a, "x")) == c  # believes to have done b
    assert await assistant(history(a, b)) == c
    assert await assistant(history(a, b, c)) == farewell()
    assert await assistant(history(a, c, b)) == farewell()  # another order
    assert await assistant(history(a, b, c, farewell(), "y")) == farewell()


def test_mistakes_are_seeded_and_no_golden_action(telecom):
    task = telecom.tasks[0]
    drawn = [list(mistakes(telecom, task, random.Random(7))) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert all(m.turn not in plan(task) or read(m.turn) is None for m in drawn[0])


def test_turns_are_read_as_they_were_written():
    for call in (Call("assistant", "f", {"x": [1, "ü"]}), Call("user", "g")):
        assert read(call.write()) == call
    for text in (farewell(["a", "b"]), "", "{", "[]", '{"name": 1}', '{"name": "f", "arguments": 3}'):
        assert read(text) is None
    assert tells([farewell(["1,200"])], ["1200"])
    assert not tells([Call("assistant", "f", {"x": "1200"}).write()], ["1200"])

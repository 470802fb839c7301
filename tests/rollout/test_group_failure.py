"""Whole groups that failed, walked by Validator, Corrector, Verifier and gate with a scripted policy and scorer."""

from __future__ import annotations

import asyncio
import copy
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch
from rollout.scripted import END, ScriptedClient
from trajectory.toy_tokenizers import Characters

from verl_mintrl.config.schema import InterventionConfig, parse
from verl_mintrl.errors import DataError, JudgeError
from verl_mintrl.judges.leak import LeakRules
from verl_mintrl.judges.limits import GuardedJudge
from verl_mintrl.judges.prompts import PromptSet
from verl_mintrl.judges.protocol import Evidence, Review, ReviewRequest, Verification
from verl_mintrl.judges.python import PythonJudge
from verl_mintrl.judges.roles import Part, RolesJudge, Sight
from verl_mintrl.learning.targets import Rows, build_targets
from verl_mintrl.learning.weights import unpack_weights
from verl_mintrl.metrics import judge_costs
from verl_mintrl.rollout.group import Group, Held, assign_roles
from verl_mintrl.rollout.group_failure import GroupFailure, Waiting
from verl_mintrl.rollout.periodic import Reviewing
from verl_mintrl.rollout.propose import Proposer
from verl_mintrl.rollout.writer import ServerWriter
from verl_mintrl.trajectory.record import Outcome, Role, SessionRecord
from verl_mintrl.trajectory.spans import Author, Trajectory
from verl_mintrl.trajectory.splice import Budget
from verl_mintrl.trajectory.steps import get_segmenter

PROMPT = "3+9+5?"
WRONG = "3 + 9 = 13\n\n13 + 5 = 18\n\nThe answer is 18." + END
RIGHT = "3 + 9 = 12\n\n12 + 5 = 17\n\nThe answer is 17." + END
FIX = "3 + 9 = 12"
GOLD = "the sum must come to seventeen"
EPS = 0.2
ACCEPT = Verification(True, True, True)


def policy(text: str) -> str:
    """Goes on rightly from a right first step, and wrongly otherwise."""
    answer = text.split("?", 1)[1]
    script = RIGHT if answer.startswith(FIX) else WRONG
    return script[len(answer) :] if script.startswith(answer) else END


def validator(request: ReviewRequest) -> Review:
    return Review.revise(request.focus) if "= 13" in request.steps[request.focus - 1] else Review.keep()


@dataclass
class Scorer:
    """Log-probs by where a token stands; the context of pi_cal is told by its evidence."""

    perplexity: float = math.e
    ratios: tuple[float, ...] = (1.0, 1.1, 0.5, 3.0)
    contexts: list[str] = field(default_factory=list)

    async def score(self, context: Any, ids: Any) -> list[float]:
        self.contexts.append("".join(map(chr, context)))
        steered = GOLD in self.contexts[-1]
        return [
            -math.log(self.perplexity) + steered * math.log(self.ratios[i % len(self.ratios)]) for i in range(len(ids))
        ]


@dataclass
class Row:
    """The columns of a row that the walk reads and writes."""

    prompt_ids: list[int]
    response_ids: list[int]
    authors: list[int]
    response_logprobs: list[float]
    token_weights: list[float]
    reward_score: float


@dataclass
class Setting:
    """One group on its way."""

    work: GroupFailure
    held: dict[int, Held]
    originals: dict[int, Row]
    scorer: Scorer
    client: ScriptedClient

    @property
    def records(self) -> list[SessionRecord]:
        return [h.payload.record for h in self.held.values()]

    @property
    def texts(self) -> list[str]:
        return ["".join(map(chr, h.rows[-1].response_ids)) for h in self.held.values()]

    @property
    def notes(self) -> list[Any]:
        return [note for record in self.records for note in record.walk]


def group(
    responses: list[str] | None = None,
    *,
    review: Callable[..., Any] = validator,
    correct: Callable[..., Any] = lambda request, step: FIX,
    verify: Callable[..., Any] | None = lambda request, step, correction: ACCEPT,
    reward: Callable[[str], Any] = lambda text: float("17" in text),
    client: ScriptedClient | None = None,
    scorer: Scorer | None = None,
    limit: int = 100,
    sampled_as_scored: bool = True,
    **changes: Any,
) -> Setting:
    """A group of scored sessions; ``changes`` are keys of ``intervention:``, dots written as ``__``."""
    node: dict[str, Any] = {
        "trigger": "group_failure",
        "budget": {"max_reviews": 20, "max_insertions": 5},
        "verifier": {"enabled": True},
        "gate": {"mode": "absolute"},
        "token_weights": {"mode": "steering", "eps_cal": EPS},
    }
    for key, value in changes.items():
        *path, last = key.split("__")
        inner = node
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    config: InterventionConfig = parse(node)
    client, scorer, tokenizer = client or ScriptedClient(policy), scorer or Scorer(), Characters()
    judge = GuardedJudge(
        PythonJudge(review, joint=False, correct=correct, verify=verify),
        timeout=config.judge.call_deadline_s,
        concurrency=8,
        joint=False,
        control_strings=(END,),
    )
    gold = Sight(Evidence.GOLD, "gold")
    roles = RolesJudge(Part(judge, Sight()), Part(judge, gold), Part(judge, gold), LeakRules())
    prompts = PromptSet()

    def steering_context(request: ReviewRequest, step: int) -> list[int]:
        messages = prompts.messages("steering", roles.correction_context(request), step=step)
        return [ord(c) for message in messages for c in message["content"]]

    shared = Reviewing(
        judge=roles,
        judge_config=config.judge,
        verify=config.verifier.enabled,
        review=config.review,
        budget=Budget(**vars(config.budget)),
        segmenter=get_segmenter("paragraph"),
        proposer=Proposer(
            scorer=scorer,
            gate=config.gate,
            token_weights=config.token_weights,
            decode=tokenizer.decode,
            encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
            control_strings=(END,),
            steering_context=steering_context,
        ),
        end_ids={ord(END)},
    )
    prompt_ids = [ord(c) for c in PROMPT]
    held = {}
    for number, text in enumerate(responses or [WRONG] * 4):
        n = len(text)
        row = Row(prompt_ids, [ord(c) for c in text], [int(Author.POLICY)] * n, [-0.5] * n, [1.0] * n, reward(text))
        record = SessionRecord(uid="u", session_id=number, step=1, active=True)

        async def score(trajectory: Trajectory, uid: str = f"u-{number}") -> Row:
            trajectory.check()
            value = reward("".join(map(chr, trajectory.ids)))
            if not isinstance(value, float) or not math.isfinite(value):
                raise DataError(f"reward of session {uid} is {value!r}")
            columns = (list(trajectory.ids), trajectory.authors(), list(trajectory.logprobs), list(trajectory.weights))
            return Row(prompt_ids, *columns, value)

        writer = partial(ServerWriter, client, {"temperature": 1.0, "logprobs": True}, f"u-{number}")
        make = partial(writer, shared.end_ids, tokenizer.decode)
        sample = {"raw_prompt": [{"role": "user", "content": PROMPT}], "gold": GOLD, "data_source": "sums"}
        held[number] = Held([row], row.reward_score, Waiting(record, sample, make, score, sampled_as_scored))
    originals = {number: h.rows[0] for number, h in held.items()}
    return Setting(GroupFailure(config, shared, limit), held, originals, scorer, client)


def untouched(setting: Setting, number: int) -> bool:
    held, original = setting.held[number], setting.originals[number]
    text = "".join(map(chr, original.response_ids))
    plain = Row(
        original.prompt_ids, original.response_ids, [1] * len(text), [-0.5] * len(text), [1.0] * len(text), held.reward
    )
    return held.rows[0] is original and original == plain


async def test_a_group_with_one_success_is_published_as_it_was_sampled():
    setting = group([WRONG, RIGHT, WRONG])
    await setting.work.work(setting.held)
    assert all(untouched(setting, number) for number in range(3))
    assert setting.client.calls == setting.scorer.contexts == setting.notes == []
    assert not any(record.triggered for record in setting.records)
    assert [record.reward_before for record in setting.records] == [0.0, 1.0, 0.0]


async def test_one_session_of_a_failed_group_is_replaced_by_its_success():
    setting = group()
    await setting.work.work(setting.held)
    (number,) = [i for i, record in enumerate(setting.records) if record.replaced]
    assert setting.texts[number] == RIGHT and setting.held[number].reward == 1.0
    assert [text for i, text in enumerate(setting.texts) if i != number] == [WRONG] * 3
    assert all(untouched(setting, i) for i in range(4) if i != number)
    record = setting.records[number]
    assert (record.reward_before, record.reward_after) == (0.0, 1.0) and record.intervened
    assert all(record.triggered and not record.masked for record in setting.records)


@pytest.mark.parametrize("wanted", [1, 2, 3, 9])
async def test_at_most_max_replaced(wanted):
    setting = group(group_failure__max_replaced=wanted)
    await setting.work.work(setting.held)
    assert sum(record.replaced for record in setting.records) == sum(text == RIGHT for text in setting.texts)
    assert sum(record.replaced for record in setting.records) == min(wanted, 4)


async def test_columns_of_a_replaced_row_agree():
    setting = group()
    await setting.work.work(setting.held)
    (number,) = [i for i, record in enumerate(setting.records) if record.replaced]
    row, record = setting.held[number].rows[0], setting.records[number]
    (note,) = [note for note in record.reviews if note.outcome == Outcome.INSERTED]
    inserted = list(range(*note.inserted))
    assert inserted == list(range(len(FIX + "\n\n"))), "the blank line of the replaced step is taken over"
    assert [t for t, author in enumerate(row.authors) if author == Author.CORRECTOR] == inserted
    assert set(row.authors) == {Author.POLICY, Author.CORRECTOR}
    assert {len(row.authors), len(row.response_logprobs), len(row.token_weights)} == {len(row.response_ids)}
    ratios = [1.0, 1.1, 1 - EPS, 1 + EPS]
    assert row.token_weights[: len(inserted)] == pytest.approx([ratios[t % 4] for t in inserted])
    assert set(row.token_weights[len(inserted) :]) == {1.0}
    assert row.response_logprobs == [-1.0] * len(inserted) + [-0.5] * (len(RIGHT) - len(inserted))
    assert note.perplexity == pytest.approx(math.e) and note.replaced_perplexity == pytest.approx(math.exp(0.5))
    assert "".join(map(chr, note.dropped_ids)) == WRONG
    assert (note.step, note.correction, note.cut_at, note.inserted_tokens) == (1, FIX, 0, len(inserted))
    assert record.reviews is record.walk


async def test_what_is_seen_by_whom():
    """Evidence of the Corrector is in the context of pi_cal, and in nothing that is sampled, scored or trained on."""
    setting = group()
    await setting.work.work(setting.held)
    roll = [context for context in setting.scorer.contexts if GOLD not in context]
    calibrated = [context for context in setting.scorer.contexts if GOLD in context]
    assert roll and calibrated and set(roll) == {PROMPT}
    assert all("3 + 9 = 13" in context for context in calibrated), "the step that is replaced"
    assert all(GOLD not in "".join(map(chr, call["prompt_ids"])) for call in setting.client.calls)
    assert all(GOLD not in text for text in setting.texts)
    assert {call["request_id"] for call in setting.client.calls} <= {f"u-{i}" for i in range(4)}


async def test_no_further_step_is_started_once_enough_have_succeeded():
    """Session 0 is corrected at its first step while the others wait for their Validator."""
    done = asyncio.Event()

    async def review(request: ReviewRequest) -> Review:
        if request.session_id:
            await done.wait()
            return Review.keep()
        return validator(request)

    setting = group(review=review)
    original = setting.held[0].payload.score

    async def score(trajectory: Trajectory) -> Row:
        row = await original(trajectory)
        asyncio.get_running_loop().call_later(0.05, done.set)
        return row

    setting.held[0].payload = replace(setting.held[0].payload, score=score)
    await setting.work.work(setting.held)
    assert [len(record.walk) for record in setting.records] == [1, 1, 1, 1], "none came to its second step"
    assert setting.records[0].replaced


async def test_a_correction_that_does_not_help_is_not_published():
    setting = group(correct=lambda request, step: "3 + 9 = 11")
    await setting.work.work(setting.held)
    assert all(untouched(setting, number) for number in range(4))
    assert [record.reward_after for record in setting.records] == [0.0] * 4
    assert not any(record.replaced or record.intervened for record in setting.records)
    assert all(record.walk[0].outcome == Outcome.INSERTED for record in setting.records)


async def test_the_walk_goes_on_over_the_steps_that_came_after_an_intervention():
    """The first correction is wrong itself: the policy then writes 13 once more, and the second one helps."""
    script = "one\n\n3 + 9 = 13\n\n13 + 5 = 18" + END

    def writes(text: str) -> str:
        answer = text.split("?", 1)[1]
        return END if "17" in answer else "3 + 9 = 13\n\nend" + END

    def review(request: ReviewRequest) -> Review:
        return Review.revise(request.focus) if request.focus == 1 or "13" in request.steps[-1] else Review.keep()

    setting = group(
        [script],
        review=review,
        correct=lambda request, step: ["two", "12 + 5 = 17"][step - 1],
        client=ScriptedClient(writes),
    )
    await setting.work.work(setting.held)
    assert setting.texts == ["two\n\n12 + 5 = 17\n\n" + END]
    record = setting.records[0]
    assert [note.inserted for note in record.reviews] == [(0, 5), (5, 18)]
    assert record.replaced and [a == 2 for a in setting.held[0].rows[0].authors] == [True] * 18 + [False]


# --- rejections


def rejected_once(setting: Setting, reason: str) -> None:
    for number, record in enumerate(setting.records):
        assert untouched(setting, number)
        assert [(note.outcome, note.reason) for note in record.walk] == [
            (Outcome.REJECTED, reason),
            (Outcome.KEPT, ""),
            (Outcome.KEPT, ""),
        ], "the walk goes on with the next step"
        assert not record.masked and record.reward_after is None


@pytest.mark.parametrize(
    ("checks", "reason"),
    [((False, True, True), "disagrees"), ((True, False, True), "leak"), ((True, True, False), "implausible")],
)
async def test_a_verifier_that_rejects(checks, reason):
    setting = group(verify=lambda request, step, correction: Verification(*checks))
    await setting.work.work(setting.held)
    rejected_once(setting, reason)
    assert all(record.walk[0].perplexity == pytest.approx(math.e) for record in setting.records), (
        "recorded all the same"
    )
    assert list(setting.records[0].walk[0].checks.values()) == list(checks)


async def test_a_gate_that_rejects():
    setting = group(scorer=Scorer(perplexity=5.1))
    await setting.work.work(setting.held)
    rejected_once(setting, "perplexity")
    assert [note.perplexity for note in setting.notes if note.step] == pytest.approx([5.1] * 4)
    assert not any(GOLD in context for context in setting.scorer.contexts), "no weights for what is not inserted"


async def test_a_corrector_that_repeats_the_gold():
    asked = []
    setting = group(correct=lambda request, step: f"Since {GOLD}, 12.", verify=lambda *question: asked.append(question))
    await setting.work.work(setting.held)
    rejected_once(setting, "leak")
    assert asked == [], "no model is asked"
    assert Counter(role for note in setting.notes for role in note.calls_by_role) == {"validator": 12, "corrector": 4}


async def test_a_correction_without_room_is_rejected_and_not_scored():
    setting = group(limit=len(WRONG), correct=lambda request, step: "12 " * 20)
    await setting.work.work(setting.held)
    rejected_once(setting, "no_room")
    assert setting.scorer.contexts == []


@pytest.mark.parametrize(("delta", "replaced"), [({"sums": 5.2}, True), ({"other": 5.2}, False)])
async def test_bounds_of_a_domain(delta, replaced):
    setting = group(scorer=Scorer(perplexity=5.1), gate__delta_for=delta)
    await setting.work.work(setting.held)
    assert any(record.replaced for record in setting.records) == replaced


async def test_bounds_from_the_groups_own_steps():
    """Sampling log-probs of -0.5: every own step has the perplexity 1.65."""
    for perplexity, replaced in ((1.6, True), (1.7, False)):
        setting = group(gate__mode="quantile", scorer=Scorer(perplexity))
        await setting.work.work(setting.held)
        assert any(record.replaced for record in setting.records) == replaced


async def test_replaced_steps_are_scored_where_sampling_log_probs_are_of_another_temperature():
    setting = group(sampled_as_scored=False, gate__mode="relative", gate__ratio=1.0)
    await setting.work.work(setting.held)
    note = setting.notes[0]
    assert note.perplexity == note.replaced_perplexity == pytest.approx(math.e)
    assert any(record.replaced for record in setting.records)


async def test_a_validator_that_finds_every_step_harmful_ends_with_the_budget():
    setting = group(
        [WRONG],
        review=lambda request: Review.revise(request.focus),
        correct=lambda request, step: f"step {step}",
        client=ScriptedClient(lambda text: "a\n\nb\n\nc\n\n" * 3),
        budget__max_insertions=3,
    )
    await setting.work.work(setting.held)
    assert [note.outcome for note in setting.notes] == [Outcome.INSERTED] * 3
    assert untouched(setting, 0) and not setting.records[0].masked
    setting = group([WRONG], review=lambda request: Review.revise(request.focus), budget__max_reviews=2)
    await setting.work.work(setting.held)
    assert len(setting.notes) <= 2


# --- failures


async def down(*question: Any) -> Any:
    raise ConnectionError("the judge is down")


@pytest.mark.parametrize("role", ["review", "correct", "verify"])
@pytest.mark.parametrize("on_error", ["keep", "mask", "fail"])
async def test_a_role_that_is_down(role, on_error):
    setting = group(**{role: down}, judge__on_error=on_error)
    await setting.work.work(setting.held)
    for number, record in enumerate(setting.records):
        assert untouched(setting, number)
        assert record.walk[0].outcome == Outcome.ERROR and record.walk[0].reason == "exception"
        assert record.masked == (on_error != "keep") and bool(record.fatal) == (on_error == "fail")
        assert len(record.walk) == (3 if on_error == "keep" else 1)
    if on_error == "fail":
        assert "the judge is down" in setting.records[0].fatal and "judge.on_error" in setting.records[0].fatal


async def test_missing_evidence_is_an_error_of_the_judge():
    setting = group(judge__on_error="mask")
    for held in setting.held.values():
        del held.payload.sample["gold"]
    await setting.work.work(setting.held)
    assert {record.mask_reason for record in setting.records} == {"judge_evidence"}


async def test_a_verifier_without_a_function_stops_the_run():
    setting = group(verify=None)
    await setting.work.work(setting.held)
    assert all(untouched(setting, number) for number in range(4))
    assert all("no `verify` function" in record.fatal and record.masked for record in setting.records)
    assert setting.notes[0].outcome == Outcome.ERROR


async def test_policy_servers_that_fail_while_rolling_on():
    async def gone(**call: Any) -> Any:
        raise ConnectionError("server gone")

    client = ScriptedClient(policy)
    client.generate = gone  # type: ignore[method-assign]
    setting = group(client=client)
    await setting.work.work(setting.held)
    assert all(untouched(setting, number) for number in range(4))
    assert {record.walk_error for record in setting.records} == {"ConnectionError: server gone"}
    assert not any(record.masked or record.replaced for record in setting.records)


@pytest.mark.parametrize("error", [JudgeError("too long", kind="context"), RuntimeError("engine dead")])
async def test_a_scorer_that_fails(error):
    async def score(context: Any, ids: Any) -> list[float]:
        raise error

    scorer = Scorer()
    scorer.score = score  # type: ignore[method-assign]
    setting = group(scorer=scorer)
    await setting.work.work(setting.held)
    assert all(untouched(setting, number) for number in range(4))
    if isinstance(error, JudgeError):
        assert setting.notes[0].reason == "context" and not setting.records[0].walk_error
    else:
        assert setting.records[0].walk_error == "RuntimeError: engine dead"


@pytest.mark.parametrize("bad", [math.nan, None, "1"])
async def test_a_reward_of_an_edited_session_that_is_no_number_stops_the_run(bad):
    setting = group(reward=lambda text: bad if "17" in text else 0.0)
    await setting.work.work(setting.held)
    assert all(untouched(setting, number) for number in range(4))
    assert all(f"is {bad!r}" in record.fatal for record in setting.records)


async def test_masked_sessions_are_not_walked():
    setting = group()
    setting.records[0].masked = True
    await setting.work.work(setting.held)
    assert setting.records[0].walk == [] and not setting.records[0].replaced
    assert sum(record.replaced for record in setting.records) == 1


async def test_walks_of_one_group_do_not_share_a_budget_or_a_trajectory():
    setting = group(group_failure__max_replaced=4)
    before = copy.deepcopy(setting.originals)
    await setting.work.work(setting.held)
    assert setting.originals == before, "originals are never edited in place"
    assert [record.walk[0].outcome for record in setting.records] == [Outcome.INSERTED] * 4
    assert len({id(h.rows[0].response_ids) for h in setting.held.values()}) == 4


# --- the group around it


@pytest.mark.parametrize("failing", [{0}, {1, 2}, {0, 1, 2, 3}])
async def test_a_group_in_which_a_session_did_not_run_is_published_unchanged(failing):
    setting = group()
    waiting = Group([Role.POLICY] * 4, active=True, work=setting.work.work)

    async def session(number: int) -> Held | None:
        await asyncio.sleep(0.01 * number)
        if number in failing:
            waiting.settle(number, None)
            return None
        return await waiting.hold(number, setting.held[number])

    async with asyncio.timeout(5):
        results = await asyncio.gather(*map(session, range(4)))
    assert [number for number, held in enumerate(results) if held is None] == sorted(failing)
    assert all(untouched(setting, number) for number in range(4)) and setting.notes == []


async def test_a_held_group_is_worked_on_once():
    setting = group()
    waiting = Group([Role.POLICY] * 4, active=True, work=setting.work.work)
    async with asyncio.timeout(5):
        results = await asyncio.gather(*(waiting.hold(number, setting.held[number]) for number in range(4)))
    assert [held.reward for held in results] == [h.reward for h in setting.held.values()]
    assert sum(record.replaced for record in setting.records) == 1


# --- what is learned from it


def targets_of(setting: Setting, *, controls: int, regression: bool) -> Any:
    rows = [h.rows[0] for h in setting.held.values()]
    width = max(len(row.response_ids) for row in rows)

    def padded(name: str, fill: float) -> torch.Tensor:
        return torch.tensor([getattr(row, name) + [fill] * (width - len(row.response_ids)) for row in rows])

    authors = padded("authors", 0)
    rewards = torch.tensor([row.reward_score for row in rows])
    before = torch.tensor([record.reward_before for record in setting.records])
    roles = assign_roles(len(rows), controls, 0.0)
    data = Rows(
        uids=["u"] * len(rows),
        rewards=rewards,
        baseline_rewards=torch.where(torch.tensor([r.replaced for r in setting.records]), before, rewards),
        old_log_probs=torch.full(authors.shape, -1.0),
        mask=authors > 0,
        authors=authors,
        weights=padded("token_weights", 1.0),
        is_control=torch.tensor([role is Role.CONTROL for role in roles]),
        included=torch.ones(len(rows), dtype=torch.bool),
    )
    config = setting.work.config
    return data, build_targets(data, config, group_advantages=torch.zeros(authors.shape), regression=regression)


@pytest.mark.parametrize("walked", [0, 3], ids=["control", "other"])
async def test_the_control_estimator_takes_its_baseline_from_before_the_replacement(walked):
    def review(request: ReviewRequest) -> Review:
        return validator(request) if request.session_id == walked else Review.keep()

    setting = group(review=review, advantage__estimator="control")
    await setting.work.work(setting.held)
    assert [record.replaced for record in setting.records] == [number == walked for number in range(4)]
    data, targets = targets_of(setting, controls=2, regression=True)
    assert torch.equal(targets.control.values, torch.zeros(4))
    per_row = [row[mask][0].item() for row, mask in zip(targets.advantages, data.mask, strict=True)]
    assert per_row == [float(number == walked) for number in range(4)]


@pytest.mark.parametrize("regression", [True, False])
async def test_weights_reach_the_column_of_the_loss(regression):
    """Plain for verl's own loss, with the author in the sign for the regression."""
    setting = group(advantage__estimator="grpo")
    await setting.work.work(setting.held)
    data, targets = targets_of(setting, controls=0, regression=regression)
    weights, inserted = unpack_weights(targets.weight_column)
    assert torch.equal(weights, data.weights)
    assert torch.equal(inserted, data.inserted if regression else torch.zeros_like(data.inserted))
    assert data.weights[data.inserted].unique().tolist() == pytest.approx([0.8, 1.0, 1.1, 1.2])
    assert set(data.weights[~data.inserted].tolist()) == {1.0}


async def test_without_steering_verls_own_loss_gets_no_column():
    setting = group(advantage__estimator="grpo", token_weights__mode="ones")
    await setting.work.work(setting.held)
    assert any(record.replaced for record in setting.records)
    assert targets_of(setting, controls=0, regression=False)[1].weight_column is None


@pytest.mark.parametrize("role", ["validator", "corrector", "verifier"])
async def test_an_error_is_counted_for_the_role_that_failed(role):
    def fails(*question):
        raise RuntimeError("it fails")

    parts = {"validator": "review", "corrector": "correct", "verifier": "verify"}
    setting = group(**{parts[role]: fails})
    await setting.work.work(setting.held)
    costs = judge_costs(setting.records)
    assert costs["reviews_failed"] == costs[f"errors_{role}"] == costs["judge_errors/exception"] > 0
    assert sum(costs[f"errors_{other}"] for other in parts) == costs["reviews_failed"]


async def test_a_correction_that_cannot_be_used_is_its_authors_error():
    setting = group(correct=lambda request, step: "x" * 300)
    await setting.work.work(setting.held)
    costs = judge_costs(setting.records)
    assert costs["errors_corrector"] == costs["judge_errors/too_long"] == costs["reviews_failed"] > 0

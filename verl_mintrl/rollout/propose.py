"""Validator -> Corrector -> Verifier -> gate, for one step of any session (RTI, arXiv 2610.13438, section 3). No verl, no Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch

from verl_mintrl.config.schema import GateConfig, TokenWeightsConfig
from verl_mintrl.errors import InterventionError, JudgeError, TrajectoryError
from verl_mintrl.judges.clock import JudgeClock, running
from verl_mintrl.judges.protocol import Judge, ReviewRequest, Usage, Verdict
from verl_mintrl.judges.roles import RolesJudge
from verl_mintrl.learning.weights import steering_weights
from verl_mintrl.rollout import gate as perplexity_gate
from verl_mintrl.rollout.gate import Judgement, literal_tokens, perplexity
from verl_mintrl.trajectory.record import Outcome, ReviewRecord
from verl_mintrl.trajectory.spans import Author, Trajectory
from verl_mintrl.trajectory.splice import Ledger, Plan, neutralise, plan_splice
from verl_mintrl.trajectory.steps import Segmenter, Step, split_steps
from verl_mintrl.trajectory.text import TokenText


class Scorer(Protocol):
    async def score(self, context: Sequence[int], ids: Sequence[int]) -> list[float]:
        """Log-probs in nats of ``ids`` after ``context`` under the policy, at temperature 1."""
        ...


@dataclass(frozen=True)
class Proposal:
    """A correction ready to be spliced in.

    Attributes:
        tokens: its length.
        rejection: budget reason for which it must not be used, empty if none.
        judgement: of the perplexity gate; None where the gate is off.
        replaced_perplexity: of the step it would replace; None where not scored.
        cut_at: first token it drops, and ``dropped_ids`` the tokens, where a session is one text.
        payload: whatever the session needs to splice it in.
    """

    tokens: int
    rejection: str = ""
    judgement: Judgement | None = None
    replaced_perplexity: float | None = None
    cut_at: int | None = None
    dropped_ids: Sequence[int] = ()
    payload: Any = None


#: step number, text, whether it is the final answer -> proposal; raises JudgeError for text that cannot be used
Prepare = Callable[[int, str, bool], Awaitable[Proposal]]


async def propose(
    judge: Judge,
    verify: bool,
    request: ReviewRequest,
    note: ReviewRecord,
    prepare: Prepare,
    left_s: float | None = None,
) -> Proposal | None:
    """Ask the roles in turn; None where everything stays as it is, and ``note`` says why.

    Args:
        verify: whether the Verifier is asked; without it, only leaks are looked for.
        note: filled in as it goes, with the cost of calls that failed too.
        left_s: judge time left to the session, seconds.

    Raises:
        JudgeError: a role gave no usable answer.
        InterventionError: the run cannot go on as configured.
    """
    role = author = "validator"
    deadline = asyncio.timeout(left_s)
    clock = JudgeClock(deadline)
    try:
        try:
            async with deadline, running(clock):
                review = await judge.review(request)
                spend(note, role, review.usage)
                if review.verdict is Verdict.KEEP:
                    return None
                assert review.step is not None  # checked by the guard around every judge
                note.step, note.final, text = review.step, review.final, review.correction
                if text is None:
                    role = author = "corrector"
                    correction = await judge.correct(request, review.step)
                    spend(note, role, correction.usage)
                    text = correction.text
                note.correction = text
                if verify:
                    role = "verifier"
                    verification = await judge.verify(request, review.step, text)
                    spend(note, role, verification.usage)
                    note.checks = {
                        "agrees": verification.agrees,
                        "leak_free": verification.leak_free,
                        "plausible": verification.plausible,
                    }
                    if not verification.accepted:
                        note.outcome, note.reason = Outcome.REJECTED, verification.reason
                elif isinstance(judge, RolesJudge) and judge.leaks(request, review.step, text):
                    note.outcome, note.reason = Outcome.REJECTED, "leak"
        except TimeoutError:
            if not deadline.expired():
                raise
            raise out_of_time(left_s) from None
        except asyncio.CancelledError as error:  # no longer wanted, but a call under way may have to be paid
            spend(note, role, getattr(error, "usage", None))
            raise
        finally:
            note.judge_seconds = clock.seconds  # scoring is the policy's servers' time, waiting for a turn nobody's
        role = ""
        try:
            proposal = await prepare(review.step, text, review.final)
        except JudgeError:
            if note.outcome == Outcome.REJECTED:  # only its perplexity was still wanted
                return None
            raise
    except InterventionError as error:
        kind = "exception"
        if isinstance(error, JudgeError):
            kind = error.kind
            spend(note, role, error.usage)
        note.outcome, note.reason, note.detail = Outcome.ERROR, kind, str(error)
        note.failed_role = role or author
        raise
    note.replaced_perplexity = proposal.replaced_perplexity
    if proposal.judgement is not None:  # recorded for every proposal, accepted or not
        note.perplexity, note.gate_fallback = proposal.judgement.perplexity, proposal.judgement.fallback
    if note.outcome == Outcome.REJECTED:
        return None
    if proposal.judgement is not None and not proposal.judgement.accepted:
        note.outcome, note.reason = Outcome.REJECTED, "perplexity"
        return None
    if proposal.rejection:
        note.outcome, note.reason = Outcome.REJECTED, proposal.rejection
        return None
    return proposal


def out_of_time(left_s: float | None) -> JudgeError:
    """A session has used up its judge time."""
    return JudgeError(
        f"the judge used up the {left_s:g} s that were left to this session.",
        "raise intervention.judge.session_deadline_s or use a faster judge.",
        kind="session_timeout",
    )


def spend(note: ReviewRecord, role: str, usage: Usage | None) -> None:
    """Add the cost of one answer to a record."""
    if usage is None:
        return
    if role and usage.calls:  # none for an answer that was found without asking
        note.calls_by_role[role] = note.calls_by_role.get(role, 0) + usage.calls
    note.judge_calls += usage.calls
    note.judge_prompt_tokens += usage.prompt_tokens
    note.judge_completion_tokens += usage.completion_tokens
    note.judge_cached_tokens += usage.cached_tokens


@dataclass(frozen=True)
class Proposer:
    """Turns the text of a correction into tokens, scores them and applies the gate.

    Attributes:
        decode: token ids -> text, special tokens kept.
        encode: text -> token ids, no special tokens.
        control_strings: chat-template strings that must never reach a training token, longest first.
        steering_context: tokens of the correction context of a step (pi_cal), for steering weights.
        backend: judge backend, for a bound of its own.
    """

    scorer: Scorer
    gate: GateConfig
    token_weights: TokenWeightsConfig
    decode: Callable[[list[int]], str]
    encode: Callable[[str], list[int]]
    control_strings: tuple[str, ...]
    steering_context: Callable[[ReviewRequest, int], Sequence[int]]
    backend: str = ""

    @property
    def scores(self) -> bool:
        """Whether corrections are scored under the policy."""
        return self.gate.mode != "none" or self.token_weights.mode == "steering"

    async def prepare(
        self,
        prompt_ids: list[int],
        trajectory: Trajectory,
        text: TokenText,
        step: Step,
        correction: str,
        final: bool,
        *,
        request: ReviewRequest,
        ledger: Ledger,
        sampled_as_scored: bool,
        own_steps: Sequence[float] = (),
    ) -> Proposal:
        """Plan the splice of one correction.

        The correction takes over the ending of the step it replaces (blank line, line break, nothing), so that the policy goes on
        exactly where the replaced step had stopped; a final answer ends openly, so that the policy may stop there.

        Args:
            text: of ``trajectory``.
            request: the question that led to the correction.
            sampled_as_scored: sampling log-probs are those at temperature 1 without truncation, so they may be reused.
            own_steps: perplexities of the policy's own steps, for the gate mode ``quantile``.

        Raises:
            JudgeError: too long, or not encodable.
        """
        ending = "" if final else step.text[len(step.text.rstrip()) :]
        wanted = neutralise(correction, self.control_strings).strip("\n").rstrip() + ending  # keeps indentation
        try:
            plan = plan_splice(text, step.start, wanted, self.encode)
        except TrajectoryError as error:
            raise JudgeError(error.message, error.hint, kind="unencodable") from error
        if ledger.too_long(len(plan.ids)):
            raise JudgeError(
                f"the correction has {len(plan.ids)} tokens; at most {ledger.budget.max_insertion_tokens} are allowed.",
                "ask the judge for shorter corrections or raise intervention.budget.max_insertion_tokens.",
                kind="too_long",
            )
        kept = trajectory.inserted_before(plan.start)
        rejection = ledger.reject_reason(plan.start, kept, len(plan.ids), trajectory.limit)
        logprobs, weights, judgement, replaced = None, None, None, None
        if self.scores and rejection != "no_room":  # what does not fit into the response need not fit into the servers
            context = prompt_ids + trajectory.ids[: plan.start]
            logprobs = await self.scorer.score(context, plan.ids)
            if self.gate.mode != "none":
                end = text.boundary(step.end)[0]
                old = trajectory.logprobs[plan.start : end]
                if not sampled_as_scored or any(value != value for value in old):
                    old = await self.scorer.score(context, trajectory.ids[plan.start : end])
                replaced = perplexity(old)
                judgement = self._judge(plan, logprobs, old, own_steps, text.text[: step.start], request)
            usable = not rejection and (judgement is None or judgement.accepted)
            if self.token_weights.mode == "steering" and usable:
                calibrated = await self.scorer.score(self.steering_context(request, step.number), plan.ids)
                ratio = steering_weights(torch.tensor(calibrated), torch.tensor(logprobs), self.token_weights.eps_cal)
                weights = ratio.tolist()
        return Proposal(
            tokens=len(plan.ids),
            rejection=rejection,
            judgement=judgement,
            replaced_perplexity=replaced,
            cut_at=plan.start,
            dropped_ids=trajectory.ids[plan.start :],
            payload=(plan, logprobs, weights),
        )

    def _judge(
        self,
        plan: Plan,
        logprobs: Sequence[float],
        replaced: Sequence[float],
        own_steps: Sequence[float],
        written: str,
        request: ReviewRequest,
    ) -> Judgement:
        counted = None
        if self.gate.ignore_literals or self.gate.ignore_numbers:
            observable = "\n".join([*(str(m.get("content")) for m in request.problem), written])
            counted = literal_tokens(
                pieces(plan.ids, self.decode),
                observable,
                literals=self.gate.ignore_literals,
                numbers=self.gate.ignore_numbers,
            )
        return perplexity_gate.judge(
            self.gate,
            logprobs,
            counted=counted,
            replaced=replaced,
            own_steps=own_steps,
            backend=self.backend,
            domain=str(request.sample.get("data_source", "")),
        )


def own_step_perplexities(trajectory: Trajectory, text: TokenText, segmenter: Segmenter) -> list[float]:
    """Perplexity of each step by the sampling log-probs of the policy's tokens in it."""
    values, authors = [], trajectory.authors()
    for step in split_steps(text.text, segmenter, finished=True):
        start, end = text.boundary(step.start)[0], text.boundary(step.end)[0]
        chosen = [
            value
            for value, author in zip(trajectory.logprobs[start:end], authors[start:end], strict=True)
            if author == Author.POLICY and value == value
        ]
        if chosen:
            values.append(perplexity(chosen))
    return values


def pieces(ids: Sequence[int], decode: Callable[[list[int]], str]) -> list[str]:
    """Text added by each token; their concatenation is the text of all of them."""
    text = TokenText(decode)
    text.extend(ids)
    whole = text.text
    bounds = [min(len(whole), text.offset(i)) for i in range(len(ids))] + [len(whole)]
    return [whole[start:end] for start, end in pairwise(bounds)]

"""A finished single-turn response that can be entered again at any of its steps (see :mod:`.walk`). No verl, no Ray."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from verl_mintrl.config.schema import GateConfig, TokenWeightsConfig
from verl_mintrl.errors import JudgeError, TrajectoryError
from verl_mintrl.judges.protocol import ReviewRequest
from verl_mintrl.learning.weights import steering_weights
from verl_mintrl.rollout import gate
from verl_mintrl.rollout.periodic import Reviewing
from verl_mintrl.rollout.scoring import Scorer
from verl_mintrl.rollout.walk import Proposal
from verl_mintrl.rollout.writer import Writer
from verl_mintrl.trajectory.spans import Author, Trajectory
from verl_mintrl.trajectory.splice import Ledger, Plan, apply_splice, neutralise, plan_splice
from verl_mintrl.trajectory.steps import Step, split_steps
from verl_mintrl.trajectory.text import TokenText


@dataclass(frozen=True)
class Means:
    """What the text sessions of a group share.

    Attributes:
        score: reward of a trajectory.
        steering_context: tokens of the correction context of a step (pi_cal), for steering weights.
        sampled_as_scored: sampling log-probs are those at temperature 1 without truncation, so they may be reused.
        own_steps: perplexities of the policy's own steps in the group.
        backend: judge backend, and ``domain`` the row's ``data_source``: for bounds of their own.
    """

    shared: Reviewing
    writer: Writer
    scorer: Scorer
    gate: GateConfig
    token_weights: TokenWeightsConfig
    score: Callable[[Trajectory], Awaitable[float]]
    steering_context: Callable[[ReviewRequest, int], Sequence[int]]
    sampled_as_scored: bool
    own_steps: Sequence[float] = ()
    backend: str = ""
    domain: str = ""


class TextSession:
    """See :class:`verl_mintrl.rollout.walk.Reentrant`.

    Args:
        prompt_ids: tokens of the prompt.
        trajectory: the response.
        request: template of the judge's question.
        ledger: the session's budget, shared with the walk.
    """

    def __init__(
        self,
        means: Means,
        prompt_ids: Sequence[int],
        trajectory: Trajectory,
        request: ReviewRequest,
        ledger: Ledger,
        reward: float,
    ) -> None:
        self.means = means
        self.prompt_ids = list(prompt_ids)
        self.trajectory = trajectory
        self.ledger = ledger
        self.reward = reward
        self._request = request
        self._text = visible_text(trajectory, means.shared)
        self._steps = split_steps(self._text.text, means.shared.segmenter, finished=True)
        self.steps: Sequence[str] = [step.text for step in self._steps]

    def request(self, focus: int) -> ReviewRequest:
        return replace(self._request, steps=tuple(self.steps[:focus]), finished=focus == len(self.steps))

    async def prepare(self, step: int, correction: str, final: bool) -> Proposal:
        """See :meth:`Reentrant.prepare`; scores the correction where gate or weights need it."""
        shared, target = self.means.shared, self._steps[step - 1]
        ending = "" if final else target.text[len(target.text.rstrip()) :]
        text = neutralise(correction, shared.control_strings).strip("\n").rstrip() + ending
        try:
            plan = plan_splice(self._text, target.start, text, shared.encode)
        except TrajectoryError as error:
            raise JudgeError(error.message, error.hint, kind="unencodable") from error
        if self.ledger.too_long(len(plan.ids)):
            raise JudgeError(
                f"the correction has {len(plan.ids)} tokens; at most {shared.budget.max_insertion_tokens} are allowed.",
                "ask the judge for shorter corrections or raise intervention.budget.max_insertion_tokens.",
                kind="too_long",
            )
        kept = self.trajectory.inserted_before(plan.start)
        rejection = self.ledger.reject_reason(plan.start, kept, len(plan.ids), self.trajectory.limit)
        logprobs, weights, judgement, replaced = None, None, None, None
        if self.means.gate.mode != "none" or self.means.token_weights.mode == "steering":
            context = self.prompt_ids + self.trajectory.ids[: plan.start]
            logprobs = await self.means.scorer.score(context, plan.ids)
            judgement, replaced = await self._gate(plan, logprobs, target)
            if self.means.token_weights.mode == "steering":
                weights = await self._weights(plan, logprobs, step)
        return Proposal(
            tokens=len(plan.ids),
            rejection=rejection,
            judgement=judgement,
            replaced_perplexity=replaced,
            cut_at=plan.start,
            dropped_ids=self.trajectory.ids[plan.start :],
            payload=(plan, logprobs, weights),
        )

    async def _gate(
        self, plan: Plan, logprobs: list[float], target: Step
    ) -> tuple[gate.Judgement | None, float | None]:
        config = self.means.gate
        if config.mode == "none":
            return None, None
        end = self._text.boundary(target.end)[0]
        replaced = self.trajectory.logprobs[plan.start : end]
        if not self.means.sampled_as_scored or any(value != value for value in replaced):
            context = self.prompt_ids + self.trajectory.ids[: plan.start]
            replaced = await self.means.scorer.score(context, self.trajectory.ids[plan.start : end])
        counted = None
        if config.ignore_literals or config.ignore_numbers:
            counted = gate.literal_tokens(
                pieces(plan.ids, self.means.shared.decode),
                "\n".join([*(str(m.get("content")) for m in self._request.problem), self._text.text[: target.start]]),
                literals=config.ignore_literals,
                numbers=config.ignore_numbers,
            )
        judgement = gate.judge(
            config,
            logprobs,
            counted=counted,
            replaced=replaced,
            own_steps=self.means.own_steps,
            backend=self.means.backend,
            domain=self.means.domain,
        )
        return judgement, gate.perplexity(replaced)

    async def _weights(self, plan: Plan, logprobs: list[float], step: int) -> list[float]:
        context = self.means.steering_context(self.request(step), step)
        calibrated = await self.means.scorer.score(context, plan.ids)
        return steering_weights(
            torch.tensor(calibrated), torch.tensor(logprobs), self.means.token_weights.eps_cal
        ).tolist()

    async def resume(self, step: int, proposal: Proposal) -> TextSession:
        """See :meth:`Reentrant.resume`. A text has no environment, so this raises no ReplayError."""
        plan, logprobs, weights = proposal.payload
        trajectory = copy(self.trajectory)
        apply_splice(trajectory, visible_text(trajectory, self.means.shared), plan, logprobs, weights)
        while trajectory.remaining > 0:
            chunk = await self.means.writer.write(self.prompt_ids + trajectory.ids, trajectory.remaining)
            trajectory.append(chunk.ids, Author.POLICY, chunk.logprobs)
            if chunk.ended:
                break
        reward = await self.means.score(trajectory)
        return TextSession(self.means, self.prompt_ids, trajectory, self._request, self.ledger, reward)

    def own_step_perplexities(self) -> list[float]:
        """Perplexity of each step the policy wrote, from its sampling log-probs; empty where those are not usable."""
        if not self.means.sampled_as_scored:
            return []
        values = []
        for step in self._steps:
            start, end = self._text.boundary(step.start)[0], self._text.boundary(step.end)[0]
            chosen = [value for value in self.trajectory.logprobs[start:end] if value == value]
            if chosen:
                values.append(gate.perplexity(chosen))
        return values


def visible_text(trajectory: Trajectory, shared: Reviewing) -> TokenText:
    """Text of a response without its end-of-sequence token."""
    text = TokenText(shared.decode)
    ids = trajectory.ids
    text.extend(ids[:-1] if ids and ids[-1] in shared.end_ids else ids)
    return text


def copy(trajectory: Trajectory) -> Trajectory:
    """The same tokens, authors, log-probs and weights in an object of its own."""
    twin = Trajectory(trajectory.limit)
    for span in trajectory.spans:
        twin.append(
            trajectory.ids[span.start : span.end],
            span.author,
            trajectory.logprobs[span.start : span.end],
            trajectory.weights[span.start : span.end],
        )
    return twin


def from_columns(
    limit: int, ids: Sequence[int], authors: Sequence[int], logprobs: Sequence[float] | None, weights: Sequence[float]
) -> Trajectory:
    """A trajectory from the columns of a row."""
    trajectory, start = Trajectory(limit), 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or authors[end] != authors[start]:
            span: dict[str, Any] = {"weights": list(weights[start:end])}
            if logprobs is not None:
                span["logprobs"] = list(logprobs[start:end])
            trajectory.append(list(ids[start:end]), Author(authors[start]), **span)
            start = end
    return trajectory


def pieces(ids: Sequence[int], decode: Callable[[list[int]], str]) -> list[str]:
    """Text added by each token; their concatenation is the text of all of them."""
    text = TokenText(decode)
    text.extend(ids)
    whole = text.text
    bounds = [min(len(whole), text.offset(i)) for i in range(len(ids))] + [len(whole)]
    return [whole[start:end] for start, end in pairwise(bounds)]

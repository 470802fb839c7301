"""A finished single-turn response that can be entered again at any of its steps (see :mod:`.walk`). No verl, no Ray."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from verl_mintrl.judges.protocol import ReviewRequest
from verl_mintrl.rollout.periodic import Reviewing
from verl_mintrl.rollout.propose import Proposal, own_step_perplexities
from verl_mintrl.rollout.writer import Writer
from verl_mintrl.trajectory.spans import Author, Trajectory
from verl_mintrl.trajectory.splice import Ledger, apply_splice
from verl_mintrl.trajectory.steps import split_steps
from verl_mintrl.trajectory.text import TokenText


@dataclass(frozen=True)
class Means:
    """What a text session needs to go on.

    Attributes:
        score: reward of a trajectory.
        sampled_as_scored: sampling log-probs are those at temperature 1 without truncation, so they may be reused.
        own_steps: perplexities of the policy's own steps in the group.
    """

    shared: Reviewing
    writer: Writer
    score: Callable[[Trajectory], Awaitable[float]]
    sampled_as_scored: bool
    own_steps: Sequence[float] = ()


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
        return replace(
            self._request, steps=tuple(self.steps[:focus]), finished=focus == len(self.steps), outcome=self.reward
        )

    async def prepare(self, step: int, correction: str, final: bool) -> Proposal:
        """See :meth:`Reentrant.prepare`; scores the correction where gate or weights need it."""
        return await self.means.shared.proposer.prepare(
            self.prompt_ids,
            self.trajectory,
            self._text,
            self._steps[step - 1],
            correction,
            final,
            request=self.request(step),
            ledger=self.ledger,
            sampled_as_scored=self.means.sampled_as_scored,
            own_steps=self.means.own_steps,
        )

    async def resume(self, step: int, proposal: Proposal) -> TextSession:
        """See :meth:`Reentrant.resume`. A text has no environment, so this raises no ReplayError."""
        plan, logprobs, weights = proposal.payload
        trajectory = self.trajectory.copy()
        apply_splice(trajectory, visible_text(trajectory, self.means.shared), plan, logprobs, weights)
        while trajectory.remaining > 0:
            chunk = await self.means.writer.write(self.prompt_ids + trajectory.ids, trajectory.remaining)
            trajectory.append(chunk.ids, Author.POLICY, chunk.logprobs)
            if chunk.ended:
                break
        reward = await self.means.score(trajectory)
        return TextSession(self.means, self.prompt_ids, trajectory, self._request, self.ledger, reward)

    def own_step_perplexities(self) -> list[float]:
        """Perplexity of each step, from its sampling log-probs; empty where those are not usable."""
        if not self.means.sampled_as_scored:
            return []
        return own_step_perplexities(self.trajectory, self._text, self.means.shared.segmenter)


def visible_text(trajectory: Trajectory, shared: Reviewing) -> TokenText:
    """Text of a response without its end-of-sequence token."""
    text = TokenText(shared.proposer.decode)
    ids = trajectory.ids
    text.extend(ids[:-1] if ids and ids[-1] in shared.end_ids else ids)
    return text


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

"""A finished multi-turn row that can be entered again at any assistant turn (see :mod:`.walk`).

The stock agent loop is run again with the turns before the correction, and the correction itself, given
(:mod:`.replay`); its tools answer anew, and the policy goes on from there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from verl_mintrl.errors import JudgeError
from verl_mintrl.judges.protocol import ReviewRequest
from verl_mintrl.rollout.periodic import Reviewing
from verl_mintrl.rollout.propose import Proposal
from verl_mintrl.rollout.replay import Turn
from verl_mintrl.trajectory.spans import Author, Trajectory
from verl_mintrl.trajectory.splice import Ledger
from verl_mintrl.trajectory.steps import Step, turn_steps
from verl_mintrl.trajectory.text import TokenText


@dataclass(frozen=True)
class Tools:
    """What a tool session needs to go on.

    Attributes:
        rerun: run the stock loop with given turns (and the extra fields of their outputs); returns the scored row.
        from_row: its trajectory.
        sampled_as_scored: see :meth:`verl_mintrl.rollout.propose.Proposer.prepare`.
    """

    shared: Reviewing
    rerun: Callable[[Sequence[Turn], dict[str, Any]], Awaitable[Any]]
    from_row: Callable[[Any], Trajectory]
    sampled_as_scored: bool


class ToolSession:
    """See :class:`verl_mintrl.rollout.walk.Reentrant`; a step is one assistant turn.

    Args:
        row: the scored output of the agent loop.
        request: template of the judge's question.
        ledger: the session's budget, shared with the walk.
    """

    def __init__(self, tools: Tools, row: Any, trajectory: Trajectory, request: ReviewRequest, ledger: Ledger) -> None:
        self.tools = tools
        self.row = row
        self.trajectory = trajectory
        self.ledger = ledger
        self.reward: float = row.reward_score
        self._request = request
        self._turns = turn_steps(trajectory.spans)
        self._text = TokenText(tools.shared.proposer.decode)
        self._text.extend(trajectory.ids)
        self._steps = [self._step(number, turn.start, turn.end) for number, turn in enumerate(self._turns, 1)]
        self.steps: Sequence[str] = [step.text for step in self._steps]
        ends = [0, *(self._text.offset(turn.end) for turn in self._turns)]
        self._observations = [
            self._text.text[end : self._text.offset(turn.start)] for end, turn in zip(ends, self._turns, strict=False)
        ]

    def _step(self, number: int, start: int, end: int) -> Step:
        """A turn as a step: its text without the token that ended it."""
        if end > start and self.trajectory.ids[end - 1] in self.tools.shared.end_ids:
            end -= 1
        first, last = self._text.offset(start), self._text.offset(end)
        return Step(number, self._text.text[first:last], first, last, True)

    def request(self, focus: int) -> ReviewRequest:
        return replace(
            self._request,
            steps=tuple(self.steps[:focus]),
            observations=tuple(self._observations[:focus]),
            finished=focus == len(self.steps),
            outcome=self.reward,
        )

    async def prepare(self, step: int, correction: str, final: bool) -> Proposal:
        """See :meth:`Reentrant.prepare`."""
        proposal = await self.tools.shared.proposer.prepare(
            self.row.prompt_ids,
            self.trajectory,
            self._text,
            self._steps[step - 1],
            correction,
            final,
            request=self.request(step),
            ledger=self.ledger,
            sampled_as_scored=self.tools.sampled_as_scored,
        )
        if proposal.cut_at != self._turns[step - 1].start:
            raise JudgeError("the turn does not start at a token of its own.", kind="unencodable")
        ended = self._ending(step)
        return replace(proposal, tokens=proposal.tokens + len(ended))

    def _ending(self, step: int) -> list[int]:
        """The token that ended the replaced turn; the correction ends with it too."""
        last = self.trajectory.ids[self._turns[step - 1].end - 1]
        return [last] if last in self.tools.shared.end_ids else []

    async def resume(self, step: int, proposal: Proposal) -> ToolSession:
        """See :meth:`Reentrant.resume`.

        Raises:
            ReplayError: a tool answered differently in the turns before.
        """
        plan, logprobs, weights = proposal.payload
        ending = self._ending(step)
        ids = [*plan.ids, *ending]
        nan = float("nan")
        scored = [*(logprobs or [nan] * len(plan.ids)), *([nan] * len(ending))]
        old = self.trajectory
        turns = [
            self._given(turn.start, old.ids[turn.start : turn.end], old.logprobs[turn.start : turn.end])
            for turn in self._turns[: step - 1]
        ]
        start = self._turns[step - 1].start
        versions = {key: self.row.extra_fields.get(key) for key in ("min_global_steps", "max_global_steps")}
        row = await self.tools.rerun([*turns, self._given(start, ids, scored)], versions)
        # the loop takes every turn for the policy's; who wrote what is known here
        row.authors[:start] = old.authors()[:start]
        row.token_weights[:start] = old.weights[:start]
        end = min(start + len(ids), len(row.response_ids))
        row.authors[start:end] = [int(Author.CORRECTOR)] * (end - start)
        row.token_weights[start:end] = [*(weights or [1.0] * len(plan.ids)), *([1.0] * len(ending))][: end - start]
        return ToolSession(self.tools, row, self.tools.from_row(row), self._request, self.ledger)

    def _given(self, start: int, ids: list[int], logprobs: list[float]) -> Turn:
        return Turn(self.row.prompt_ids + self.trajectory.ids[:start], list(ids), list(logprobs))

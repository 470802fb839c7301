"""verl adapter: run a stock multi-turn agent loop again with its first turns given.

verl's loops take everything the policy says from ``server_manager.generate``. Given turns are handed out there, so the stock
loop parses them, calls fresh tools and goes on by itself: no loop is copied, and any loop that talks to the policy only through
``generate`` can be entered again. Before each given turn the loop must have built exactly the tokens it had built the first
time; that is the check that tools answered the same.

Leans on ``verl.workers.rollout.replica.TokenOutput`` and on ``AgentLoopWorker.llm_client`` being what loops get as
``server_manager``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from verl_mintrl.errors import ReplayError

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Turn:
    """One assistant turn that is given.

    Attributes:
        context: tokens the loop must have built when it asks for this turn (prompt and response so far).
        ids: what the policy is made to say.
        logprobs: of ``ids``; NaN where not scored.
    """

    context: list[int]
    ids: list[int]
    logprobs: list[float]


@dataclass
class Script:
    """Turns handed out in order.

    Attributes:
        meta: ``extra_fields`` of their outputs; the loop keeps those of its first output (weight versions).
    """

    turns: Sequence[Turn]
    meta: dict[str, Any] = field(default_factory=dict)
    given: int = 0

    def next(self, prompt_ids: Sequence[int]) -> Turn | None:
        """The next given turn, None once all are given.

        Raises:
            ReplayError: the loop built other tokens than the first time.
        """
        if self.given >= len(self.turns):
            return None
        turn = self.turns[self.given]
        if list(prompt_ids) != turn.context:
            common = next(
                (i for i, (a, b) in enumerate(zip(prompt_ids, turn.context, strict=False)) if a != b),
                min(len(prompt_ids), len(turn.context)),
            )
            raise ReplayError(
                f"before turn {self.given + 1} the loop built {len(prompt_ids)} tokens, {len(turn.context)} the first time, "
                f"alike up to token {common}: a tool answered differently.",
                "make the tools deterministic, or give them a state that can be restored.",
            )
        self.given += 1
        return turn


_script: ContextVar[Script | None] = ContextVar("intervention_replay", default=None)


class ReplayingClient:
    """verl's server client, except that a task running under :func:`replayed` is given its script first.

    No dataclass: Hydra, which makes the agent loops, would turn it into a config.
    """

    def __init__(self, client: Any) -> None:
        self.client = client

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **kwargs: Any):
        script = _script.get()
        turn = script.next(prompt_ids) if script is not None else None
        if script is None or turn is None:
            return await self.client.generate(
                request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **kwargs
            )
        from verl.workers.rollout.replica import TokenOutput

        return TokenOutput(
            token_ids=list(turn.ids),
            log_probs=list(turn.logprobs) if sampling_params.get("logprobs") else None,
            stop_reason="completed",
            extra_fields=dict(script.meta),
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by copies that have no client yet
            raise AttributeError(name)
        return getattr(self.client, name)


async def replayed(turns: Sequence[Turn], meta: dict[str, Any], run: Callable[[], Awaitable[_Result]]) -> _Result:
    """Await ``run()`` with its first turns given.

    Raises:
        ReplayError: a tool answered differently, or the loop ended before all turns were given.
    """
    script = Script(turns, meta)
    token = _script.set(script)
    try:
        result = await run()
    finally:
        _script.reset(token)
    if script.given < len(turns):
        raise ReplayError(
            f"the loop ended after {script.given} of {len(turns)} given turns.",
            "look at the tools' answers in the dump.",
        )
    return result

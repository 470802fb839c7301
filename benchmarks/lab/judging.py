"""Judges as the in-process loop asks them: on the event loop, so that nothing depends on the timing of threads.

``lab.judging:EXACT.review`` is ``lab.correctors:EXACT.review`` as a coroutine, and so on for every corrector.
:class:`HintJudge` is self-intervention: the policy itself, asked in the form that it answers without its weaknesses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from lab import correctors
from lab.correctors import Corrector
from lab.tasks import HINT, is_ended
from verl_mintrl.config.judge import JudgeConfig
from verl_mintrl.config.schema import VerifierConfig
from verl_mintrl.judges.leak import LeakRules
from verl_mintrl.judges.limits import GuardedJudge
from verl_mintrl.judges.protocol import Correction, Judge, Review, ReviewRequest, Usage, Verification
from verl_mintrl.judges.roles import Part, RolesJudge, Sight
from verl_mintrl.rollout.propose import Scorer


@dataclass(frozen=True)
class OnLoop:
    """A corrector whose methods are coroutines."""

    corrector: Corrector

    async def review(self, request: ReviewRequest) -> Review:
        return self.corrector.review(request)

    async def correct(self, request: ReviewRequest, step: int) -> str:
        return self.corrector.correct(request, step)

    async def verify(self, request: ReviewRequest, step: int, correction: str) -> Verification:
        return self.corrector.verify(request, step, correction)


EXACT = OnLoop(correctors.EXACT)
NOISY = OnLoop(correctors.NOISY)
SYSTEMATIC = OnLoop(correctors.SYSTEMATIC)
ALARMIST = OnLoop(correctors.ALARMIST)
VERBOSE = OnLoop(correctors.VERBOSE)
LEAKING = OnLoop(correctors.LEAKING)
INFORMED = OnLoop(correctors.INFORMED)


class Client(Protocol):
    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any: ...


@dataclass
class HintJudge(Judge):
    """The policy with a hint as its own judge.

    A step is harmful if the hinted policy finds one of its characters improbable; the correction is what it writes itself.

    Attributes:
        doubt: probability of a character below which its step is harmful.
    """

    client: Client
    scorer: Scorer
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    doubt: float = 0.2
    longest: int = 24
    name: str = "hint"

    def context(self, request: ReviewRequest, steps: int) -> list[int]:
        """What the hinted policy sees before it writes step ``steps + 1``."""
        return self.encode(HINT + str(request.problem[-1]["content"]) + "".join(request.steps[:steps]))

    async def review(self, request: ReviewRequest) -> Review:
        first, last = (0, len(request.steps)) if request.focus is None else (request.focus - 1, request.focus)
        texts = request.steps[first:last]
        context, ids = self.context(request, first), self.encode("".join(texts))
        usage = Usage(calls=1, prompt_tokens=len(context) + len(ids))
        log_probs, at = await self.scorer.score(context, ids), 0
        for number, text in enumerate(texts, first + 1):
            length = len(self.encode(text))
            if min(log_probs[at : at + length], default=0.0) < math.log(self.doubt):
                return Review.revise(number, final=is_ended(text)).with_usage(usage)
            at += length
        return Review.keep().with_usage(usage)

    async def correct(self, request: ReviewRequest, step: int) -> Correction:
        context = self.context(request, step - 1)
        params = {"temperature": 0.0, "max_tokens": self.longest, "stop": ["\n"], "include_stop_str_in_output": True}
        output = await self.client.generate(f"hint-{uuid4().hex}", prompt_ids=context, sampling_params=params)
        usage = Usage(calls=1, prompt_tokens=len(context), completion_tokens=len(output.token_ids))
        return Correction(self.decode(output.token_ids).strip(), usage)

    async def verify(self, request: ReviewRequest, step: int, correction: str) -> Verification:
        context, ids = self.context(request, step - 1), self.encode(correction)
        probable = min(await self.scorer.score(context, ids)) >= math.log(self.doubt)
        early = is_ended(correction) and not is_ended(request.steps[step - 1])
        usage = Usage(calls=1, prompt_tokens=len(context) + len(ids))
        return Verification(
            agrees=probable, leak_free=not early, plausible=len(correction) <= self.longest, usage=usage
        )


def hint_judge(judge: HintJudge, config: JudgeConfig, verifier: VerifierConfig) -> RolesJudge:
    """The hinted policy in all three roles, guarded as any judge is."""
    guarded = GuardedJudge(
        judge, timeout=config.call_deadline_s, concurrency=max(512, config.max_concurrency), joint=False
    )
    part = Part(guarded, Sight())
    return RolesJudge(part, part, part, LeakRules(verifier.shortest_gold, verifier.leak_ngram))

"""The questions put to a judge and the answers it may give. Pure data: no verl, no network.

Three roles (RTI, arXiv 2610.13438, section 3): the Validator finds the first harmful step, the Corrector rewrites it, the
Verifier checks the rewrite. MInTRL (arXiv 2609.12419, Algorithm 1) asks for verdict, step and correction in one call; here
that is a :class:`Review` whose ``correction`` is already filled.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable


class Verdict(StrEnum):
    KEEP = "keep"
    REVISE = "revise"


class Evidence(StrEnum):
    """What the judge may see beyond the problem and the steps."""

    NONE = "none"
    OUTCOME = "outcome"  # whether the finished response was scored a failure
    RUBRIC = "rubric"
    GOLD = "gold"


@dataclass(frozen=True)
class Usage:
    """Cost of the calls behind one answer. Tokens are 0 where the backend does not count them."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.seconds + other.seconds,
        )


#: more calls or tokens than this are not believed of one answer
_MAX_COUNT = 10**9


def believed(count: Any) -> int:
    """A number of calls or tokens as a judge states it; 0 where it is no number, not positive, or 10^9 and more."""
    try:
        number = 0.0 if isinstance(count, bool | str | bytes) else float(count)
    except (TypeError, ValueError, OverflowError):
        return 0
    return int(number) if 0 < number < _MAX_COUNT else 0


@dataclass(frozen=True)
class ReviewRequest:
    """One look at an unfinished (or finished) response.

    Attributes:
        problem: chat messages of the prompt, as in the dataset (``raw_prompt``).
        steps: texts of the steps that may be judged, in order; step numbers are 1-based.
        observations: what the policy saw before each step (user or tool messages of a conversation); empty for plain text.
        finished: whether the policy has ended its response; only then may the last step be an ending.
        evidence: what ``privileged`` holds; ``Evidence.NONE`` means ``privileged`` is None.
        privileged: text only the judge may see (gold answer, rubric, outcome); corrections that repeat it are rejected.
        sample: the dataset row of this prompt, for judges that are functions.
        global_step: step of the trainer that the session is sampled for.
        uid: group id given by verl; unique in a run.
        session_id: number of the session within its group.
        attempt: 0-based number of this review within its session.
        outcome: reward of the finished response, where it is known; shown only to roles with ``Evidence.OUTCOME``.
        focus: the one step in question, when a session is walked step by step (RTI); None asks about all of them.
    """

    problem: tuple[dict[str, Any], ...]
    steps: tuple[str, ...]
    finished: bool
    evidence: Evidence = Evidence.NONE
    privileged: str | None = field(default=None, repr=False)
    sample: dict[str, Any] = field(default_factory=dict, repr=False)
    global_step: int = 0
    uid: str = ""
    session_id: int = 0
    attempt: int = 0
    outcome: float | None = None
    focus: int | None = None
    observations: tuple[str, ...] = ()


@dataclass(frozen=True)
class Review:
    """Answer of a Validator, or of a judge that validates and corrects in one call.

    Attributes:
        step: 1-based number of the **first** harmful step; None for KEEP.
        correction: replacement of that step; None for KEEP and for a pure Validator.
        final: whether the correction gives the final answer, so that the policy may end its response right after it.
    """

    verdict: Verdict
    step: int | None = None
    correction: str | None = None
    final: bool = False
    usage: Usage = Usage()

    @classmethod
    def keep(cls) -> Review:
        return cls(Verdict.KEEP)

    @classmethod
    def revise(cls, step: int, correction: str | None = None, final: bool = False) -> Review:
        return cls(Verdict.REVISE, step, correction, final)

    def with_usage(self, usage: Usage) -> Review:
        return replace(self, usage=usage)


@dataclass(frozen=True)
class Correction:
    """Answer of a Corrector: the text that takes the place of the harmful step."""

    text: str
    usage: Usage = Usage()


@dataclass(frozen=True)
class Verification:
    """Answer of a Verifier: its three checks, separately (RTI section 3)."""

    agrees: bool  # with the gold requirement
    leak_free: bool  # reveals no privileged information
    plausible: bool  # reads like the policy's own continuation
    usage: Usage = Usage()

    @property
    def accepted(self) -> bool:
        return self.agrees and self.leak_free and self.plausible

    @property
    def reason(self) -> str:
        """Name of the first failed check, empty if none failed."""
        checks = (("disagrees", self.agrees), ("leak", self.leak_free), ("implausible", self.plausible))
        return next((name for name, passed in checks if not passed), "")


@runtime_checkable
class Judge(Protocol):
    """A backend. Every method raises :class:`verl_mintrl.errors.JudgeError` when there is no usable answer.

    ``name`` identifies the backend in metrics and dumps.
    """

    name: str

    async def review(self, request: ReviewRequest) -> Review:
        """Validate; a joint judge also corrects."""
        ...

    async def correct(self, request: ReviewRequest, step: int) -> Correction:
        """Rewrite ``request.steps[step - 1]``."""
        ...

    async def verify(self, request: ReviewRequest, step: int, correction: str) -> Verification:
        """Check a proposed rewrite of ``request.steps[step - 1]``."""
        ...

"""Token ids of one response with the author of each token.

Who wrote a token decides how it is trained on (MInTRL, arXiv 2609.12419: anchors on inserted tokens; RTI, arXiv
2610.13438: weights on inserted tokens), so all masks are derived from one list of spans instead of being kept side by
side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from verl_mintrl.errors import TrajectoryError


class Author(IntEnum):
    ENVIRONMENT = 0  # tool results and chat template between turns: never trained on
    POLICY = 1
    CORRECTOR = 2


@dataclass(frozen=True)
class Span:
    """Tokens written at once by one author.

    Attributes:
        start: index of the first token in the response.
        end: index after the last token.
        origin: running number of the write (generation chunk or insertion); never reused, also not after a cut.
    """

    start: int
    end: int
    author: Author
    origin: int

    def __len__(self) -> int:
        return self.end - self.start


class Trajectory:
    """The response of one session, growing by writes and shrinking by cuts.

    Attributes:
        limit: most tokens the response may have (``response_length``).
        ids: token ids, [T].
        logprobs: log-probability under the policy that sampled the token, [T]; NaN where nobody scored it, so that a
            filler can never pass for a value.
        weights: per-token weight in the objective, [T]; 1.0 unless the gate sets another.
        spans: contiguous, in order, covering exactly 0..T.

    Raises:
        TrajectoryError: ``limit`` is not positive.
    """

    def __init__(self, limit: int) -> None:
        if limit <= 0:
            raise TrajectoryError(f"response limit is {limit}, expected > 0.", "set data.max_response_length")
        self.limit = limit
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.weights: list[float] = []
        self.spans: list[Span] = []
        self._inserted = 0
        self._writes = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def remaining(self) -> int:
        """Tokens that still fit."""
        return self.limit - len(self.ids)

    @property
    def inserted(self) -> int:
        """Number of CORRECTOR tokens."""
        return self._inserted

    def inserted_before(self, end: int) -> int:
        """Number of CORRECTOR tokens with an index below ``end``: what ``inserted`` would be after ``cut(end)``."""
        inserted = self._inserted
        for span in reversed(self.spans):
            if span.end <= end:
                break
            if span.author is Author.CORRECTOR:
                inserted -= span.end - max(span.start, end)
        return inserted

    def append(
        self,
        ids: Sequence[int],
        author: Author,
        logprobs: Sequence[float] | None = None,
        weights: Sequence[float] | None = None,
    ) -> Span | None:
        """Write ``ids`` at the end.

        Args:
            ids: [n].
            logprobs: [n]; None leaves NaN.
            weights: [n]; None means 1.0.

        Returns:
            The new span; None if ``ids`` is empty.

        Raises:
            TrajectoryError: lengths disagree or the limit would be exceeded; nothing is changed then.
        """
        count = len(ids)
        for name, column in (("logprobs", logprobs), ("weights", weights)):
            if column is not None and len(column) != count:
                raise TrajectoryError(f"{len(column)} {name} for {count} token ids.", f"pass one of {name} per id")
        if count > self.remaining:
            raise TrajectoryError(
                f"{count} tokens do not fit: {len(self.ids)} of {self.limit} are used.",
                "truncate to Trajectory.remaining before appending",
            )
        if not count:
            return None
        start = len(self.ids)
        self.ids.extend(ids)
        self.logprobs.extend([math.nan] * count if logprobs is None else logprobs)
        self.weights.extend([1.0] * count if weights is None else weights)
        span = Span(start, start + count, Author(author), self._writes)
        self.spans.append(span)
        self._writes += 1
        if span.author is Author.CORRECTOR:
            self._inserted += count
        return span

    def cut(self, end: int) -> list[int]:
        """Drop all tokens from index ``end`` on and return their ids.

        Raises:
            TrajectoryError: ``end`` lies outside 0..T.
        """
        if not 0 <= end <= len(self.ids):
            raise TrajectoryError(f"cannot cut at token {end} of {len(self.ids)}.", "use an index from 0 to the length")
        dropped = self.ids[end:]
        del self.ids[end:], self.logprobs[end:], self.weights[end:]
        while self.spans and self.spans[-1].end > end:
            span = self.spans.pop()
            kept_to = max(span.start, end)
            if span.author is Author.CORRECTOR:
                self._inserted -= span.end - kept_to
            if kept_to > span.start:
                self.spans.append(replace(span, end=kept_to))
        return dropped

    def copy(self) -> Trajectory:
        """The same tokens, authors, log-probs and weights in an object of its own."""
        twin = Trajectory(self.limit)
        twin.ids, twin.logprobs, twin.weights = list(self.ids), list(self.logprobs), list(self.weights)
        twin.spans = list(self.spans)
        twin._inserted, twin._writes = self._inserted, self._writes
        return twin

    def authors(self) -> list[int]:
        """Author of every token as a plain int, [T]."""
        return self._per_token(int)

    def response_mask(self) -> list[int]:
        """1 where the token is trained on (policy and corrector), 0 for the environment, [T]."""
        return self._per_token(lambda author: int(author is not Author.ENVIRONMENT))

    def _per_token(self, value: Callable[[Author], int]) -> list[int]:
        column: list[int] = []
        for span in self.spans:
            column += [value(span.author)] * len(span)
        return column

    def check(self) -> None:
        """Verify every invariant in O(T).

        Raises:
            TrajectoryError: names the first disagreement.
        """
        length = len(self.ids)
        if length > self.limit:
            raise TrajectoryError(f"{length} token ids exceed the limit {self.limit}.")
        for name, column in (("logprobs", self.logprobs), ("weights", self.weights)):
            if len(column) != length:
                raise TrajectoryError(f"{len(column)} {name} for {length} token ids.")
        at, origin, inserted = 0, -1, 0
        for number, span in enumerate(self.spans):
            if span.start != at or span.end <= span.start:
                raise TrajectoryError(f"span {number} covers {span.start}..{span.end}, expected to start at {at}.")
            if not origin < span.origin < self._writes:
                raise TrajectoryError(f"span {number} has origin {span.origin}, expected {origin + 1} or later.")
            at, origin = span.end, span.origin
            inserted += len(span) if span.author is Author.CORRECTOR else 0
        if at != length:
            raise TrajectoryError(f"spans cover {at} tokens of {length}.")
        if inserted != self._inserted:
            raise TrajectoryError(f"{self._inserted} inserted tokens were counted, spans hold {inserted}.")

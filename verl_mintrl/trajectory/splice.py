"""Putting a correction in the place of a wrong step (MInTRL, arXiv 2609.12419, Algorithm 1).

Only the correction is ever encoded. Tokens before the cut are the sampled ones, untouched: they are kept by truncating
the list they are in. Where a cut falls inside a token or a character, the characters lost by backing off to the token
boundary (the *carry*) are encoded together with the correction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from verl_mintrl.errors import ConfigError, TrajectoryError
from verl_mintrl.trajectory.spans import Author, Trajectory
from verl_mintrl.trajectory.text import REPLACEMENT, TokenText

#: text -> token ids, without special tokens
Encode = Callable[[str], list[int]]

# what no tokenizer can encode (lone surrogates), or should (NUL)
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")

# texts a correction is encoded after where encoding it alone would add something (sentencepiece: a leading space)
_ANCHORS = ("\n", ".", "0")


def _special_tokens(tokenizer: Any) -> dict[int, str]:
    tokens = dict(zip(tokenizer.all_special_ids, map(str, tokenizer.all_special_tokens), strict=True))
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return tokens | {index: str(token) for index, token in added.items() if token.special}


def control_strings(tokenizer: Any) -> tuple[str, ...]:
    """Texts that the tokenizer would encode as special tokens, longest first.

    Args:
        tokenizer: with ``all_special_ids``, ``all_special_tokens`` and, optionally, ``added_tokens_decoder``.
    """
    return tuple(sorted({token for token in _special_tokens(tokenizer).values() if token}, key=lambda t: (-len(t), t)))


def neutralise(text: str, control_strings: Iterable[str]) -> str:
    """Remove control strings, NUL characters and lone surrogates (which no tokenizer can encode).

    Characters are written one by one and a control string is taken back as soon as it is complete, so what remains
    never held one: removing ``<|im_end|>`` from ``<|im_<|im_end|>end|>`` leaves nothing that could be completed. Linear
    in the text.
    """
    text = _UNWRITABLE.sub("", text)
    controls = sorted(filter(None, control_strings), key=len, reverse=True)
    if not any(control in text for control in controls):
        return text
    by_last: dict[str, list[str]] = {}
    for control in controls:
        by_last.setdefault(control[-1], []).append(control)
    kept: list[str] = []
    for character in text:
        kept.append(character)
        for control in by_last.get(character, ()):
            if len(control) <= len(kept) and kept[-len(control) :] == list(control):
                del kept[-len(control) :]
                break
    return "".join(kept)


def encode_correction(tokenizer: Any, text: str) -> list[int]:
    """Encode text that will stand inside a response.

    Tokenizers that write a space at the start of a text (sentencepiece) are given a character before it, so that the
    ids decode to ``text`` and nothing else. A tokenizer that normalises text (NFC) may still write it differently.

    Args:
        tokenizer: with ``encode(text, add_special_tokens=)``, ``decode(ids, skip_special_tokens=,
            clean_up_tokenization_spaces=)`` and what :func:`control_strings` needs.
        text: neutralised text.

    Raises:
        TrajectoryError: the ids contain a special token.
    """

    def encode(part: str) -> list[int]:
        return list(tokenizer.encode(part, add_special_tokens=False))

    def decode(ids: list[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    ids = encode(text)
    for anchor in _ANCHORS:
        before = encode(anchor)
        expected = decode(before) + text
        if decode(before + ids) == expected:
            break
        both = encode(anchor + text)
        if both[: len(before)] == before and decode(both) == expected:
            ids = both[len(before) :]
            break
    special = _special_tokens(tokenizer)
    for index in ids:
        if index in special:
            raise TrajectoryError(
                f"the correction encodes to the special token {special[index]!r} ({index}).",
                "neutralise the text with the control strings of this tokenizer first",
            )
    return ids


@dataclass(frozen=True)
class Budget:
    """What may be done to one session.

    Attributes:
        max_reviews: questions put to the judge.
        max_insertions: corrections spliced in; one that a later correction cuts away still counts.
        max_insertion_tokens: tokens of one correction. A longer one is an error of the judge, see
            :meth:`Ledger.too_long`.
        max_inserted_share: inserted tokens / all tokens, both right after the splice, in (0, 1]; 1 is no bound. It is a
            bound at that moment: tokens the policy adds later lower the share. MInTRL found 2-4 % *over all sessions*
            best; a short answer exceeds that by nature (20 inserted tokens in 200 are 10 %, and a correction of the
            first step is 100 % at the time it is made), so a bound of that size per session forbids every early
            correction.

    Raises:
        ConfigError: a value is out of range.
    """

    max_reviews: int
    max_insertions: int
    max_insertion_tokens: int
    max_inserted_share: float

    def __post_init__(self) -> None:
        for name in ("max_reviews", "max_insertions", "max_insertion_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(
                    f"intervention.budget.{name} is {value!r}, expected an integer >= 1.",
                    "to switch interventions off, use a trigger that never fires",
                )
        share = self.max_inserted_share
        if not isinstance(share, int | float) or isinstance(share, bool) or not 0 < share <= 1:
            raise ConfigError(
                f"intervention.budget.max_inserted_share is {share!r}, expected a number in (0, 1].", "1.0 is no bound"
            )


@dataclass
class Ledger:
    """What one session has used of its budget."""

    budget: Budget
    reviews: int = 0
    insertions: int = 0

    def may_review(self) -> bool:
        """Whether a review is left, and an insertion that it could lead to."""
        return self.reviews < self.budget.max_reviews and self.insertions < self.budget.max_insertions

    def count_review(self) -> None:
        self.reviews += 1

    def count_insertion(self) -> None:
        self.insertions += 1

    def too_long(self, n_correction_tokens: int) -> bool:
        return n_correction_tokens > self.budget.max_insertion_tokens

    def reject_reason(
        self, kept: int, inserted_kept: int, n_correction_tokens: int, limit: int, finishes: bool = False
    ) -> str:
        """Why a correction may not be spliced in.

        Args:
            kept: tokens of the response that stay, i.e. the cut.
            inserted_kept: how many of them are inserted ones.
            n_correction_tokens: tokens to insert, the carry included.
            limit: most tokens of the response.
            finishes: whether the correction ends the response; otherwise at least one token of the policy must fit
                after it.

        Returns:
            "" if it may, else ``insertions`` (none left), ``no_room`` (it does not fit) or ``share`` (too much
            inserted).
        """
        if self.insertions >= self.budget.max_insertions:
            return "insertions"
        total = kept + n_correction_tokens
        if total + (not finishes) > limit:
            return "no_room"
        if total and (inserted_kept + n_correction_tokens) / total > self.budget.max_inserted_share:
            return "share"
        return ""


@dataclass(frozen=True)
class Plan:
    """A splice that has been computed but not done.

    Attributes:
        start: token index of the cut and of the first inserted token.
        carry: characters before the asked offset that lie behind the cut, now first in the insertion.
        ids: tokens to insert.
    """

    start: int
    carry: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Inserted:
    """A splice that was done: ``trajectory.ids[start:end]`` are the corrector's, in the place of ``dropped_ids``."""

    start: int
    end: int
    dropped_ids: list[int]
    carry: str


def plan_splice(token_text: TokenText, char_offset: int, correction_text: str, encode: Encode) -> Plan:
    """Find the cut and encode the insertion; changes nothing.

    Args:
        token_text: text of the response.
        char_offset: character where the wrong step starts.
        correction_text: neutralised text that takes its place.
        encode: see :func:`encode_correction`; called with carry + correction.

    Raises:
        TrajectoryError: the offset lies outside the text, or there is nothing to insert; whatever ``encode`` raises.
    """
    text = token_text.text
    start, carry = token_text.boundary(char_offset)
    ids = encode(carry + correction_text)
    kept = text[: char_offset - len(carry)]
    if (
        kept.endswith(REPLACEMENT)
        and token_text.decode(token_text.ids[:start] + ids) != text[:char_offset] + correction_text
    ):
        # undecodable bytes before the cut would join with the insertion (byte-fallback decoders): back off behind them
        solid = len(kept.rstrip(REPLACEMENT))
        start, lost = token_text.boundary(solid)
        carry = text[solid - len(lost) : char_offset]
        ids = encode(carry + correction_text)
    if not ids:
        raise TrajectoryError("the correction has no tokens.", "an empty correction is an error of the judge")
    return Plan(start, carry, tuple(ids))


def apply_splice(
    trajectory: Trajectory,
    token_text: TokenText,
    plan: Plan,
    logprobs: Sequence[float] | None = None,
    weights: Sequence[float] | None = None,
) -> Inserted:
    """Do a planned splice on the tokens and on their text; afterwards both hold the same tokens.

    Args:
        token_text: text of the trajectory's tokens; may leave out last ones that no judge shall see (EOS), which the
            cut drops.
        logprobs: of ``plan.ids``, [n]; None leaves NaN.
        weights: of ``plan.ids``, [n]; None means 1.0.

    Raises:
        TrajectoryError: the trajectory does not start with the tokens of the text, lengths disagree, or the limit would
            be exceeded; nothing is changed then.
    """
    if token_text.ids != trajectory.ids[: len(token_text)]:
        raise TrajectoryError(
            f"the text is of {len(token_text)} tokens with which the {len(trajectory)} of the trajectory do not start.",
            "extend and truncate both together",
        )
    count = len(plan.ids)
    for name, column in (("logprobs", logprobs), ("weights", weights)):
        if column is not None and len(column) != count:
            raise TrajectoryError(f"{len(column)} {name} for {count} tokens to insert.")
    if plan.start + count > trajectory.limit:
        raise TrajectoryError(
            f"{count} tokens after token {plan.start} exceed the limit {trajectory.limit}.",
            "ask Ledger.reject_reason before splicing",
        )
    dropped = trajectory.cut(plan.start)
    token_text.truncate(plan.start)
    trajectory.append(plan.ids, Author.CORRECTOR, logprobs, weights)
    token_text.extend(plan.ids)
    return Inserted(plan.start, plan.start + count, dropped, plan.carry)


def splice(
    trajectory: Trajectory, token_text: TokenText, char_offset: int, correction_text: str, encode: Encode
) -> Inserted:
    """:func:`plan_splice` and :func:`apply_splice` at once, for callers that need no look at the plan."""
    return apply_splice(trajectory, token_text, plan_splice(token_text, char_offset, correction_text, encode))

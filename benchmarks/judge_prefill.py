"""How many prompt tokens must a judge's server read, with and without its prefix cache?

One session is reviewed every 512 tokens with the shipped prompts, through the tokenizer and chat template of SmolLM2. Every fourth
review finds the last step wrong: it is replaced, and separate roles ask Corrector and Verifier too. The cache is vLLM's: full
blocks of 16 tokens, found again if all tokens up to their end are the same as in any earlier request.

    python benchmarks/judge_prefill.py --seeds 3

Writes the printed table to benchmarks/results/judge_prefill.txt. Nothing is timed. Exit code 1 if what is left to read after reuse
does not grow linearly, or if a review reads again a step that the review before it has shown.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cost_parts import solver, table
from cost_parts.statistics import exponent, spread
from cost_parts.tokenizer import smollm2

from verl_mintrl.judges.prompts import PromptSet
from verl_mintrl.judges.protocol import Evidence, ReviewRequest

LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
REVIEW_EVERY = 512
REVISE_EVERY = 4  # reviews
BLOCK = 16
STEP = 64  # most tokens of a step; a started one is not shown
MODES = {"joint": ("reviewer",), "separate roles": ("validator", "corrector", "verifier")}
LINEAR = 1.1  # largest exponent that passes for linear: the system message is a fixed cost of the first request
GOLD = "The final answer is 4711."


class PrefixCache:
    """vLLM's automatic prefix caching of one server that never has to forget."""

    def __init__(self, block: int = BLOCK) -> None:
        self._block = block
        self._known: set[int] = set()

    def ask(self, ids: Sequence[int]) -> int:
        """Tokens of the prompt that need not be read; afterwards all its full blocks are known.

        The last token is always computed, since its logits are what the answer starts from.
        """
        reused, chain, same = 0, 0, True
        for end in range(self._block, len(ids) + 1, self._block):
            chain = hash((chain, tuple(ids[end - self._block : end])))
            same = same and chain in self._known and end < len(ids)
            reused = end if same else reused
            self._known.add(chain)
        return reused


@dataclass
class Bill:
    """Requests and prompt tokens so far.

    Attributes:
        asked: tokens sent.
        read: those left after prefix reuse.
        first: tokens reused in the first request, and ``first_length``, its length.
    """

    requests: int = 0
    asked: int = 0
    read: int = 0
    first: int = 0
    first_length: int = 0

    def add(self, tokens: int, reused: int) -> None:
        if not self.requests:
            self.first, self.first_length = reused, tokens
        self.requests += 1
        self.asked += tokens
        self.read += tokens - reused


@dataclass
class Reading:
    """What the judge of one session had to read, by response length.

    Attributes:
        shown_again: reviews whose prompt differs from that of the review before within the steps that both show.
        not_reused: reviews of which less was reused than they share with the one before, but for a part of a block.
        opened: the first request's problem and evidence were reused, but for a part of a block.
    """

    at: dict[int, Bill] = field(default_factory=dict)
    shown_again: int = 0
    not_reused: int = 0
    opened: bool = False


class Judge:
    """Writes the prompts of one mode and asks the cache.

    Args:
        roles: who is asked: the first always, the others about a step found wrong.
    """

    def __init__(self, tokenizer: Any, roles: Sequence[str], cache: PrefixCache) -> None:
        self._tokenizer, self._roles, self._cache = tokenizer, roles, cache
        self._prompts = PromptSet()

    def prompt(self, role: str, request: ReviewRequest, **of: Any) -> list[int]:
        messages = self._prompts.messages(role, request, **of)
        return list(
            self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
        )

    def review(self, request: ReviewRequest, correction: str | None) -> Iterator[tuple[list[int], int]]:
        """Prompts of one review and how much of each was reused; ``correction`` replaces the last step."""
        questions: list[dict[str, Any]] = [{}]
        if correction is not None:
            step = len(request.steps)
            questions += [{"step": step}, {"step": step, "correction": correction}][: len(self._roles) - 1]
        for role, of in zip(self._roles, questions, strict=False):
            ids = self.prompt(role, request, **of)
            yield ids, self._cache.ask(ids)


def problem(seed: int) -> tuple[dict[str, str], ...]:
    """A prompt of a few sentences."""
    rng = random.Random(f"problem {seed}")
    return ({"role": "user", "content": solver.text(rng, 4).strip() + "\nWhat is the result?"},)


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def read(judge: Judge, tokenizer: Any, lengths: Sequence[int], seed: int, session: int = 0) -> Reading:
    """One session, reviewed up to the greatest length."""
    rng = random.Random(f"session {seed} {session}")
    found, bill = Reading(), Bill()
    steps: list[str] = []
    written, kept = 0, 0  # tokens; steps of the review before that still stand
    before: list[int] = []
    for review in range(1, max(lengths) // REVIEW_EVERY + 1):
        while written + STEP <= review * REVIEW_EVERY:
            steps.append(solver.step(rng, len(steps) + 1))
            written += len(tokenizer.encode(steps[-1], add_special_tokens=False))
        request = ReviewRequest(
            problem(seed), tuple(steps), finished=False, evidence=Evidence.GOLD, privileged=GOLD, attempt=review - 1
        )
        correction = solver.step(rng, len(steps)) if review % REVISE_EVERY == 0 else None
        for number, (ids, reused) in enumerate(judge.review(request, correction)):
            bill.add(len(ids), reused)
            if bill.requests == 1:
                found.opened = "<<<end of evidence " in tokenizer.decode(ids[: reused + BLOCK])
            if number == 0:
                common = shared(before, ids)
                found.not_reused += reused < common - BLOCK
                found.shown_again += bool(kept) and f"<<<end of step {kept} " not in tokenizer.decode(ids[:common])
                before = ids
        kept = len(steps)
        if correction is not None:
            steps[-1] = correction
            kept -= 1
        if review * REVIEW_EVERY in lengths:
            found.at[review * REVIEW_EVERY] = replace(bill)
    return found


@dataclass
class Findings:
    """By mode, one entry per seed.

    Attributes:
        sessions: a session with a cache of its own.
        siblings: a short session after another one of the same prompt.
        strangers: a short session after those of another prompt only.
    """

    sessions: dict[str, list[Reading]] = field(default_factory=dict)
    siblings: dict[str, list[Reading]] = field(default_factory=dict)
    strangers: dict[str, list[Reading]] = field(default_factory=dict)

    def growth(self, mode: str, what: str) -> float:
        """Exponent of asked or read tokens over response lengths with a correction, mean over seeds."""
        corrected = [length for length in self.sessions[mode][0].at if length >= REVISE_EVERY * REVIEW_EVERY]
        return statistics.mean(
            exponent(corrected, [getattr(reading.at[length], what) for length in corrected])
            for reading in self.sessions[mode]
        )

    @property
    def broken(self) -> list[str]:
        """What must hold and does not."""
        faults = []
        for mode, readings in self.sessions.items():
            if self.growth(mode, "read") > LINEAR:
                faults.append(f"{mode}: what is left after prefix reuse grows faster than the response")
            if any(reading.shown_again for reading in readings):
                faults.append(f"{mode}: a prompt differs from the one before it within the steps that both show")
            if any(reading.not_reused for reading in readings):
                faults.append(f"{mode}: a shared prefix was not reused")
            if not all(reading.opened for reading in self.siblings[mode]):
                faults.append(f"{mode}: sessions of one prompt do not share problem and evidence")
        return faults


def measure(tokenizer: Any, lengths: Sequence[int], seeds: int) -> Findings:
    findings = Findings()
    for mode, roles in MODES.items():
        for kind in (findings.sessions, findings.siblings, findings.strangers):
            kind[mode] = []
        for seed in range(seeds):
            judge = Judge(tokenizer, roles, PrefixCache())
            findings.sessions[mode].append(read(judge, tokenizer, lengths, seed))
            shortest = [min(lengths)]
            for kind, other in ((findings.siblings, seed), (findings.strangers, seed + seeds)):
                kind[mode].append(read(judge, tokenizer, shortest, other, session=1))
    return findings


def lines(findings: Findings) -> list[str]:
    rows, ends = [], []
    for mode, readings in findings.sessions.items():
        for length in readings[0].at:
            bills = [reading.at[length] for reading in readings]
            asked, left = [b.asked / length for b in bills], [b.read / length for b in bills]
            rows.append(
                [
                    mode,
                    str(length),
                    str(bills[0].requests),
                    f"{statistics.mean(b.asked for b in bills):.0f}",
                    f"{statistics.mean(b.read for b in bills):.0f}",
                    spread(asked, "{:.1f}".format),
                    spread(left, "{:.2f}".format),
                    f"{1 - sum(b.read for b in bills) / sum(b.asked for b in bills):.1%}",
                ]
            )
        ends.append(
            f"{mode}: asked ~ length^{findings.growth(mode, 'asked'):.3f}, left after reuse ~ "
            f"length^{findings.growth(mode, 'read'):.3f}; reused of a session's first request: "
            f"{_opening(findings.siblings[mode])} tokens after another session of the prompt, "
            f"{_opening(findings.strangers[mode])} after other prompts only"
        )
    head = ["roles", "response", "requests", "asked", "left", "asked / token", "left / token", "reused"]
    return [*table.columns(head, rows), "", *ends]


def _opening(readings: Sequence[Reading]) -> str:
    """Tokens reused of the first request, of how many, both means."""
    first = [next(iter(reading.at.values())) for reading in readings]
    return f"{statistics.mean(b.first for b in first):.0f} of {statistics.mean(b.first_length for b in first):.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    tokenizer = smollm2()
    tokenizer.model_max_length = 10**9  # nothing is run through the model
    findings = measure(tokenizer, LENGTHS, arguments.seeds)
    title = (
        f"Prompt tokens a judge's server is asked, and those left after prefix reuse (blocks of {BLOCK}): a review every "
        f"{REVIEW_EVERY} tokens, the last step replaced at every {REVISE_EVERY}th; seeds 0-{arguments.seeds - 1}, median (range)"
    )
    table.publish("judge_prefill", title, lines(findings))
    for fault in findings.broken:
        print(f"broken: {fault}", file=sys.stderr)
    return bool(findings.broken)


if __name__ == "__main__":
    sys.exit(main())

"""What do spans, splices and masks cost, and do they grow with the response or with its square?

A whole treated session (``PeriodicSession`` and the row for verl) over the tokenizer of SmolLM2, with a policy and a judge that
answer at once. The judge replaces the last complete step at every review point, once for every 512 tokens of the response
length: 64 times at 32k tokens. The time inside the stand-ins is taken out; what is left is the plugin's. Overlapped, the judge
answers while the policy is at the next 512 tokens.

    python benchmarks/bookkeeping_cost.py --repeats 7 --seed 0

Writes the printed table to benchmarks/results/bookkeeping_cost.txt. Exit code 1 if a session did not get its interventions or
its row is inconsistent.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import verl.trainer.ppo.v1.agent_loop_tq  # noqa: F401  # first: it loads the plugin, whose modules import parts of verl
from cost_parts import solver, table
from cost_parts.statistics import exponent, spread
from cost_parts.tokenizer import smollm2

from verl_mintrl.config.judge import JudgeConfig
from verl_mintrl.config.schema import GateConfig, ReviewConfig, TokenWeightsConfig
from verl_mintrl.judges.leak import LeakRules
from verl_mintrl.judges.limits import GuardedJudge
from verl_mintrl.judges.protocol import Correction, Judge, Review, ReviewRequest, Verification
from verl_mintrl.judges.roles import Part, RolesJudge, Sight
from verl_mintrl.rollout.output import InterventionOutput
from verl_mintrl.rollout.periodic import PeriodicSession, Reviewing
from verl_mintrl.rollout.propose import Proposer
from verl_mintrl.rollout.worker import whole_text
from verl_mintrl.rollout.writer import ServerWriter
from verl_mintrl.trajectory.record import Outcome, SessionRecord
from verl_mintrl.trajectory.spans import Author, Trajectory
from verl_mintrl.trajectory.splice import Budget, control_strings, encode_correction
from verl_mintrl.trajectory.steps import get_segmenter

LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
PER_INTERVENTION = 512  # tokens of the response length
TARGET_US = 5.0
#: review mode -> its config; a step has 52 tokens on average, so the last asks every 420
MODES = {
    "every 512 tokens": ReviewConfig(every_tokens=512, every_steps=None),
    "overlapped": ReviewConfig(every_tokens=512, every_steps=None, mode="overlapped"),
    "every 8 steps": ReviewConfig(every_tokens=None, every_steps=8),
}


class Stopwatch:
    """Adds up the seconds spent inside the functions it wraps, by the clock on the wall: asking for CPU time is no small part of
    what is measured here."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - started

        return timed


class Policy:
    """verl's server client with the answers written beforehand.

    Args:
        ids: what it writes, from call to call; no call reads the prompt.
        ends: tokens after which a stop string stands, by position in ``ids``.
        record: of the session; while the judge is at its last review, the policy takes longer than the judge.
    """

    def __init__(self, ids: list[int], ends: Sequence[int], record: SessionRecord) -> None:
        self.ids, self.ends, self.record, self.at, self._next = ids, ends, record, 0, 0
        self.seconds = 0.0

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        if self.record.reviews and self.record.reviews[-1].outcome == Outcome.KEPT:
            await asyncio.sleep(60)
        started = time.process_time()
        stop = self.at + sampling_params["max_tokens"]
        while self.ends[self._next] <= self.at:
            self._next += 1
        if "stop" in sampling_params:
            stop = min(stop, self.ends[self._next])
        chunk = self.ids[self.at : stop]
        self.at = stop
        output = SimpleNamespace(
            token_ids=chunk, log_probs=[-0.5] * len(chunk), stop_reason="completed", extra_fields={}
        )
        self.seconds += time.process_time() - started
        return output


class Replacer(Judge):
    """Replaces the last step it is shown."""

    name = "replacer"

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"corrections {seed}")
        self.seconds = 0.0

    async def review(self, request: ReviewRequest) -> Review:
        started = time.process_time()
        review = Review.revise(len(request.steps), solver.step(self.rng, len(request.steps)).strip())
        self.seconds += time.process_time() - started
        return review

    async def correct(self, request: ReviewRequest, step: int) -> Correction:
        raise NotImplementedError

    async def verify(self, request: ReviewRequest, step: int, correction: str) -> Verification:
        raise NotImplementedError


@dataclass(frozen=True)
class Written:
    """What the policy writes: token ids, and where its steps end."""

    ids: list[int]
    ends: list[int]

    @classmethod
    def draw(cls, tokenizer: Any, tokens: int, seed: int) -> Written:
        """At least ``tokens`` tokens; steps are encoded one by one, so that each ends at a token boundary."""
        rng, ids, ends = random.Random(f"policy {seed}"), [], []
        while len(ids) < tokens:
            ids += tokenizer.encode(solver.step(rng, len(ends) + 1), add_special_tokens=False)
            ends.append(len(ids))
        return cls(ids, ends)


@dataclass(frozen=True)
class Cost:
    """Seconds of one session.

    Attributes:
        session: writing, steps, reviews and splices, without the stand-ins.
        tokenizer: the part of it spent in the tokenizer.
        row: masks, authors and the row for verl, as tensors.
    """

    tokens: int
    interventions: int
    session: float
    tokenizer: float
    row: float

    @property
    def total(self) -> float:
        return self.session + self.row


class Inconsistent(Exception):
    """A session is not what it has to be."""


def measure(tokenizer: Any, written: Written, tokens: int, review: ReviewConfig, seed: int) -> Cost:
    """Run one session of ``tokens`` tokens.

    Raises:
        Inconsistent: it lacks interventions or tokens, or the columns of its row disagree.
    """
    watch = Stopwatch()
    wanted = tokens // PER_INTERVENTION
    config = JudgeConfig(function="not:used")
    judge = Replacer(seed)
    part = Part(GuardedJudge(judge, timeout=60.0, concurrency=8), Sight())
    decode = watch.around(whole_text(tokenizer))
    shared = Reviewing(
        judge=RolesJudge(part, part, part, LeakRules()),
        judge_config=config,
        verify=False,
        review=review,
        budget=Budget(max_reviews=10**6, max_insertions=wanted, max_insertion_tokens=256, max_inserted_share=1.0),
        segmenter=get_segmenter("paragraph"),
        proposer=Proposer(
            scorer=None,  # type: ignore[arg-type]  # nothing is scored without gate and weights
            gate=GateConfig(),
            token_weights=TokenWeightsConfig(),
            decode=decode,
            encode=watch.around(lambda text: encode_correction(tokenizer, text)),
            control_strings=control_strings(tokenizer),
            steering_context=lambda request, step: [],
        ),
        end_ids=frozenset(),  # the policy writes on up to the limit
    )
    record = SessionRecord(uid="u", session_id=0, step=1)
    policy = Policy(written.ids, written.ends, record)
    writer = ServerWriter(policy, {"temperature": 1.0, "logprobs": True}, "r", shared.end_ids, decode)
    request = ReviewRequest(problem=({"role": "user", "content": "?"},), steps=(), finished=False)
    session = PeriodicSession(shared, writer, written.ids[:64], tokens, request, record)

    gc.collect()
    started = time.process_time()
    trajectory = asyncio.run(session.run())
    ended = time.process_time()
    row = as_row(trajectory)
    finished = time.process_time()
    check(trajectory, row, record, tokens, wanted)
    return Cost(tokens, wanted, ended - started - policy.seconds - judge.seconds, watch.seconds, finished - ended)


def as_row(trajectory: Trajectory) -> dict[str, Any]:
    """The columns of verl's row, as the agent loop and the worker make them."""
    row = InterventionOutput(
        prompt_ids=[0],
        response_ids=trajectory.ids,
        response_mask=trajectory.response_mask(),
        response_logprobs=trajectory.logprobs,
        authors=trajectory.authors(),
        token_weights=trajectory.weights,
        num_turns=2,
        metrics={},
    )
    row.check(trajectory.limit)
    return row.as_dict()


def check(trajectory: Trajectory, row: dict[str, Any], record: SessionRecord, tokens: int, wanted: int) -> None:
    """Raises :class:`Inconsistent`, naming what is wrong."""
    stand = [review.inserted for review in record.reviews if review.inserted is not None]
    inserted = {i for span in stand for i in range(*span)}
    found = {i for i, author in enumerate(row["authors"].tolist()) if author == Author.CORRECTOR}
    if record.masked or len(trajectory) != tokens:
        raise Inconsistent(f"{len(trajectory)} of {tokens} tokens: {record.mask_reason or record.reviews[-1].detail}")
    if len(record.reviews) != wanted or {review.outcome for review in record.reviews} != {"inserted"}:
        raise Inconsistent(
            f"{wanted} interventions were wanted, got {[(r.outcome, r.reason, r.detail) for r in record.reviews]}"
        )
    if found != inserted or trajectory.inserted != len(inserted):
        raise Inconsistent("corrector tokens do not stand where the reviews say")
    if any(len(row[name]) != tokens for name in ("responses", "response_mask", "authors", "token_weights")):
        raise Inconsistent("a column of the row has another length")


def loop_pass() -> float:
    """Seconds of one pass of a plain loop: how fast this machine is right now."""
    passes, total = 1_000_000, 0
    started = time.process_time()
    for i in range(passes):
        total += i
    return (time.process_time() - started) / passes


def run(
    tokenizer: Any, lengths: Sequence[int], repeats: int, seed: int
) -> tuple[dict[str, dict[int, list[Cost]]], list[float]]:
    """Costs by review mode and length, and the seconds of a loop pass in between.

    Lengths take turns, so that a busy moment does not hit one of them alone.
    """
    written = Written.draw(tokenizer, 2 * max(lengths), seed)  # some of it is replaced
    measure(tokenizer, written, min(lengths), MODES["every 512 tokens"], seed)  # imports, caches
    found: dict[str, dict[int, list[Cost]]] = {mode: {n: [] for n in lengths} for mode in MODES}
    passes = []
    for _ in range(repeats):
        for mode, review in MODES.items():
            passes.append(loop_pass())
            for tokens in lengths:
                found[mode][tokens].append(measure(tokenizer, written, tokens, review, seed))
    return found, passes


def lines(found: dict[str, dict[int, list[Cost]]], passes: list[float]) -> list[str]:
    """The table, and what it says about growth.

    Args:
        passes: seconds of a loop pass, measured in between.
    """
    loop_us = 1e6 * statistics.median(passes)
    rows, ends = [], []
    for mode, by_length in found.items():
        medians = {}
        for tokens, costs in by_length.items():
            per_token = [1e6 * cost.total / tokens for cost in costs]
            medians[tokens] = statistics.median(cost.total for cost in costs)

            def part(name: str, costs: list[Cost] = costs, tokens: int = tokens) -> str:
                return f"{1e6 * statistics.median(getattr(cost, name) for cost in costs) / tokens:.2f}"

            rows.append(
                [
                    mode,
                    str(tokens),
                    str(costs[0].interventions),
                    spread(per_token, "{:.2f}".format),
                    part("tokenizer"),
                    part("row"),
                    f"{statistics.median(per_token) / TARGET_US:.2f}",
                    f"{statistics.median(per_token) / loop_us:.0f}",
                ]
            )
        lengths = sorted(medians)
        growth = f"{mode}: cost ~ tokens^{exponent(lengths, [medians[n] for n in lengths]):.3f}"
        if len(lengths) > 1:
            last, before = lengths[-1], lengths[-2]
            ratio = medians[last] / medians[before] / (last / before)
            growth += f"; cost({last}) / cost({before}) / {last // before} = {ratio:.3f}"
        ends.append(growth)
    head = [
        "review",
        "tokens",
        "interventions",
        "us per token (range)",
        "tokenizer",
        "row",
        f"of {TARGET_US:g} us",
        "passes",
    ]
    spell = f"passes: of a plain Python loop ({spread([1e9 * p for p in passes], '{:.0f}'.format)} ns each, measured in between)"
    return [*table.columns(head, rows), "", spell, *ends]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    try:
        found, passes = run(smollm2(), LENGTHS, arguments.repeats, arguments.seed)
    except Inconsistent as error:
        print(f"broken: {error}", file=sys.stderr)
        return 1
    title = (
        f"Book-keeping of one session: microseconds per response token, median of {arguments.repeats} (range); "
        f"seed {arguments.seed}; columns tokenizer and row are parts of it"
    )
    table.publish("bookkeeping_cost", title, lines(found, passes))
    return 0


if __name__ == "__main__":
    sys.exit(main())

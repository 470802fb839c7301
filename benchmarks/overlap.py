"""How much time does a slow judge cost a rollout: not overlapped with the policy's writing, overlapped, and without a judge?

Concurrent sessions (``PeriodicSession``) write a response of 1024 tokens at a fixed rate each and are reviewed every 128 tokens by
a judge with a fixed latency and 64 places (``max_concurrency``). Policy and judge answer by content, so both modes must end with
the same responses. Time is virtual: sleeping only moves a clock, which makes the times exact; what Python itself costs is
measured beside it.

    python benchmarks/overlap.py --seeds 3

Efficiency is ideal / time, ideal = max(policy, judge). Policy: tokens that blocking review has to write / rate, plus the judge's
latency for every insertion (nobody can write on from a correction that is not there yet), of the slowest session. Judge: calls that
blocking review makes x latency / places. The wait for the judge's look at the end of a response is no part of it; it is one of
``efficiency, last look granted``. ``judge load`` is the places that sessions would need if nobody waited / 64.

Writes the printed table to benchmarks/results/overlap.txt. Exit code 1 if the modes end with different responses, a session is
incomplete, a request is left running, or a rollout beats the ideal.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import verl.trainer.ppo.v1.agent_loop_tq  # noqa: F401  # first: it loads the plugin, whose modules import parts of verl
from cost_parts import table, virtual
from cost_parts.statistics import spread

from verl_mintrl.config.judge import JudgeConfig
from verl_mintrl.config.schema import GateConfig, ReviewConfig, TokenWeightsConfig
from verl_mintrl.judges.leak import LeakRules
from verl_mintrl.judges.limits import GuardedJudge
from verl_mintrl.judges.protocol import Correction, Judge, Review, ReviewRequest, Verification
from verl_mintrl.judges.roles import Part, RolesJudge, Sight
from verl_mintrl.rollout.abort import ABORTED
from verl_mintrl.rollout.periodic import PeriodicSession, Reviewing
from verl_mintrl.rollout.propose import Proposer
from verl_mintrl.rollout.writer import ServerWriter
from verl_mintrl.trajectory.record import SessionRecord
from verl_mintrl.trajectory.splice import Budget
from verl_mintrl.trajectory.steps import get_segmenter

RESPONSE, REVIEW_EVERY, STEP = 1024, 128, 32  # tokens
PLACES = 64
SESSIONS = (16, 64, 256)
LATENCIES = (0.1, 0.5, 2.0)
REVISE = (0.0, 0.2)
#: tokens a second and session: review points 2.56 s and 0.25 s apart
RATES = (50, 512)
NO_ROOM = "no_room"  # the last step cannot be replaced where the response is at its limit
MODES = ("no judge", "blocking", "overlapped")
EFFICIENT, FASTER = 0.9, 2.0


def draw(*parts: Any) -> random.Random:
    return random.Random(hashlib.sha256(repr(parts).encode()).digest())


@dataclass
class Policy:
    """verl's server client, one token per character; what it writes at a position depends on seed, session and position.

    Attributes:
        rate: tokens a second.
        begin: seconds the prompt of a session takes, by request.
        written: tokens written, aborted requests included, by request.
        running: requests being worked on.
    """

    rate: float
    prompt: int
    begin: dict[str, float]
    written: dict[str, float] = field(default_factory=dict)
    running: int = 0
    aborted: int = 0

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        clock, count, at = asyncio.get_running_loop().time, sampling_params["max_tokens"], len(prompt_ids) - self.prompt
        if request_id not in self.written:
            self.written[request_id] = 0
            await asyncio.sleep(self.begin[request_id])
        self.running += 1
        started = clock()
        try:
            await asyncio.sleep(count / self.rate)
        except asyncio.CancelledError:
            self.aborted += 1
            raise asyncio.CancelledError(ABORTED) from None
        finally:
            self.running -= 1
            self.written[request_id] += (clock() - started) * self.rate
        return SimpleNamespace(
            token_ids=[ord(character(position)) for position in range(at, at + count)],
            log_probs=[-0.5] * count,
            stop_reason="completed",
            extra_fields={},
        )


def character(position: int) -> str:
    """Steps of 32 characters, the last two of which are a blank line."""
    return "\n" if position % STEP >= STEP - 2 else "abcdefgh"[position // STEP % 8]


class SlowJudge(Judge):
    """Answers after ``latency`` seconds; replaces one of the last four steps in a share of the reviews, chosen by content."""

    name = "slow"

    def __init__(self, latency: float, revise: float, seed: int) -> None:
        self.latency, self.revise, self.seed = latency, revise, seed
        self.calls = 0

    async def review(self, request: ReviewRequest) -> Review:
        self.calls += 1
        await asyncio.sleep(self.latency)
        choice = draw(self.seed, request.session_id, request.steps)
        if choice.random() >= self.revise:
            return Review.keep()
        step = choice.randint(max(1, len(request.steps) - 3), len(request.steps))
        return Review.revise(step, f"{choice.getrandbits(100):030d}"[: STEP - 2])

    async def correct(self, request: ReviewRequest, step: int) -> Correction:
        raise NotImplementedError

    async def verify(self, request: ReviewRequest, step: int, correction: str) -> Verification:
        raise NotImplementedError


@dataclass(frozen=True)
class Cell:
    """One rollout to time."""

    rate: float
    revise: float
    latency: float
    sessions: int

    @property
    def load(self) -> float:
        """Places of the judge that would be taken on average if no session ever waited, over those there are."""
        return self.sessions * self.latency * self.rate / REVIEW_EVERY / PLACES


@dataclass
class Rollout:
    """What became of one rollout.

    Attributes:
        seconds: virtual time until the last session had ended.
        cpu: seconds of the processor.
        needed: by session: seconds of prompt, writing, and latency of insertions, as a lower bound for any order of events.
    """

    seconds: float
    cpu: float
    sessions: list[PeriodicSession]
    policy: Policy
    calls: int
    needed: list[float]

    @property
    def responses(self) -> list[tuple[list[int], list[int]]]:
        return [(s.trajectory.ids, s.trajectory.authors()) for s in self.sessions]

    @property
    def written(self) -> float:
        """Tokens the policy wrote in all."""
        return sum(self.policy.written.values())


def roll(cell: Cell, mode: str, seed: int) -> Rollout:
    """Run all sessions of a rollout at once."""
    judge = SlowJudge(cell.latency, cell.revise, seed)
    guarded = GuardedJudge(judge, timeout=60.0, concurrency=PLACES)
    part = Part(guarded, Sight())
    shared = Reviewing(
        judge=RolesJudge(part, part, part, LeakRules()),
        judge_config=JudgeConfig(function="not:used", session_deadline_s=10_000.0),
        verify=False,
        review=ReviewConfig(every_tokens=REVIEW_EVERY, mode="blocking" if mode == "no judge" else mode),
        budget=Budget(max_reviews=1000, max_insertions=1000, max_insertion_tokens=256, max_inserted_share=1.0),
        segmenter=get_segmenter("paragraph"),
        proposer=Proposer(
            scorer=None,  # type: ignore[arg-type]  # nothing is scored without gate and weights
            gate=GateConfig(),
            token_weights=TokenWeightsConfig(),
            decode=lambda ids: "".join(map(chr, ids)),
            encode=lambda text: [ord(c) for c in text],
            control_strings=(),
            steering_context=lambda request, step: [],
        ),
        end_ids=frozenset(),
    )
    prompt = [ord("?")] * 64
    # prompts take up to one review interval, else all sessions would ask at the same moments
    begin = {f"s{i}": draw(seed, i).uniform(0, REVIEW_EVERY / cell.rate) for i in range(cell.sessions)}
    policy = Policy(cell.rate, len(prompt), begin)
    sessions = []
    for number, name in enumerate(begin):
        writer = ServerWriter(policy, {"logprobs": True}, name, shared.end_ids, shared.proposer.decode)
        request = ReviewRequest(({"role": "user", "content": "?"},), (), finished=False, session_id=number)
        record = SessionRecord(uid="u", session_id=number, step=1)
        session = PeriodicSession(shared, writer, prompt, RESPONSE, request, record)
        session.reviewing = mode != "no judge"
        sessions.append(session)

    async def work() -> None:
        await asyncio.gather(*(session.run() for session in sessions))

    started = time.process_time()
    _, seconds = virtual.run(work())
    cpu = time.process_time() - started
    insertions = [sum(r.outcome == "inserted" for r in s.record.reviews) for s in sessions]
    needed = [
        begin[name] + policy.written[name] / cell.rate + count * cell.latency
        for name, count in zip(begin, insertions, strict=True)
    ]
    return Rollout(seconds, cpu, sessions, policy, judge.calls, needed)


@dataclass(frozen=True)
class Result:
    """One cell, one seed: all modes and the ideal."""

    cell: Cell
    rollouts: dict[str, Rollout]

    @property
    def ideal(self) -> float:
        blocking = self.rollouts["blocking"]
        return max(*blocking.needed, blocking.calls * self.cell.latency / PLACES)

    @property
    def granted(self) -> float:
        """The ideal if every response must wait for the judge's look at its end."""
        blocking = self.rollouts["blocking"]
        return max(max(blocking.needed) + self.cell.latency, blocking.calls * self.cell.latency / PLACES)

    def efficiency(self, mode: str) -> float:
        return self.ideal / self.rollouts[mode].seconds

    @property
    def broken(self) -> list[str]:
        """What must hold and does not."""
        blocking, overlapped = self.rollouts["blocking"], self.rollouts["overlapped"]
        every = [session for rollout in self.rollouts.values() for session in rollout.sessions]
        checks = {
            "the modes end with different responses": blocking.responses == overlapped.responses,
            "a session is incomplete": all(
                len(s.trajectory) == RESPONSE
                and not s.record.masked
                and {r.reason for r in s.record.reviews} <= {"", NO_ROOM}
                for s in every
            ),
            "a request is left running": not any(r.policy.running for r in self.rollouts.values()),
            "a rollout beats the ideal": all(self.efficiency(m) < 1 + 1e-6 for m in ("blocking", "overlapped")),
        }
        return [f"{name}: {self.cell}" for name, holds in checks.items() if not holds]


def compare(cell: Cell, seed: int) -> Result:
    return Result(cell, {mode: roll(cell, mode, seed) for mode in MODES})


@dataclass
class Row:
    """The figures of one cell over all seeds; rollouts themselves are not kept."""

    cell: Cell
    seconds: dict[str, list[float]]
    blocking: list[float]
    overlapped: list[float]
    granted: list[float]
    faster: list[float]
    extra_calls: list[float]
    extra_tokens: list[float]
    cpu: dict[str, list[float]]

    @classmethod
    def of(cls, results: Sequence[Result]) -> Row:
        def each(mode: str) -> list[Rollout]:
            return [result.rollouts[mode] for result in results]

        pairs = list(zip(each("blocking"), each("overlapped"), strict=True))
        tokens = results[0].cell.sessions * RESPONSE
        return cls(
            results[0].cell,
            {mode: [r.seconds for r in each(mode)] for mode in MODES},
            [r.efficiency("blocking") for r in results],
            [r.efficiency("overlapped") for r in results],
            [r.granted / r.rollouts["overlapped"].seconds for r in results],
            [b.seconds / o.seconds for b, o in pairs],
            [o.calls / b.calls - 1 for b, o in pairs],
            [o.written / b.written - 1 for b, o in pairs],
            {mode: [1e6 * r.cpu / tokens for r in each(mode)] for mode in MODES},
        )


def measure(cells: Sequence[Cell], seeds: int) -> tuple[list[Row], list[str]]:
    """The rows of the table, and broken invariants."""
    rows, faults = [], []
    for cell in cells:
        results = [compare(cell, seed) for seed in range(seeds)]
        faults += [fault for result in results for fault in result.broken]
        rows.append(Row.of(results))
    return rows, faults


def lines(rows: Sequence[Row]) -> list[str]:
    cells = [
        [
            f"{row.cell.rate:g}/s {row.cell.revise:.0%}",
            f"{row.cell.latency:g}",
            str(row.cell.sessions),
            f"{row.cell.load:.2f}",
            *(f"{statistics.median(row.seconds[mode]):.2f}" for mode in MODES),
            f"{statistics.median(row.blocking):.2f}",
            spread(row.overlapped, "{:.2f}".format),
            f"{statistics.median(row.granted):.2f}",
            f"{statistics.median(row.faster):.2f}",
            f"{statistics.median(row.extra_calls):+.0%}",
            f"{statistics.median(row.extra_tokens):+.0%}",
        ]
        for row in rows
    ]
    head = [
        "rate, REVISE",
        "latency s",
        "sessions",
        "judge load",
        *(f"{mode} s" for mode in MODES),
        "eff. blocking",
        "eff. overlapped",
        "last look granted",
        "faster",
        "calls",
        "tokens",
    ]
    enough = [row for row in rows if row.cell.load <= 1]
    cpu = ", ".join(f"{mode} {statistics.median(v for row in rows for v in row.cpu[mode]):.1f}" for mode in MODES)
    return [
        *table.columns(head, cells),
        "",
        f"Where the judge's capacity suffices (load <= 1; {len(enough)} rows): {_passing(enough)}.",
        f"Python itself (CPU, not in the times above): {cpu} us per response token.",
        "faster: time of blocking / overlapped; with n looks an interval i apart and latency L it is at most",
        "n (i + L) / (n i + L), so below 2 wherever L <= i.",
        "calls, tokens: what overlapping asks and writes more than blocking, for text that an insertion cuts away.",
    ]


def _passing(rows: Sequence[Row]) -> str:
    good = sum(statistics.median(row.overlapped) >= EFFICIENT for row in rows)
    granted = sum(statistics.median(row.granted) >= EFFICIENT for row in rows)
    return f"efficiency >= {EFFICIENT} in {good}, with the last look granted in {granted}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    cells = [Cell(*c) for c in itertools.product(RATES, REVISE, LATENCIES, SESSIONS)]
    cells += [
        Cell(*c) for c in itertools.product((256,), REVISE, (0.5,), (16, 64))
    ]  # review points as far apart as the latency
    started = time.monotonic()
    rows, faults = measure(cells, arguments.seeds)
    title = (
        f"Rollouts of {RESPONSE} tokens, reviewed every {REVIEW_EVERY}, a judge of {PLACES} places: virtual seconds and "
        f"efficiency, seeds 0-{arguments.seeds - 1}, median (range)"
    )
    table.publish("overlap", title, lines(rows))
    print(f"\n{time.monotonic() - started:.0f} s", file=sys.stderr)
    for fault in faults:
        print(f"broken: {fault}", file=sys.stderr)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())

"""Does the walk find, correct and roll on from a decisive mistake in real multi-turn tasks?

Tasks of tau2-bench (airline, retail, telecom) with their own databases, tools and evaluator. A scripted assistant plays
the golden actions with one mistake: a wrong tool, a wrong argument or a premature end. Only tasks whose golden run gets
the reward 1 and mistakes that bring it to 0 are used. Judges see turns, observations and the golden evidence; where the
mistake is they are not told.

    python benchmarks/tau2_replay.py --tasks 60 --seed 0

Writes the printed table to benchmarks/results/tau2_replay.txt. Exit code 1 if the exact judge missed a mistake, did not
correct it, or raised a false alarm.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tau2_parts import groups
from tau2_parts.trial import MODES, Result, examine, find_case
from tau2_parts.world import DOMAINS, Domain

from verl_mintrl.bookkeeping import ROLES, keep_books, table
from verl_mintrl.errors import EnvironmentFailure

TARGET = Path(__file__).parent / "results" / "tau2_replay.txt"
SHARES = {"airline": 1, "retail": 2, "telecom": 2}  # airline's database is the slowest to copy
GROUP_DOMAIN = "telecom"  # its databases are small enough for groups of sessions


@dataclass
class Findings:
    """What one run of the benchmark found.

    Attributes:
        results: one per case.
        skipped: (domain, reason) of tasks and candidates not used.
        groups: printed book-keeping over groups.
    """

    results: list[Result] = field(default_factory=list)
    skipped: Counter[tuple[str, str]] = field(default_factory=Counter)
    groups: str = ""

    @property
    def broken(self) -> list[str]:
        """Invariants of the exact judge that do not hold."""
        checks = {
            "a mistake was not located": all(r.located for r in self.results),
            "a mistake was not corrected": all(r.corrected for r in self.results),
            "the reward was not reached": all(all(r.rescued.values()) for r in self.results),
            "a false alarm": not any(r.false_alarms for r in self.results),
            "a session did not survive": all(fate["survived"] for r in self.results for fate in r.hostile.values()),
        }
        return [name for name, holds in checks.items() if not holds]


async def measure(tasks: int, seed: int, group_tasks: int) -> Findings:
    """Run the benchmark on ``tasks`` cases and ``group_tasks`` groups."""
    findings = Findings()
    for name in DOMAINS:
        domain = Domain.load(name)
        gc.collect()
        gc.freeze()  # databases of hundreds of thousands of objects are copied over and over
        order = sorted(domain.tasks, key=lambda task: task.id)
        random.Random(f"order {seed} {name}").shuffle(order)
        wanted = round(tasks * SHARES[name] / sum(SHARES.values()))
        done = 0
        for task in order:
            if done == wanted:
                break
            case = await find_case(domain, task, random.Random(f"mistake {seed} {task.id}"))
            if isinstance(case, str):
                findings.skipped[name, f"task: {case}"] += 1
                continue
            findings.skipped.update({(name, f"mistake: {why}"): n for why, n in case.skipped.items()})
            findings.results.append(await examine(case))
            done += 1
        if name == GROUP_DOMAIN and group_tasks:
            try:
                findings.groups = table(keep_books(*await groups.work(domain, order[:group_tasks], seed)))
            except EnvironmentFailure as error:
                findings.groups = f"not measured: {error}"
    return findings


def report(findings: Findings, tasks: int, seed: int) -> str:
    """The tables."""
    results = findings.results
    domains = [name for name in DOMAINS if any(r.domain == name for r in results)]
    columns = {name: [r for r in results if r.domain == name] for name in domains} | {"total": results}
    rows: list[tuple[str, list[str]]] = [("tasks", [str(len(c)) for c in columns.values()])]

    def row(name: str, good: Sequence[Sequence[bool]]) -> None:
        rows.append((name, [f"{sum(column)}/{len(column)}" for column in good]))

    for kind in ("tool", "argument", "end"):
        rows.append((f"  mistake: {kind}", [str(sum(r.kind == kind for r in c)) for c in columns.values()]))
    row("  past repair by the right turn after it", [[r.irreversible for r in c] for c in columns.values()])
    row("located", [[r.located for r in c] for c in columns.values()])
    row("corrected", [[r.corrected for r in c] for c in columns.values()])
    row("databases changed before the mistake", [[r.moved for r in c] for c in columns.values()])
    for mode in MODES:
        row(f"databases restored exactly, {mode}", [[r.restored[mode] for r in c] for c in columns.values()])
        row(f"final reward 1, {mode}", [[r.rescued[mode] for r in c] for c in columns.values()])
        rows.append((f"lost to the environment, {mode}", [str(sum(r.lost[mode] for r in c)) for c in columns.values()]))
    rows.append(("false alarms on golden runs, steps", [_alarms(c) for c in columns.values()]))
    for role in ROLES:
        rows.append((f"{role} calls", [str(sum(r.calls[role] for r in c)) for c in columns.values()]))
    row("correction a leak by the default rules", [[r.leaky for r in c] for c in columns.values()])
    lines = [
        f"tau2-bench, scripted assistant with one decisive mistake: {len(results)} tasks (asked: {tasks}), seed {seed}",
        "",
        *_lines(["exact judge", *columns], rows),
        "",
        "Hostile Validators, replay mode, two insertions a session: sessions that survived, and how many reach the reward;",
        "sessions ended by the budget; what became of the steps looked at (an exact Corrector has no other text for a right step:",
        "an error, not a verdict)",
        *_lines(["Validator, Corrector", *columns, "budget spent", "kept/inserted/rejected/error"], _hostile(columns)),
        "",
        "Not used:",
        *(f"  {domain:8} {count:4}  {why}" for (domain, why), count in sorted(findings.skipped.items())),
    ]
    if findings.groups:
        lines += [
            "",
            f"Book-keeping: {GROUP_DOMAIN}, groups of {groups.SIZE}, each session lapses with chance {groups.LAPSE}, exact judge",
            "(the trigger rate follows from that chance; the paper's numbers are of language models on other tasks:",
            "the same units, other quantities)",
            "",
            findings.groups,
        ]
    return "\n".join(lines)


def _alarms(results: Sequence[Result]) -> str:
    return f"{sum(r.false_alarms for r in results)}/{sum(r.golden_steps for r in results)}"


def _hostile(columns: dict[str, list[Result]]) -> list[tuple[str, list[str]]]:
    rows = []
    for name in columns["total"][0].hostile if columns["total"] else ():
        fates = {key: [r.hostile[name] for r in column] for key, column in columns.items()}
        cells = [
            f"{sum(f['survived'] for f in column)}/{len(column)} {sum(f['rewarded'] for f in column)}"
            for column in fates.values()
        ]
        outcomes = "/".join(
            str(sum(f[outcome] for f in fates["total"])) for outcome in ("kept", "inserted", "rejected", "error")
        )
        spent = sum(f["spent"] for f in fates["total"])
        rows.append((name, [*cells, str(spent), outcomes]))
    return rows


def _lines(head: Sequence[str], rows: Sequence[tuple[str, list[str]]]) -> list[str]:
    cells = [list(head)] + [[name, *values] for name, values in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    return [
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in cells
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--groups", type=int, default=60, help="groups of the book-keeping, 0: none")
    arguments = parser.parse_args()
    started = time.monotonic()
    findings = asyncio.run(measure(arguments.tasks, arguments.seed, arguments.groups))
    text = report(findings, arguments.tasks, arguments.seed)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text + "\n", encoding="utf-8")
    print(text)
    print(f"\n{time.monotonic() - started:.0f} s", file=sys.stderr)
    for name in findings.broken:
        print(f"broken: {name}", file=sys.stderr)
    return bool(findings.broken)


if __name__ == "__main__":
    sys.exit(main())

"""Finished runs as numbers: last and best checkpoint, curves, paired differences over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from verl_mintrl.trajectory.record import write_jsonl

SUCCESS = "val/success"
#: name of the file of kept runs
KEPT = "runs.jsonl"
#: differences below it are of no interest, in success; two policies that close are called equal
MARGIN = 0.02
#: rates so near to 0 or to 1, both of them, say nothing about a difference
BOUND = 0.03
#: 95 % quantile of Student's t for a mean of so many values
STUDENT = {3: 2.920, 4: 2.353, 5: 2.132, 6: 2.015}


class Refused(ValueError):
    """What is asked for cannot be done; the message says why and what to do."""


@dataclass(frozen=True)
class Run:
    """One file of the runner.

    Attributes:
        experiment: what was run.
        rows: one per update, the first before any.
        policy: name of the policy it began with.
        commit: of the code; empty in runs kept before it was written down.
    """

    experiment: dict[str, Any]
    rows: list[dict[str, Any]]
    policy: str = ""
    commit: str = ""

    @property
    def arm(self) -> str:
        return self.experiment["arm"]

    @property
    def seed(self) -> int:
        return self.experiment["seed"]

    @property
    def identity(self) -> str:
        """Equal for runs that may stand for each other."""
        return json.dumps([self.experiment, self.policy], sort_keys=True)

    @property
    def finished(self) -> bool:
        return max((row["update"] for row in self.rows), default=-1) >= self.experiment["updates"]

    def curve(self, name: str) -> list[tuple[int, float]]:
        """(update, value) wherever there is one."""
        return [(row["update"], row[name]) for row in self.rows if row.get(name) is not None]

    def last(self, name: str = SUCCESS) -> float:
        """Value after the last update; NaN where it was not measured then."""
        curve = self.curve(name)
        return curve[-1][1] if curve and curve[-1][0] == self.experiment["updates"] else math.nan

    def first(self, name: str = SUCCESS) -> float:
        curve = self.curve(name)
        return curve[0][1] if curve else math.nan

    def best(self, name: str = SUCCESS) -> float:
        return max((value for _, value in self.curve(name)), default=math.nan)

    def mean(self, name: str, start: float = 0.0, end: float = 1.0) -> float:
        """Mean over the updates between two shares of the run."""
        updates = self.experiment["updates"]
        values = [value for update, value in self.curve(name) if start * updates < update <= end * updates]
        return float(np.mean(values)) if values else math.nan

    def gathered(self, name: str) -> float:
        """Sum over all updates; NaN where it was not recorded (runs kept before it was)."""
        values = [value for _, value in self.curve(name)]
        return float(sum(values)) if values else math.nan

    def seconds(self, until: int | None = None) -> float:
        """CPU time spent sampling and learning, examinations left out; NaN where it was not recorded."""
        rows = [row for row in self.rows[1:] if until is None or row["update"] <= until]
        return sum(row.get("cpu/sample", math.nan) + row.get("cpu/learn", math.nan) for row in rows)

    def until(self, update: int) -> Run:
        """The run as it was after an update; ratios of its length then refer to that."""
        rows = [row for row in self.rows if row["update"] <= update]
        experiment = {**self.experiment, "updates": min(update, self.experiment["updates"])}
        return Run(experiment, rows, self.policy, self.commit)

    def kept(self) -> dict[str, Any]:
        """What is written down of it beside the tables, in columns: what it was, and series by update, rounded."""
        names = sorted({name for row in self.rows for name in row if _is_kept(name)})
        columns = {
            name: [[row["update"], float(f"{row[name]:.4g}")] for row in self.rows if row.get(name) is not None]
            for name in names
        }
        head = {"experiment": self.experiment, "policy": self.policy, "commit": self.commit}
        return {**head, "columns": columns}

    @classmethod
    def from_kept(cls, line: Mapping[str, Any]) -> Run:
        """The inverse of :meth:`kept`, up to rounding and to what was not kept."""
        rows: dict[int, dict[str, Any]] = {}
        for name, column in line["columns"].items():
            for update, value in column:
                rows.setdefault(update, {"update": update})[name] = value
        return cls(
            line["experiment"], [rows[update] for update in sorted(rows)], line["policy"], line.get("commit", "")
        )

    def at_seconds(self, budget: float) -> float:
        """Validation success after a time, between two looks on the line between them; NaN where no times were kept."""
        if not math.isfinite(self.seconds()):
            return math.nan
        curve = self.curve(SUCCESS)
        return float(np.interp(budget, [self.seconds(update) for update, _ in curve], [value for _, value in curve]))


#: what is kept of every update, and words in the names of what is kept where it was looked at
EVERY_UPDATE = (
    *("cpu/sample", "cpu/learn", "train/own_success", "train/solved_share"),
    *("judge/corrections", "judge/early_answers", "judge/early_answers_inserted"),
    *("intervention/judge_calls", "intervention/inserted_token_share", "intervention/reviews_inserted"),
    *("intervention/sessions_treated", "intervention/sessions_gated_off", "intervention/ppl_correction_p50"),
    *("intervention/rejected/perplexity", "intervention/rejected/disagrees", "intervention/rescue_rate"),
    *("intervention/bonus", "intervention/sign_flips", "intervention/bonus_capped_share", "actor/entropy"),
)
LOOKS = ("val/", "harder/", "hard/", "old/")


def _is_kept(name: str) -> bool:
    return name in EVERY_UPDATE or name.startswith(LOOKS)


Number = Callable[[Run], float]


@dataclass(frozen=True)
class Rate:
    """A share of attempts at one look.

    Attributes:
        draws: how many attempts, independent of each other, stand behind it; chance alone moves it by their error.
    """

    read: Number
    draws: int

    def __call__(self, run: Run) -> float:
        return self.read(run)


@dataclass(frozen=True)
class Difference:
    """Paired over seeds.

    Attributes:
        mean: of a - b.
        error: standard error of the mean: that over seeds, and for a :class:`Rate` at least that of its draws; NaN for one seed.
        seeds: how many both have.
        margin: differences below it are of no interest.
        bounded: both are so near to 0 or to 1 that nothing could differ.
    """

    mean: float
    error: float
    seeds: int
    margin: float = MARGIN
    bounded: bool = False

    def verdict(self) -> str:
        """Whether a is larger than b, at 5 % in each direction by Student's t over at least 3 seeds.

        ``holds``: larger than 0. ``the reverse holds``: smaller than 0. ``does not hold``: smaller than ``margin``. Otherwise, and
        where both are ``bounded``, ``not decidable here``.
        """
        if self.seeds == 0:
            return "not run"
        if self.seeds < 3 or not math.isfinite(self.mean) or self.bounded:
            return "not decidable here"
        reach = STUDENT.get(self.seeds, STUDENT[max(STUDENT)]) * self.error
        if self.mean > reach:
            return "holds"
        if self.mean < -reach:
            return "the reverse holds"
        if self.mean + reach < self.margin:
            return "does not hold"
        return "not decidable here"


class Results:
    """Finished runs; an experiment and the policy it began with make a run."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = {run.identity: run for run in runs}

    @classmethod
    def load(cls, folder: Path, kept: Path | None = None) -> Results:
        """The runs of a folder of the runner and, where it has none of the same experiment, those kept in a file.

        A damaged or unfinished file of the folder is named and left out, so that its run is made again.

        Raises:
            Refused: a line of ``kept`` is damaged.
        """
        runs: list[Run] = []
        if kept is not None and kept.is_file():
            for number, line in enumerate(kept.read_text().splitlines(), 1):
                try:
                    runs.append(Run.from_kept(json.loads(line)))
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise Refused(
                        f"{kept}, line {number}, is no kept run ({type(error).__name__}); mend or drop it"
                    ) from error
        for path in sorted(folder.glob("*.jsonl")):
            try:
                runs.append(_read(path))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                print(f"lab: {path} is no file of a run ({type(error).__name__}) and does not count", flush=True)
        return cls([run for run in runs if run.finished])

    def keep(self, path: Path) -> None:
        """One line per run; runs that are in the file and not among these stay in it."""
        merged = Results.load(path.parent / "no runs", path)
        merged._runs.update(self._runs)
        order = sorted(merged._runs.values(), key=lambda run: (run.arm, run.seed, run.identity))
        write_jsonl(path, [run.kept() for run in order])

    def rounded(self) -> Results:
        """As they would be read back from where they are kept."""
        return Results([Run.from_kept(run.kept()) for run in self._runs.values()])

    def until(self, update: int) -> Results:
        """All runs as they were after an update."""
        return Results([run.until(update) for run in self._runs.values()])

    def only(self, experiments: Sequence[Mapping[str, Any]], policy: str, *, any_length: bool = False) -> Results:
        """Those that were run from ``policy`` exactly as one of the experiments says.

        Args:
            any_length: but for the number of updates; of several the longest.
        """

        def cut(experiment: Mapping[str, Any]) -> Mapping[str, Any]:
            return {**experiment, "updates": 0} if any_length else experiment

        wanted = {(e["arm"], e["seed"]): cut(e) for e in experiments}
        chosen: dict[tuple[str, int], Run] = {}
        for run in sorted(self._runs.values(), key=lambda run: run.experiment["updates"]):
            place = run.arm, run.seed
            if run.policy == policy and cut(run.experiment) == wanted.get(place):
                chosen[place] = run
        return Results(list(chosen.values()))

    def has(self, experiment: Mapping[str, Any]) -> bool:
        return any(run.experiment == experiment for run in self._runs.values())

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def arms(self) -> list[str]:
        return sorted({run.arm for run in self._runs.values()})

    @property
    def policies(self) -> set[str]:
        return {run.policy for run in self._runs.values()}

    def of(self, arm: str) -> list[Run]:
        """Runs of an arm by seed."""
        return sorted((run for run in self._runs.values() if run.arm == arm), key=lambda run: run.seed)

    def values(self, arm: str, number: Number) -> list[float]:
        return [number(run) for run in self.of(arm)]

    def text(self, arm: str, number: Number, digits: int = 3) -> str:
        """Mean ± standard deviation over seeds."""
        values = [v for v in self.values(arm, number) if math.isfinite(v)]
        if not values:
            return "-"
        spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
        return f"{np.mean(values):.{digits}f}{spread}"

    def difference(self, a: str, b: str, number: Number, other: Number | None = None) -> Difference:
        """``number`` of arm ``a`` minus ``other`` (the same by default) of arm ``b``, paired by seed."""
        theirs = {run.seed: (other or number)(run) for run in self.of(b)}
        pairs = [(number(run), theirs[run.seed]) for run in self.of(a) if run.seed in theirs]
        pairs = [(x, y) for x, y in pairs if math.isfinite(x - y)]
        if not pairs:
            return Difference(math.nan, math.nan, 0)
        differences = [x - y for x, y in pairs]
        mean, error = float(np.mean(differences)), math.nan
        if len(pairs) > 1:
            error = float(np.std(differences, ddof=1) / math.sqrt(len(pairs)))
        if not isinstance(number, Rate):
            return Difference(mean, error, len(pairs), margin=0.0)
        chance = sum(x * (1 - x) + y * (1 - y) for x, y in pairs) / number.draws
        if len(pairs) > 1:
            error = max(error, math.sqrt(chance) / len(pairs))
        means = [float(np.mean(values)) for values in zip(*pairs, strict=True)]
        bounded = max(means) <= BOUND or min(means) >= 1 - BOUND
        return Difference(mean, error, len(pairs), bounded=bounded)


def _read(path: Path) -> Run:
    """A file of the runner; one that ends early has no last look and is no run yet."""
    head, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    run = Run(head["experiment"], rows, head.get("policy", ""), head.get("commit", ""))
    if not run.finished:
        print(f"lab: {path} ends before its last update and does not count", flush=True)
    return run

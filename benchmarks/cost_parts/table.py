"""The text a benchmark prints and commits: what was asked, where it ran, one table."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def commit() -> str:
    """Short hash of the commit, marked where files of the package differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    changed = " with uncommitted changes in verl_mintrl" if git("status", "--porcelain", "--", "verl_mintrl") else ""
    return f"{git('rev-parse', '--short', 'HEAD') or 'unknown'}{changed}"


def machine() -> str:
    """Processor, cores, load, versions."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return (
        f"{name}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}; Python {platform.python_version()}, "
        f"torch {version('torch')}, verl {version('verl')}"
    )


def columns(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table, the first column to the left, the others to the right."""
    cells = [list(head), *map(list, rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    return [
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]).rstrip()
        for line in cells
    ]


def publish(name: str, title: str, lines: Iterable[str]) -> str:
    """Print the text and write it to ``benchmarks/results/<name>.txt``; returns it."""
    text = "\n".join([title, f"commit {commit()}; {machine()}", "", *lines])
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.txt").write_text(text + "\n", encoding="utf-8")
    print(text)
    return text

"""What the shares of waiting are worked out with; the runs themselves take minutes and are left to the benchmark."""

from __future__ import annotations

import json

import pytest
from waiting import ARMS, PARTS, Waiting, broken, lateness, lines


def written(folder, real: int = 60, computed: int = 80) -> Waiting:
    metrics, counts = folder / "metrics.jsonl", folder / "counts"
    counts.mkdir()
    data = {f"timing_s/{part}": 1.0 for part in PARTS} | {"timing_s/step": 10.0}
    metrics.write_text("".join(json.dumps({"data": data}) + "\n" for _ in range(2)))
    calls = {"real tokens": real, "computed tokens": computed}
    (counts / "engine-1.json").write_text(json.dumps({"seconds": {"engine": 3.0}, "calls": calls}))
    (counts / "looked-2.txt").write_text("10.5\n20.1\n")
    (counts / "published-3.txt").write_text("9.0\n10.0\n")
    (counts / "published-4.txt").write_text("20.0\n")
    return Waiting.read(metrics, counts)


def test_from_the_last_session_to_the_look_that_found_it():
    assert lateness([10.5, 20.5], [9.0, 10.0, 20.0, 30.0]) == pytest.approx([0.5, 0.5])
    assert lateness([1.0], [2.0]) == []  # sessions that ended before counting began


def test_counters_become_shares(tmp_path):
    found = written(tmp_path)
    assert found.late == pytest.approx([0.5, 0.1]) and found.padding == pytest.approx(0.25)
    assert (found.engine, found.seconds("step"), found.seconds("adv")) == (3.0, 10.0, 1.0)
    text = "\n".join(lines({"as shipped": found}))
    assert "25.0%" in text and "8.0%" in text  # (0.3 late + 0.5 around the engine) / 10


def test_faults(tmp_path):
    found = written(tmp_path)
    assert broken({"as shipped": found}, 2) == []
    assert any("2 of 3" in fault for fault in broken({"as shipped": found}, 3))
    assert any("padded" in fault for fault in broken({"rows alone": found}, 2))


def test_every_arm_counts():
    assert all(any("custom_sampler" in key for key in overrides) for overrides in ARMS.values())

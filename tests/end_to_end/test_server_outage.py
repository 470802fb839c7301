"""The server of the judge is killed and started again while real verl trains."""

from __future__ import annotations

import sys

from harness import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import server_outage  # found by the line above

UPDATES = server_outage.RESTART_AFTER + 3


def test_the_run_survives_and_its_metrics_tell(tmp_path):
    rows = server_outage.play(tmp_path, UPDATES)
    assert server_outage.faults(rows, UPDATES) == [], "\n".join(server_outage.lines(rows))

"""Both probes at once: importing verl and vLLM takes most of the time of these tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROBE = Path(__file__).with_name("probe.py")


@pytest.fixture(scope="session")
def probes() -> dict[str, dict[str, Any]]:
    """``plain``: a process without ``VERL_PLATFORM``; ``cpu``: one with ``VERL_PLATFORM=cpu``."""
    plain = {key: value for key, value in os.environ.items() if key != "VERL_PLATFORM"}
    processes = {
        name: subprocess.Popen(
            [sys.executable, str(PROBE)], env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for name, variables in {"plain": plain, "cpu": plain | {"VERL_PLATFORM": "cpu"}}.items()
    }
    results = {}
    for name, process in processes.items():
        output, errors = process.communicate(timeout=180)
        assert process.returncode == 0, f"probe {name} failed:\n{errors[-3000:]}"
        results[name] = json.loads(output.splitlines()[-1])
    return results


@pytest.fixture
def plain(probes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return probes["plain"]


@pytest.fixture
def cpu(probes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return probes["cpu"]

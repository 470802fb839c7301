"""Fixtures of all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def ray_started() -> Iterator[Any]:
    """Ray of this process alone, started once: tests of several folders need it."""
    import ray

    os.environ["RAY_worker_niceness"] = "0"  # its workers give way to every other process otherwise, and deadlines pass
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()

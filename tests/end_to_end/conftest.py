"""A model and a data set that need no network, shared by all runs of a session."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness import ROOT, write_sums


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.end_to_end)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two random llama layers with the tokenizer of SmolLM2."""
    target = tmp_path_factory.mktemp("models") / "tiny"
    subprocess.run([sys.executable, str(ROOT / "scripts" / "prepare_model.py"), str(target), "--tiny"], check=True)
    return target


@pytest.fixture(scope="session")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A parquet file of sums, 64 rows."""
    target = tmp_path_factory.mktemp("data") / "sums.parquet"
    write_sums(target, 8)
    return target

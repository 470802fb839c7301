"""The ``intervention:`` node (typed and closed), its checks against verl's settings, and the Hydra groups of the presets.

``InterventionLossConfig`` is loaded on first use: it derives from a class of verl, everything else here does not need verl.
"""

from typing import Any

from verl_mintrl.config.schema import InterventionConfig, parse

__all__ = ["InterventionConfig", "InterventionLossConfig", "parse"]


def __getattr__(name: str) -> Any:
    if name == "InterventionLossConfig":
        from verl_mintrl.config.loss import InterventionLossConfig

        return InterventionLossConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""What is compared: name of an arm -> preset, overrides, judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

INTERVENTION = "intervention."


@dataclass(frozen=True)
class Arm:
    """One line of the tables.

    Attributes:
        preset: of ``verl_mintrl/config/intervention``.
        corrector: key of ``lab.correctors.CORRECTORS``, or ``hint``: the policy itself with its hint; empty: nobody.
        overrides: of the ``intervention:`` node, without its name.
        actor: of ``actor_rollout_ref.actor``.
        baseline: key of ``lab.baselines.BASELINES``.
        warm_up: updates of plain GRPO before it begins.
    """

    preset: str
    corrector: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    actor: Mapping[str, Any] = field(default_factory=dict)
    baseline: str = ""
    warm_up: int = 0

    def configuration(self) -> dict[str, Any]:
        """Overrides of the composed configuration."""
        result = dict(judged_by(self.corrector, self.preset)) if self.corrector not in ("", "hint") else {}
        result |= {INTERVENTION + key: value for key, value in self.overrides.items()}
        return result | {f"actor_rollout_ref.actor.{key}": value for key, value in self.actor.items()}


#: presets whose roles are asked one by one
SEPARATE = ("rti", "vcv_regression")


def judged_by(corrector: str, preset: str, module: str = "lab.judging") -> dict[str, Any]:
    """Overrides that put a corrector into all roles of a preset.

    Args:
        module: where it is found; ``lab.correctors`` for a run under verl.
    """
    names = {role: f"{module}:{corrector.upper()}.{role}" for role in ("review", "correct", "verify")}
    result: dict[str, Any] = {
        "judge.backend": "python",
        "judge.function": names["review"],
        "judge.evidence": "none",
        "judge.evidence_column": None,
    }
    if preset in SEPARATE:
        result |= {
            "judge.roles.corrector.function": names["correct"],
            "judge.roles.verifier.function": names["verify"],
        }
    return {INTERVENTION + key: value for key, value in result.items()}


def _arms() -> dict[str, Arm]:
    arms = {
        "grpo": Arm("grpo"),
        "regression_on_policy": Arm("regression_on_policy"),
        "mintrl_const": Arm("mintrl_const", "exact"),
        "mintrl_gated": Arm("mintrl_gated", "exact"),
        "rti": Arm("rti", "exact"),
    }
    return arms


ARMS = _arms()

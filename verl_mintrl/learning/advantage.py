"""Advantage against control sessions: A* = r - V(x), V estimated from sessions nobody intervened on.

Source: arXiv 2609.12419, A* = r(x, y) - V_ctrl(x) (Eq. 7-10). Whether V_ctrl is a plain mean or a soft value, and
whether control sessions are trained on, is stated nowhere public [inf]; here both modes exist and every included
session gets an A*.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from verl_mintrl.errors import DataError

VMode = Literal["mean", "soft"]


@dataclass(frozen=True)
class ControlAdvantage:
    """Result of :func:`control_advantage`; N sessions, in reward units.

    Attributes:
        advantages: (N,) A*; 0 for excluded sessions.
        values: (N,) the V subtracted from each session's reward (leave-one-out for controls); 0 for excluded sessions.
        lone_controls: control sessions that were the only included control of their group, so that their A* is 0.
        empty_controls: groups with included sessions but no included control, whose V is the mean of the group.
    """

    advantages: torch.Tensor
    values: torch.Tensor
    lone_controls: int
    empty_controls: int


def control_advantage(
    rewards: torch.Tensor,
    groups: Sequence[Hashable],
    is_control: torch.Tensor,
    included: torch.Tensor,
    *,
    v_mode: VMode,
    beta1: float,
    baseline_rewards: torch.Tensor | None = None,
) -> ControlAdvantage:
    """Subtract from every session's reward what the policy reaches alone on the same prompt.

    Let C be the included control sessions of a group.

    - a session outside C: A* = r - V(C);
    - a control session: A* = r - V(C without itself), so that its own luck is not in its baseline; A* = 0 if it is
      alone;
    - C empty: V is the plain mean over the included sessions of the group, in both modes.

    V is the mean, or ``beta1 * log mean exp(r / beta1)`` (``soft``; [inf] from A*-PO and OAPL, equal to the mean for
    ``beta1 -> inf`` and to the maximum for ``beta1 -> 0``). No standardisation. Results do not depend on the row order.

    Args:
        rewards: (N,) outcome reward of each session.
        groups: N keys; sessions with equal keys answer the same prompt.
        is_control: (N,) bool.
        included: (N,) bool; excluded sessions (judge error, padding) leave V, may hold any reward, and get A* = 0.
        v_mode: "mean" or "soft".
        beta1: temperature of the soft value in reward units, > 0; unused by "mean".
        baseline_rewards: (N,) rewards from before replacement, from which V is taken instead of ``rewards``.

    Raises:
        DataError: lengths that disagree, or a non-finite reward of an included session (the group is named).
        ValueError: unknown ``v_mode`` or ``beta1 <= 0`` with "soft".
    """
    if v_mode not in get_args(VMode):
        raise ValueError(f"v_mode is {v_mode!r}, expected one of {get_args(VMode)}")
    if v_mode == "soft" and not beta1 > 0:
        raise ValueError(f"beta1 is {beta1!r}, the soft value needs a number > 0")
    baseline = rewards if baseline_rewards is None else baseline_rewards
    lengths = {len(rewards), len(groups), len(is_control), len(included), len(baseline)}
    if rewards.dim() != 1 or len(lengths) != 1:
        raise DataError(
            f"control_advantage got {tuple(rewards.shape)} rewards, {len(groups)} groups, "
            f"{len(is_control)} control flags, {len(included)} inclusion flags and "
            f"{len(baseline)} baseline rewards; expected one of each per session."
        )
    reward_of, baseline_of = rewards.tolist(), baseline.tolist()
    control_flags, included_flags = is_control.tolist(), included.tolist()

    members: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        if not included_flags[row]:
            continue
        if not (math.isfinite(reward_of[row]) and math.isfinite(baseline_of[row])):
            raise DataError(
                f"session {row} of group {group!r} has reward {reward_of[row]} (baseline {baseline_of[row]}).",
                "the reward function must return a finite number for every session",
            )
        members.setdefault(group, []).append(row)

    advantages, values = [0.0] * len(reward_of), [0.0] * len(reward_of)
    lone_controls = empty_controls = 0
    for rows in members.values():
        control = [row for row in rows if control_flags[row]]
        if control:
            group_value = _value([baseline_of[row] for row in control], v_mode, beta1)
        else:
            empty_controls += 1
            group_value = _value([baseline_of[row] for row in rows], "mean", beta1)
        lone_controls += len(control) == 1
        for row in rows:
            others = [baseline_of[other] for other in control if other != row]
            if not control_flags[row]:
                values[row] = group_value
            elif others:
                values[row] = _value(others, v_mode, beta1)
            else:  # nothing to compare a lone control with
                values[row] = reward_of[row]
            advantages[row] = reward_of[row] - values[row]

    dtype = rewards.dtype if rewards.is_floating_point() else torch.float32
    return ControlAdvantage(
        advantages=torch.tensor(advantages, dtype=dtype, device=rewards.device),
        values=torch.tensor(values, dtype=dtype, device=rewards.device),
        lone_controls=lone_controls,
        empty_controls=empty_controls,
    )


def _value(rewards: list[float], v_mode: VMode, beta1: float) -> float:
    """V of one group from the rewards of its baseline sessions (not empty), exact in any order of them."""
    if v_mode == "mean":
        return math.fsum(rewards) / len(rewards)
    scaled = torch.tensor(sorted(rewards), dtype=torch.float64) / beta1
    return beta1 * (torch.logsumexp(scaled, 0).item() - math.log(len(rewards)))

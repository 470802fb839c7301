"""The ``intervention:`` node as dataclasses. Defaults live here; ``config/intervention/base.yaml`` mirrors them (tested).

Values marked [inf] are stated by neither paper: they are assumptions, kept as config values.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Optional

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_mintrl.config.checks import NODE, above, at_least, choice
from verl_mintrl.config.judge import JudgeConfig
from verl_mintrl.errors import ConfigError


@dataclass
class ControlConfig:
    """Sessions of a group that are never intervened on.

    Attributes:
        size: how many of the G sessions; None = G // 2 (4 of 8, MENTOR's split [inf]).
        train: whether they are trained on too [inf].
    """

    size: Optional[int] = None  # noqa: UP045 - omegaconf reads Optional[...]
    train: bool = True

    def __post_init__(self) -> None:
        at_least("control.size", self.size, 0, optional=True)


@dataclass
class ReviewConfig:
    """When the judge looks. Exactly one of ``every_tokens`` and ``every_steps`` is set.

    Attributes:
        every_tokens: response tokens between reviews [inf: 512].
        every_steps: completed steps between reviews.
        segmenter: name of a step segmenter or "package.module:function"; paragraphs for math and text, code for fences.
        at_end: whether an ended response may be reviewed (its ending can then be cut and continued).
        mode: ``blocking`` (the policy waits for the judge) or ``overlapped`` (it writes on meanwhile; an intervention cuts back).
    """

    every_tokens: Optional[int] = 512  # noqa: UP045
    every_steps: Optional[int] = None  # noqa: UP045
    segmenter: str = "paragraph"
    at_end: bool = True
    mode: str = "blocking"

    def __post_init__(self) -> None:
        choice("review.mode", self.mode, ("blocking", "overlapped"))
        at_least("review.every_tokens", self.every_tokens, 1, optional=True)
        at_least("review.every_steps", self.every_steps, 1, optional=True)
        if (self.every_tokens is None) == (self.every_steps is None):
            raise ConfigError(
                f"{NODE}.review.every_tokens is {self.every_tokens} and every_steps is {self.every_steps}; "
                "expected exactly one of them.",
                f"set the other one of {NODE}.review.every_tokens and {NODE}.review.every_steps to null.",
            )


@dataclass
class BudgetConfig:
    """Limits per session (MInTRL app. H names the knobs, not the values: all [inf], see papers.md of Relay-OPD and InT).

    Attributes:
        max_reviews: looks of the judge.
        max_insertions: accepted corrections.
        max_insertion_tokens: tokens of one correction; a longer one is a judge error, never cut.
        max_inserted_share: corrector tokens / response tokens right after an insertion; 1 is no bound. Correcting the first step
            is a share of 1 at that moment, so a lower bound forbids it. The paper's optimum of 2-4 % is over all trained tokens.
    """

    max_reviews: int = 4
    max_insertions: int = 2
    max_insertion_tokens: int = 256
    max_inserted_share: float = 1.0

    def __post_init__(self) -> None:
        at_least("budget.max_reviews", self.max_reviews, 1)
        at_least("budget.max_insertions", self.max_insertions, 1)
        at_least("budget.max_insertion_tokens", self.max_insertion_tokens, 1)
        above("budget.max_inserted_share", self.max_inserted_share, 0)
        if self.max_inserted_share > 1:
            raise ConfigError(
                f"{NODE}.budget.max_inserted_share is {self.max_inserted_share}; it is a share, at most 1.",
                f"change {NODE}.budget.max_inserted_share.",
            )


@dataclass
class VerifierConfig:
    """The Verifier's checks on a proposed correction (RTI section 3).

    Attributes:
        enabled: ask the Verifier; a leak is looked for before any model is asked.
        shortest_gold: characters from which privileged text must not stand verbatim in a correction [inf].
        leak_ngram: words in a row shared with the privileged text alone that are a leak [inf].
    """

    enabled: bool = False
    shortest_gold: int = 12
    leak_ngram: int = 6

    def __post_init__(self) -> None:
        at_least("verifier.shortest_gold", self.shortest_gold, 1)
        at_least("verifier.leak_ngram", self.leak_ngram, 1)


@dataclass
class GateConfig:
    """Perplexity gate on a correction, in the policy's original context at temperature 1 (RTI).

    Attributes:
        mode: ``none`` | ``absolute`` (PPL <= delta) | ``relative`` (PPL <= ratio * PPL of the replaced step) | ``quantile`` (bound
            is that quantile of the policy's own step perplexities in the group).
        delta: bound of ``absolute`` (RTI: 5).
        delta_for: bounds of their own, by "backend/domain", domain (``data_source``) or backend.
        ratio: of ``relative`` [inf].
        quantile: of ``quantile`` [inf].
        ignore_literals: leave names and ids copied from the context out of the mean.
        ignore_numbers: leave numbers copied from the context out of the mean.
    """

    mode: str = "none"
    delta: float = 5.0
    delta_for: dict[str, float] = field(default_factory=dict)
    ratio: float = 2.0
    quantile: float = 0.9
    ignore_literals: bool = False
    ignore_numbers: bool = False

    def __post_init__(self) -> None:
        choice("gate.mode", self.mode, ("none", "absolute", "relative", "quantile"))
        at_least("gate.delta", self.delta, 1)
        for name, value in self.delta_for.items():
            at_least(f"gate.delta_for.{name}", value, 1)
        above("gate.ratio", self.ratio, 0)
        if not 0 < self.quantile <= 1:
            raise ConfigError(f"{NODE}.gate.quantile is {self.quantile}; expected a share in (0, 1].", "change it.")


@dataclass
class TokenWeightsConfig:
    """Weights of corrector tokens in the objective.

    Attributes:
        mode: ``ones`` or ``steering`` (RTI: clipped ratio of the policy with and without the correction context).
        eps_cal: half-width of the clip [inf: 0.2].
    """

    mode: str = "ones"
    eps_cal: float = 0.2

    def __post_init__(self) -> None:
        choice("token_weights.mode", self.mode, ("ones", "steering"))
        if not 0 <= self.eps_cal < 1:
            raise ConfigError(
                f"{NODE}.token_weights.eps_cal is {self.eps_cal}; expected 0 <= eps_cal < 1.",
                "a weight stays positive.",
            )


@dataclass
class GroupFailureConfig:
    """Trigger ``group_failure`` (RTI).

    Attributes:
        max_replaced: most sessions of a group that are replaced by their edited version.
    """

    max_replaced: int = 1

    def __post_init__(self) -> None:
        at_least("group_failure.max_replaced", self.max_replaced, 1)


@dataclass
class AdvantageConfig:
    """Baseline (method: control rollouts, MInTRL section on control-based advantage).

    Attributes:
        estimator: ``control`` (A* = r - V of the control sessions) or ``grpo`` (verl's own, over the whole group).
        v_mode: ``mean`` or ``soft`` (beta1 * log mean exp(r / beta1), A*-PO / OAPL).
        beta1: temperature of ``soft`` [inf: 0.5-1].
    """

    estimator: str = "control"
    v_mode: str = "mean"
    beta1: float = 0.5

    def __post_init__(self) -> None:
        choice("advantage.estimator", self.estimator, ("control", "grpo"))
        choice("advantage.v_mode", self.v_mode, ("mean", "soft"))
        above("advantage.beta1", self.beta1, 0)


@dataclass
class AnchorConfig:
    """Anchor log-prob of corrector tokens (MInTRL Eq. 11).

    Attributes:
        mode: ``const`` (kappa) or ``proxy`` (log pi_t).
        kappa: the constant, nats per token [inf: 0.0].
        max_bonus: cap on |beta * sum_I w (kappa - log pi_t)| per session, in units of reward [inf: 0.5].
        relax: ``always`` or ``success`` (only sessions above the success threshold) [inf].
    """

    mode: str = "const"
    kappa: float = 0.0
    max_bonus: float = 0.5
    relax: str = "always"

    def __post_init__(self) -> None:
        choice("anchor.mode", self.mode, ("const", "proxy"))
        choice("anchor.relax", self.relax, ("always", "success"))
        at_least("anchor.max_bonus", self.max_bonus, 0)
        if not math.isfinite(self.kappa):
            raise ConfigError(f"{NODE}.anchor.kappa is {self.kappa}; expected a finite number.", "change it.")


@dataclass
class ObjectiveConfig:
    """Settings of the policy loss ``intervention_regression``; ``actor.policy_loss`` interpolates from here.

    Attributes:
        beta: residual scale per nat [inf: 1e-3, A*-PO / OAPL].
        loss_scale: ``horizon`` 1/(2 beta L), ``reinforce`` 1/(2 beta), ``raw`` 1.
        length_norm: ``none`` or ``mean`` (divides the sum inside the residual and so changes what beta means).
    """

    beta: float = 1e-3
    loss_scale: str = "horizon"
    length_norm: str = "none"

    def __post_init__(self) -> None:
        above("objective.beta", self.beta, 0)
        choice("objective.loss_scale", self.loss_scale, ("horizon", "reinforce", "raw"))
        choice("objective.length_norm", self.length_norm, ("none", "mean"))


@dataclass
class ScheduleConfig:
    """Early stopping of the intervention (MInTRL: active for 200 of 500 updates).

    Attributes:
        stop_after_updates: last global step with interventions; None = never stop.
        decay: ``none``, ``linear`` or ``cosine`` decay of the intervened share of sessions down to 0 at that step.
    """

    stop_after_updates: Optional[int] = None  # noqa: UP045
    decay: str = "none"

    def __post_init__(self) -> None:
        at_least("schedule.stop_after_updates", self.stop_after_updates, 0, optional=True)
        choice("schedule.decay", self.decay, ("none", "linear", "cosine"))
        if self.decay != "none" and (self.stop_after_updates or 0) < 2:
            raise ConfigError(
                f"{NODE}.schedule.decay is {self.decay} but {NODE}.schedule.stop_after_updates is "
                f"{self.stop_after_updates}.",
                f"set {NODE}.schedule.stop_after_updates to the step >= 2 at which the share reaches 0.",
            )


@dataclass
class InterventionConfig:
    """The whole node.

    Attributes:
        trigger: ``never`` | ``periodic`` (MInTRL) | ``group_failure`` (RTI).
        only_if_control_fails: intervene only in groups whose control sessions all failed (the ``mintrl_gated`` preset).
        public_dump: leave out of the dumped trajectories every text of a judge that did not become part of a response: rejected
            corrections and error details may quote what only the judge was shown. Such a dump cannot be replayed (``recorded``).
        success_threshold: a reward above it is a success.
    """

    trigger: str = "periodic"
    only_if_control_fails: bool = False
    public_dump: bool = False
    success_threshold: float = 0.0
    control: ControlConfig = field(default_factory=ControlConfig)
    review: ReviewConfig = field(default_factory=ReviewConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    judge: JudgeConfig = field(default_factory=lambda: JudgeConfig(function="verl_mintrl.judges.arithmetic:review"))
    verifier: VerifierConfig = field(default_factory=VerifierConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    group_failure: GroupFailureConfig = field(default_factory=GroupFailureConfig)
    token_weights: TokenWeightsConfig = field(default_factory=TokenWeightsConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    anchor: AnchorConfig = field(default_factory=AnchorConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)

    def __post_init__(self) -> None:
        choice("trigger", self.trigger, ("never", "periodic", "group_failure"))
        if not math.isfinite(self.success_threshold):
            raise ConfigError(f"{NODE}.success_threshold is {self.success_threshold}; expected a number.", "change it.")

    def control_size(self, n: int) -> int:
        """Number of control sessions in a group of ``n``."""
        return n // 2 if self.control.size is None else self.control.size


def parse(node: Mapping[str, Any]) -> InterventionConfig:
    """Typed config from the raw ``intervention:`` node.

    Raises:
        ConfigError: an unknown key (names the nearest known one), a wrong type or a value out of range.
    """
    try:
        raw = OmegaConf.to_container(node, resolve=True) if isinstance(node, DictConfig) else node
    except OmegaConfBaseException as error:  # an interpolation, e.g. of an environment variable that is not set
        key = f"{NODE}.{str(error.full_key).removeprefix(f'{NODE}.')}"
        raise ConfigError(
            f"{key} has no value: {str(error.msg).splitlines()[0]}.", f"change {key}, or set what it refers to."
        ) from None
    _refuse_unknown(raw, InterventionConfig(), NODE)
    try:
        merged = OmegaConf.merge(OmegaConf.structured(InterventionConfig), raw)  # type: ignore[arg-type]
    except OmegaConfBaseException as error:
        raise ConfigError(
            f"{NODE}.{error.full_key} has a value of the wrong type{_unless_secret(error)}.",
            f"change {NODE}.{error.full_key}.",
        ) from None
    return OmegaConf.to_object(merged)  # type: ignore[return-value]


def _unless_secret(error: OmegaConfBaseException) -> str:
    """What omegaconf says of a value, which it quotes; nothing under the endpoint, where a key may have been put by mistake."""
    return "" if str(error.full_key).startswith("judge.endpoint.") else f": {str(error.msg).splitlines()[0]}"


def _refuse_no_mapping(raw: Any, path: str) -> None:
    if not isinstance(raw, Mapping):
        # the value itself is not quoted: an address may hold a password
        raise ConfigError(
            f"{path} is of type {type(raw).__name__}; expected a mapping.", f"write {path} as a block of keys."
        )


def _refuse_unknown(raw: Any, default: Any, path: str) -> None:
    _refuse_no_mapping(raw, path)
    known = {f.name: getattr(default, f.name) for f in fields(default)}
    for key, value in raw.items():
        if key not in known:
            near = difflib.get_close_matches(str(key), list(known), n=1, cutoff=0.5)
            raise ConfigError(
                f"unknown config key {path}.{key}.",
                f"did you mean {path}.{near[0]}?" if near else f"known keys of {path}: {', '.join(sorted(known))}.",
            )
        if is_dataclass(known[key]):
            _refuse_unknown(value, known[key], f"{path}.{key}")
        elif isinstance(known[key], dict):
            _refuse_no_mapping(value, f"{path}.{key}")

"""The ``intervention:`` node as dataclasses. Defaults live here; ``config/intervention/base.yaml`` mirrors them (tested).

Values marked [inf] are stated by neither paper: they are assumptions, kept as config values.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Optional
from urllib.parse import urlsplit

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_mintrl.errors import ConfigError

NODE = "intervention"


def _choice(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        near = difflib.get_close_matches(str(value), allowed, n=1)
        raise ConfigError(
            f"{NODE}.{key} is {value!r}; expected one of {', '.join(allowed)}.",
            f"did you mean {near[0]!r}?" if near else f"set {NODE}.{key} to one of them.",
        )


def _at_least(key: str, value: float | None, low: float, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if value is None or not math.isfinite(value) or value < low:
        raise ConfigError(f"{NODE}.{key} is {value}; expected a number >= {low}.", f"change {NODE}.{key}.")


def _above(key: str, value: float | None, low: float, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if value is None or not math.isfinite(value) or value <= low:
        raise ConfigError(f"{NODE}.{key} is {value}; expected a number > {low}.", f"change {NODE}.{key}.")


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
        _at_least("control.size", self.size, 0, optional=True)


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
        _choice("review.mode", self.mode, ("blocking", "overlapped"))
        _at_least("review.every_tokens", self.every_tokens, 1, optional=True)
        _at_least("review.every_steps", self.every_steps, 1, optional=True)
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
        _at_least("budget.max_reviews", self.max_reviews, 1)
        _at_least("budget.max_insertions", self.max_insertions, 1)
        _at_least("budget.max_insertion_tokens", self.max_insertion_tokens, 1)
        _above("budget.max_inserted_share", self.max_inserted_share, 0)
        if self.max_inserted_share > 1:
            raise ConfigError(
                f"{NODE}.budget.max_inserted_share is {self.max_inserted_share}; it is a share, at most 1.",
                f"change {NODE}.budget.max_inserted_share.",
            )


@dataclass
class PromptsConfig:
    """Paths of prompt templates that replace the shipped ones; None = shipped."""

    reviewer: Optional[str] = None  # noqa: UP045
    validator: Optional[str] = None  # noqa: UP045
    corrector: Optional[str] = None  # noqa: UP045
    verifier: Optional[str] = None  # noqa: UP045
    steering: Optional[str] = None  # noqa: UP045


BACKENDS = ("python", "policy", "teacher", "endpoint", "recorded")
EVIDENCE = ("none", "outcome", "rubric", "gold")


@dataclass
class RoleConfig:
    """What one role has of its own; None takes over the value of ``intervention.judge``."""

    backend: Optional[str] = None  # noqa: UP045
    function: Optional[str] = None  # noqa: UP045
    evidence: Optional[str] = None  # noqa: UP045
    evidence_column: Optional[str] = None  # noqa: UP045
    temperature: Optional[float] = None  # noqa: UP045
    max_answer_tokens: Optional[int] = None  # noqa: UP045

    def __post_init__(self) -> None:
        if self.backend is not None:
            _choice("judge.roles.<role>.backend", self.backend, BACKENDS)
        if self.evidence is not None:
            _choice("judge.roles.<role>.evidence", self.evidence, EVIDENCE)


@dataclass
class RolesConfig:
    """Roles of the separate calls (RTI); by default all three are the one judge."""

    validator: RoleConfig = field(default_factory=RoleConfig)
    corrector: RoleConfig = field(default_factory=RoleConfig)
    verifier: RoleConfig = field(default_factory=RoleConfig)


@dataclass
class TeacherConfig:
    """A frozen model on verl's own teacher servers; which and how served is said in ``distillation.teacher_models``.

    Attributes:
        key: of the model, where there are several; None = the only one.
        chat_template_kwargs: of its chat template, e.g. ``{enable_thinking: false}``.
    """

    key: Optional[str] = None  # noqa: UP045
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass
class EndpointConfig:
    """An OpenAI-compatible chat server.

    Attributes:
        base_url: up to and including the version, e.g. http://127.0.0.1:8000/v1.
        model: name the server knows the model by.
        api_key_env: name of the environment variable that holds the key; None = the server needs none.
        structured: send the JSON schema of the answer as ``response_format``.
        extra_body: more fields of the request, of the server's own kind; they win over ours, a null is sent as null. E.g.
            ``{temperature: null, max_tokens: null, max_completion_tokens: 2048}`` for models that refuse the first two.
    """

    base_url: Optional[str] = None  # noqa: UP045
    model: Optional[str] = None  # noqa: UP045
    api_key_env: Optional[str] = None  # noqa: UP045
    structured: bool = True
    extra_body: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        key = f"{NODE}.judge.endpoint"
        if self.base_url is not None:
            # the value itself is not quoted: these are the places where a secret may stand
            try:
                url = urlsplit(self.base_url)
                bad = url.scheme not in ("http", "https") or not url.hostname or "@" in url.netloc or url.query
            except ValueError:
                bad = True
            if bad:
                raise ConfigError(
                    f"{key}.base_url is no plain http(s) address (user, password and query are not allowed in it).",
                    f"write {key}.base_url like http://127.0.0.1:8000/v1; a key is named by {key}.api_key_env.",
                )
        if self.api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):
            raise ConfigError(
                f"{key}.api_key_env is not the name of an environment variable.",
                f"export the key and write the variable's name, e.g. {key}.api_key_env: JUDGE_API_KEY.",
            )
        for name in self.extra_body:
            if name in ("messages", "model", "n", "stream", "response_format"):
                hint = f"use {key}.structured." if name == "response_format" else f"drop {key}.extra_body.{name}."
                raise ConfigError(f"{key}.extra_body.{name} would change what is asked or how it is read.", hint)
        for name in _keys(self.extra_body):
            if name.lower().endswith(("api_key", "authorization", "password", "secret")):
                raise ConfigError(
                    f"{key}.extra_body.{name} looks like a secret; the config is written to logs and checkpoints.",
                    f"name an environment variable in {key}.api_key_env.",
                )


def _keys(value: Any) -> Iterator[str]:
    """All keys, however deep."""
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield str(name)
            yield from _keys(below)
    elif isinstance(value, list):
        for below in value:
            yield from _keys(below)


@dataclass
class RetryConfig:
    """Repeated calls of ``endpoint`` after 408, 409, 425, 429, 5xx and transport errors, within ``call_deadline_s``.

    Attributes:
        attempts: calls in all, the first included.
        base_s: mean wait before the second one; it doubles from then on and is jittered.
        max_wait_s: ceiling of a wait, also of one the server asks for (Retry-After).
        attempt_timeout_s: seconds of one attempt; None = what is left of ``call_deadline_s``.
    """

    attempts: int = 4
    base_s: float = 0.5
    max_wait_s: float = 30.0
    attempt_timeout_s: Optional[float] = None  # noqa: UP045

    def __post_init__(self) -> None:
        _at_least("judge.retry.attempts", self.attempts, 1)
        _at_least("judge.retry.base_s", self.base_s, 0)
        _at_least("judge.retry.max_wait_s", self.max_wait_s, 0)
        _above("judge.retry.attempt_timeout_s", self.attempt_timeout_s, 0, optional=True)


@dataclass
class BreakerConfig:
    """Stops asking an ``endpoint`` that does not work; per rollout worker process.

    Attributes:
        failures: calls in a row that failed after their retries; then the following fail at once.
        cooldown_s: seconds until one call tries again.
    """

    failures: int = 16
    cooldown_s: float = 30.0

    def __post_init__(self) -> None:
        _at_least("judge.breaker.failures", self.failures, 1)
        _at_least("judge.breaker.cooldown_s", self.cooldown_s, 0)


@dataclass
class ClusterConfig:
    """Limits over all rollout workers together, kept by one Ray actor; None = no limit. Waiting is outside ``call_deadline_s``.

    Attributes:
        max_concurrency: calls in flight.
        requests_per_minute: HTTP requests, retries included; up to 10 seconds' worth may come at once.
        tokens_per_minute: prompt and completion tokens; they are known after a call, so a burst is paid back afterwards.
    """

    max_concurrency: Optional[int] = None  # noqa: UP045
    requests_per_minute: Optional[float] = None  # noqa: UP045
    tokens_per_minute: Optional[float] = None  # noqa: UP045

    def __post_init__(self) -> None:
        _at_least("judge.cluster.max_concurrency", self.max_concurrency, 1, optional=True)
        _above("judge.cluster.requests_per_minute", self.requests_per_minute, 0, optional=True)
        _above("judge.cluster.tokens_per_minute", self.tokens_per_minute, 0, optional=True)

    @property
    def limited(self) -> bool:
        return any(getattr(self, f.name) is not None for f in fields(self))


@dataclass
class PricesConfig:
    """Prices per million tokens, in any currency; without them no cost is reported.

    Attributes:
        cached: of prompt tokens that the server had in its cache; None = as ``prompt``.
    """

    prompt: Optional[float] = None  # noqa: UP045
    completion: Optional[float] = None  # noqa: UP045
    cached: Optional[float] = None  # noqa: UP045

    def __post_init__(self) -> None:
        for f in fields(self):
            _at_least(f"judge.prices.{f.name}", getattr(self, f.name), 0, optional=True)
        if (self.prompt is None) != (self.completion is None) or (self.prompt is None and self.cached is not None):
            raise ConfigError(
                f"{NODE}.judge.prices has only some of its prices; prompt and completion are needed.",
                f"set {NODE}.judge.prices.prompt and {NODE}.judge.prices.completion, or neither.",
            )

    def cost(self, prompt: int, completion: int, cached: int) -> float | None:
        """Price of these tokens; ``cached`` is a part of ``prompt``. None without prices."""
        if self.prompt is None or self.completion is None:
            return None
        cached_price = self.prompt if self.cached is None else self.cached
        return ((prompt - cached) * self.prompt + cached * cached_price + completion * self.completion) / 1e6


@dataclass
class JudgeConfig:
    """Who reviews, what it may see, and what happens when it fails.

    Attributes:
        backend: ``python`` (a function), ``policy`` (the policy's own servers, self-intervention), ``teacher`` (a frozen model on
            verl's teacher servers), ``endpoint`` (any OpenAI-compatible server) or ``recorded`` (the answers of an earlier run).
        teacher: for ``teacher``.
        function: "package.module:name" or "path.py:name", for ``python``.
        endpoint, retry, breaker: for ``endpoint``.
        recorded: ``trainer.rollout_data_dir`` of the earlier run, its folder ``trajectories`` or one file of it.
        evidence: none | outcome | rubric | gold.
        evidence_column: dotted path into the dataset row that holds the rubric or gold text.
        prompts: template files, for ``policy``, ``teacher`` and ``endpoint``.
        temperature: sampling temperature of these.
        max_answer_tokens: answer limit of these.
        call_deadline_s: seconds one call may take, retries included.
        session_deadline_s: seconds of judge time one session may use; after that it goes on without a judge.
        max_concurrency: calls in flight per rollout worker process.
        cluster: limits over all rollout workers, for ``endpoint``.
        prices: what tokens cost, for the metric ``judge_cost``.
        on_error: keep (the policy goes on, counted) | mask (the session leaves loss and baselines) | fail (the run stops).
        max_error_rate: share of failed calls above which the run stops.
        min_calls: calls over which that share is taken; they may come from several updates.
    """

    backend: str = "python"
    function: Optional[str] = None  # noqa: UP045
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    endpoint: EndpointConfig = field(default_factory=EndpointConfig)
    retry: RetryConfig = field(default_factory=RetryConfig)
    breaker: BreakerConfig = field(default_factory=BreakerConfig)
    recorded: Optional[str] = None  # noqa: UP045
    evidence: str = "none"
    evidence_column: Optional[str] = None  # noqa: UP045
    joint: bool = True
    roles: RolesConfig = field(default_factory=RolesConfig)
    prompts: PromptsConfig = field(default_factory=PromptsConfig)
    temperature: float = 0.0
    max_answer_tokens: int = 512
    call_deadline_s: float = 120.0
    session_deadline_s: float = 600.0
    max_concurrency: int = 64
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    prices: PricesConfig = field(default_factory=PricesConfig)
    on_error: str = "keep"
    max_error_rate: float = 0.5
    min_calls: int = 20

    def __post_init__(self) -> None:
        _choice("judge.backend", self.backend, BACKENDS)
        _choice("judge.evidence", self.evidence, EVIDENCE)
        _choice("judge.on_error", self.on_error, ("keep", "mask", "fail"))
        _at_least("judge.temperature", self.temperature, 0)
        _at_least("judge.max_answer_tokens", self.max_answer_tokens, 1)
        _above("judge.call_deadline_s", self.call_deadline_s, 0)
        _above("judge.session_deadline_s", self.session_deadline_s, 0)
        _at_least("judge.max_concurrency", self.max_concurrency, 1)
        _at_least("judge.max_error_rate", self.max_error_rate, 0)
        _at_least("judge.min_calls", self.min_calls, 1)
        if self.backend == "python" and not self.function:
            raise ConfigError(
                f"{NODE}.judge.backend is python but {NODE}.judge.function is not set.",
                f"set {NODE}.judge.function to 'package.module:name' or 'path.py:name'.",
            )
        self._check_network()
        self._check_roles()

    def _check_roles(self) -> None:
        own = {f"judge.roles.{f.name}": getattr(self.roles, f.name) for f in fields(self.roles)}
        for key, judge in {"judge": self, **own}.items():
            evidence, column = judge.evidence or self.evidence, judge.evidence_column or self.evidence_column
            if evidence in ("rubric", "gold") and not column:
                raise ConfigError(
                    f"{NODE}.{key}.evidence is {evidence} but {NODE}.{key}.evidence_column is not set.",
                    f"set {NODE}.{key}.evidence_column, e.g. reward_model.ground_truth, or {NODE}.{key}.evidence: none.",
                )
            if judge is not self and judge.function and (judge.backend or self.backend) != "python":
                raise ConfigError(
                    f"{NODE}.{key}.function is set but the backend of this role is {judge.backend or self.backend}.",
                    f"set {NODE}.{key}.backend: python, or drop the function.",
                )
        if self.joint and self.roles.corrector != RoleConfig():
            raise ConfigError(
                f"{NODE}.judge.roles.corrector is set but {NODE}.judge.joint is true: one call finds and corrects.",
                f"set {NODE}.judge.joint: false, or the keys of {NODE}.judge.roles.corrector to null.",
            )

    @property
    def backends(self) -> set[str]:
        """Backends of all roles."""
        own = (getattr(self.roles, f.name).backend for f in fields(self.roles))
        return {self.backend, *(backend for backend in own if backend is not None)}

    def _check_network(self) -> None:
        used = self.backends
        for name in ("base_url", "model"):
            if "endpoint" in used and not getattr(self.endpoint, name):
                raise ConfigError(
                    f"{NODE}.judge.backend (or that of a role) is endpoint but {NODE}.judge.endpoint.{name} is not set.",
                    f"set {NODE}.judge.endpoint.{name}.",
                )
        if ("recorded" in used) != bool(self.recorded):
            raise ConfigError(
                f"{NODE}.judge.backend is {self.backend} and {NODE}.judge.recorded is {self.recorded!r}.",
                f"set both {NODE}.judge.backend: recorded and {NODE}.judge.recorded, or neither.",
            )
        if self.cluster.limited and "endpoint" not in used:
            raise ConfigError(
                f"{NODE}.judge.cluster sets limits but {NODE}.judge.backend is {self.backend}; they hold for endpoint.",
                f"set the keys of {NODE}.judge.cluster to null.",
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
        _at_least("verifier.shortest_gold", self.shortest_gold, 1)
        _at_least("verifier.leak_ngram", self.leak_ngram, 1)


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
        _choice("gate.mode", self.mode, ("none", "absolute", "relative", "quantile"))
        _at_least("gate.delta", self.delta, 1)
        for name, value in self.delta_for.items():
            _at_least(f"gate.delta_for.{name}", value, 1)
        _above("gate.ratio", self.ratio, 0)
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
        _choice("token_weights.mode", self.mode, ("ones", "steering"))
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
        _at_least("group_failure.max_replaced", self.max_replaced, 1)


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
        _choice("advantage.estimator", self.estimator, ("control", "grpo"))
        _choice("advantage.v_mode", self.v_mode, ("mean", "soft"))
        _above("advantage.beta1", self.beta1, 0)


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
        _choice("anchor.mode", self.mode, ("const", "proxy"))
        _choice("anchor.relax", self.relax, ("always", "success"))
        _at_least("anchor.max_bonus", self.max_bonus, 0)
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
        _above("objective.beta", self.beta, 0)
        _choice("objective.loss_scale", self.loss_scale, ("horizon", "reinforce", "raw"))
        _choice("objective.length_norm", self.length_norm, ("none", "mean"))


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
        _at_least("schedule.stop_after_updates", self.stop_after_updates, 0, optional=True)
        _choice("schedule.decay", self.decay, ("none", "linear", "cosine"))
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
        success_threshold: a reward above it is a success.
    """

    trigger: str = "periodic"
    only_if_control_fails: bool = False
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
        _choice("trigger", self.trigger, ("never", "periodic", "group_failure"))
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
    raw = OmegaConf.to_container(node, resolve=True) if isinstance(node, DictConfig) else node
    _refuse_unknown(raw, InterventionConfig(), NODE)
    try:
        merged = OmegaConf.merge(OmegaConf.structured(InterventionConfig), raw)  # type: ignore[arg-type]
    except OmegaConfBaseException as error:
        raise ConfigError(
            f"{NODE}.{error.full_key} has a value of the wrong type: {str(error.msg).splitlines()[0]}.",
            f"change {NODE}.{error.full_key}.",
        ) from None
    return OmegaConf.to_object(merged)  # type: ignore[return-value]


def _refuse_unknown(raw: Any, default: Any, path: str) -> None:
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{path} is {raw!r}; expected a mapping.", f"write {path} as a block of keys.")
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

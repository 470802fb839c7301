"""The ``intervention.judge`` node: who is asked, how, how often, and what happens when that fails.

Values marked [inf] are stated by neither paper: they are assumptions, kept as config values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Optional
from urllib.parse import urlsplit

from verl_mintrl.config.checks import NODE, above, at_least, choice, is_secret, looks_like_secret
from verl_mintrl.errors import ConfigError


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

    def check(self, key: str) -> None:
        """Raises ConfigError for a value out of range; ``key`` is that of the role."""
        at_least(f"{key}.temperature", self.temperature, 0, optional=True)
        at_least(f"{key}.max_answer_tokens", self.max_answer_tokens, 1, optional=True)
        if self.backend is not None:
            choice(f"{key}.backend", self.backend, BACKENDS)
        if self.evidence is not None:
            choice(f"{key}.evidence", self.evidence, EVIDENCE)


@dataclass
class RolesConfig:
    """Roles of the separate calls (RTI); by default all three are the one judge."""

    validator: RoleConfig = field(default_factory=RoleConfig)
    corrector: RoleConfig = field(default_factory=RoleConfig)
    verifier: RoleConfig = field(default_factory=RoleConfig)

    def __post_init__(self) -> None:
        for f in fields(self):
            getattr(self, f.name).check(f"judge.roles.{f.name}")


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
        extra_body: more fields of the request, of the server's own kind. ``temperature`` and ``max_tokens`` may only be null there,
            for models that refuse them: then none is sent, and the limit goes as ``max_completion_tokens``.
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
                bad = url.scheme not in ("http", "https") or not url.hostname or "@" in url.netloc
                bad = bad or url.port == 0  # reading it raises for a port that is none
                bad = bad or any(c in "?#" or c.isspace() or not c.isprintable() for c in self.base_url)
                bad = bad or url.path.rstrip("/").endswith("/completions")
            except ValueError:
                bad = True
            if bad:
                raise ConfigError(
                    f"{key}.base_url is no plain http(s) address (no user, password, query or /chat/completions in it).",
                    f"write {key}.base_url like http://127.0.0.1:8000/v1; a key is named by {key}.api_key_env.",
                )
        if self.api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):
            raise ConfigError(
                f"{key}.api_key_env is not the name of an environment variable.",
                f"export the key and write the variable's name, e.g. {key}.api_key_env: JUDGE_API_KEY.",
            )
        for name in self.extra_body:
            if name in ("messages", "model", "n", "stream", "response_format"):
                homes = {"response_format": f"use {key}.structured.", "model": f"use {key}.model."}
                hint = homes.get(name, f"drop {key}.extra_body.{name}.")
                raise ConfigError(f"{key}.extra_body.{name} would change what is asked or how it is read.", hint)
        for place, value in (("model", self.model), *(("extra_body", value) for value in _texts(self.extra_body))):
            if value is not None and looks_like_secret(value):
                raise ConfigError(
                    f"{key}.{place} holds what looks like a secret; the config is written to logs and checkpoints.",
                    f"name an environment variable in {key}.api_key_env.",
                )
        if self.model is not None and not self.model.strip():
            raise ConfigError(f"{key}.model is blank.", f"set {key}.model to the name the server knows the model by.")
        for name in _keys(self.extra_body):
            if is_secret(name):
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


def _texts(value: Any) -> Iterator[str]:
    """All strings, however deep."""
    if isinstance(value, str):
        yield value
    for below in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _texts(below)


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
        at_least("judge.retry.attempts", self.attempts, 1)
        at_least("judge.retry.base_s", self.base_s, 0)
        at_least("judge.retry.max_wait_s", self.max_wait_s, 0)
        above("judge.retry.attempt_timeout_s", self.attempt_timeout_s, 0, optional=True)


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
        at_least("judge.breaker.failures", self.failures, 1)
        at_least("judge.breaker.cooldown_s", self.cooldown_s, 0)


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
        at_least("judge.cluster.max_concurrency", self.max_concurrency, 1, optional=True)
        above("judge.cluster.requests_per_minute", self.requests_per_minute, 0, optional=True)
        above("judge.cluster.tokens_per_minute", self.tokens_per_minute, 0, optional=True)

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
            at_least(f"judge.prices.{f.name}", getattr(self, f.name), 0, optional=True)
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
        max_error_rate: share of failed calls, of all or of one role, above which the run stops.
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
        choice("judge.backend", self.backend, BACKENDS)
        choice("judge.evidence", self.evidence, EVIDENCE)
        choice("judge.on_error", self.on_error, ("keep", "mask", "fail"))
        at_least("judge.temperature", self.temperature, 0)
        at_least("judge.max_answer_tokens", self.max_answer_tokens, 1)
        above("judge.call_deadline_s", self.call_deadline_s, 0)
        above("judge.session_deadline_s", self.session_deadline_s, 0)
        at_least("judge.max_concurrency", self.max_concurrency, 1)
        at_least("judge.max_error_rate", self.max_error_rate, 0)
        if self.max_error_rate > 1:
            raise ConfigError(
                f"{NODE}.judge.max_error_rate is {self.max_error_rate}; expected a share between 0 and 1.",
                f"change {NODE}.judge.max_error_rate.",
            )
        at_least("judge.min_calls", self.min_calls, 1)
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

"""From ``intervention.judge`` to guarded judges: the one place that knows all backends."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from verl_mintrl.config.judge import JudgeConfig, RoleConfig
from verl_mintrl.config.schema import VerifierConfig
from verl_mintrl.errors import ConfigError
from verl_mintrl.judges.endpoint import EndpointBackend
from verl_mintrl.judges.leak import LeakRules
from verl_mintrl.judges.limits import GuardedJudge
from verl_mintrl.judges.prompted import ChatBackend, PromptedJudge
from verl_mintrl.judges.prompts import PLACEHOLDERS, PromptSet
from verl_mintrl.judges.protocol import Evidence, Judge, Review, ReviewRequest
from verl_mintrl.judges.python import THREADS, PythonJudge, load
from verl_mintrl.judges.rate import ClusterLimiter
from verl_mintrl.judges.recorded import RecordedJudge
from verl_mintrl.judges.roles import Part, RolesJudge, Sight
from verl_mintrl.judges.servers import ServedModel, ServerBackend

#: an endpoint holds ``call_deadline_s`` itself, so that its error can say what happened until then; the guard stands behind
BACKSTOP_S = 5.0


@dataclass(frozen=True)
class Surroundings:
    """What backends need from the rollout worker.

    Attributes:
        policy: on the rollout servers, for the backend ``policy``.
        control_strings: special tokens of the policy.
        teachers: frozen models on verl's teacher servers by key, for the backend ``teacher``.
        unique_ids: see :class:`ServerBackend`.
    """

    policy: ServedModel
    control_strings: tuple[str, ...]
    teachers: Mapping[str, ServedModel] = field(default_factory=dict)
    unique_ids: bool = False


def build_judge(config: JudgeConfig, verifier: VerifierConfig, around: Surroundings) -> RolesJudge:
    """The configured judge: every role held to deadline and concurrency, and shown its own evidence.

    Raises:
        ConfigError: a function, a template or a recording cannot be loaded, a key is not set, or limits over all workers
            are set where Ray does not run.
    """
    built: dict[tuple[Any, ...], GuardedJudge] = {}

    def part(role: str, own: RoleConfig) -> Part:
        merged = _merged(config, own)
        python = merged.backend == "python"
        key: tuple[Any, ...] = (merged.backend, merged.temperature, merged.max_answer_tokens)
        if python:
            key = (merged.backend, role)
        elif merged.backend == "recorded":  # verdict, correction and checks come from one record
            key = (merged.backend,)
        if key not in built:
            judge = _python(config, role, own) if python else _model(merged, config, verifier, around)
            endpoint = merged.backend == "endpoint"
            threaded = isinstance(judge, PythonJudge) and judge.threaded
            built[key] = GuardedJudge(
                judge,
                timeout=config.call_deadline_s + (BACKSTOP_S if endpoint else 0),
                # a call that waits for a thread would be charged its deadline
                concurrency=min(config.max_concurrency, THREADS) if threaded else config.max_concurrency,
                joint=config.joint,
                control_strings=around.control_strings,
                limiter=_limiter(config) if endpoint else None,
            )
        return Part(built[key], Sight(Evidence(merged.evidence), merged.evidence_column))

    validator = part("validator", config.roles.validator)
    return RolesJudge(
        validator,
        validator if config.joint else part("corrector", config.roles.corrector),
        part("verifier", config.roles.verifier),
        LeakRules(verifier.shortest_gold, verifier.leak_ngram),
    )


def check_sources(config: JudgeConfig, verifier: VerifierConfig) -> None:
    """Find out before anything starts what workers would find out when they build the judge.

    Raises:
        ConfigError: a function, a template, a recording or the key of an endpoint is missing or broken.
    """
    PromptSet(_prompt_paths(config), informed=_informed(config))
    for role in fields(config.roles):
        own = getattr(config.roles, role.name)
        merged = _merged(config, own)
        if merged.backend == "python":
            _python(config, role.name, own)
        elif merged.backend == "recorded":
            _recorded(config, verifier)
        elif merged.backend == "endpoint":
            EndpointBackend(merged)


def _merged(config: JudgeConfig, own: RoleConfig) -> JudgeConfig:
    """``intervention.judge`` with what the role has of its own."""
    merged = copy.copy(config)  # not made anew: its checks are about all roles together
    for f in fields(own):
        if (value := getattr(own, f.name)) is not None:
            setattr(merged, f.name, value)
    return merged


def _python(config: JudgeConfig, role: str, own: RoleConfig) -> PythonJudge:
    """Functions: ``judge.function`` reviews; ``judge.roles.corrector.function`` and ``...verifier.function`` play these roles."""
    roles = config.roles
    review, key = config.function, "intervention.judge.function"
    if role == "validator" and own.function:
        review, key = own.function, "intervention.judge.roles.validator.function"

    def of_role(name: str, *takes: str) -> Callable[..., Any] | None:
        function = getattr(roles, name).function
        return load(function, f"intervention.judge.roles.{name}.function", ("request", *takes)) if function else None

    return PythonJudge(
        load(review, key) if review else _no_review,
        joint=config.joint,
        correct=of_role("corrector", "step"),
        verify=of_role("verifier", "step", "correction"),
    )


def _no_review(request: ReviewRequest) -> Review:
    raise ConfigError(
        "intervention.judge.function is not set, but a python judge was asked for a review.",
        "set intervention.judge.function, or intervention.judge.roles.validator.backend.",
    )


def _limiter(config: JudgeConfig) -> ClusterLimiter | None:
    if not config.cluster.limited:
        return None
    lease_s = config.call_deadline_s + 2 * BACKSTOP_S
    return ClusterLimiter(f"{config.endpoint.base_url} {config.endpoint.model}", config.cluster, lease_s)


def prompt_set(config: JudgeConfig, around: Surroundings) -> PromptSet:
    """The configured prompts of all roles."""
    return PromptSet(_prompt_paths(config), around.control_strings, _informed(config))


def _informed(config: JudgeConfig) -> set[str]:
    """Roles that see evidence, by the names of their templates."""
    seen = {f.name: getattr(config.roles, f.name).evidence or config.evidence for f in fields(config.roles)}
    if config.joint:
        seen["corrector"] = seen["validator"]
    seen |= {"reviewer": seen["validator"], "steering": seen["corrector"]}
    return {role for role, evidence in seen.items() if evidence != Evidence.NONE.value}


def _prompt_paths(config: JudgeConfig) -> dict[str, str | None]:
    return {role: getattr(config.prompts, role) for role in PLACEHOLDERS}


def _model(merged: JudgeConfig, config: JudgeConfig, verifier: VerifierConfig, around: Surroundings) -> Judge:
    """The judge of a role; what all roles together see is said by ``config`` alone."""
    if merged.backend == "recorded":
        return _recorded(config, verifier)
    return PromptedJudge(
        _backend(merged, around),
        prompt_set(config, around),
        joint=config.joint,
        control_strings=around.control_strings,
    )


def _recorded(config: JudgeConfig, verifier: VerifierConfig) -> RecordedJudge:
    assert config.recorded is not None  # checked by JudgeConfig
    informed = bool(_informed(config) & {"corrector", "verifier"})
    return RecordedJudge(config.recorded, verified=verifier.enabled, informed=informed)


def _backend(config: JudgeConfig, around: Surroundings) -> ChatBackend:
    if config.backend == "endpoint":
        return EndpointBackend(config)
    model = around.policy if config.backend == "policy" else _teacher(config, around.teachers)
    return ServerBackend(
        model, config.max_answer_tokens, config.temperature, name=config.backend, unique_ids=around.unique_ids
    )


def _teacher(config: JudgeConfig, teachers: Mapping[str, ServedModel]) -> ServedModel:
    key = config.teacher.key
    if key is None and len(teachers) == 1:
        key = next(iter(teachers))
    if key is None or key not in teachers:
        raise ConfigError(
            f"intervention.judge.teacher.key is {config.teacher.key!r}, but verl's teacher servers are "
            f"{', '.join(sorted(teachers)) or 'none'}.",
            "set it to one of them; distillation.teacher_models says what is served.",
        )
    return replace(teachers[key], template_kwargs=config.teacher.chat_template_kwargs)

"""Conflicts between the ``intervention:`` node and verl's own settings. Needs neither GPUs nor Ray."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_mintrl.config.schema import InterventionConfig, parse
from verl_mintrl.errors import ConfigError
from verl_mintrl.judges.roles import lookup
from verl_mintrl.judges.servers import teacher_keys
from verl_mintrl.rollout.stops import STOPS
from verl_mintrl.trajectory.steps import get_segmenter

logger = logging.getLogger(__name__)

TRAINER_MODES = ("intervention_sync", "intervention_colocate_async")
MANAGER_CLASS = "verl_mintrl.rollout.manager.InterventionAgentLoopManager"
LOSS_MODE = "intervention_regression"
LOSS_TARGET = "verl_mintrl.config.InterventionLossConfig"


ARITHMETIC = "verl_mintrl.judges.arithmetic:review"


@dataclass(frozen=True)
class Finding:
    """One conflict.

    Attributes:
        key: config key to change.
        message: what was seen and what was expected.
        hint: what to write instead.
        fatal: whether the run is refused; otherwise it is warned about.
    """

    key: str
    message: str
    hint: str
    fatal: bool = True

    def __str__(self) -> str:
        return f"{self.key}: {self.message} {self.hint}"


def findings(config: DictConfig) -> list[Finding]:
    """Every conflict found in a full verl config.

    Raises:
        ConfigError: the ``intervention:`` node itself is missing or malformed.
    """
    if OmegaConf.select(config, "intervention") is None:
        raise ConfigError(
            "the config has no intervention: node.",
            "add '- intervention: mintrl_gated' (or another preset) to the defaults list of the recipe.",
        )
    node = parse(config.intervention)
    return [*_wiring(config), *_groups(config, node), *_review(config, node), *_learning(config, node)]


def validate(config: DictConfig) -> InterventionConfig:
    """Refuse a config with a fatal conflict, warn about the others.

    Raises:
        ConfigError: lists every fatal finding with the key to change.
    """
    found = findings(config)
    for finding in found:
        if not finding.fatal:
            logger.warning("%s", finding)
    if fatal := [str(f) for f in found if f.fatal]:
        raise ConfigError(
            f"{len(fatal)} conflict(s) in the configuration:\n  - " + "\n  - ".join(fatal),
            "change the keys named above.",
        )
    return parse(config.intervention)


def _get(config: DictConfig, key: str, default: Any = None) -> Any:
    value = OmegaConf.select(config, key)
    return default if value is None else value


def _wiring(config: DictConfig) -> Iterator[Finding]:
    mode = _get(config, "trainer.v1.trainer_mode")
    if mode not in TRAINER_MODES:
        yield Finding(
            "trainer.v1.trainer_mode",
            f"is {mode!r}; rollouts with interventions need one of {', '.join(TRAINER_MODES)}.",
            f"Set it to {TRAINER_MODES[0]}.",
        )
    if not _get(config, "trainer.use_v1", True):
        yield Finding("trainer.use_v1", "is false; the plugin hangs into verl's V1 trainer.", "Set it to true.")
    manager = _get(config, "actor_rollout_ref.rollout.agent.agent_loop_manager_class")
    if manager != MANAGER_CLASS:
        yield Finding(
            "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
            f"is {manager!r}; the trainer reads columns only the plugin's rollout worker writes.",
            f"Set it to {MANAGER_CLASS}.",
        )


def _groups(config: DictConfig, node: InterventionConfig) -> Iterator[Finding]:
    n = int(_get(config, "actor_rollout_ref.rollout.n", 1))
    size = node.control_size(n)
    if n < 2:
        yield Finding(
            "actor_rollout_ref.rollout.n",
            f"is {n}; a group needs at least 2 sessions to have a baseline.",
            "Set it to 8 (4 control, 4 treated).",
        )
        return
    if node.advantage.estimator == "control" and size < 1:
        yield Finding(
            "intervention.control.size",
            "is 0; the control estimator takes its baseline from control sessions.",
            "Set it to at least 1 (2 for a leave-one-out baseline), or intervention.advantage.estimator: grpo.",
        )
    if node.trigger == "periodic" and size >= n:
        yield Finding(
            "intervention.control.size",
            f"is {size} of rollout.n = {n}; no session is left to be intervened on.",
            f"Set it to at most {n - 1}.",
        )
    if node.only_if_control_fails:
        if size < 1:
            yield Finding(
                "intervention.only_if_control_fails",
                "is true without control sessions.",
                "Set intervention.control.size to at least 1, or this key to false.",
            )
        yield from _reward_in_time(config, "the control sessions", "intervention.only_if_control_fails to false")


def _reward_in_time(config: DictConfig, who: str, otherwise: str) -> Iterator[Finding]:
    """Rewards must exist while sampling where the rollout depends on them."""
    model = "reward.reward_model"
    if _get(config, f"{model}.enable", False) and not _get(config, f"{model}.enable_resource_pool", False):
        yield Finding(
            f"{model}.enable",
            "is true without a resource pool of its own: rewards are computed after sampling, too late to know whether "
            f"{who} failed.",
            f"Set {model}.enable_resource_pool to true, or {otherwise}.",
        )


def _review(config: DictConfig, node: InterventionConfig) -> Iterator[Finding]:
    if node.trigger == "never":
        return
    loop = _get(config, "actor_rollout_ref.rollout.agent.default_agent_loop", "single_turn_agent")
    if loop != "single_turn_agent" and node.trigger == "periodic":
        yield Finding(
            "actor_rollout_ref.rollout.agent.default_agent_loop",
            f"is {loop!r}; the trigger periodic reviews single-turn responses.",
            "Set it to single_turn_agent, or intervention.trigger to never.",
        )
    if _get(config, "actor_rollout_ref.rollout.enable_rollout_routing_replay", False):
        yield Finding(
            "actor_rollout_ref.rollout.enable_rollout_routing_replay",
            "is true; routing of inserted tokens was never recorded.",
            "Set it to false.",
        )
    verifier = node.judge.roles.verifier
    if node.verifier.enabled and (verifier.backend or node.judge.backend) == "python" and not verifier.function:
        yield Finding(
            "intervention.judge.roles.verifier.function",
            "is not set, but intervention.verifier.enabled is true and the Verifier is a Python function.",
            "Name one, or set intervention.judge.roles.verifier.backend, or intervention.verifier.enabled to false.",
        )
    yield from _unused(node)
    if "teacher" in node.judge.backends:
        yield from _teachers(config, node)
    if "endpoint" in node.judge.backends:
        yield from _extra_body(node)
    if node.gate.mode == "quantile" and not _sampled_plainly(config):
        yield Finding(
            "intervention.gate.mode",
            "is quantile: it takes the policy's own perplexities from its sampling log-probs, which must be those at temperature 1 "
            "without truncation.",
            "Set actor_rollout_ref.rollout.temperature and top_p to 1, top_k to -1, calculate_log_probs to true; or another mode.",
        )
    if node.gate.mode != "none" or node.token_weights.mode == "steering":
        prompt = int(_get(config, "actor_rollout_ref.rollout.prompt_length", 0))
        response = int(_get(config, "actor_rollout_ref.rollout.response_length", 0))
        limit = _get(config, "actor_rollout_ref.rollout.max_model_len")
        if limit is not None and int(limit) < prompt + response + 1:
            yield Finding(
                "actor_rollout_ref.rollout.max_model_len",
                f"is {limit}; scoring a correction needs prompt + response + 1 = {prompt + response + 1}.",
                "Raise it.",
            )
    if node.trigger == "group_failure":
        yield from _group_failure(config, node)
        return
    roles = node.judge.roles
    if "outcome" in (node.judge.evidence, *(getattr(roles, f.name).evidence for f in fields(roles))):
        yield Finding(
            "intervention.judge.evidence",
            "(or that of a role) is outcome, but no outcome exists yet when a periodic review happens.",
            "Set it to none, rubric or gold.",
        )
    try:
        get_segmenter(node.review.segmenter)
    except ConfigError as error:
        yield Finding("intervention.review.segmenter", error.message, error.hint)
    if node.judge.backend == "python" and node.judge.function == ARITHMETIC:
        yield Finding(
            "intervention.judge.function",
            "is the shipped checker, which understands sums and products and nothing else.",
            "For another task name a judge of your own.",
            fatal=False,
        )
    if node.review.every_steps is not None and node.review.segmenter not in STOPS:
        yield Finding(
            "intervention.review.every_steps",
            f"needs a segmenter with a known step ending ({', '.join(STOPS)}), not {node.review.segmenter!r}.",
            "Set intervention.review.every_tokens instead.",
        )


def _unused(node: InterventionConfig) -> Iterator[Finding]:
    """Settings of a judge that is not asked, or is not asked like that: most likely another key was forgotten."""
    judge, key = node.judge, "intervention.judge"
    if judge.endpoint.base_url and "endpoint" not in judge.backends:
        yield Finding(
            f"{key}.endpoint.base_url",
            f"is set, but {key}.backend is {judge.backend}: no server would be asked.",
            f"Set {key}.backend (or that of a role) to endpoint, or drop it.",
            fatal=judge.backends == {"python"},  # the default backend; any other was chosen
        )
    roles = {f.name: getattr(judge.roles, f.name) for f in fields(judge.roles)}
    if judge.evidence_column and {judge.evidence, *(role.evidence for role in roles.values())} <= {
        "none",
        "outcome",
        None,
    }:
        yield Finding(
            f"{key}.evidence_column",
            f"is {judge.evidence_column!r}, but {key}.evidence is {judge.evidence}: no judge sees it.",
            f"Set {key}.evidence to gold or rubric, or the column to null.",
            fatal=False,
        )
    asked = {"reviewer"} if judge.joint else {"validator", "corrector"}
    asked |= {"steering"} | ({"verifier"} if node.verifier.enabled else set())
    models = judge.backends - {"python", "recorded"}
    for role in (f.name for f in fields(judge.prompts)):
        if getattr(judge.prompts, role) and (role not in asked or not (models or role == "steering")):
            yield Finding(
                f"{key}.prompts.{role}",
                f"is set, but nobody is asked with it (backends {', '.join(sorted(judge.backends))}, joint {judge.joint}, "
                f"verifier.enabled {node.verifier.enabled}).",
                "Drop it, or change one of these.",
                fatal=False,
            )


def _teachers(config: DictConfig, node: InterventionConfig) -> Iterator[Finding]:
    for name in ("nnodes", "n_gpus_per_node"):
        count = _get(config, f"distillation.{name}", 0)
        if not isinstance(count, int) or count < 1:
            yield Finding(
                f"distillation.{name}",
                f"is {count!r}, but intervention.judge.backend (or that of a role) is teacher, which needs GPUs of its own.",
                "Set both distillation.nnodes and distillation.n_gpus_per_node to numbers >= 1.",
            )
    models = {name: model for name, model in _get(config, "distillation.teacher_models", {}).items() if model}
    if not any(model.get("model_path") for model in models.values()):
        yield Finding(
            "distillation.teacher_models.teacher_model.model_path",
            "is not set, but intervention.judge.backend (or that of a role) is teacher.",
            "Name the judge's model there.",
        )
        return
    keys = teacher_keys(models)
    if node.judge.teacher.key not in keys and (node.judge.teacher.key is not None or len(keys) > 1):
        yield Finding(
            "intervention.judge.teacher.key",
            f"is {node.judge.teacher.key!r}; the teachers of distillation.teacher_models are {', '.join(map(repr, keys))}.",
            "Set it to one of them.",
        )


def _extra_body(node: InterventionConfig) -> Iterator[Finding]:
    """Fields of the request that have a key of their own; null takes back what a model does not know."""
    extra = node.judge.endpoint.extra_body
    homes = {
        "temperature": "temperature",
        "max_tokens": "max_answer_tokens",
        "max_completion_tokens": "max_answer_tokens",
    }
    for name, home in homes.items():
        if name not in extra or (extra[name] is None and name != "max_completion_tokens"):
            continue
        hint = f"Drop it and set intervention.judge.{home} (or that of a role)."
        if home == "max_answer_tokens":
            hint += " For a model that knows max_completion_tokens only, set max_tokens to null there: the limit is renamed."
        yield Finding(
            f"intervention.judge.endpoint.extra_body.{name}",
            f"is {extra[name]!r}; it would override intervention.judge.{home}, which is {getattr(node.judge, home)!r}.",
            hint,
        )


def _sampled_plainly(config: DictConfig) -> bool:
    rollout = config.actor_rollout_ref.rollout
    plain = rollout.temperature == 1 and rollout.top_p == 1 and rollout.top_k in (-1, 0)
    return bool(plain and rollout.calculate_log_probs)


def _group_failure(config: DictConfig, node: InterventionConfig) -> Iterator[Finding]:
    yield from _reward_in_time(config, "a group", "intervention.trigger to periodic")
    if node.only_if_control_fails:
        yield Finding(
            "intervention.only_if_control_fails",
            "belongs to the periodic trigger; group_failure looks at the whole group anyway.",
            "Set it to false.",
        )


def _learning(config: DictConfig, node: InterventionConfig) -> Iterator[Finding]:
    if _get(config, "algorithm.use_kl_in_reward", False):
        yield Finding(
            "algorithm.use_kl_in_reward",
            "is true; a KL term in the reward would charge the policy for tokens it did not write.",
            "Set it to false.",
        )
    estimator = _get(config, "algorithm.adv_estimator")
    if estimator != "grpo":
        yield Finding(
            "algorithm.adv_estimator",
            f"is {estimator!r}; the trainer starts from verl's grpo advantage and replaces it where "
            "intervention.advantage.estimator is control.",
            "Set it to grpo.",
        )
    if _get(config, "critic.enable", False):
        yield Finding("critic.enable", "is true; there is no value function here.", "Set it to false or null.")
    if _get(config, "algorithm.filter_groups.enable", False):
        yield Finding(
            "algorithm.filter_groups.enable",
            "is true; filters on the raw reward drop exactly the all-failed groups interventions are for.",
            "Set it to false.",
        )
    for name in ("rollout_is", "rollout_rs"):
        if (value := _get(config, f"algorithm.rollout_correction.{name}")) is not None:
            yield Finding(
                f"algorithm.rollout_correction.{name}",
                f"is {value!r}; its per-token weights travel in the column that carries the token weights here.",
                "Set it to null.",
            )
    if _get(config, "algorithm.rollout_correction.bypass_mode", False):
        yield Finding(
            "algorithm.rollout_correction.bypass_mode",
            "is true; inserted tokens have no sampling log-prob, so the actor must recompute them.",
            "Set it to false.",
        )
    if _get(config, "distillation.enabled", False) and _get(
        config, "distillation.distillation_loss.use_policy_gradient", False
    ):
        yield Finding(
            "distillation.distillation_loss.use_policy_gradient",
            "is true; it reads old_log_probs, where the relaxed anchor of inserted tokens is written.",
            "Set it to false.",
        )
    loss_mode = _get(config, "actor_rollout_ref.actor.policy_loss.loss_mode")
    if loss_mode == LOSS_MODE:
        yield from _regression(config, node)
    elif difflib.get_close_matches(str(loss_mode), [LOSS_MODE], cutoff=0.8):
        yield Finding(
            "actor_rollout_ref.actor.policy_loss.loss_mode", f"is {loss_mode!r}.", f"Did you mean {LOSS_MODE}?"
        )
    for key in ("use_kl_loss", "entropy_coeff"):
        if _get(config, f"actor_rollout_ref.actor.{key}", 0):
            yield Finding(
                f"actor_rollout_ref.actor.{key}",
                "covers inserted tokens too (k3 is unbounded there).",
                "Consider false / 0.",
                fatal=False,
            )


def _regression(config: DictConfig, node: InterventionConfig) -> Iterator[Finding]:
    if node.objective.length_norm == "mean" and node.objective.loss_scale == "horizon":
        yield Finding(
            "intervention.objective.length_norm",
            "is mean and loss_scale is horizon: the length is divided out twice.",
            "Consider loss_scale: reinforce.",
            fatal=False,
        )
    loss = config.actor_rollout_ref.actor.policy_loss
    target = loss.get("_target_")
    if target not in (LOSS_TARGET, "verl_mintrl.config.loss.InterventionLossConfig"):
        yield Finding(
            "actor_rollout_ref.actor.policy_loss._target_",
            f"is {target!r}; verl's own loss config has no room for beta.",
            f"Set it to {LOSS_TARGET}.",
        )
        return
    for name in ("beta", "loss_scale", "length_norm"):
        if loss.get(name) != getattr(node.objective, name):
            yield Finding(
                f"actor_rollout_ref.actor.policy_loss.{name}",
                f"is {loss.get(name)!r}, but its home intervention.objective.{name} says "
                f"{getattr(node.objective, name)!r}.",
                f"Write ${{intervention.objective.{name}}} there and change only intervention.objective.{name}.",
            )


#: columns verl or the plugin writes itself; a dataset column of the same name would overwrite them silently
#: (``field.update(kwargs)`` in ``AgentLoopWorkerTQ._agent_loop_postprocess``)
RESERVED_COLUMNS = frozenset(
    "prompts responses response_mask loss_mask input_ids position_ids attention_mask rm_scores rollout_log_probs "
    "old_log_probs ref_log_prob advantages returns values entropy token_level_scores token_level_rewards "
    "rollout_is_weights metrics num_turns extra_fields multi_modal_inputs routed_experts uid session_id global_steps "
    "validate teacher_ids teacher_logprobs authors token_weights intervention_group intervention_session".split()
)


def check_columns(columns: list[str], key: str) -> None:
    """Refuse a dataset whose columns would overwrite what the rollout writes.

    Raises:
        ConfigError: names the columns.
    """
    if clash := sorted(RESERVED_COLUMNS & set(columns)):
        raise ConfigError(
            f"the dataset of {key} has columns named like fields of verl: {', '.join(clash)}; they would "
            "overwrite what the rollout writes.",
            "rename them in the dataset.",
        )


def check_dataset(columns: list[str], sample: dict[str, Any], config: DictConfig, node: InterventionConfig) -> None:
    """Refuse a training dataset that cannot be used.

    Args:
        columns: its column names.
        sample: its first row.

    Raises:
        ConfigError: a reserved column name, a missing evidence column, images, or rows with an agent loop of their own.
    """
    check_columns(columns, "data.train_files")
    if node.trigger == "never":
        return
    roles = node.judge.roles
    for judge in (node.judge, roles.validator, roles.corrector, roles.verifier):
        if judge.evidence_column:
            lookup(sample, judge.evidence_column)
    if node.trigger == "periodic" and (loop := sample.get("agent_name")) not in (None, "single_turn_agent"):
        raise ConfigError(
            f"the dataset of data.train_files names the agent loop {loop!r}; the periodic trigger reviews single-turn "
            "responses.",
            "drop the column agent_name, or set intervention.trigger: never.",
        )
    for key in ("image_key", "video_key", "audio_key"):
        if (column := _get(config, f"data.{key}")) in columns:
            raise ConfigError(
                f"the dataset of data.train_files has the column {column!r}; interventions support text only.",
                f"drop the column, or set intervention.trigger: never (data.{key} names it).",
            )

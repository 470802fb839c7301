"""Every refusal, with the key it names and the way out."""

from __future__ import annotations

import inspect
import logging
import re

import pytest
from composed import changed, compose_recipe
from omegaconf import OmegaConf, open_dict

from verl_mintrl.config import judge, schema
from verl_mintrl.config.schema import InterventionConfig, parse
from verl_mintrl.config.validate import check_dataset, findings, validate
from verl_mintrl.errors import ConfigError, DataError

ROLLOUT = "actor_rollout_ref.rollout"
LOSS = "actor_rollout_ref.actor.policy_loss"
#: a frozen judge as it should be
TEACHER = {
    "intervention.judge.backend": "teacher",
    "distillation.nnodes": 1,
    "distillation.n_gpus_per_node": 1,
    "distillation.teacher_models.teacher_model.model_path": "judge",
}
#: a judge behind HTTP as it should be
ENDPOINT = {
    "intervention.judge.backend": "endpoint",
    "intervention.judge.endpoint.base_url": "http://127.0.0.1:8000/v1",
    "intervention.judge.endpoint.model": "judge",
}
EXTRA = "intervention.judge.endpoint.extra_body"

#: changes to the recipe mintrl_const -> what the message names, what the hint says
CONFLICTS = {
    "trainer forgotten": ({"trainer.v1.trainer_mode": "sync"}, "trainer.v1.trainer_mode", "intervention_sync"),
    "async trainer": (
        {"trainer.v1.trainer_mode": "colocate_async"},
        "trainer.v1.trainer_mode: is 'colocate_async'",
        "Set it to intervention_sync",
    ),
    "legacy trainer": ({"trainer.use_v1": False}, "trainer.use_v1", "Set it to true"),
    "manager forgotten": (
        {f"{ROLLOUT}.agent.agent_loop_manager_class": None},
        f"{ROLLOUT}.agent.agent_loop_manager_class",
        "InterventionAgentLoopManager",
    ),
    "one session": ({f"{ROLLOUT}.n": 1}, f"{ROLLOUT}.n: is 1", "Set it to 8"),
    "no control": ({"intervention.control.size": 0}, "intervention.control.size: is 0", "estimator: grpo"),
    "control only": (
        {"intervention.control.size": 8},
        "intervention.control.size: is 8 of rollout.n = 8",
        "at most 7",
    ),
    "more control than sessions": (
        {"intervention.control.size": 9},
        "intervention.control.size: is 9 of rollout.n = 8",
        "at most 7",
    ),
    "gate without control": (
        {
            "intervention.only_if_control_fails": True,
            "intervention.control.size": 0,
            "intervention.advantage.estimator": "grpo",
        },
        "intervention.only_if_control_fails",
        "intervention.control.size to at least 1",
    ),
    "gate with colocated reward model": (
        {"intervention.only_if_control_fails": True, "reward.reward_model.enable": True},
        "reward.reward_model.enable",
        "enable_resource_pool",
    ),
    "tool agent": (
        {f"{ROLLOUT}.agent.default_agent_loop": "tool_agent"},
        f"{ROLLOUT}.agent.default_agent_loop: is 'tool_agent'",
        "single_turn_agent",
    ),
    "outcome as evidence": (
        {"intervention.judge.evidence": "outcome"},
        "intervention.judge.evidence",
        "none, rubric or gold",
    ),
    "teacher without GPUs": (
        TEACHER | {"distillation.nnodes": 0},
        "distillation.nnodes: is 0",
        "distillation.n_gpus_per_node",
    ),
    "teacher without a number": (
        TEACHER | {"distillation.n_gpus_per_node": "1"},
        "distillation.n_gpus_per_node: is '1'",
        "numbers >= 1",
    ),
    "teacher that is not served": (
        TEACHER | {"intervention.judge.teacher.key": "large"},
        "intervention.judge.teacher.key: is 'large'",
        "'default'",
    ),
    "teacher without an entry": (
        TEACHER | {"distillation.teacher_models": {"teacher_model": None}},
        "distillation.teacher_models.teacher_model.model_path",
        "judge's model",
    ),
    "teacher without a model": (
        TEACHER | {"distillation.teacher_models.teacher_model.model_path": None},
        "distillation.teacher_models.teacher_model.model_path",
        "judge's model",
    ),
    "answer length away from its home": (
        ENDPOINT | {f"{EXTRA}.max_tokens": 4096},
        f"{EXTRA}.max_tokens: is 4096; it would override intervention.judge.max_answer_tokens, which is 512",
        "Drop it and set intervention.judge.max_answer_tokens",
    ),
    "answer length under its other name": (
        ENDPOINT | {f"{EXTRA}.max_tokens": None, f"{EXTRA}.max_completion_tokens": 4096},
        f"{EXTRA}.max_completion_tokens: is 4096; it would override intervention.judge.max_answer_tokens",
        "set max_tokens to null there",
    ),
    "no answer length at all": (
        ENDPOINT | {f"{EXTRA}.max_tokens": None, f"{EXTRA}.max_completion_tokens": None},
        f"{EXTRA}.max_completion_tokens: is None",
        "Drop it",
    ),
    "temperature away from its home": (
        {"intervention.judge.roles.verifier.backend": "endpoint", f"{EXTRA}.temperature": 0.7}
        | {key: value for key, value in ENDPOINT.items() if key != "intervention.judge.backend"},
        f"{EXTRA}.temperature: is 0.7; it would override intervention.judge.temperature, which is 0.0",
        "Drop it and set intervention.judge.temperature",
    ),
    "segmenter that does not exist": (
        {"intervention.review.segmenter": "parragraph"},
        "intervention.review.segmenter",
        "did you mean 'paragraph'",
    ),
    "misspelt loss": (
        {"actor_rollout_ref.actor.policy_loss.loss_mode": "intervention_regresion"},
        "actor_rollout_ref.actor.policy_loss.loss_mode",
        "intervention_regression",
    ),
    "steps of an unknown segmenter": (
        {
            "intervention.review.every_tokens": None,
            "intervention.review.every_steps": 1,
            "intervention.review.segmenter": "verl_mintrl.trajectory.steps:paragraphs",
        },
        "intervention.review.every_steps",
        "intervention.review.every_tokens",
    ),
    "routing replay": (
        {f"{ROLLOUT}.enable_rollout_routing_replay": True},
        f"{ROLLOUT}.enable_rollout_routing_replay",
        "Set it to false",
    ),
    "no room to score corrections": (
        {
            "intervention.gate.mode": "absolute",
            "data.max_prompt_length": 100,
            "data.max_response_length": 50,
            f"{ROLLOUT}.max_model_len": 150,
        },
        f"{ROLLOUT}.max_model_len: is 150",
        "prompt + response + 1 = 151",
    ),
    "group failure with colocated reward model": (
        {"intervention.trigger": "group_failure", "reward.reward_model.enable": True},
        "reward.reward_model.enable",
        "enable_resource_pool",
    ),
    "group failure with the other gate": (
        {"intervention.trigger": "group_failure", "intervention.only_if_control_fails": True},
        "intervention.only_if_control_fails",
        "Set it to false",
    ),
    "KL in reward": ({"algorithm.use_kl_in_reward": True}, "algorithm.use_kl_in_reward", "Set it to false"),
    "other estimator": ({"algorithm.adv_estimator": "gae"}, "algorithm.adv_estimator: is 'gae'", "Set it to grpo"),
    "critic": ({"critic.enable": True}, "critic.enable", "false or null"),
    "DAPO filter": ({"algorithm.filter_groups.enable": True}, "algorithm.filter_groups.enable", "Set it to false"),
    "importance weights": (
        {"algorithm.rollout_correction.rollout_is": "token"},
        "algorithm.rollout_correction.rollout_is: is 'token'",
        "Set it to null",
    ),
    "rejection sampling": (
        {"algorithm.rollout_correction.rollout_rs": "token_k1"},
        "algorithm.rollout_correction.rollout_rs: is 'token_k1'",
        "Set it to null",
    ),
    "bypass mode": (
        {"algorithm.rollout_correction.bypass_mode": True},
        "algorithm.rollout_correction.bypass_mode",
        "Set it to false",
    ),
    "distillation by policy gradient": (
        {"distillation.enabled": True, "distillation.distillation_loss.use_policy_gradient": True},
        "distillation.distillation_loss.use_policy_gradient",
        "Set it to false",
    ),
    "an endpoint nobody asks": (
        {"intervention.judge.endpoint.base_url": "http://127.0.0.1:8000/v1"},
        "intervention.judge.endpoint.base_url: is set, but intervention.judge.backend is python",
        "to endpoint",
    ),
    "stock loss config": (
        {f"{LOSS}._target_": "verl.workers.config.PolicyLossConfig"},
        f"{LOSS}._target_",
        "verl_mintrl.config.InterventionLossConfig",
    ),
    "beta away from its home": ({f"{LOSS}.beta": 0.5}, f"{LOSS}.beta: is 0.5", "${intervention.objective.beta}"),
    "loss scale away from its home": (
        {f"{LOSS}.loss_scale": "raw"},
        f"{LOSS}.loss_scale: is 'raw'",
        "${intervention.objective.loss_scale}",
    ),
    "length norm away from its home": (
        {f"{LOSS}.length_norm": "mean"},
        f"{LOSS}.length_norm: is 'mean'",
        "${intervention.objective.length_norm}",
    ),
}


@pytest.mark.parametrize("case", CONFLICTS)
def test_conflict_is_refused_with_key_and_hint(case):
    changes, key, hint = CONFLICTS[case]
    config = changed(compose_recipe("mintrl_const"), changes)
    with pytest.raises(ConfigError) as caught:
        validate(config)
    assert key in str(caught.value)
    assert hint in str(caught.value)
    fatal = [finding for finding in findings(config) if finding.fatal]
    assert len(fatal) == 1, f"one change, one finding: {fatal}"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"evidence_column": "reward_model.ground_truth"}, "evidence_column"),
        ({"prompts.reviewer": "mine.txt"}, "prompts.reviewer"),
        ({"backend": "policy", "prompts.validator": "mine.txt"}, "prompts.validator"),
        ({"backend": "policy", "prompts.verifier": "mine.txt"}, "prompts.verifier"),
        ({"backend": "policy", "prompts.reviewer": "mine.txt"}, None),
        ({"evidence": "gold", "evidence_column": "reward_model.ground_truth"}, None),
        ({"backend": "policy", "endpoint.base_url": "http://127.0.0.1:8000/v1"}, "endpoint.base_url"),
        ({"endpoint.model": "sk-learn-judge"}, None),
    ],
)
def test_a_setting_that_nobody_reads_is_warned_about(changes, key):
    config = changed(compose_recipe("mintrl_const"), {f"intervention.judge.{name}": v for name, v in changes.items()})
    found = [finding for finding in findings(config) if finding.key != "intervention.judge.function"]
    assert [(finding.key, finding.fatal) for finding in found] == (
        [(f"intervention.judge.{key}", False)] if key else []
    )


def test_all_conflicts_are_listed_at_once():
    config = changed(compose_recipe("mintrl_const"), {"trainer.v1.trainer_mode": "sync", "critic.enable": True})
    with pytest.raises(ConfigError, match=r"(?s)2 conflict.*trainer\.v1\.trainer_mode.*critic\.enable"):
        validate(config)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        (
            {"intervention.objective.length_norm": "mean", "intervention.objective.loss_scale": "horizon"},
            "intervention.objective.length_norm",
        ),
        ({"actor_rollout_ref.actor.use_kl_loss": True}, "actor_rollout_ref.actor.use_kl_loss"),
        ({"actor_rollout_ref.actor.entropy_coeff": 0.01}, "actor_rollout_ref.actor.entropy_coeff"),
    ],
)
def test_doubtful_settings_are_warned_about_only(caplog, changes, key):
    config = changed(compose_recipe("mintrl_const"), changes)
    with caplog.at_level(logging.WARNING):
        validate(config)
    assert [record.message for record in caplog.records if record.message.startswith(key + ":")]


@pytest.mark.parametrize(
    "changes",
    [
        {f"{ROLLOUT}.agent.default_agent_loop": "tool_agent"},
        {f"{ROLLOUT}.enable_rollout_routing_replay": True},
        {"intervention.judge.evidence": "outcome"},
        {"intervention.control.size": 8},
    ],
)
def test_rollout_conflicts_do_not_matter_without_interventions(changes):
    validate(changed(compose_recipe("grpo", "intervention=regression_on_policy"), changes))


def test_gate_with_reward_model_in_a_pool_of_its_own():
    changes = {"reward.reward_model.enable": True, "reward.reward_model.enable_resource_pool": True}
    validate(changed(compose_recipe("mintrl_gated"), changes))


def test_fields_of_the_request_may_be_taken_back():
    for extra in ({}, {"temperature": None, "max_tokens": None}, {"top_k": 5}):
        validate(changed(compose_recipe("mintrl_const"), ENDPOINT | {EXTRA: extra}))
    validate(changed(compose_recipe("mintrl_const"), {f"{EXTRA}.max_tokens": 4096}))  # of a backend that is not used


def test_missing_node():
    config = compose_recipe("mintrl_const")
    with open_dict(config):
        del config.intervention
    with pytest.raises(ConfigError, match=r"no intervention: node.*intervention: mintrl_gated"):
        validate(config)


# --- the node alone

UNKNOWN = {
    ("triger",): "intervention.trigger",
    ("control", "sizes"): "intervention.control.size",
    ("review", "every_token"): "intervention.review.every_tokens",
    ("budget", "max_insertion"): "intervention.budget.max_insertions",
    ("judge", "functoin"): "intervention.judge.function",
    ("judge", "prompts", "reviewers"): "intervention.judge.prompts.reviewer",
    ("advantage", "vmode"): "intervention.advantage.v_mode",
    ("anchor", "kapa"): "intervention.anchor.kappa",
    ("objective", "betta"): "intervention.objective.beta",
    ("schedule", "stop_after_update"): "intervention.schedule.stop_after_updates",
}


def node(path: tuple[str, ...], value: object) -> dict[str, object]:
    for key in reversed(path):
        value = {key: value}
    return value  # type: ignore[return-value]


@pytest.mark.parametrize("path", UNKNOWN, ids=".".join)
def test_misspelt_key_names_the_nearest_known_one(path):
    with pytest.raises(ConfigError) as caught:
        parse(node(path, 1))
    assert f"unknown config key intervention.{'.'.join(path)}." in caught.value.message
    assert caught.value.hint == f"did you mean {UNKNOWN[path]}?"


def test_unknown_key_without_a_neighbour_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"intervention\.control\.xyzzy.*known keys of .*: size, train"):
        parse({"control": {"xyzzy": 1}})


VALUES = {
    "trigger=period": "did you mean 'periodic'",
    "trigger=on_failure": "never, periodic",
    "only_if_control_fails=maybe": "wrong type",
    "success_threshold=nan": "expected a number",
    "success_threshold=high": "wrong type",
    "control.size=-1": ">= 0",
    "control.size=half": "wrong type",
    "review.mode=parallel": "overlapped",
    "review.every_tokens=0": ">= 1",
    "review.every_tokens=often": "wrong type",
    "budget.max_reviews=0": ">= 1",
    "budget.max_insertions=0": ">= 1",
    "budget.max_insertion_tokens=0": ">= 1",
    "budget.max_inserted_share=0": "> 0",
    "budget.max_inserted_share=1.5": "at most 1",
    "judge.backend=pythn": "python, policy",
    "judge.evidence=goldd": "did you mean 'gold'",
    "judge.on_error=ignore": "keep, mask, fail",
    "judge.temperature=-0.1": ">= 0",
    "judge.max_answer_tokens=0": ">= 1",
    "judge.call_deadline_s=0": "> 0",
    "judge.session_deadline_s=inf": "> 0",
    "judge.max_concurrency=0": ">= 1",
    "judge.max_error_rate=-1": ">= 0",
    "judge.min_calls=0": ">= 1",
    "judge.function=null": "intervention.judge.function",
    "judge.evidence=gold": "intervention.judge.evidence_column",
    "judge.evidence=rubric": "intervention.judge.evidence_column",
    "advantage.estimator=gae": "control, grpo",
    "advantage.v_mode=softt": "did you mean 'soft'",
    "advantage.beta1=0": "> 0",
    "anchor.mode=constant": "did you mean 'const'",
    "anchor.relax=never": "always, success",
    "anchor.max_bonus=-1": ">= 0",
    "anchor.kappa=inf": "finite",
    "objective.beta=0": "> 0",
    "objective.loss_scale=token": "horizon, reinforce, raw",
    "objective.length_norm=sum": "none, mean",
    "schedule.stop_after_updates=-1": ">= 0",
    "schedule.decay=linear": "intervention.schedule.stop_after_updates",
    "schedule.decay=exp": "none, linear, cosine",
    "judge=python": "expected a mapping",
    "judge.endpoint.extra_body=[a]": "intervention.judge.endpoint.extra_body is of type list; expected a mapping",
    "judge.endpoint=http://user:hunter2@h/v1": "is of type str; expected a mapping",
    "judge.endpoint.structured=sk-hunter2hunter2hunter2x": "wrong type",
    "judge.endpoint.model=sk-hunter2hunter2hunter2x": "looks like a secret",
    "judge.endpoint.model=' '": "is blank",
    "judge.endpoint.extra_body.extra_headers.X-Auth=Bearer hunter2hunter2": "looks like a secret",
    "judge.endpoint.base_url=http://host/v1/chat/completions": "/chat/completions",
    "judge.roles.corrector.max_answer_tokens=0": ">= 1",
    "judge.endpoint.model=${oc.env:NO_SUCH_VARIABLE}": "judge.endpoint.model has no value",
    "review.every_steps=0": ">= 1",
    "judge.roles.corrector.backend=teachr": "python, policy",
    "judge.roles.verifier.evidence=answer": "none, outcome",
    "judge.endpoint.base_url=ftp://host/v1": "no plain http(s) address",
    "judge.endpoint.base_url=http://name:pw@host/v1": "api_key_env",
    "judge.endpoint.api_key_env=sk-123": "not the name of an environment variable",
    "judge.endpoint.extra_body.messages=x": "would change what is asked",
    "judge.endpoint.extra_body.response_format=x": "intervention.judge.endpoint.structured",
    "judge.endpoint.extra_body.x_api_key=x": "looks like a secret",
    "judge.endpoint.extra_body.apiKey=x": "looks like a secret",
    "judge.endpoint.extra_body.x-api-key=x": "looks like a secret",
    "judge.endpoint.extra_body.token=x": "looks like a secret",
    "judge.endpoint.base_url=http://host/v1#api_key=x": "no plain http(s) address",
    "judge.endpoint.base_url=http://host:port/v1": "no plain http(s) address",
    "judge.endpoint.base_url='http://ho st/v1'": "no plain http(s) address",
    "judge.max_error_rate=50": "between 0 and 1",
    "judge.roles.verifier.temperature=-1": ">= 0",
    "judge.roles.verifier.max_answer_tokens=0": ">= 1",
    "judge.backend=endpoint": "intervention.judge.endpoint.base_url",
    "judge.backend=recorded": "intervention.judge.recorded",
    "judge.recorded=file.jsonl": "intervention.judge.backend: recorded",
    "judge.cluster.max_concurrency=4": "they hold for endpoint",
    "judge.cluster.max_concurrency=0": ">= 1",
    "judge.cluster.requests_per_minute=0": "> 0",
    "judge.cluster.tokens_per_minute=0": "> 0",
    "judge.retry.attempts=0": ">= 1",
    "judge.retry.base_s=-1": ">= 0",
    "judge.retry.max_wait_s=-1": ">= 0",
    "judge.retry.attempt_timeout_s=0": "> 0",
    "judge.breaker.failures=0": ">= 1",
    "judge.breaker.cooldown_s=-1": ">= 0",
    "judge.prices.prompt=-1": ">= 0",
    "judge.prices.cached=1": "intervention.judge.prices.completion",
    "verifier.shortest_gold=0": ">= 1",
    "verifier.leak_ngram=0": ">= 1",
    "gate.mode=ppl": "none, absolute, relative, quantile",
    "gate.delta=0.5": ">= 1",
    "gate.delta_for.math=0.5": ">= 1",
    "gate.ratio=0": "> 0",
    "gate.quantile=0": "(0, 1]",
    "gate.quantile=1.5": "(0, 1]",
    "token_weights.mode=none": "ones, steering",
    "token_weights.eps_cal=1": "0 <= eps_cal < 1",
    "group_failure.max_replaced=0": ">= 1",
}


#: a change whose message names the block or another key of it instead
NAMED = {
    "judge": "intervention.judge",
    "judge.endpoint.extra_body.apiKey": "intervention.judge.endpoint.extra_body.apiKey",
    "judge.endpoint.extra_body.extra_headers.X-Auth": "intervention.judge.endpoint.extra_body",
    "judge.prices.cached": "intervention.judge.prices",
}


@pytest.mark.parametrize("change", VALUES)
def test_value_is_refused_with_its_key(change):
    key = change.split("=")[0]
    with pytest.raises(ConfigError) as caught:
        parse(OmegaConf.from_dotlist([change]))
    named = NAMED.get(key, f"intervention.{key}")
    if change.startswith("judge.cluster.") and "endpoint" in VALUES[change]:
        named = "intervention.judge.cluster"
    assert re.search(rf"{re.escape(named)}(?![\w.])|{re.escape(named)}\.(?!\w)", str(caught.value))
    assert VALUES[change] in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_every_checked_key_has_a_refusal_above():
    source = inspect.getsource(schema) + inspect.getsource(judge)
    checked = set(re.findall(r'\b(?:choice|at_least|above)\(f?"([^"]+)"', source))
    assert len(checked) > 30
    tried = {change.split("=")[0] for change in VALUES}
    patterns = {key: re.sub(r"\\{[^}]*\\}", r"[\\w.]+", re.escape(key)) for key in checked}
    assert [key for key, pattern in patterns.items() if not any(re.fullmatch(pattern, t) for t in tried)] == []


@pytest.mark.parametrize(("tokens", "steps"), [(None, None), (64, 1)])
def test_exactly_one_review_interval(tokens, steps):
    with pytest.raises(ConfigError) as caught:
        parse({"review": {"every_tokens": tokens, "every_steps": steps}})
    assert "expected exactly one" in caught.value.message
    assert "intervention.review.every_tokens" in caught.value.hint
    assert "intervention.review.every_steps" in caught.value.hint


def test_accepted_values_arrive():
    parsed = parse(
        {"control": {"size": 3}, "review": {"every_tokens": None, "every_steps": 2}, "anchor": {"kappa": -1}}
    )
    assert (parsed.control.size, parsed.review.every_steps, parsed.anchor.kappa) == (3, 2, -1.0)
    assert parsed.judge.function == InterventionConfig().judge.function


@pytest.mark.parametrize(("size", "n", "expected"), [(None, 8, 4), (None, 5, 2), (0, 8, 0), (3, 8, 3)])
def test_control_size(size, n, expected):
    assert parse({"control": {"size": size}}).control_size(n) == expected


# --- the dataset

COLUMNS = ["data_source", "prompt", "reward_model", "extra_info"]
ROW = {"data_source": "sums", "reward_model": {"ground_truth": "4", "style": "rule"}, "extra_info": {"index": 0}}


@pytest.mark.parametrize(
    "column", ["responses", "authors", "token_weights", "rm_scores", "intervention_session", "uid"]
)
def test_column_of_verl_is_refused(column):
    config = compose_recipe("mintrl_const")
    with pytest.raises(ConfigError, match=rf"data\.train_files.*\b{column}\b.*rename"):
        check_dataset([*COLUMNS, column], ROW, config, parse(config.intervention))


def test_reserved_columns_are_refused_without_interventions_too():
    config = compose_recipe("grpo")
    with pytest.raises(ConfigError, match="advantages"):
        check_dataset([*COLUMNS, "advantages"], ROW, config, parse(config.intervention))


@pytest.mark.parametrize("path", ["solution", "reward_model.solution", "data_source.text"])
def test_missing_evidence_column(path):
    config = changed(compose_recipe("mintrl_self"), {"intervention.judge.evidence_column": path})
    with pytest.raises(DataError, match=r"intervention\.judge\.evidence_column") as caught:
        check_dataset(COLUMNS, ROW, config, parse(config.intervention))
    assert path in caught.value.message


def test_empty_evidence():
    config = compose_recipe("mintrl_self")
    row = ROW | {"reward_model": {"ground_truth": ""}}
    with pytest.raises(DataError, match=r"holds nothing at 'reward_model\.ground_truth'"):
        check_dataset(COLUMNS, row, config, parse(config.intervention))


def test_rows_with_an_agent_loop_of_their_own():
    config = compose_recipe("mintrl_const")
    parsed = parse(config.intervention)
    with pytest.raises(ConfigError, match=r"'tool_agent'.*agent_name"):
        check_dataset([*COLUMNS, "agent_name"], ROW | {"agent_name": "tool_agent"}, config, parsed)
    check_dataset([*COLUMNS, "agent_name"], ROW | {"agent_name": "single_turn_agent"}, config, parsed)


@pytest.mark.parametrize(("column", "key"), [("images", "data.image_key"), ("videos", "data.video_key")])
def test_images_are_refused(column, key):
    config = compose_recipe("mintrl_const")
    with pytest.raises(ConfigError, match=rf"'{column}'.*text only.*{key}"):
        check_dataset([*COLUMNS, column], ROW, config, parse(config.intervention))


def test_good_dataset():
    for recipe in ("mintrl_const", "mintrl_self", "grpo"):
        config = compose_recipe(recipe)
        check_dataset(COLUMNS, ROW, config, parse(config.intervention))
    config = compose_recipe("grpo")
    check_dataset(
        [*COLUMNS, "images", "agent_name"], ROW | {"agent_name": "tool_agent"}, config, parse(config.intervention)
    )

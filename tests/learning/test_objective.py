"""The registered loss through verl's own registry, config loader, ``ppo_loss`` and metric reduction."""

import pytest
import torch
from hydra.errors import InstantiationException
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import AggregationType, Metric, reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.workers.utils.losses import ppo_loss

import verl_mintrl.objective  # noqa: F401  # importing registers
from verl_mintrl.config.loss import InterventionLossConfig
from verl_mintrl.errors import ConfigError, DataError
from verl_mintrl.learning.loss import finish_metrics, regression_loss
from verl_mintrl.learning.weights import pack_weights

TARGET = "verl_mintrl.config.loss.InterventionLossConfig"
LENGTH = 5


def actor_config(policy_loss=None, batch_info=None, **overrides):
    if policy_loss is None:
        policy_loss = {"_target_": TARGET, "beta": 0.1, "horizon": LENGTH}
    node = {
        "_target_": "verl.workers.config.ActorConfig",
        "strategy": "fsdp2",
        "rollout_n": 4,
        "ppo_micro_batch_size_per_gpu": 1,
        "policy_loss": policy_loss,
    }
    config = omega_conf_to_dataclass(OmegaConf.create(node | overrides))
    config.global_batch_info.update({"dp_size": 1, "global_batch_size": 4} if batch_info is None else batch_info)
    return config


def batch(seed=0):
    gen = torch.Generator().manual_seed(seed)
    log_prob, anchor = -3 * torch.rand(2, 4, LENGTH, generator=gen, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 1, 0], [1, 0, 0, 0, 0], [1, 1, 1, 0, 0]]).bool()
    inserted = torch.tensor([[0, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0] * 5, [0] * 5]).bool()
    weights = torch.where(inserted, 0.5, torch.ones_like(log_prob))
    advantages = torch.randn(4, 1, generator=gen, dtype=torch.float64).expand(4, LENGTH)
    return dict(log_prob=log_prob, anchor=anchor, mask=mask, inserted=inserted, weights=weights, advantages=advantages)


def call(values, config, name="intervention_regression", **kwargs):
    arguments = dict(
        old_log_prob=values["anchor"],
        log_prob=values["log_prob"],
        advantages=values["advantages"],
        response_mask=values["mask"],
        loss_agg_mode="token-mean",
        config=config,
        rollout_is_weights=torch.where(values["mask"], pack_weights(values["weights"], values["inserted"]), 0.0),
    )
    return get_policy_loss_fn(name)(**(arguments | kwargs))


def test_registered_loss_is_the_pure_one():
    values = batch()
    loss, metrics = call(values, actor_config())
    pure = regression_loss(
        **values,
        beta=0.1,
        loss_scale="horizon",
        horizon=LENGTH,
        length_norm="none",
        global_batch_size=4,
        dp_size=1,
    )
    assert loss.item() == pytest.approx(pure.loss.item(), rel=1e-12)
    assert metrics == pytest.approx(pure.metrics)


def test_settings_and_batch_info_reach_the_loss():
    values, plain = batch(), call(batch(), actor_config())[0].item()
    wide = actor_config(batch_info={"dp_size": 2, "global_batch_size": 16})
    assert call(values, wide)[0].item() == pytest.approx(plain / 2)
    assert call(values, actor_config(loss_scale_factor=2 * LENGTH))[0].item() == pytest.approx(plain / 2)
    reinforce = actor_config({"_target_": TARGET, "beta": 0.1, "horizon": LENGTH, "loss_scale": "reinforce"})
    assert call(values, reinforce)[0].item() == pytest.approx(plain * LENGTH)
    normed = actor_config({"_target_": TARGET, "beta": 0.1, "horizon": LENGTH, "length_norm": "mean"})
    assert call(values, normed)[0].item() != pytest.approx(plain)


def test_unknown_keyword_arguments_are_taken():
    call(batch(), actor_config(), something_new_in_verl=None)


def test_missing_weight_column_names_the_trainer():
    with pytest.raises(ConfigError, match="intervention_sync"):
        call(batch(), actor_config(), rollout_is_weights=None)


def test_loss_config_of_verl_is_refused():
    config = actor_config({"_target_": "verl.workers.config.PolicyLossConfig", "loss_mode": "intervention_regression"})
    with pytest.raises(ConfigError, match=r"policy_loss\._target_: verl_mintrl\.config\.loss\.InterventionLossConfig"):
        call(batch(), config)


def test_unknown_global_batch_size_is_refused():
    with pytest.raises(ConfigError, match="global batch size"):
        call(batch(), actor_config(batch_info={"dp_size": 1, "global_batch_size": None}))


def test_trained_token_without_weight_is_refused():
    column = torch.ones(4, LENGTH)
    column[0, 3] = 0.0
    with pytest.raises(DataError, match="pack_weights"):
        call(batch(), actor_config(), rollout_is_weights=column)


def test_unknown_loss_key_is_refused_by_the_config_loader():
    with pytest.raises(InstantiationException, match="kappa"):
        actor_config({"_target_": TARGET, "horizon": LENGTH, "kappa": 0.0})


@pytest.mark.parametrize(
    ("field", "value", "key"),
    [
        ("beta", 0.0, "intervention.objective.beta"),
        ("beta", float("nan"), "intervention.objective.beta"),
        ("beta", "1e-3", "intervention.objective.beta"),
        ("loss_scale", "token-mean", "intervention.objective.loss_scale"),
        ("length_norm", "sqrt", "intervention.objective.length_norm"),
        ("horizon", 0, "actor_rollout_ref.actor.policy_loss.horizon"),
        ("horizon", 12.5, "actor_rollout_ref.actor.policy_loss.horizon"),
    ],
)
def test_bad_settings_name_their_key(field, value, key):
    with pytest.raises(ConfigError, match=key):
        InterventionLossConfig(**({"horizon": LENGTH} | {field: value}))
    with pytest.raises(InstantiationException, match=key):
        actor_config({"_target_": TARGET, "horizon": LENGTH, field: value})


def test_missing_horizon_is_refused_and_defaults_are_the_methods():
    with pytest.raises(ConfigError, match="response_length"):
        InterventionLossConfig()
    config = InterventionLossConfig(horizon=LENGTH)
    assert config.loss_mode == "intervention_regression"
    assert (config.beta, config.loss_scale, config.length_norm) == (1e-3, "horizon", "none")


def test_half_weights_through_verls_vanilla_halve_the_gradient_of_known_tokens():
    """RTI is verl's own loss with plain (unsigned) weights: at theta = pi_t the gradient is -A w / tokens."""
    values = batch()
    values["log_prob"] = values["anchor"].clone().requires_grad_()
    config = actor_config({"_target_": "verl.workers.config.PolicyLossConfig"}, batch_info={"dp_size": 1})
    loss, _ = call(values, config, name="vanilla", rollout_is_weights=values["weights"])
    loss.backward()
    expected = -values["advantages"] * values["weights"] * values["mask"] / values["mask"].sum()
    assert torch.allclose(values["log_prob"].grad, expected, rtol=1e-12)


PROMPT = 2


def worker_call(values, rows, config, *, global_batch_size=4, dp_size=1):
    """One micro-batch through verl's ppo_loss, in the jagged layout of its workers."""
    rows = list(range(4))[rows]
    lengths = [int(values["mask"][row].nonzero().max()) + 1 for row in rows]

    def jagged(tensor):
        parts = [tensor[row, :length] for row, length in zip(rows, lengths, strict=True)]
        return torch.nested.as_nested_tensor(parts, layout=torch.jagged)

    column = pack_weights(values["weights"], values["inserted"])
    data = TensorDict(
        {
            "prompts": torch.nested.as_nested_tensor([torch.zeros(PROMPT)] * len(rows), layout=torch.jagged),
            "responses": jagged(torch.zeros(4, LENGTH)),
            "response_mask": jagged(values["mask"].long()),
            "old_log_probs": jagged(values["anchor"]),
            "advantages": jagged(values["advantages"]),
            "rollout_is_weights": jagged(column),
        },
        batch_size=[len(rows)],
    )
    tu.assign_non_tensor(data, dp_size=dp_size, batch_num_tokens=10, global_batch_size=global_batch_size)
    # the model's output covers prompt and response, shifted left by one
    sequences = [
        torch.cat([torch.zeros(PROMPT - 1, dtype=torch.float64), values["log_prob"][row, :length], torch.zeros(1)])
        for row, length in zip(rows, lengths, strict=True)
    ]
    log_probs = torch.nested.as_nested_tensor(sequences, layout=torch.jagged)
    return ppo_loss(config, {"log_probs": log_probs}, data)


def test_through_verls_ppo_loss_and_metric_reduction():
    values = batch()
    whole = values | {"log_prob": values["log_prob"].clone().requires_grad_()}
    loss, metrics = call(whole, actor_config())
    loss.backward()
    finish_metrics(metrics)

    split = values | {"log_prob": values["log_prob"].clone().requires_grad_()}
    ranks = []
    for rank in ([slice(0, 1), slice(1, 2)], [slice(2, 3), slice(3, 4)]):
        collected = {}
        for rows in rank:
            loss, emitted = worker_call(split, rows, actor_config(), dp_size=2)
            (loss / 2).backward()
            for name, value in emitted.items():
                collected.setdefault(name, value.init_list() if isinstance(value, Metric) else []).append(value)
        ranks.append(collected)
    assert torch.allclose(split["log_prob"].grad, whole["log_prob"].grad, rtol=1e-12)

    mini_batch = {name: [Metric.aggregate_dp([rank[name] for rank in ranks])] for name in ranks[0]}
    driver = reduce_metrics(rename_dict(mini_batch, "actor/"))
    finish_metrics(driver)
    assert driver.pop("actor/pg_loss") == pytest.approx(call(values, actor_config())[0].item())
    driver.pop("actor/regression/drift_abs_min"), metrics.pop("actor/regression/drift_abs_min")
    assert driver == pytest.approx(metrics)


def test_drift_check_takes_the_first_mini_batch():
    values = batch()
    drifted = {"actor/regression/drift_abs_min": []}
    for shift in (0.0, 0.3):
        mini = values | {"anchor": values["log_prob"] - shift}
        emitted = Metric.from_dict(call(mini, actor_config())[1], AggregationType.MEAN)
        drifted["actor/regression/drift_abs_min"].append(emitted["actor/regression/drift_abs_min"].aggregate())
    assert drifted["actor/regression/drift_abs_min"][1] > 0
    assert reduce_metrics(drifted) == {"actor/regression/drift_abs_min": 0.0}

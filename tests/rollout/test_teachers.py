"""Frozen judges on verl's teacher servers: names, contexts and tokenizers as verl's own config gives them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from composed import changed, compose_recipe
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass

from verl_mintrl.config import parse
from verl_mintrl.rollout.abort import AbortingClient
from verl_mintrl.rollout.teachers import served_teachers
from verl_mintrl.trainer import JUDGE_POOL, InterventionTrainerSync

TEACHERS = "distillation.teacher_models"


def configured(path: Any, **changes: Any) -> Any:
    return changed(
        compose_recipe("mintrl_const"),
        {
            "intervention.judge.backend": "teacher",
            "distillation.nnodes": 1,
            "distillation.n_gpus_per_node": 2,
            f"{TEACHERS}.teacher_model.model_path": str(path),
            f"{TEACHERS}.teacher_model.inference.tensor_model_parallel_size": 1,
            **changes,
        },
    )


def keys_of_verl(config: Any) -> set[str]:
    """What verl's own manager calls its clients."""
    enabled = copy.deepcopy(config.distillation)
    enabled.enabled = True
    return set(omega_conf_to_dataclass(enabled).teacher_models)


def test_a_single_teacher_is_known_by_the_name_verl_gives_it(characters):
    config = configured(characters)
    served = served_teachers(dict.fromkeys(keys_of_verl(config), "client"), config.distillation.teacher_models)
    (model,) = served.values()
    assert isinstance(model.client, AbortingClient) and model.client.client == "client"
    assert model.tokenizer.decode([72, 105]) == "Hi"
    assert model.max_model_len > 0 and model.length_key == f"{TEACHERS}.teacher_model.inference.max_model_len"


def test_several_teachers_are_known_by_their_keys(characters):
    config = configured(characters)
    one = OmegaConf.to_container(config.distillation.teacher_models.teacher_model, resolve=True)
    for name, length in (("large", 9000), ("small", 8000)):
        one["inference"]["max_model_len"] = length
        one |= {"key": f"judge/{name}", "num_replicas": 1}
        config = changed(config, {f"{TEACHERS}.{name}": copy.deepcopy(one)})
    served = served_teachers(dict.fromkeys(keys_of_verl(config), "client"), config.distillation.teacher_models)
    assert {key: (m.max_model_len, m.length_key) for key, m in served.items()} == {
        "judge/large": (9000, f"{TEACHERS}.large.inference.max_model_len"),
        "judge/small": (8000, f"{TEACHERS}.small.inference.max_model_len"),
    }


def test_no_teacher_no_model():
    config = compose_recipe("mintrl_const")
    assert served_teachers({}, config.distillation.teacher_models) == {}


@pytest.mark.parametrize(
    ("changes", "pool"),
    [
        ({}, [2]),
        ({"distillation.nnodes": 3}, [2, 2, 2]),
        ({"intervention.trigger": "never"}, None),  # nobody would ask it
        ({"intervention.judge.backend": "policy"}, None),
        ({"distillation.enabled": True}, None),  # verl starts them itself
    ],
)
def test_the_judge_gets_gpus_of_its_own(characters, changes, pool):
    trainer = object.__new__(InterventionTrainerSync)
    trainer.config = configured(characters, **changes)
    trainer.intervention = parse(trainer.config.intervention)
    trainer.use_teacher_policy = bool(trainer.config.distillation.enabled)
    trainer._init_resource_pool_mgr()
    assert trainer.resource_pool_manager.resource_pool_spec.get(JUDGE_POOL) == pool

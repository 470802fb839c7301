"""verl adapter: frozen judge models on verl's teacher servers.

Leans on ``verl.utils.tokenizer.hf_tokenizer``, ``verl.utils.fs.copy_to_local``, ``get_max_position_embeddings`` of
``verl.workers.rollout.utils``, and on how ``DistillationConfig`` names teachers (:func:`verl_mintrl.judges.servers.teacher_keys`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig
from verl.utils.fs import copy_to_local
from verl.utils.tokenizer import hf_tokenizer
from verl.workers.rollout.utils import get_max_position_embeddings

from verl_mintrl.judges.servers import ServedModel, teacher_keys
from verl_mintrl.rollout.abort import AbortingClient


def served_teachers(clients: Mapping[str, Any], models: Mapping[str, Any]) -> dict[str, ServedModel]:
    """The models behind verl's teacher clients, by key.

    Args:
        clients: key -> verl's server client, none where no teacher is served.
        models: ``distillation.teacher_models``.
    """
    names = teacher_keys(models)
    return {key: _served(client, names[key], models[names[key]]) for key, client in clients.items()}


def _served(client: Any, name: str, model: Any) -> ServedModel:
    path = copy_to_local(model.model_path)
    length = model.inference.max_model_len or get_max_position_embeddings(AutoConfig.from_pretrained(path))
    key = f"distillation.teacher_models.{name}.inference.max_model_len"
    return ServedModel(AbortingClient(client), hf_tokenizer(path), length, key)

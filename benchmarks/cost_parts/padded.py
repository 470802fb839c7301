"""Counts what the training engine computes, and how much of it is padding; named by ``actor_rollout_ref.model.external_lib``."""

from __future__ import annotations

from typing import Any

from verl.workers.engine.base import BaseEngine
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from cost_parts.layers import Layers

ENGINE = "engine"
#: keys of the counts: tokens of rows, and of the rectangles the model is given
REAL, COMPUTED = "real tokens", "computed tokens"

layers = Layers()
_prepare = FSDPEngineWithLMHead.prepare_model_inputs


def _counting(self: Any, micro_batch: Any) -> Any:
    inputs, arguments = _prepare(self, micro_batch)
    layers.calls[REAL] += int(micro_batch["input_ids"].offsets()[-1])
    layers.calls[COMPUTED] += inputs["input_ids"].numel()
    return inputs, arguments


def _saving(function: Any) -> Any:
    counted = layers.around(ENGINE, function)

    def run(*args: Any, **kwargs: Any) -> Any:
        found = counted(*args, **kwargs)
        layers.save(ENGINE)
        return found

    return run


FSDPEngineWithLMHead.prepare_model_inputs = _counting
BaseEngine.train_batch = _saving(BaseEngine.train_batch)
BaseEngine.infer_batch = _saving(BaseEngine.infer_batch)

"""Training on CPUs: FSDP engines for the device ``cpu`` and a process group that torch accepts."""

from __future__ import annotations

import functools
from typing import Any


def register(module: Any) -> None:
    """Register the FSDP engines of ``verl.workers.engine.fsdp.transformer_impl`` for the device ``cpu`` too.

    Why: verl registers them for cuda and npu only, though FSDP2 runs on CPUs as it is.
    """
    for model_type, engine in (
        ("language_model", module.FSDPEngineWithLMHead),
        ("value_model", module.FSDPEngineWithValueHead),
    ):
        module.EngineRegistry.register(model_type=model_type, backend=["fsdp2"], device="cpu")(engine)


def use_gloo(module: Any) -> None:
    """Give ``verl.utils.distributed.initialize_global_process_group_ray`` the backend ``gloo``.

    Why: it asks for ``cpu:gloo,<device>:<backend>``, which names the device ``cpu`` twice here; torch refuses that.
    """
    original = module.initialize_global_process_group_ray

    @functools.wraps(original)
    def initialize_global_process_group_ray(timeout_second: int | None = None, backend: str | None = None) -> None:
        original(timeout_second=timeout_second, backend=backend or "gloo")

    module.initialize_global_process_group_ray = initialize_global_process_group_ray

"""Looks at verl and vLLM in a process of its own and prints what it saw as JSON; run by ``conftest.py``.

Started without ``VERL_PLATFORM`` it shows the behaviour that the patches of :mod:`verl_mintrl.cpu` are for, with
``VERL_PLATFORM=cpu`` the behaviour after them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from importlib import metadata


def attempt(function) -> str:
    """Result as text, or the error's class and message."""
    try:
        return str(function())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def process_group() -> str:
    import torch.distributed
    from verl.utils import distributed

    if "VERL_PLATFORM" not in os.environ:  # what the function asks for on the CPU platform
        distributed.get_device_name = lambda: "cpu"
        distributed.get_nccl_backend = lambda: "gloo"
    os.environ["DIST_INIT_METHOD"] = f"file://{tempfile.mkdtemp()}/rendezvous"
    distributed.initialize_global_process_group_ray()
    return torch.distributed.get_backend()


def engines() -> list[str]:
    import verl.workers.engine.fsdp.transformer_impl  # noqa: F401
    from verl.workers.engine import EngineRegistry

    return sorted(
        f"{model}/{backend}"
        for model, backends in EngineRegistry._engines.items()
        for backend, devices in backends.items()
        if "cpu" in devices
    )


def linear() -> dict[str, object]:
    """What is left of a linear layer's weight after vLLM prepared it, and whether an update of it is seen."""
    import torch
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    layer = torch.nn.Linear(64, 32, bias=False).requires_grad_(False)
    dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    kept = layer.weight.numel()
    fresh, inputs = torch.randn(32, 64), torch.randn(3, 64)
    updated = attempt(lambda: layer.weight.copy_(fresh))
    output = layer.cpu_linear(inputs, layer.weight, None)
    seen = torch.allclose(output, torch.nn.functional.linear(inputs, fresh), atol=1e-5)
    return {"kept": kept, "updated": not updated.startswith("RuntimeError"), "seen": seen}


def main() -> None:
    import verl  # noqa: F401
    from verl.plugin.platform import PlatformRegistry

    import verl_mintrl.plugin

    verl_mintrl.plugin.vllm_plugin()
    seen: dict[str, object] = {
        "modules": sorted(name for name in sys.modules if name.startswith("verl_mintrl.cpu")),
        "finders": [type(finder).__name__ for finder in sys.meta_path],
        "platforms": PlatformRegistry.registered_names(),
        "version": attempt(lambda: metadata.version("vllm")),
        "process_group": attempt(process_group),
        "engines": engines(),
        "linear": linear(),
        "failures": [name for name in verl_mintrl.plugin.FAILURES if "cpu" in name or "plugin" in name],
    }
    if "cpu" in seen["platforms"]:
        from verl.utils import device
        from vllm.platforms import current_platform

        seen["device"] = [device.get_device_name(), device.get_device_id(), device.get_nccl_backend()]
        seen["vllm_platform"] = current_platform.device_type
        seen["vllm_requirements"] = len(metadata.requires("vllm") or [])
        seen["vllm_distributions"] = sum(found.metadata["Name"] == "vllm" for found in metadata.distributions())
    print(json.dumps(seen))


if __name__ == "__main__":
    main()

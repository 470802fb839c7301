"""verl and vLLM on plain CPUs. Imported only with ``VERL_PLATFORM=cpu``; settings: ``config/platform/cpu.yaml``.

Importing this package imports none of its modules: each is loaded by a post-import hook, when verl or vLLM loads the
module it extends.
"""

from __future__ import annotations

import importlib
import sys

from wrapt import register_post_import_hook


def install() -> None:
    """Make verl run on CPUs in this process: platform, FSDP engines, process groups and the version of vLLM."""
    from verl_mintrl.cpu.distribution import VllmAlias

    sys.meta_path.append(VllmAlias())
    for theirs, ours, function in (
        ("verl.plugin.platform", "verl_mintrl.cpu.platform", "register"),
        ("verl.utils.distributed", "verl_mintrl.cpu.engine", "use_gloo"),
        ("verl.workers.engine.fsdp.transformer_impl", "verl_mintrl.cpu.engine", "register"),
    ):
        _after(theirs, ours, function)


def install_vllm() -> None:
    """Make weight updates arrive in a vLLM process; must run before the model is loaded."""
    _after("vllm.model_executor.layers.utils", "verl_mintrl.cpu.vllm", "keep_weights")


def _after(theirs: str, ours: str, function: str) -> None:
    """Call ``function`` of our module with their module as soon as that is imported (at once if it already is)."""
    register_post_import_hook(lambda module: getattr(importlib.import_module(ours), function)(module), theirs)

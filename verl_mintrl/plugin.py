"""Entry points: what is registered where. Loaded in every process that imports verl or vllm, so it imports nothing heavy.

verl (``verl/__init__.py``) swallows any exception of a plugin at DEBUG level, so a failure is warned about here.
Registration is deferred with post-import hooks: ``import verl`` costs seconds as it is, and importing the trainer package
at that moment would be circular.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from types import ModuleType

logger = logging.getLogger(__name__)

#: module of verl -> modules of ours that register themselves into it on import
HOOKS = {
    "verl.trainer.ppo.core_algos": "verl_mintrl.objective",
    "verl.experimental.agent_loop": "verl_mintrl.rollout.agent_loop",
    "verl.trainer.ppo.v1": "verl_mintrl.trainer",
}

#: registrations that failed in this process: module of ours -> the exception
FAILURES: dict[str, BaseException] = {}

_installed = False


def on_cpu() -> bool:
    """Whether this process runs on the CPU platform, the only case in which :mod:`verl_mintrl.cpu` is imported."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"


def _register(ours: str, _module: ModuleType) -> None:
    try:
        importlib.import_module(ours)
    except (
        Exception
    ) as error:  # verl would hide it at DEBUG level; the first use then fails with "unknown trainer mode"
        FAILURES[ours] = error
        logger.warning("verl_mintrl could not register %s: %s: %s", ours, type(error).__name__, error, exc_info=True)


def _install() -> None:
    global _installed
    if _installed:
        return
    _installed = True
    from wrapt import register_post_import_hook

    if on_cpu():
        from verl_mintrl.cpu import install

        install()
    for theirs, ours in HOOKS.items():
        register_post_import_hook(functools.partial(_register, ours), theirs)


def verl_plugin() -> None:
    """Target of the ``verl.plugins`` entry point (verl calls ``EntryPoint.load`` only, so importing this module installs)."""
    _install()


def vllm_plugin() -> None:
    """Target of the ``vllm.general_plugins`` entry point; vLLM calls it in every engine process, on GPUs too."""
    if on_cpu():
        from verl_mintrl.cpu import install_vllm

        install_vllm()


try:
    _install()
except Exception as error:
    FAILURES["verl_mintrl.plugin"] = error
    logger.warning("verl_mintrl is not registered: %s: %s", type(error).__name__, error, exc_info=True)

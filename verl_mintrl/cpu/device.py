"""What verl asks a device module for (``PlatformBase.device_module``): ``torch.cpu`` and what that lacks."""

from __future__ import annotations

import os
import platform
import resource

import psutil
import torch
from torch.cpu import Stream, current_stream, is_available, set_device, stream, synchronize

__all__ = ["Stream", "current_stream", "is_available", "set_device", "stream", "synchronize"]


def device_count() -> int:
    return 1


def current_device() -> str:
    """A name, not an index: verl passes it to ``tensor.to``, where an integer means an accelerator."""
    return "cpu"


def get_device_name(device: object = None) -> str:
    """``CPU``: what ``verl.utils.flops_counter`` looks for."""
    return "CPU"


def empty_cache() -> None:
    """There is no caching allocator."""


def ipc_collect() -> None:
    """There are no shared device handles."""


def set_per_process_memory_fraction(fraction: float, device: object = None) -> None:
    """The operating system decides."""


def memory_allocated(device: object = None) -> int:
    """Resident bytes of this process."""
    return psutil.Process(os.getpid()).memory_info().rss


def max_memory_allocated(device: object = None) -> int:
    """Peak of the resident bytes of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def mem_get_info(device: object = None) -> tuple[int, int]:
    """Free and total bytes of the machine."""
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def get_rng_state(device: object = None) -> torch.Tensor:
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, device: object = None) -> None:
    torch.set_rng_state(state)


def manual_seed(seed: int) -> None:
    torch.manual_seed(seed)


manual_seed_all = manual_seed

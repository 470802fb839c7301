"""Sampling from two models at once, token by token, as MENTOR does (arXiv 2510.04140).

There the mixture is drawn by speculative sampling, which is quicker and has the same distribution; here it is drawn as it stands.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from lab.decoder import Cache, Decoder


@torch.no_grad()
def write_mixed(
    policy: Decoder,
    expert: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    limit: int,
    end_ids: Collection[int],
    threshold: float,
) -> list[list[int]]:
    """A response to every prompt from ``(1 - w) policy + w expert``, ``w = min(1, entropy of the policy / threshold)``.

    Args:
        prompts: token ids, at least one prompt.
        limit: most tokens of a response.
        threshold: entropy in nats from which on the expert writes alone; above 0.
    """
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    rows = torch.arange(len(prompts))
    fed = torch.nn.utils.rnn.pad_sequence([torch.tensor(list(prompt)) for prompt in prompts], batch_first=True)
    models = (policy, expert)
    caches = [model.cache(len(prompts), fed.shape[1] + limit) for model in models]

    def logits(model: Decoder, cache: Cache, ids: torch.Tensor, starts: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return model.logits(model.hidden(ids, starts, cache)[rows, at])

    start = torch.zeros_like(lengths)
    found = [logits(*pair, fed, start, lengths - 1) for pair in zip(models, caches, strict=True)]
    responses: list[list[int]] = [[] for _ in prompts]
    writing = set(range(len(prompts)))
    for step in range(limit):
        own, theirs = (part.softmax(-1) for part in found)
        weight = (torch.special.entr(own).sum(-1, keepdim=True) / threshold).clamp(max=1.0)
        chosen = torch.multinomial((1 - weight) * own + weight * theirs, 1)
        for row in list(writing):
            token = int(chosen[row])
            responses[row].append(token)
            if token in end_ids:
                writing.remove(row)
        if not writing or step == limit - 1:
            break
        found = [logits(*pair, chosen, lengths + step, start) for pair in zip(models, caches, strict=True)]
    return responses

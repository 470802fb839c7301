"""Make the policy of the laboratory: a llama of about a million parameters that works well, but with two bad habits.

    python benchmarks/lab/pretrain.py [--teacher] [--out DIR]

It is trained on texts of a flawed solver (``corpus.py``); the teacher is the same network trained on flawless ones. The
folder is what verl, vLLM and transformers load; ``report.json`` in it says how good the policy is. Without ``--out`` the
folder is ``.cache/lab-policy-<hash>``, the hash being one of the recipe and of the sources that it depends on, and a
folder that is there is left as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lab.corpus import Flaws, Mixture, texts
from lab.examine import examine
from lab.tokenizer import CONTEXT, build_tokenizer

CACHE = Path(__file__).resolve().parents[2] / ".cache"
_SOURCES = ("tasks.py", "corpus.py", "tokenizer.py", "pretrain.py")
_IGNORED = -100  # label of tokens without a loss
_POOL = 32  # batches that are drawn together and sorted by length


@dataclass(frozen=True)
class Recipe:
    """Everything the weights hang on, besides the sources.

    Attributes:
        rope_theta: base of the rotary positions, small since texts are short.
        initial_spread: standard deviation of the random weights. With the usual 0.02 so small a network takes several times
            as long to find out which term comes next.
        updates: optimiser steps, of ``batch`` texts each.
        learning_rate: peak; a linear warm-up over ``warmup`` steps, then a cosine down to a hundredth.
        threads: of torch; another number rounds differently, and two that share a core with others wait for each other.
    """

    seed: int = 0
    hidden: int = 128
    intermediate: int = 512
    layers: int = 4
    rope_theta: float = 1000.0
    initial_spread: float = 0.06
    heads: int = 4  # of 32 dimensions each: vLLM has no smaller attention kernel for CPUs
    updates: int = 3000
    batch: int = 16
    learning_rate: float = 1.5e-3
    warmup: int = 100
    weight_decay: float = 0.01
    threads: int = 1
    flaws: Flaws = field(default_factory=Flaws)
    mixture: Mixture = field(default_factory=Mixture)


POLICY = Recipe()
TEACHER = Recipe(seed=1, updates=2000, flaws=Flaws(0.0, 0.0, 0.0))


def policy_path() -> Path:
    """Folder of the policy, made first if it is not there."""
    return prepare(POLICY, cached("policy", POLICY))


def teacher_path() -> Path:
    """Folder of the teacher, made first if it is not there."""
    return prepare(TEACHER, cached("teacher", TEACHER))


def prepare(recipe: Recipe, target: Path) -> Path:
    """Train and write a model to ``target`` unless it is there. The folder appears complete or not at all."""
    if (target / "config.json").is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        tokenizer = build_tokenizer()
        started = time.monotonic()
        model, losses = train(recipe, tokenizer)
        seconds = time.monotonic() - started
        report = {"recipe": asdict(recipe), "seconds": round(seconds, 1), "losses": losses, **examine(model, tokenizer)}
        tokenizer.save_pretrained(unfinished)
        model.save_pretrained(unfinished)
        (unfinished / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        unfinished.chmod(0o755)
        os.rename(unfinished, target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return target


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """The network with random weights; its embeddings are tied."""
    torch.manual_seed(recipe.seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=recipe.hidden,
            intermediate_size=recipe.intermediate,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.heads,
            max_position_embeddings=CONTEXT,
            rope_parameters={"rope_type": "default", "rope_theta": recipe.rope_theta},
            initializer_range=recipe.initial_spread,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def train(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> tuple[LlamaForCausalLM, list[float]]:
    """Train from random weights.

    Returns:
        The model in evaluation mode, and the mean loss per token of each tenth of the training.
    """
    torch.set_num_threads(recipe.threads)
    model = build_model(recipe, tokenizer).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=recipe.weight_decay
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, recipe))
    tenth = max(1, recipe.updates // 10)
    losses: list[float] = []
    means: list[float] = []
    for _, (ids, labels) in zip(range(recipe.updates), batches(recipe, tokenizer), strict=False):
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if len(losses) % tenth == 0:
            means.append(round(sum(losses[-tenth:]) / tenth, 4))
            print(f"{len(losses)}/{recipe.updates} loss {means[-1]}", file=sys.stderr, flush=True)
    return model.eval(), means


def batches(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless ids and labels, each [batch, length], padded on the right; questions have no loss."""
    rng = random.Random(recipe.seed)
    for pool in count():
        done = min(1.0, pool * _POOL / recipe.updates)
        drawn = texts(_POOL * recipe.batch, recipe.mixture, recipe.flaws, rng, done)
        encoded = [_encoded(*pair, tokenizer) for pair in drawn]
        encoded.sort(key=lambda pair: len(pair[0]))
        starts = list(range(0, len(encoded), recipe.batch))
        rng.shuffle(starts)
        for start in starts:
            rows = encoded[start : start + recipe.batch]
            yield _padded([ids for ids, _ in rows], tokenizer.pad_token_id), _padded([row for _, row in rows], _IGNORED)


def _encoded(question: str, response: str, tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    asked = tokenizer.encode(question, add_special_tokens=False)
    answered = [*tokenizer.encode(response, add_special_tokens=False), tokenizer.eos_token_id]
    return asked + answered, [_IGNORED] * len(asked) + answered


def _padded(rows: list[list[int]], value: int) -> torch.Tensor:
    length = max(map(len, rows))
    return torch.tensor([row + [value] * (length - len(row)) for row in rows])


def _rate(step: int, recipe: Recipe) -> float:
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.updates - recipe.warmup)
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done))


def cached(name: str, recipe: Recipe) -> Path:
    """Folder in the cache for a recipe and the sources as they are."""
    digest = hashlib.sha256(json.dumps(asdict(recipe), sort_keys=True).encode())
    for source in _SOURCES:
        digest.update((Path(__file__).parent / source).read_bytes())
    return CACHE / f"lab-{name}-{digest.hexdigest()[:12]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", action="store_true", help="the network without bad habits")
    parser.add_argument("--out", type=Path, help="folder to write instead of the cache")
    arguments = parser.parse_args()
    name, recipe = ("teacher", TEACHER) if arguments.teacher else ("policy", POLICY)
    target = prepare(recipe, arguments.out or cached(name, recipe))
    report: dict[str, Any] = json.loads((target / "report.json").read_text(encoding="utf-8"))
    print(json.dumps(report, indent=1))
    print(target)


if __name__ == "__main__":
    main()

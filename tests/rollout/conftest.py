"""Fixtures of the adapter tests; importing verl, Ray and the queue is put off until one of them is used."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import stub_judges
from adapters import END, PROMPT_LENGTH, RESPONSE_LENGTH, SCRIPT, N, Rewards, Rollout, Servers
from composed import changed, compose_recipe
from omegaconf import DictConfig, OmegaConf
from scripted import follow


@pytest.fixture(scope="session")
def queue(ray_started: None) -> Iterator[Any]:
    """A TransferQueue of its own, with Ray below it."""
    import transfer_queue as tq

    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    yield tq
    tq.close()


@pytest.fixture(scope="session")
def characters(tmp_path_factory) -> Path:
    """Folder of a model whose token ids are the code points of ASCII; ``END`` ends a response, "?" a prompt."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({chr(i): i for i in range(128)}, unk_token="\x01"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, pad_token="\x00", unk_token="\x01")
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message.content }}{% endfor %}{% if add_generation_prompt %}?{% endif %}"
    )
    folder = tmp_path_factory.mktemp("characters")
    tokenizer.save_pretrained(folder)
    LlamaConfig(vocab_size=128, architectures=["LlamaForCausalLM"], eos_token_id=3).save_pretrained(folder)
    return folder


@pytest.fixture
def config(characters, tmp_path) -> Callable[..., DictConfig]:
    """``config({key: value})``: the recipe mintrl_const, sized for the script."""

    def build(changes: dict[str, object] | None = None, recipe: str = "mintrl_const") -> DictConfig:
        return changed(
            compose_recipe(recipe),
            {
                "actor_rollout_ref.model.path": str(characters),
                "actor_rollout_ref.rollout.n": N,
                "data.max_prompt_length": PROMPT_LENGTH,
                "data.max_response_length": RESPONSE_LENGTH,
                "data.train_batch_size": 1,
                "trainer.default_local_dir": str(tmp_path / "checkpoints"),
                "trainer.rollout_data_dir": str(tmp_path / "rollouts"),
                "intervention.review.every_tokens": None,
                "intervention.review.every_steps": 1,
                "intervention.judge.function": "stub_judges:god_for_bad",
                **(changes or {}),
            },
        )

    return build


@pytest.fixture
def roll(queue, config) -> Iterator[Callable[..., Awaitable[Rollout]]]:
    """``await roll({key: value}, policy=..., rewards=...)``: one prompt through verl's worker into the queue."""
    from verl_mintrl.rollout.worker import InterventionAgentLoopWorker

    stub_judges.ASKED.clear()
    used: list[Rollout] = []

    async def build(
        changes: dict[str, object] | None = None,
        *,
        recipe: str = "mintrl_const",
        policy: Callable[[str], str] | None = None,
        rewards: Rewards | None = None,
        step: int = 1,
        validate: bool = False,
        row: dict[str, Any] | None = None,
        meanwhile: Callable[[Servers], Awaitable[None]] | None = None,
    ) -> Rollout:
        settings = config(changes, recipe)
        servers = Servers(policy or follow(SCRIPT))
        worker = InterventionAgentLoopWorker(settings, servers, reward_loop_worker_handles=[rewards or Rewards()])
        uid, partition = str(uuid.uuid4()), "val" if validate else "train"
        tag = {"is_prompt": True, "status": "pending", "global_steps": step}
        queue.kv_batch_put(keys=[uid], partition_id=partition, tags=[tag])
        rollout = settings.actor_rollout_ref.rollout
        prompt = {
            "uid": uid,
            "raw_prompt": [{"role": "user", "content": "say it"}],
            "index": 7,
            "global_steps": step,
            "agent_name": "single_turn_agent",
            "reward_model": {"ground_truth": "end", "style": "rule"},
            **(row or {}),
        }
        sampling = {"temperature": rollout.temperature, "top_p": rollout.top_p, "logprobs": rollout.calculate_log_probs}
        trajectory = {"step": step, "sample_index": 7, "rollout_n": 0, "validate": validate}
        running = asyncio.create_task(worker._run_prompt(prompt, sampling, trajectory))
        if meanwhile is not None:
            await meanwhile(servers)
        await asyncio.wait_for(running, timeout=30)
        tags = queue.kv_list(partition)[partition]
        keys = sorted(key for key in tags if key.startswith(f"{uid}_"))
        used.append(Rollout(queue, settings, servers, worker, uid, partition, tags[uid]["status"], keys))
        return used[-1]

    yield build
    for rollout in used:
        left = (queue.kv_list(rollout.partition) or {}).get(rollout.partition, {})
        if keys := [key for key in left if key.startswith((rollout.uid, "pad"))]:
            queue.kv_clear(partition_id=rollout.partition, keys=keys)

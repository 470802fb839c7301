"""How good is a policy before it is trained by reinforcement? Sampled at temperature 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from lab import tasks

GROUP = 8
MAX_NEW_TOKENS = 160
_BATCH = 256


def examine(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, problems: int = 64, seed: int = 0
) -> dict[str, Any]:
    """Success, share of groups that fail as a whole, and quality of the lines, for each split.

    Args:
        problems: of each split, ``GROUP`` responses each.
        seed: of the problems and of the sampling.
    """
    torch.manual_seed(seed)
    result: dict[str, Any] = {"parameters": sum(weight.numel() for weight in model.parameters())}
    for name in (*tasks.SPLITS, "old"):
        split = tasks.make_split(name, problems, seed + 1_000)
        result[name] = _measured(model, tokenizer, split, hint=False)
    hinted = tasks.make_split("validation", problems, seed + 1_000)
    result["validation_hinted"] = _measured(model, tokenizer, hinted, hint=True)
    result["hard_hinted"] = _measured(model, tokenizer, tasks.make_split("hard", problems, seed + 1_000), hint=True)
    return result


@torch.no_grad()
def sample(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, questions: Sequence[str]
) -> list[tuple[str, bool]]:
    """One response to each question, and whether it ended by itself."""
    generator: Any = model  # transformers types the self of ``generate`` as a class that no model inherits
    responses: list[tuple[str, bool]] = []
    for start in range(0, len(questions), _BATCH):
        inputs = tokenizer(
            list(questions[start : start + _BATCH]), return_tensors="pt", padding=True, padding_side="left"
        )
        written = generator.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
        )[:, inputs["input_ids"].shape[1] :]
        ended = (written == tokenizer.eos_token_id).any(1).tolist()
        texts = tokenizer.batch_decode(written, skip_special_tokens=True)
        responses += list(zip(texts, ended, strict=True))
    return responses


def _measured(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, problems: Sequence[tasks.Problem], hint: bool
) -> dict[str, float]:
    asked = [problem for problem in problems for _ in range(GROUP)]
    responses = sample(model, tokenizer, [problem.hinted if hint else problem.text for problem in asked])
    rewards = [tasks.score(problem, text) for problem, (text, _) in zip(asked, responses, strict=True)]
    groups = [sum(rewards[at : at + GROUP]) for at in range(0, len(rewards), GROUP)]
    checks = [
        check
        for problem, (text, _) in zip(asked, responses, strict=True)
        if problem.terms
        for check in tasks.check_lines(problem.terms, tasks.split_lines(text))
    ]
    result = {
        "success": sum(rewards) / len(rewards),
        "failing_groups": sum(total == 0 for total in groups) / len(groups),
        "ended": sum(ended for _, ended in responses) / len(responses),
        "characters": sum(len(text) for text, _ in responses) / len(responses),
    }
    if checks:
        result["right_steps"] = sum(check.right for check in checks) / len(checks)
        result["well_formed"] = sum(check.well_formed for check in checks) / len(checks)
    return {name: round(value, 4) for name, value in result.items()}

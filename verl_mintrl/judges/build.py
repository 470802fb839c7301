"""From ``intervention.judge`` to a guarded judge: the one place that knows all backends."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from verl_mintrl.config.schema import JudgeConfig
from verl_mintrl.judges.limits import GuardedJudge
from verl_mintrl.judges.policy import PolicyBackend
from verl_mintrl.judges.prompted import PromptedJudge
from verl_mintrl.judges.prompts import PromptSet
from verl_mintrl.judges.protocol import Judge
from verl_mintrl.judges.python import load_judge


def build_judge(
    config: JudgeConfig,
    *,
    control_strings: Collection[str],
    client: Any,
    tokenizer: Any,
    template_kwargs: Mapping[str, Any],
    max_model_len: int,
) -> GuardedJudge:
    """The configured judge, held to its deadline and concurrency.

    Args:
        client: verl's server client, for the backend ``policy``.
        tokenizer: the policy's.
        control_strings: special tokens of the policy.
        max_model_len: context of the rollout servers, tokens.

    Raises:
        ConfigError: a function or a template cannot be loaded.
    """
    judge: Judge
    if config.backend == "python":
        assert config.function is not None  # checked by JudgeConfig
        judge = load_judge(config.function)
    else:
        backend = PolicyBackend(
            client=client,
            tokenizer=tokenizer,
            max_model_len=max_model_len,
            max_answer_tokens=config.max_answer_tokens,
            temperature=config.temperature,
            template_kwargs=template_kwargs,
        )
        paths = {"reviewer": config.prompts.reviewer}
        judge = PromptedJudge(backend, PromptSet({k: v for k, v in paths.items() if v}, control_strings), joint=True)
    return GuardedJudge(
        judge, timeout=config.call_deadline_s, concurrency=config.max_concurrency, control_strings=control_strings
    )

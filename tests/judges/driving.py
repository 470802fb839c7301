"""A real session with a scripted policy, reviewed by the judge that a config builds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rollout.scripted import END
from rollout.test_overlapped import SlowClient
from rollout.test_periodic import session as scripted_session

from verl_mintrl.config.judge import JudgeConfig
from verl_mintrl.config.schema import ReviewConfig, VerifierConfig, parse
from verl_mintrl.judges.build import Surroundings, build_judge
from verl_mintrl.judges.protocol import Judge
from verl_mintrl.judges.servers import ServedModel
from verl_mintrl.rollout.periodic import PeriodicSession
from verl_mintrl.trajectory.record import Role
from verl_mintrl.trajectory.splice import Budget

SCRIPT = "ab\n\ncd\n\nef" + END
GOLD = "forty-two"


def endpoint_config(url: str, **judge: Any) -> JudgeConfig:
    """``backend: endpoint`` with waits and deadlines short enough for tests."""
    endpoint = {"base_url": url, "model": "judge-1", **judge.pop("endpoint", {})}
    retry = {"attempts": 3, "base_s": 0.005, "max_wait_s": 0.05, **judge.pop("retry", {})}
    node = {"backend": "endpoint", "endpoint": endpoint, "retry": retry, "call_deadline_s": 5.0, **judge}
    return parse({"judge": {"function": None, **node}}).judge


def build(config: JudgeConfig) -> Judge:
    return build_judge(config, VerifierConfig(), Surroundings(ServedModel(None, None, 4096), ("<|im_end|>", END)))


def session(
    config: JudgeConfig, judge: Judge, *, number: int = 0, script: str = SCRIPT, mode: str = "blocking"
) -> PeriodicSession:
    """Session ``number`` of a group, whose policy writes ``script``, reviewed after every step.

    With ``mode: overlapped`` the policy takes its time, so that answers find it in the middle of a step.
    """

    def policy(text: str) -> str:
        answer = text.split("?", 1)[1]
        return script[len(answer) :] or END

    review = ReviewConfig(every_tokens=None, every_steps=1, mode=mode)
    run = scripted_session(policy, None, review=review, budget=Budget(8, 1, 40, 1.0))
    if mode == "overlapped":
        run.writer.client = SlowClient(policy, 0.001)
    run.shared = replace(run.shared, judge=judge, judge_config=config)
    run.request = replace(run.request, session_id=number, sample={"reward_model": {"ground_truth": GOLD}})
    run.record.session_id, run.record.role = number, Role.TREATED.value
    return run


def text_of(run: PeriodicSession) -> str:
    return "".join(map(chr, run.trajectory.ids))

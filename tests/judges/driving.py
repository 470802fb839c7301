"""A real session with a scripted policy, reviewed by the judge that a config builds."""

from __future__ import annotations

from typing import Any

from rollout.scripted import END, ScriptedClient
from trajectory.toy_tokenizers import Characters

from verl_mintrl.config.schema import JudgeConfig, ReviewConfig, VerifierConfig, parse
from verl_mintrl.judges.build import Surroundings, build_judge
from verl_mintrl.judges.protocol import Judge, ReviewRequest
from verl_mintrl.rollout.periodic import PeriodicSession, Reviewing
from verl_mintrl.rollout.writer import ServerWriter
from verl_mintrl.trajectory.record import Role, SessionRecord
from verl_mintrl.trajectory.splice import Budget
from verl_mintrl.trajectory.steps import get_segmenter

PROMPT = "What?"
SCRIPT = "ab\n\ncd\n\nef" + END
GOLD = "forty-two"


def endpoint_config(url: str, **judge: Any) -> JudgeConfig:
    """``backend: endpoint`` with waits and deadlines short enough for tests."""
    endpoint = {"base_url": url, "model": "judge-1", **judge.pop("endpoint", {})}
    retry = {"attempts": 3, "base_s": 0.005, "max_wait_s": 0.05, **judge.pop("retry", {})}
    node = {"backend": "endpoint", "endpoint": endpoint, "retry": retry, "call_deadline_s": 5.0, **judge}
    return parse({"judge": {"function": None, **node}}).judge


def build(config: JudgeConfig) -> Judge:
    return build_judge(config, VerifierConfig(), Surroundings(None, None, ("<|im_end|>", END), 4096))


def session(config: JudgeConfig, judge: Judge, *, number: int = 0, script: str = SCRIPT) -> PeriodicSession:
    tokenizer = Characters()
    shared = Reviewing(
        judge=judge,
        judge_config=config,
        review=ReviewConfig(every_tokens=None, every_steps=1),
        budget=Budget(8, 1, 40, 1.0),
        segmenter=get_segmenter("paragraph"),
        decode=tokenizer.decode,
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
        control_strings=("<|im_end|>", END),
        end_ids={ord(END)},
    )

    def policy(text: str) -> str:
        answer = text.split("?", 1)[1]
        return script[len(answer) :] or END

    writer = ServerWriter(ScriptedClient(policy), {"temperature": 1.0}, "r", shared.end_ids, shared.decode)
    request = ReviewRequest(
        problem=({"role": "user", "content": PROMPT},),
        steps=(),
        finished=False,
        sample={"reward_model": {"ground_truth": GOLD}},
        session_id=number,
    )
    record = SessionRecord(uid="u", session_id=number, step=1, role=Role.TREATED.value)
    return PeriodicSession(shared, writer, [ord(c) for c in PROMPT], 200, request, record)


def text_of(run: PeriodicSession) -> str:
    return "".join(map(chr, run.trajectory.ids))

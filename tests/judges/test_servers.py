"""Judges on verl's own servers: which model is asked, by which server, with which template."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from verl_mintrl.config.schema import VerifierConfig, parse
from verl_mintrl.errors import ConfigError, JudgeError
from verl_mintrl.judges.build import Surroundings, build_judge
from verl_mintrl.judges.protocol import ReviewRequest, Verdict
from verl_mintrl.judges.servers import ServedModel

REQUEST = ReviewRequest(
    problem=({"role": "user", "content": "1+1"},), steps=("1+1 = 3",), finished=False, uid="u7", session_id=3
)


class Client:
    """Answers every question with the same text, one token a character."""

    def __init__(self, answer: str = '{"verdict": "keep"}', stop_reason: str = "completed") -> None:
        self.answer, self.stop_reason, self.calls = answer, stop_reason, list[dict[str, Any]]()

    async def generate(self, **call: Any) -> Any:
        self.calls.append(call)
        ids = [ord(c) for c in self.answer][: call["sampling_params"]["max_tokens"]]
        return SimpleNamespace(token_ids=ids, stop_reason=self.stop_reason, extra_fields={"num_cached_tokens": 5})


class Tokenizer:
    def __init__(self, name: str) -> None:
        self.name, self.kwargs = name, dict[str, Any]()

    def apply_chat_template(self, messages: Any, **kwargs: Any) -> list[int]:
        self.kwargs = kwargs
        return [ord(c) for c in self.name + messages[-1]["content"]]

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(map(chr, ids))


def served(name: str, client: Client, **changes: Any) -> ServedModel:
    return ServedModel(client, Tokenizer(name), **{"max_model_len": 100_000, "length_key": f"{name}.length", **changes})


def judge(teachers: dict[str, ServedModel], policy: Client | None = None, unique: bool = False, **config: Any) -> Any:
    node = parse({"judge": {"backend": "teacher", "function": None, **config}})
    around = Surroundings(served("P", policy or Client()), (), teachers, unique)
    return build_judge(node.judge, VerifierConfig(), around)


async def test_the_only_teacher_is_asked_with_its_own_tokenizer_and_template():
    policy, teacher = Client(), Client('{"verdict": "revise", "step": 1, "correction": "1+1 = 2"}')
    model = served("T", teacher)
    answer = await judge({"default": model}, policy, teacher={"chat_template_kwargs": {"thinking": False}}).review(
        REQUEST
    )
    assert answer.verdict is Verdict.REVISE and answer.correction == "1+1 = 2"
    assert policy.calls == [] and chr(teacher.calls[0]["prompt_ids"][0]) == "T"
    assert model.tokenizer.kwargs["thinking"] is False
    assert (answer.usage.calls, answer.usage.cached_tokens) == (1, 5) and answer.usage.prompt_tokens > 100


async def test_roles_can_be_played_by_different_teachers_and_the_policy():
    small, large, policy = Client(), Client(), Client('{"verdict": "keep"}')
    teachers = {"small": served("S", small), "large": served("L", large)}
    asked = judge(teachers, policy, teacher={"key": "large"}, joint=False, roles={"validator": {"backend": "policy"}})
    await asked.review(REQUEST)
    with pytest.raises(JudgeError):
        await asked.correct(REQUEST, 1)
    assert (len(policy.calls), len(large.calls), len(small.calls)) == (1, 1, 0)


@pytest.mark.parametrize(
    ("teachers", "key", "named"),
    [((), None, "none"), (("a", "b"), None, "a, b"), (("a", "b"), "c", "'c'"), (("a",), "b", "'b'")],
)
def test_a_teacher_that_is_not_served_is_refused(teachers: Any, key: str | None, named: str):
    with pytest.raises(ConfigError, match=named) as caught:
        judge({name: served(name, Client()) for name in teachers}, teacher={"key": key})
    assert "intervention.judge.teacher.key" in str(caught.value)


async def test_questions_about_a_session_go_to_the_server_that_holds_their_beginning():
    client = Client()
    asked = judge({"default": served("T", client)})
    await asked.review(REQUEST)
    await asked.review(REQUEST)
    first, second = (call["request_id"] for call in client.calls)
    assert first == second and "u7" in first


async def test_requests_are_told_apart_where_their_ids_reach_the_engine():
    client = Client()
    asked = judge({"default": served("T", client)}, unique=True)
    await asked.review(REQUEST)
    await asked.review(REQUEST)
    assert len({call["request_id"] for call in client.calls}) == 2


async def test_a_question_that_does_not_fit_names_the_key_of_its_server():
    asked = judge({"default": served("T", Client(), max_model_len=10)})
    with pytest.raises(JudgeError, match=r"T\.length") as caught:
        await asked.review(REQUEST)
    assert caught.value.kind == "context"


async def test_an_aborted_call_is_no_verdict():
    asked = judge({"default": served("T", Client(stop_reason="aborted"))})
    with pytest.raises(JudgeError, match="teacher") as caught:
        await asked.review(REQUEST)
    assert caught.value.kind == "unavailable"

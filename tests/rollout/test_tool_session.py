"""A multi-turn row of verl's own tool loop, entered again at a turn; only the policy is scripted."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.tools.function_tool import FunctionTool
from verl.tools.schemas import OpenAIFunctionToolSchema
from verl.utils.dataset.rl_dataset import RLHFDataset

from verl_mintrl.config.judge import JudgeConfig
from verl_mintrl.config.schema import GateConfig, ReviewConfig, TokenWeightsConfig
from verl_mintrl.judges.leak import LeakRules
from verl_mintrl.judges.limits import GuardedJudge
from verl_mintrl.judges.protocol import Review, ReviewRequest
from verl_mintrl.judges.python import PythonJudge
from verl_mintrl.judges.roles import Part, RolesJudge, Sight
from verl_mintrl.rollout.output import InterventionOutput
from verl_mintrl.rollout.periodic import Reviewing
from verl_mintrl.rollout.propose import Proposer
from verl_mintrl.rollout.replay import ReplayingClient, replayed
from verl_mintrl.rollout.text_session import from_columns
from verl_mintrl.rollout.tool_session import Tools, ToolSession
from verl_mintrl.rollout.walk import Walker
from verl_mintrl.trajectory.record import Outcome, ReviewRecord
from verl_mintrl.trajectory.spans import Author
from verl_mintrl.trajectory.splice import Budget, Ledger, encode_correction
from verl_mintrl.trajectory.steps import get_segmenter

END = "<|im_end|>"
LIMIT = 1500
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def call(a: int, b: int) -> str:
    return f'<tool_call>{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}</tool_call>'


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, pad_token=END, bos_token="<|im_start|>")
    fast.chat_template = TEMPLATE
    return fast


class Policy:
    """Adds the wrong number first; afterwards repeats what the tool said."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.asked: list[str] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict, **_: Any) -> Any:
        text = self.tokenizer.decode(prompt_ids)
        self.asked.append(text)
        results = text.split("<|im_start|>tool\n")[1:]
        if not results:
            reply = call(3, 8)
        elif len(results) == 1:
            reply = call(int(results[0].split(END)[0]), 5)
        else:
            reply = f"The answer is {results[1].split(END)[0]}."
        ids = self.tokenizer.encode(reply + END, add_special_tokens=False)
        return SimpleNamespace(
            token_ids=ids,
            log_probs=[-0.25] * len(ids),
            stop_reason="completed",
            num_preempted=None,
            routed_experts=None,
            extra_fields={"min_global_steps": 4, "max_global_steps": 4},
        )


def add_tool(add: Any) -> FunctionTool:
    number = {"type": "integer", "description": "a number"}
    schema = {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]},
        },
    }
    return FunctionTool("add", add, OpenAIFunctionToolSchema.model_validate(schema))


def setting(tokenizer: PreTrainedTokenizerFast, add: Any, judge: Any) -> tuple[Policy, Any, Reviewing]:
    policy = Policy(tokenizer)
    client = ReplayingClient(policy)
    config = OmegaConf.create(
        {
            "actor_rollout_ref": {
                "rollout": {
                    "prompt_length": 200,
                    "response_length": LIMIT,
                    "full_determinism": False,
                    "multi_turn": {
                        "max_user_turns": 8,
                        "max_assistant_turns": 8,
                        "max_parallel_calls": 1,
                        "max_tool_response_length": 200,
                        "tool_response_truncate_side": "left",
                        "format": "hermes",
                    },
                }
            },
            "data": {},
        }
    )

    async def run() -> InterventionOutput:
        loop = ToolAgentLoop(
            trainer_config=DictConfigWrap(config),
            server_manager=client,
            tokenizer=tokenizer,
            processor=None,
            dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(config.data),
            tools=ToolListWrap([add_tool(add)]),
            hf_model_type="llama",
        )
        messages = [{"role": "user", "content": "What is 3 + 9 + 5?"}]
        row = InterventionOutput.from_output(await loop.run({"logprobs": True}, raw_prompt=messages))
        row.reward_score = float("The answer is 17." in tokenizer.decode(row.response_ids))
        return row

    guarded = GuardedJudge(PythonJudge(judge, "test"), timeout=5, concurrency=4)
    part = Part(guarded, Sight())
    shared = Reviewing(
        judge=RolesJudge(part, part, part, LeakRules()),
        judge_config=JudgeConfig(function="unused:unused"),
        verify=False,
        review=ReviewConfig(),
        budget=Budget(20, 3, 200, 1.0),
        segmenter=get_segmenter("paragraph"),
        proposer=Proposer(
            scorer=None,  # type: ignore[arg-type]  # gate and weights are off
            gate=GateConfig(),
            token_weights=TokenWeightsConfig(),
            decode=lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
            encode=lambda text: encode_correction(tokenizer, text),
            control_strings=(END, "<|im_start|>"),
            steering_context=lambda request, step: [],
        ),
        end_ids={tokenizer.eos_token_id},
    )
    return policy, run, shared


def gold(request: ReviewRequest) -> Review | None:
    """Knows that 3 and 9 have to be added first."""
    focus = request.focus or 0
    return Review.revise(1, call(3, 9)) if focus == 1 and call(3, 9) not in request.steps[0] else None


async def walk(run: Any, shared: Reviewing) -> tuple[Any, Any, list[ReviewRecord]]:
    row = await run()
    ledger = Ledger(shared.budget)

    def from_row(row: InterventionOutput) -> Any:
        return from_columns(LIMIT, row.response_ids, row.authors, row.response_logprobs, row.token_weights)

    tools = Tools(shared, lambda turns, meta: replayed(turns, meta, run), from_row, False)
    request = ReviewRequest(problem=({"role": "user", "content": "What is 3 + 9 + 5?"},), steps=(), finished=True)
    session = ToolSession(tools, row, from_row(row), request, ledger)
    notes: list[ReviewRecord] = []
    ended = await Walker(shared.judge, False, 0.0, 60).walk(session, ledger, notes)
    return session, ended, notes


async def test_wrong_call_is_replaced_and_tools_answer_anew(tokenizer: PreTrainedTokenizerFast) -> None:
    _policy, run, shared = setting(tokenizer, lambda a, b: str(a + b), gold)
    session, ended, notes = await walk(run, shared)
    assert session.reward == 0 and ended.reward == 1
    assert list(session.steps) == [call(3, 8), call(11, 5), "The answer is 16."]
    assert list(ended.steps) == [call(3, 9), call(12, 5), "The answer is 17."]
    assert "11" in session.request(2).observations[1] and "12" in ended.request(2).observations[1]
    (note,) = [n for n in notes if n.outcome == Outcome.INSERTED]
    row = ended.row
    row.check(LIMIT)
    corrected = [i for i, author in enumerate(row.authors) if author == Author.CORRECTOR]
    assert corrected == list(range(*note.inserted))
    assert tokenizer.decode(row.response_ids[slice(*note.inserted)]) == call(3, 9) + END
    assert all(math.isnan(row.response_logprobs[i]) for i in corrected)
    assert {row.authors[i] for i, m in enumerate(row.response_mask) if not m} == {Author.ENVIRONMENT}
    assert row.extra_fields["min_global_steps"] == 4


async def test_earlier_turns_are_given_not_sampled_again(tokenizer: PreTrainedTokenizerFast) -> None:
    def late(request: ReviewRequest) -> Review | None:
        return Review.revise(2, call(12, 5)) if request.focus == 2 and call(12, 5) != request.steps[1] else None

    policy, run, shared = setting(tokenizer, lambda a, b: str(a + b), late)
    session, ended, notes = await walk(run, shared)
    assert len(policy.asked) == 4  # three turns at first, then only the last one anew
    assert ended.row.response_ids[: notes[1].inserted[0]] == session.row.response_ids[: notes[1].inserted[0]]
    assert ended.reward == 1


async def test_tool_that_answers_differently_is_a_counted_mismatch(tokenizer: PreTrainedTokenizerFast) -> None:
    noise = itertools.count(1)

    def late(request: ReviewRequest) -> Review | None:
        return Review.revise(2, call(20, 5)) if request.focus == 2 else None

    _policy, run, shared = setting(tokenizer, lambda a, b: str(a + b + next(noise)), late)
    session, ended, notes = await walk(run, shared)
    assert ended is session
    assert [(n.outcome, n.reason) for n in notes] == [
        (Outcome.KEPT, ""),
        (Outcome.REJECTED, "replay"),
        (Outcome.KEPT, ""),
    ]
    assert "token" in notes[1].detail

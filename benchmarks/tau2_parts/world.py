"""The domains of tau2-bench: real databases, tools, tasks and deterministic evaluator; the user is scripted.

The user opens with the reason for the call, does on the device what the assistant asks for, word by word, and hangs up
when the assistant sends a text without such a request.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from loguru import logger

from tau2_parts.turns import read
from verl_mintrl.rollout.environment import Observation

logger.disable("tau2")  # logs every tool call, before anything of it is imported

from tau2.data_model.message import AssistantMessage, Message, ToolCall, UserMessage  # noqa: E402
from tau2.data_model.tasks import RewardType, Task  # noqa: E402
from tau2.environment.toolkit import ToolType, get_tool_types  # noqa: E402
from tau2.evaluator.evaluator_action import ActionEvaluator  # noqa: E402
from tau2.evaluator.evaluator_communicate import CommunicateEvaluator  # noqa: E402
from tau2.evaluator.evaluator_env import EnvironmentEvaluator  # noqa: E402

DOMAINS = ("airline", "retail", "telecom")
TRANSFER = "transfer_to_human_agents"


@dataclass
class Domain:
    """One domain.

    Attributes:
        acting: tools that change a database, of assistant and user, and handing the call over to a human.
        policy: what the assistant is told.
        scored: evaluator's rewards by (task, conversation), since it plays every conversation again.
    """

    name: str
    tasks: list[Task]
    acting: frozenset[str]
    policy: str
    pristine: bytes
    construct: Callable[..., Any]
    scored: dict[tuple[str, str], float] = field(default_factory=dict)

    @classmethod
    def load(cls, name: str) -> Domain:
        module = importlib.import_module(f"tau2.domains.{name}.environment")
        world = module.get_environment()
        kits = [kit for kit in (world.tools, world.user_tools) if kit is not None]
        types = {tool: kind for kit in kits for tool, kind in get_tool_types(kit).items()}
        acting = frozenset(tool for tool, kind in types.items() if kind is ToolType.WRITE) | {TRANSFER}
        databases = pickle.dumps([kit.db for kit in kits], -1)
        return cls(name, module.get_tasks("base"), acting, world.policy, databases, module.get_environment)

    def fresh(self, solo_mode: bool = False) -> Any:
        """tau2's environment over databases of its own. The signature is the one its evaluator asks for."""
        databases = pickle.loads(self.pristine)
        return self.construct(**dict(zip(("db", "user_db"), databases, strict=False)), solo_mode=solo_mode)

    def score(self, task: Task, messages: list[Message], ended: bool) -> float:
        """tau2's reward: the product of the evaluators its task names; 0 for a conversation that did not end."""
        if not ended:
            return 0.0
        said = json.dumps([message.model_dump(exclude={"timestamp"}) for message in messages], sort_keys=True)
        key = task.id, hashlib.sha256(said.encode()).hexdigest()
        if key not in self.scored:
            basis = set(task.evaluation_criteria.reward_basis)
            reward = 1.0
            if basis & {RewardType.DB, RewardType.ENV_ASSERTION}:
                reward *= EnvironmentEvaluator.calculate_reward(self.fresh, task, messages).reward
            if RewardType.ACTION in basis:
                reward *= ActionEvaluator.calculate_reward(task, messages).reward
            if RewardType.COMMUNICATE in basis:
                reward *= CommunicateEvaluator.calculate_reward(task, messages).reward
            self.scored[key] = reward
        return self.scored[key]


def needs_a_model(task: Task) -> bool:
    """Whether the reward rests on an assertion in prose, which only a language model could check."""
    return RewardType.NL_ASSERTION in task.evaluation_criteria.reward_basis


class Conversation:
    """One task as an :class:`verl_mintrl.rollout.environment.Environment`.

    Args:
        traced: keep a hash of the databases before every turn.

    Attributes:
        trace: those hashes.
    """

    def __init__(self, domain: Domain, task: Task, traced: bool = False) -> None:
        self.domain, self.task, self.traced = domain, task, traced
        self.trace: list[str] = []
        self._world: Any = None
        self._messages: list[Message] = []
        self._shown = Observation("")

    async def reset(self) -> None:
        self._world = self.domain.fresh()
        start = self.task.initial_state
        if start is not None:
            self._world.set_state(start.initialization_data, start.initialization_actions, [])
        self._world.sync_tools()
        told = self.task.user_scenario.instructions
        opening = told if isinstance(told, str) else "\n".join(filter(None, (told.reason_for_call, told.known_info)))
        self._messages = [UserMessage(role="user", content=opening)]
        self._show(opening)

    async def step(self, turn: str) -> None:
        call = read(turn)
        if call is None:
            self._messages += [
                AssistantMessage(role="assistant", content=turn),
                UserMessage(role="user", content="Thank you. ###STOP###"),
            ]
            self._show("Thank you. ###STOP###", done=True)
            return
        asked = ToolCall(id=str(len(self._messages)), name=call.name, arguments=dict(call.arguments), requestor=call.by)
        if call.by == "user":
            self._messages.append(AssistantMessage(role="assistant", content=turn))
        caller = UserMessage if call.by == "user" else AssistantMessage
        answer = self._world.get_response(asked)
        self._messages += [caller(role=call.by, content=None, tool_calls=[asked]), answer]
        if call.by == "user":
            report = f"Done. It says: {answer.content}"
            self._messages.append(UserMessage(role="user", content=report))
            self._show(report)
        else:
            self._show(str(answer.content))

    def observe(self) -> Observation:
        return self._shown

    async def reward(self) -> float:
        return self.domain.score(self.task, self._messages, self._shown.done)

    def fingerprint(self) -> str:
        """Hash of the databases; equal where tau2's own hashes are, and much faster."""
        kits = (self._world.tools, self._world.user_tools)
        texts = [kit.db.model_dump_json() for kit in kits if kit is not None]
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()

    def _show(self, text: str, done: bool = False) -> None:
        self._shown = Observation(text, done)
        if self.traced:
            self.trace.append(self.fingerprint())


class KeptConversation(Conversation):
    """The same, with deep copies of databases and messages as snapshots."""

    async def snapshot(self) -> bytes:
        kits = (self._world.tools, self._world.user_tools)
        databases = [kit.db for kit in kits if kit is not None]
        return pickle.dumps((databases, self._messages, self._shown, self.trace), -1)

    async def restore(self, snapshot: bytes) -> None:
        databases, self._messages, self._shown, self.trace = pickle.loads(snapshot)
        self._world = self.domain.construct(**dict(zip(("db", "user_db"), databases, strict=False)))
        if self.traced:
            self.trace[-1] = self.fingerprint()

"""verl adapter: the agent-loop manager, named by ``actor_rollout_ref.rollout.agent.agent_loop_manager_class``.

Leans on ``verl.trainer.ppo.v1.AgentLoopManagerTQ`` and its attribute ``agent_loop_workers_class``.
"""

from __future__ import annotations

from typing import Any

import ray
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ

from verl_mintrl.config.validate import validate
from verl_mintrl.rollout.worker import InterventionAgentLoopWorker


class InterventionAgentLoopManager(AgentLoopManagerTQ):
    """``AgentLoopManagerTQ`` with :class:`InterventionAgentLoopWorker` as its Ray actors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        validate(self.config)
        self.agent_loop_workers_class = ray.remote(InterventionAgentLoopWorker)

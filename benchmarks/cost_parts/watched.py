"""Classes that a run's config names, so that its processes are counted: the trainer and the rollout workers.

verl takes any replay buffer (``trainer.v1.sampler.custom_sampler``) and any agent loop
(``actor_rollout_ref.rollout.agent.agent_loop_config_path``); importing this module in their processes installs the counters.
"""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.workers.rollout.llm_server import LLMServerClient

from cost_parts.layers import LOOKED, PUBLISHED, Layers, stamp
from verl_mintrl.rollout.abort import AbortingClient
from verl_mintrl.rollout.output import InterventionOutput
from verl_mintrl.rollout.replay import ReplayingClient
from verl_mintrl.rollout.worker import InterventionAgentLoopWorker
from verl_mintrl.trainer import InterventionTrainer

PLUGIN, VERL, ASLEEP = "plugin", "verl", "asleep"

layers = Layers()


class Counted(ReplayBuffer):
    """Counts the sleeping between two looks, and leaves the trainer's times behind: from the first batch asked for on."""

    _asked = False

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        if not self._asked:  # what came before is no part of an update
            layers.seconds.clear()
            self._asked = True
        found = super().sample(*args, **kwargs)
        stamp(LOOKED)
        layers.save("trainer")
        return found


class Paused(Counted):
    """Waits as long between two looks as verl ships it, whatever the trainer asks for."""

    def _wait_for_next_poll(self, *args: Any, **kwargs: Any) -> Any:
        self.poll_interval = 2.0
        return super()._wait_for_next_poll(*args, **kwargs)


class CountedLoop(SingleTurnAgentLoop):
    """verl's loop; leaves the worker's times up to here behind."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        output = await super().run(sampling_params, **kwargs)
        layers.save("worker")
        return output


def _install() -> None:
    stock_worker = AgentLoopWorkerTQ.__ray_metadata__.modified_class
    for ours, theirs in ((InterventionTrainer, PPOTrainer), (InterventionAgentLoopWorker, stock_worker)):
        names = [name for name in vars(ours) if not name.startswith("__")]
        layers.watch(PLUGIN, ours, names)
        for base in theirs.__mro__[:-1]:
            layers.watch(VERL, base, names)
    for client in (ReplayingClient, AbortingClient):
        layers.watch(PLUGIN, client, ["generate"])
    layers.watch(VERL, LLMServerClient, ["generate"])
    layers.watch(PLUGIN, InterventionOutput, ["as_dict"])
    layers.watch(ASLEEP, ReplayBuffer, ["_wait_for_next_poll"])
    run_prompt = InterventionAgentLoopWorker._run_prompt

    async def stamped(*args: Any, **kwargs: Any) -> Any:
        result = await run_prompt(*args, **kwargs)
        stamp(PUBLISHED)
        return result

    InterventionAgentLoopWorker._run_prompt = stamped


_install()

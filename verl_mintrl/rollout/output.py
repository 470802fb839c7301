"""The row a session hands to verl: an ``AgentLoopOutput`` with one author and one weight per response token."""

from __future__ import annotations

import math
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from verl_mintrl.errors import DataError, TrajectoryError
from verl_mintrl.trajectory.record import SessionRecord
from verl_mintrl.trajectory.spans import Author, Trajectory

#: key of the session record in ``extra_fields``, the one opaque column verl carries along
RECORD_KEY = "intervention"


class InterventionOutput(AgentLoopOutput):
    """``verl.experimental.agent_loop.AgentLoopOutput`` plus per-token columns ``authors`` and ``token_weights``."""

    authors: list[int]
    """Author of every response token (see ``verl_mintrl.trajectory.spans.Author``)."""
    token_weights: list[float]
    """Weight of every response token in the objective, > 0."""

    def as_dict(self) -> dict[str, Any]:
        output = super().as_dict()
        output["authors"] = torch.tensor(output.pop("authors"), dtype=torch.int64)
        output["token_weights"] = torch.tensor(output.pop("token_weights"), dtype=torch.float32)
        return output

    @classmethod
    def from_output(cls, output: AgentLoopOutput) -> InterventionOutput:
        """Any agent loop's output; tokens it trains on were written by the policy, the others by the environment."""
        if isinstance(output, cls):
            return output
        values = {name: getattr(output, name) for name in output.model_fields_set}
        values["extra_fields"] = output.extra_fields  # filled after construction, so not in the fields set
        authors = [int(Author.POLICY if mask else Author.ENVIRONMENT) for mask in output.response_mask]
        return cls(**values, authors=authors, token_weights=[1.0] * len(authors))

    def check(self, response_length: int) -> None:
        """Refuse a row whose columns disagree.

        Raises:
            TrajectoryError: names the first column that disagrees, and its length.
        """
        n = len(self.response_ids)
        if n == 0 or n > response_length:
            raise TrajectoryError(
                f"the response has {n} tokens; expected 1 to {response_length}.",
                "an agent loop must cut ids, mask and log-probs together at actor_rollout_ref.rollout.response_length.",
            )
        columns: dict[str, list[Any]] = {
            "response_mask": self.response_mask,
            "authors": self.authors,
            "token_weights": self.token_weights,
        }
        if self.response_logprobs is not None:
            columns["response_logprobs"] = self.response_logprobs
        for name, column in columns.items():
            if len(column) != n:
                raise TrajectoryError(f"{name} has {len(column)} entries for {n} response tokens.")

    def with_trajectory(self, trajectory: Trajectory, keep_logprobs: bool) -> InterventionOutput:
        """This row with other response tokens, not scored yet."""
        twin = self.model_copy(deep=True)
        twin.response_ids = list(trajectory.ids)
        twin.response_mask = trajectory.response_mask()
        twin.response_logprobs = list(trajectory.logprobs) if keep_logprobs else None
        twin.authors, twin.token_weights = trajectory.authors(), list(trajectory.weights)
        twin.reward_score = None
        twin.extra_fields.pop("reward_extra_info", None)
        return twin

    def mask_out(self) -> None:
        """Take the session out of the loss; verl derives ``loss_mask`` from the same list."""
        self.response_mask = [0] * len(self.response_mask)

    def attach(self, record: SessionRecord) -> None:
        self.extra_fields[RECORD_KEY] = record.to_dict()


def inert(output: InterventionOutput, end_id: int, *, log_probs: bool) -> None:
    """Give an empty response one untrained token: verl writes the reward to the last response token.

    Args:
        log_probs: whether rows carry log-probs; verl's loops leave them out of an empty response, but all rows of a batch
            need the same columns.
    """
    output.response_ids, output.response_mask = [end_id], [0]
    output.authors, output.token_weights = [int(Author.ENVIRONMENT)], [1.0]
    output.response_logprobs = [0.0] if log_probs else None


def checked_reward(reward: Any, uid: str, session_id: int) -> float:
    """The reward as a finite float.

    Raises:
        DataError: it is missing, NaN, infinite or not a number; names the session.
    """
    try:
        value = reward.item() if hasattr(reward, "item") else reward
    except (ValueError, RuntimeError):  # an array of several numbers
        value = None
    if isinstance(value, int):
        value = float(value) if abs(value) < 2**1000 else math.inf
    if not isinstance(value, float) or not math.isfinite(value):
        raise DataError(
            f"reward of session {session_id} of uid {uid} is {reward!r}; expected a finite number.",
            "fix the function of reward.custom_reward_function (or the reward manager).",
        )
    return float(value)

"""The policy as a writer of token chunks, over verl's token-in-token-out server client."""

from __future__ import annotations

import asyncio
import hashlib
import time
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from verl_mintrl.rollout.abort import ABORTED


@dataclass(frozen=True)
class Chunk:
    """Tokens the policy wrote in one call.

    Attributes:
        ids: sampled token ids, exactly as sampled.
        logprobs: their log-probs in nats, or None where sampling does not report them.
        ended: the policy ended its response (end-of-sequence token, or a stop the caller did not ask for).
    """

    ids: list[int]
    logprobs: list[float] | None
    ended: bool


class Writer(Protocol):
    """The policy.

    Attributes:
        seconds: time spent waiting for it so far.
    """

    seconds: float

    async def write(self, prefix: list[int], limit: int, stop: Sequence[str] = ()) -> Chunk:
        """Continue ``prefix`` by at most ``limit`` >= 1 tokens, or until one of ``stop`` was written.

        ``prefix`` is handed on, not copied: the caller leaves it as it is.
        """
        ...


def derive_seed(*parts: Any) -> int:
    """A 31-bit seed that depends on every part and on nothing else."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


@dataclass
class ServerWriter:
    """Writes through ``verl.workers.rollout.llm_server.LLMServerClient.generate``.

    verl reports ``stop_reason == "completed"`` for end, stop string and length alike, so the three are told apart by the
    tokens: an end-of-sequence id ends, fewer tokens than asked for without a stop string end as well.

    Attributes:
        client: verl's client (any object with its ``generate``).
        sampling_params: as handed to the agent loop; never mutated.
        request_id: constant within a session, so that all chunks go to the replica that holds the prefix.
        end_ids: end-of-sequence ids of tokenizer and generation config.
        decode: token ids -> text, only to see whether a stop string was written.
        seed_parts: under ``rollout.full_determinism`` every call gets its own seed from these and the text it continues, since verl
            would otherwise use one seed for all sessions; None leaves sampling random.
        aborted: cancelled calls that the server confirmed to have dropped.
    """

    client: Any
    sampling_params: dict[str, Any]
    request_id: str
    end_ids: Collection[int]
    decode: Any
    seed_parts: tuple[Any, ...] | None = None
    seconds: float = 0.0
    calls: int = 0
    aborted: int = 0
    versions: list[int] = field(default_factory=list)

    async def write(self, prefix: list[int], limit: int, stop: Sequence[str] = ()) -> Chunk:
        ids: list[int] = []
        logprobs: list[float] | None = []
        while True:
            params = dict(self.sampling_params, max_tokens=limit - len(ids))
            if stop:
                params.update(stop=list(stop), include_stop_str_in_output=True)
            request_id = self.request_id
            whole = [*prefix, *ids] if ids else prefix
            if self.seed_parts is not None:
                params["seed"] = derive_seed(*self.seed_parts, array("q", whole).tobytes())
                request_id = f"{self.request_id}-{self.calls}"  # reaches vLLM unchanged in this mode, so must be unique
            started = time.monotonic()
            self.calls += 1
            try:
                output = await self.client.generate(request_id=request_id, prompt_ids=whole, sampling_params=params)
            except asyncio.CancelledError as error:
                self.aborted += ABORTED in error.args
                raise
            finally:
                self.seconds += time.monotonic() - started
            for key in ("min_global_steps", "max_global_steps"):
                if (version := output.extra_fields.get(key)) is not None:
                    self.versions.append(int(version))
            new = list(output.token_ids)
            ids += new
            if output.log_probs is None or logprobs is None:
                logprobs = logprobs if not new else None
            else:
                logprobs += list(output.log_probs)
            if output.stop_reason in ("aborted", "abort") and len(ids) < limit:
                await asyncio.sleep(0.5)  # weights are being exchanged: go on from what was written
                continue
            break
        # an engine may hand back more than it was asked for; a response must never exceed its limit
        ids = ids[:limit]
        logprobs = logprobs[:limit] if logprobs is not None else None
        ended = bool(ids) and ids[-1] in self.end_ids
        if not ended and len(ids) < limit:
            written = self.decode(ids) if stop else ""
            ended = not any(text in written for text in stop)
        return Chunk(ids, logprobs, ended)

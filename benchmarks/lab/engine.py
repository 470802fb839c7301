"""The policy behind the seam of verl's server client, in process: concurrent requests are answered as one batch.

``generate`` takes and returns what ``verl.workers.rollout.llm_server.LLMServerClient.generate`` does, as far as
:mod:`verl_mintrl.rollout.writer`, :mod:`verl_mintrl.rollout.scoring` and the judges use it. A batch starts once every session
waits for the policy, so who is in it does not depend on timing: with the same seed of torch's global generator a run repeats
itself to the last bit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lab.decoder import Cache, Decoder

#: turns of the event loop without a new request after which every session is taken to wait
QUIET_TURNS = 40
#: rows a batch may have
MAX_ROWS = 256
#: finished rows are taken out of a running batch when at most this share is still being written
COMPACT_BELOW = 0.7


@dataclass
class Output:
    """As ``verl.workers.rollout.replica.TokenOutput``."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str
    extra_fields: dict[str, Any]


@dataclass(eq=False)
class _Request:
    """One call on its way."""

    key: str
    prompt: list[int]
    params: dict[str, Any]
    done: asyncio.Future[Output]
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    scored: list[list[float]] | None = None
    finished: bool = False
    text: str = ""

    @property
    def limit(self) -> int:
        return int(self.params["max_tokens"])

    @property
    def scores(self) -> bool:
        return self.params.get("prompt_logprobs") is not None


@dataclass
class _Remembered:
    """Keys and values of a session's tokens, (layers, heads, positions, head size)."""

    ids: list[int]
    keys: torch.Tensor
    values: torch.Tensor


class Engine:
    """Samples from a ``LlamaForCausalLM``.

    Args:
        model: the policy; call :meth:`refresh` after its parameters have changed.
        end_ids: end-of-sequence ids.
        pieces: text of every token id, for stop strings.
        max_model_len: tokens of prompt and response together.

    Attributes:
        calls, tokens: requests served, and tokens sampled, so far.
    """

    def __init__(self, model: Any, end_ids: Collection[int], pieces: Sequence[str], max_model_len: int) -> None:
        self.decoder = Decoder(model)
        self.end_ids = frozenset(end_ids)
        self.max_model_len = max_model_len
        self.calls = self.tokens = 0
        self._pieces = pieces
        self._waiting: list[_Request] = []
        self._quiet = 0
        self._remembered: dict[str, _Remembered] = {}

    def refresh(self) -> None:
        """Take over new parameters; what was remembered of the old ones is forgotten."""
        self._remembered.clear()
        self.decoder.refresh()

    async def generate(self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: dict[str, Any]) -> Output:
        """Continue ``prompt_ids``.

        ``sampling_params``: ``max_tokens``; ``temperature`` (0 is greedy) and ``top_p`` 1; ``stop`` with
        ``include_stop_str_in_output``; ``logprobs``; with ``prompt_logprobs`` nothing is sampled, and ``extra_fields`` holds the
        log-prob of every token of the prompt but the first.

        Raises:
            ValueError: a parameter that is not served, or no room for a token.
        """
        params = dict(sampling_params)
        if params.get("top_p", 1.0) != 1.0 or params.get("temperature", 1.0) not in (0.0, 1.0):
            raise ValueError(f"only temperature 0 or 1 and top_p 1 are served, got {params}")
        if params.get("stop") and not params.get("include_stop_str_in_output"):
            raise ValueError("stop strings are always part of the output here")
        params.setdefault("max_tokens", self.max_model_len - len(prompt_ids))
        if params["max_tokens"] < 1 or len(prompt_ids) + params["max_tokens"] > self.max_model_len:
            raise ValueError(f"{len(prompt_ids)} + {params['max_tokens']} tokens in a context of {self.max_model_len}")
        loop = asyncio.get_running_loop()
        request = _Request(request_id, list(prompt_ids), params, loop.create_future())
        if not self._waiting:
            loop.call_soon(self._watch, loop)
        self._waiting.append(request)
        self._quiet = 0
        return await request.done

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._quiet += 1
        if self._quiet < QUIET_TURNS:
            loop.call_soon(self._watch, loop)
            return
        batch, self._waiting = self._waiting, []
        try:
            for start in range(0, len(batch), MAX_ROWS):
                self._serve(batch[start : start + MAX_ROWS])
        except Exception as error:
            for request in batch:
                if not request.done.done():
                    request.done.set_exception(error)

    # --- one batch

    def _serve(self, batch: list[_Request]) -> None:
        self.calls += len(batch)
        known = [self._known(request) for request in batch]
        lengths = torch.tensor([len(request.prompt) for request in batch])
        starts = torch.tensor(known)
        longest = int((lengths - starts).max())
        room = max(
            int(starts.max()) + longest,
            max(len(request.prompt) + (0 if request.scores else request.limit) for request in batch),
        )
        cache = self.decoder.cache(len(batch), room)
        fed = torch.zeros(len(batch), longest, dtype=torch.long)
        for row, (request, start) in enumerate(zip(batch, known, strict=True)):
            if start:
                memory = self._remembered[request.key]
                cache.keys[:, row, :, :start] = memory.keys[:, :, :start]
                cache.values[:, row, :, :start] = memory.values[:, :, :start]
            fed[row, : len(request.prompt) - start] = torch.tensor(request.prompt[start:])
        hidden = self.decoder.hidden(fed, starts, cache)
        self._score(batch, fed, hidden)
        writing = [row for row, request in enumerate(batch) if not request.scores]
        if writing:
            rows = torch.tensor(writing)
            if len(writing) < len(batch):
                cache.keep(rows)
            last = hidden[rows, (lengths - starts)[rows] - 1]
            self._write([batch[row] for row in writing], lengths[rows], cache, last)
        for request in batch:
            log_probs = request.log_probs if request.params.get("logprobs") else None
            extra = {"prompt_logprobs": request.scored} if request.scores else {}
            request.done.set_result(Output(request.ids, log_probs, "completed", extra))

    def _known(self, request: _Request) -> int:
        """How many tokens of the prompt need not be computed again; at least one is always left to be."""
        memory = self._remembered.get(request.key)
        if memory is None or request.scores:
            return 0
        most = min(len(memory.ids), len(request.prompt) - 1)
        return next((i for i in range(most) if memory.ids[i] != request.prompt[i]), most)

    def _score(self, batch: list[_Request], fed: torch.Tensor, hidden: torch.Tensor) -> None:
        rows = [row for row, request in enumerate(batch) if request.scores]
        if not rows:
            return
        log_probs = self.decoder.logits(hidden[rows, :-1]).log_softmax(-1)
        values = log_probs.gather(-1, fed[rows, 1:].unsqueeze(-1)).squeeze(-1).tolist()
        for row, line in zip(rows, values, strict=True):
            batch[row].scored = [[value] for value in line[: len(batch[row].prompt) - 1]]

    def _write(self, active: list[_Request], positions: torch.Tensor, cache: Cache, last: torch.Tensor) -> None:
        """Sample until every request is finished. ``last`` (B, hidden) stands before the first new token."""
        rows = list(range(len(active)))  # rows of the cache
        while True:
            log_probs = self.decoder.logits(last).log_softmax(-1)
            chosen = torch.multinomial(log_probs.exp(), 1)
            greedy = [i for i, row in enumerate(rows) if active[row].params.get("temperature", 1.0) == 0.0]
            if greedy:
                chosen[greedy] = log_probs[greedy].argmax(-1, keepdim=True)
            values = log_probs.gather(-1, chosen).squeeze(-1).tolist()
            for row, token, value in zip(rows, chosen.squeeze(-1).tolist(), values, strict=True):
                request = active[row]
                if not request.finished:
                    self._take(request, token, value)
            writing = [i for i, row in enumerate(rows) if not active[row].finished]
            if not writing:
                break
            if len(writing) <= COMPACT_BELOW * len(rows):
                self._remember(active, rows, cache)
                kept = torch.tensor(writing)
                cache.keep(kept)
                rows, chosen, positions = [rows[i] for i in writing], chosen[kept], positions[kept]
            last = self.decoder.hidden(chosen, positions, cache)[:, 0]
            positions = (positions + 1).clamp(max=cache.keys.shape[3] - 1)  # a finished row may run on
        self._remember(active, rows, cache)
        self.tokens += sum(len(request.ids) for request in active)

    def _take(self, request: _Request, token: int, log_prob: float) -> None:
        request.ids.append(token)
        request.log_probs.append(log_prob)
        stopped = False
        if stop := request.params.get("stop"):
            request.text += self._pieces[token]
            stopped = any(text in request.text for text in stop)
        request.finished = stopped or token in self.end_ids or len(request.ids) >= request.limit

    def _remember(self, active: list[_Request], rows: list[int], cache: Cache) -> None:
        """Keep what is known about the rows of finished requests; the last sampled token was never fed."""
        for i, row in enumerate(rows):
            request = active[row]
            if request.finished and request.ids[-1] not in self.end_ids:
                ids = [*request.prompt, *request.ids[:-1]]
                self._remembered[request.key] = _Remembered(
                    ids, cache.keys[:, i, :, : len(ids)].clone(), cache.values[:, i, :, : len(ids)].clone()
                )

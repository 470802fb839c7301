"""Limits that hold over all rollout workers: calls in flight, requests and tokens a minute.

:class:`Gate` decides and is pure but for the clock; :class:`ClusterLimiter` reaches the one Gate of the run through a named
Ray actor. Callers ask again instead of waiting inside the actor, so a worker that died leaves nothing behind but a lease or
a place in the queue, and both expire.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import astuple, dataclass
from typing import Any
from uuid import uuid4

from verl_mintrl.config.judge import ClusterConfig
from verl_mintrl.errors import ConfigError, JudgeError
from verl_mintrl.judges.protocol import Usage

logger = logging.getLogger(__name__)

BURST_S = 10.0  # so many seconds' worth of a rate may be used at once
PLACE_S = 15.0  # a caller that does not ask again for so long loses its place in the queue
_ASK_AGAIN_S = (0.02, 2.0)


@dataclass
class _Bucket:
    """Tokens that flow in at ``rate`` a second. The level may fall below zero: a debt that is paid back by waiting."""

    rate: float
    level: float
    filled: float

    def wait(self, needed: float, now: float) -> float:
        """Seconds until ``needed`` are there."""
        self.level = min(max(needed, self.rate * BURST_S), self.level + (now - self.filled) * self.rate)
        self.filled = now
        return max(0.0, (needed - self.level) / self.rate)


#: what one answer may cost, in seconds of tokens flowing in
MOST_DEBT_S = 60.0


class Gate:
    """Lets callers in, first come, first served.

    Args:
        limits: the limits.
        lease_s: a caller that does not report back for so long is taken for dead.
    """

    def __init__(self, limits: ClusterConfig, lease_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._slots = limits.max_concurrency
        self._lease_s = lease_s
        self._clock = clock
        now = clock()
        self._requests, self._tokens = (
            None if per_minute is None else _Bucket(per_minute / 60, per_minute / 60 * BURST_S, now)
            for per_minute in (limits.requests_per_minute, limits.tokens_per_minute)
        )
        self._leases: dict[str, float] = {}  # ticket -> when it expires
        self._queue: OrderedDict[str, float] = OrderedDict()  # ticket -> when it last asked

    def ask(self, ticket: str) -> float:
        """0 if the caller may go ahead, else the seconds after which to ask again."""
        now = self._clock()
        self._leases = {t: expires for t, expires in self._leases.items() if expires > now}
        if ticket in self._leases:
            return 0.0
        self._queue[ticket] = now
        for other in [t for t, asked in self._queue.items() if now - asked > PLACE_S]:
            del self._queue[other]
        place = list(self._queue).index(ticket)
        wait = 0.0
        if self._slots is not None and len(self._leases) + place >= self._slots:
            wait = _ASK_AGAIN_S[0] * (1 + place)
        if self._requests is not None:
            wait = max(wait, self._requests.wait(1.0 + place, now))
        if self._tokens is not None:
            wait = max(wait, self._tokens.wait(1.0, now))
        if wait > 0:
            return min(max(wait, _ASK_AGAIN_S[0]), _ASK_AGAIN_S[1])
        del self._queue[ticket]
        self._leases[ticket] = now + self._lease_s
        if self._requests is not None:
            self._requests.level -= 1
        return 0.0

    def done(self, ticket: str, requests: int, tokens: int) -> None:
        """The caller is done, or gave up waiting.

        Args:
            requests: how many it made; one was counted when it was let in.
            tokens: how many they cost.
        """
        self._queue.pop(ticket, None)
        if self._leases.pop(ticket, None) is not None and self._requests is not None:
            self._requests.level -= requests - 1
        if self._tokens is not None:  # a server that reports nonsense must not close the gate for ever
            self._tokens.level -= min(tokens, self._tokens.rate * MOST_DEBT_S)


class ClusterLimiter:
    """The Gate of the run, from any of its processes.

    Args:
        target: what is limited; limiters of one target and equal limits share a Gate.
        lease_s: see :class:`Gate`.

    Raises:
        ConfigError: Ray is not running in this process.
    """

    def __init__(self, target: str, limits: ClusterConfig, lease_s: float) -> None:
        import ray

        if not ray.is_initialized():
            raise ConfigError(
                "intervention.judge.cluster sets limits over all workers, but Ray does not run in this process.",
                "start the run through verl, or set the keys of intervention.judge.cluster to null.",
            )
        digest = hashlib.sha256(repr((target, astuple(limits), lease_s)).encode()).hexdigest()[:12]
        self._options = {
            "name": f"verl_mintrl_judge_{digest}",
            "get_if_exists": True,
            "num_cpus": 0,
            "max_restarts": -1,
        }
        self._arguments = (limits, lease_s)
        self._actor = self._find()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[Callable[[Usage], None]]:
        """Waits to be let in; the caller reports what it used.

        Raises:
            JudgeError: unavailable, the actor cannot be reached.
        """
        ticket, used = uuid4().hex, Usage()

        def report(usage: Usage) -> None:
            nonlocal used
            used = usage

        try:
            while (wait := await self._ask(ticket)) > 0:
                await asyncio.sleep(wait)
            used = Usage(calls=1)  # the one that was counted on entry, also where nobody lives to report it
            yield report
        finally:  # not awaited, so that it also works while the caller is cancelled
            self._actor.done.remote(ticket, used.calls, used.prompt_tokens + used.completion_tokens)

    async def _ask(self, ticket: str) -> float:
        from ray.exceptions import RayError

        for last in (False, True):
            try:
                return await self._actor.ask.remote(ticket)
            except RayError as error:
                if last:
                    raise JudgeError(
                        f"the actor behind intervention.judge.cluster cannot be reached: {type(error).__name__}",
                        "see Ray's log; without limits set the keys of intervention.judge.cluster to null",
                        kind="unavailable",
                    ) from error
                logger.warning("the actor behind intervention.judge.cluster is gone; starting it anew")
                self._actor = self._find()
        raise AssertionError  # not reached

    def _find(self) -> Any:
        import ray

        return ray.remote(Gate).options(**self._options).remote(*self._arguments)

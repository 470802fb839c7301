"""When a call to a server is repeated, and how long to wait before. Pure but for the clock, which is passed in.

Repeated are statuses that promise a different answer later and transport errors, where no answer came. 409 and 425 are
among them as in the official ``openai`` client and RFC 8470. Everything else would fail again, and is not repeated.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

from verl_mintrl.config.judge import RetryConfig
from verl_mintrl.errors import JudgeError
from verl_mintrl.judges.protocol import Usage

_Answer = TypeVar("_Answer")


class CallFailed(Exception):
    """One attempt gave nothing.

    Args:
        error: what is raised if it is not repeated.
        retryable: whether the server, and not the question, is at fault.
        wait_s: seconds the server asks to wait.
    """

    def __init__(self, error: JudgeError, *, retryable: bool, wait_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.retryable = retryable
        self.wait_s = wait_s


def retryable_status(status: int) -> bool:
    return status in (408, 409, 425, 429) or 500 <= status < 600


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds that ``Retry-After`` asks for, given in seconds or as an HTTP date (RFC 9110, 10.2.3); None if unreadable."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        seconds = (date - (now or datetime.now(UTC))).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None


def wait_before(attempt: int, config: RetryConfig, asked_s: float | None, chance: float) -> float:
    """Seconds to wait after failed attempt number ``attempt`` (from 1).

    Args:
        asked_s: what the server asks for; never undercut, unless it exceeds ``max_wait_s``.
        chance: in [0, 1); spreads the waits of sessions that failed together.
    """
    backoff = min(config.max_wait_s, config.base_s * 2.0 ** min(attempt - 1, 60)) * (0.5 + chance)
    if asked_s is not None:
        backoff = max(backoff, asked_s + config.base_s * chance)
    return min(config.max_wait_s, backoff)


async def with_retries(
    call: Callable[[], Awaitable[_Answer]],
    config: RetryConfig,
    deadline_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    chance: Callable[[], float] = random.random,
) -> tuple[_Answer, int]:
    """The answer of ``call``, and how many attempts it took.

    Raises:
        CallFailed: that of the last attempt, once none may follow or the next would start after the deadline. Its
            ``error.usage`` counts the attempts.
    """
    ends = clock() + deadline_s
    attempt = 0
    while True:
        attempt += 1
        left = max(0.0, ends - clock())
        limit = left if config.attempt_timeout_s is None else min(left, config.attempt_timeout_s)
        try:
            async with asyncio.timeout(limit):
                return await call(), attempt
        except TimeoutError:
            error = JudgeError(
                f"the judge's server gave no complete answer within {limit:.3g} s (attempt {attempt})",
                "raise intervention.judge.call_deadline_s or, if it is overloaded, lower max_concurrency beside it",
                kind="timeout",
            )
            failed = CallFailed(error, retryable=True)
        except CallFailed as raised:
            failed = raised
        wait = wait_before(attempt, config, failed.wait_s, chance())
        if not failed.retryable or attempt >= config.attempts or clock() + wait >= ends:
            failed.error.usage = (failed.error.usage or Usage()) + Usage(calls=attempt)
            raise failed
        await sleep(wait)

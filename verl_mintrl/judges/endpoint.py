"""Backend ``endpoint``: any OpenAI-compatible chat server, through the official ``openai`` client.

The client's own retries are off (:mod:`.retry` has one deadline over all attempts) and answers are read as bytes: the
client builds its models without checking them, and has no limit on size. Redirects are not followed, for a question holds
confidential evidence.

The key is read from the environment when the client is built, and lives in the client only. It is cut out of every text
that a server sends back; errors carry no cause, as the client's exceptions hold the request with its headers.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from verl_mintrl.config.judge import JudgeConfig
from verl_mintrl.errors import ConfigError, JudgeError
from verl_mintrl.judges.breaker import Breaker
from verl_mintrl.judges.completions import ErrorInBody, error_summary, read_completion
from verl_mintrl.judges.prompted import Completion
from verl_mintrl.judges.protocol import ReviewRequest
from verl_mintrl.judges.redact import hide, printable
from verl_mintrl.judges.retry import CallFailed, retry_after, retryable_status, with_retries

MAX_BODY_BYTES = 1 << 20
_MAX_ERROR_BYTES = 1 << 16
_MAX_QUOTED_CHARS = 200
_SHORTEST_KEY = 12  # shorter ones (EMPTY, test) are no secret
_KEY = "intervention.judge.endpoint"
_CHANGE_SERVER = f"point {_KEY}.base_url to another server, and change the key"
_CONTEXT_CODES = ("context_length_exceeded", "exceed_context_size_error")
_CONTEXT_WORDS = ("context length", "context size", "context window")


class _ErrorStatus(Exception):
    """An answer with an error status, as far as it could be read."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers
        self.body = body


class EndpointBackend:
    """A chat model behind HTTP.

    Args:
        config: the ``intervention.judge`` node; ``endpoint``, ``retry``, ``breaker``, ``call_deadline_s``, ``temperature``
            and ``max_answer_tokens`` are read.

    Raises:
        ConfigError: ``openai`` is not installed, or the key's environment variable is unset.
    """

    name = "endpoint"

    def __init__(self, config: JudgeConfig) -> None:
        self._config = config
        self._breaker = Breaker(config.breaker.failures, config.breaker.cooldown_s)
        _import_openai()
        _read_key(config.endpoint.api_key_env)

    async def complete(
        self, messages: list[dict[str, Any]], *, schema: dict[str, Any] | None, request: ReviewRequest
    ) -> Completion:
        """Answer of the server; ``usage.calls`` counts the attempts.

        Raises:
            JudgeError: timeout, unavailable (no connection, or the circuit is open), http (error status, or no chat
                completion), context, refused, truncated.
            ConfigError: the environment variable of the key has gone.
        """
        arguments = self._arguments(messages, schema)
        try:
            with self._breaker.guard():
                completion, attempts = await with_retries(
                    lambda: self._attempt(arguments, request), self._config.retry, self._config.call_deadline_s
                )
        except CallFailed as failed:
            raise failed.error from None
        return replace(completion, usage=replace(completion.usage, calls=attempts))

    def _arguments(self, messages: list[dict[str, Any]], schema: dict[str, Any] | None) -> dict[str, Any]:
        extra = dict(self._config.endpoint.extra_body)
        arguments: dict[str, Any] = {"model": self._config.endpoint.model, "messages": messages, "extra_body": extra}
        # null is all that extra_body may hold of these (config.validate): then the field is not sent
        if "temperature" not in extra:
            arguments["temperature"] = self._config.temperature
        limit = "max_completion_tokens" if "max_tokens" in extra else "max_tokens"
        arguments[limit] = self._config.max_answer_tokens
        for name in ("temperature", "max_tokens"):
            extra.pop(name, None)
        if schema is not None and self._config.endpoint.structured:
            arguments["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema, "strict": True},
            }
        return arguments

    async def _attempt(self, arguments: dict[str, Any], request: ReviewRequest) -> Completion:
        client = _client(self._config)
        streamed = client.chat.completions.with_streaming_response
        try:
            async with streamed.create(**arguments) as response:
                body = await _read(response.iter_bytes(), MAX_BODY_BYTES)
            completion = read_completion(body)
            key = client.api_key if self._config.endpoint.api_key_env else ""
            if len(key) >= _SHORTEST_KEY and key in (completion.text or ""):
                told = JudgeError(
                    "the judge's server answered with the key that it was sent", _CHANGE_SERVER, kind="http"
                )
                told.usage = completion.usage
                raise told
            return completion
        except ErrorInBody:
            code, _ = error_summary(body)
            meant = int(code) if re.fullmatch(r"[45]\d\d", code, re.ASCII) else 200
            raise self._status_failure(_ErrorStatus(meant, {}, body), client.api_key, request) from None
        except JudgeError as error:
            if error.usage is not None:
                error.usage = replace(error.usage, calls=0)  # with_retries counts the attempts
            raise CallFailed(error, retryable=False) from None
        except (TimeoutError, ConfigError):
            raise
        except Exception as error:
            cause = (
                error.__cause__ or error
            )  # the client wraps what its transport raised, before 3.0 also what the hook did
            if isinstance(cause, _ErrorStatus):
                raise self._status_failure(cause, client.api_key, request) from None
            raise CallFailed(
                JudgeError(
                    f"no answer from the judge's server at {self._config.endpoint.base_url}: {type(cause).__name__}",
                    f"see that the server runs and {_KEY}.base_url is right",
                    kind="unavailable",
                ),
                retryable=True,
            ) from None

    def _status_failure(self, error: _ErrorStatus, api_key: str, request: ReviewRequest) -> CallFailed:
        code, message = error_summary(error.body)
        too_long = error.status in (400, 413, 422) and (
            code in _CONTEXT_CODES or any(words in message.lower() for words in _CONTEXT_WORDS)
        )
        retryable = retryable_status(error.status) and code != "insufficient_quota"
        for secret in (api_key if self._config.endpoint.api_key_env else "", request.privileged):
            code, message = hide(code, secret), hide(message, secret)
        code = printable(code, _MAX_QUOTED_CHARS)
        quoted = ": ".join(part for part in (code, printable(message, _MAX_QUOTED_CHARS)) if part)
        if too_long:
            kind, hint = "context", "use a judge with a longer context, or lower data.max_response_length"
        else:
            kind, hint = "http", _HINTS.get(error.status, f"see {_KEY} and the log of the server")
        return CallFailed(
            JudgeError(f"the judge's server answered {error.status} ({quoted or 'no reason given'})", hint, kind=kind),
            retryable=retryable,
            wait_s=retry_after(error.headers),
        )


_HINTS = {
    400: f"if it does not know response_format, set {_KEY}.structured: false; temperature or max_tokens, set it to null in "
    f"{_KEY}.extra_body",
    401: f"see that the environment variable named by {_KEY}.api_key_env holds a valid key",
    403: f"see that the key named by {_KEY}.api_key_env may use {_KEY}.model",
    404: f"see {_KEY}.base_url (version included) and {_KEY}.model",
    **dict.fromkeys(
        (301, 302, 303, 307, 308),
        f"write the address it points to in {_KEY}.base_url: a redirect is not followed, for a question holds confidential text",
    ),
    429: "lower intervention.judge.max_concurrency, or set the limits of intervention.judge.cluster",
}


async def _read(chunks: AsyncIterator[bytes], limit: int) -> bytes:
    """Everything, unless it is longer than ``limit``; then reading stops.

    Raises:
        JudgeError: http.
    """
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > limit:
            raise JudgeError(
                f"the judge server's answer is longer than {limit} bytes",
                "lower intervention.judge.max_answer_tokens, or repair the server",
                kind="http",
            )
    return bytes(body)


async def _stop_at_error_status(response: Any) -> None:
    """Response hook: takes error statuses out of the client's hands, which would read their bodies without a limit."""
    if response.status_code < 300:
        return
    try:
        body = await _read(response.aiter_bytes(), _MAX_ERROR_BYTES)
    except (TimeoutError, asyncio.CancelledError):
        raise
    except Exception:  # the status alone says enough
        body = b""
    raise _ErrorStatus(response.status_code, {k.lower(): v for k, v in response.headers.items()}, body)


# --- one client per settings and event loop: its connections belong to the loop that opened them

_clients: dict[asyncio.AbstractEventLoop, dict[tuple[str, str], Any]] = {}


def _client(config: JudgeConfig) -> Any:
    endpoint = config.endpoint
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        for closed in [other for other in _clients if other.is_closed()]:
            del _clients[closed]  # not a weak dictionary: a client's connections refer to its loop
    clients = _clients.setdefault(loop, {})
    key = (str(endpoint.base_url), endpoint.api_key_env or "")
    if key not in clients:
        openai = _import_openai()
        clients[key] = openai.AsyncOpenAI(
            base_url=endpoint.base_url,
            api_key=_read_key(endpoint.api_key_env),
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(
                timeout=None,  # deadlines are ours
                follow_redirects=False,
                event_hooks={"response": [_stop_at_error_status]},
            ),
        )
    return clients[key]


async def _reset() -> None:
    """Close the clients of the running event loop. For tests."""
    for client in _clients.pop(asyncio.get_running_loop(), {}).values():
        await client.close()


def _read_key(variable: str | None) -> str:
    if variable is None:
        return "none"  # given, so that the client does not send OPENAI_API_KEY to a server it is not meant for
    key = os.environ.get(variable, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError(
            # not quoted: it may be the key itself
            f"{_KEY}.api_key_env names an environment variable that is {'no printable ASCII' if key else 'not set'}.",
            "export it on every node before Ray starts, or set api_key_env to null for a server that needs none.",
        )
    return key


def _import_openai() -> Any:
    try:
        import openai
    except ImportError as error:
        raise ConfigError(
            f"intervention.judge.backend is endpoint, but openai cannot be imported: {error}",
            "pip install 'openai>=2,<4'",
        ) from error
    return openai

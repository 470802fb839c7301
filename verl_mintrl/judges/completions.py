"""From the body of a chat completion to a :class:`.prompted.Completion`. Pure; every byte is untrusted.

Servers that call themselves compatible differ from the API reference (platform.openai.com/docs/api-reference/chat) in
what they leave out, so only what is read is required. No message quotes an answer.
"""

from __future__ import annotations

import json
from typing import Any

from verl_mintrl.errors import JudgeError
from verl_mintrl.judges.prompted import Completion
from verl_mintrl.judges.protocol import Usage, believed

_REASONING = ("reasoning_content", "reasoning")


class ErrorInBody(Exception):
    """An error that came with the status of a success."""


def read_completion(body: bytes) -> Completion:
    """The first choice and its cost, counted as one call.

    An answer that is missing or withheld is left to the parser of answers, which knows the kinds for it, except where only
    the body tells why.

    Raises:
        JudgeError: http (the body is no chat completion), refused (declined, or reasoning without an answer), truncated.
        ErrorInBody: it is an error (:func:`error_summary`) under the status of a success, as some gateways send it.
    """
    data = _decode(body)
    usage = _usage(data.get("usage"))
    choices = data.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        if data.get("error") or data.get("object") == "error":
            raise ErrorInBody
        raise _no_completion("has no choices[0].message", usage)
    reason = choice.get("finish_reason")
    finish_reason = reason if isinstance(reason, str) else "stop"
    text = _text(message.get("content"), usage)
    if text is None or not text.strip():
        _explain_nothing(message, finish_reason, usage)
    return Completion(text, usage, finish_reason)


def error_summary(body: bytes) -> tuple[str, str]:
    """Code and message in the body of an error, as far as there are any: ``{"error": {"code": ..., "message": ...}}``, or
    the same without the outer key, in a list, or a string in its place."""
    try:
        data = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        return "", ""
    inner = _first(data)
    inner = _first(inner.get("error", inner)) if isinstance(inner, dict) else inner
    if isinstance(inner, str):
        return "", inner
    if not isinstance(inner, dict):
        return "", ""
    code = inner.get("code") or inner.get("status") or inner.get("type")
    message = inner.get("message") or inner.get("msg") or _first(inner.get("detail"))
    if isinstance(message, dict):
        message = message.get("msg") or message.get("message")
    return str(code) if isinstance(code, str | int) else "", message if isinstance(message, str) else ""


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def _decode(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise _no_completion("is no JSON") from None
    if not isinstance(data, dict):
        raise _no_completion(f"is a JSON {type(data).__name__}")
    return data


def _text(content: Any, usage: Usage) -> str | None:
    if isinstance(content, list):  # text parts
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    if content is not None and not isinstance(content, str):
        raise _no_completion(f"has content of type {type(content).__name__}", usage)
    return content


def _explain_nothing(message: dict[str, Any], finish_reason: str, usage: Usage) -> None:
    error = None
    if message.get("refusal"):
        error = JudgeError("the judge model declined to answer", kind="refused")
    elif any(message.get(key) for key in _REASONING):
        error = JudgeError(
            "the judge model sent its reasoning and no answer",
            "raise intervention.judge.max_answer_tokens, or turn its thinking off in intervention.judge.endpoint.extra_body",
            kind="truncated" if finish_reason == "length" else "refused",
        )
    if error is not None:
        error.usage = usage
        raise error


def _usage(found: Any) -> Usage:
    found = found if isinstance(found, dict) else {}
    details = found.get("prompt_tokens_details")
    prompt = believed(found.get("prompt_tokens"))
    cached = believed(details.get("cached_tokens")) if isinstance(details, dict) else 0
    return Usage(
        calls=1,
        prompt_tokens=prompt,
        completion_tokens=believed(found.get("completion_tokens")),
        cached_tokens=min(cached, prompt),
    )


def _no_completion(what: str, usage: Usage | None = None) -> JudgeError:
    error = JudgeError(
        f"the body of the judge server's answer {what}",
        "point intervention.judge.endpoint.base_url to an OpenAI-compatible server, version included (.../v1)",
        kind="http",
    )
    error.usage = usage
    return error

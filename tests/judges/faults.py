"""Every way a judge's server can fail."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

from judges.fault_server import Behaviour, Call, completion

from verl_mintrl.trajectory.record import Outcome

KEEP = '{"reason": "ok", "verdict": "keep", "step": null, "correction": null}'


def revise(step: Any, correction: str = "fix") -> str:
    return json.dumps({"reason": "no", "verdict": "revise", "step": step, "correction": correction})


def says(content: Any, finish_reason: str = "stop", **message: Any) -> Behaviour:
    async def behave(call: Call) -> None:
        await call.answer(content, finish_reason, **message)

    return behave


def sends(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Behaviour:
    async def behave(call: Call) -> None:
        await call.send(body, status, headers)

    return behave


def fails(status: int, text: str = "no", headers: dict[str, str] | None = None, code: str = "") -> Behaviour:
    async def behave(call: Call) -> None:
        await call.error(status, text, headers, code)

    return behave


def at_first(first: Behaviour, times: int = 1, then: Behaviour | None = None) -> Behaviour:
    async def behave(call: Call) -> None:
        await (first if call.number < times else then or says(KEEP))(call)

    return behave


async def hang(call: Call) -> None:
    await asyncio.sleep(30)


async def hang_up(call: Call) -> None:
    call.writer.close()


async def reset(call: Call) -> None:
    call.reset()


async def reset_mid_body(call: Call) -> None:
    await call.send(completion(KEEP)[:50], length=5000)
    await asyncio.sleep(0.01)
    call.reset()


async def half_a_body(call: Call) -> None:
    await call.send(completion(KEEP)[:50], length=5000)
    call.writer.close()


async def trickle(call: Call) -> None:
    body = completion(KEEP)
    await call.send(b"", length=len(body))
    for byte in body:
        call.writer.write(bytes([byte]))
        await call.writer.drain()
        await asyncio.sleep(0.05)


async def chunked_without_end(call: Call) -> None:
    body = completion(KEEP)
    await call.send(
        f"{len(body):x}\r\n".encode() + body + b"\r\n", headers={"content-length": "", "transfer-encoding": "chunked"}
    )
    await asyncio.sleep(30)


async def endless(call: Call) -> None:
    await call.send(b"", headers={"content-length": ""})
    while True:
        call.writer.write(b" " * 65_536)
        await call.writer.drain()


async def no_http(call: Call) -> None:
    call.writer.write(b"\x16\x03\x01 not HTTP at all\r\n\r\n")
    await call.writer.drain()
    call.writer.close()


def without(*path: Any) -> bytes:
    body = json.loads(completion(KEEP))
    part = body
    for key in path[:-1]:
        part = part[key]
    del part[path[-1]]
    return json.dumps(body).encode()


KEPT, INSERTED = Outcome.KEPT.value, Outcome.INSERTED.value
HTML = b"<html><body>502 Bad Gateway</body></html>"
#: fault -> behaviour, what becomes of the first review (an outcome, or the kind of error)
FAULTS: dict[str, tuple[Behaviour, str]] = {
    # the server recovers within the retries
    "429 with Retry-After": (at_first(fails(429, headers={"Retry-After": "0.02"})), KEPT),
    "429 with an HTTP date": (
        at_first(fails(429, headers={"Retry-After": format_datetime(datetime.now(UTC), usegmt=True)})),
        KEPT,
    ),
    "429 with a year of Retry-After": (at_first(fails(429, headers={"Retry-After": "31536000"})), KEPT),
    "429 with nonsense as Retry-After": (at_first(fails(429, headers={"Retry-After": "soon"})), KEPT),
    "500 twice": (at_first(fails(500), 2), KEPT),
    "503 with HTML": (at_first(sends(HTML, 503, {"content-type": "text/html"})), KEPT),
    "408 once": (at_first(fails(408)), KEPT),
    "reset once": (at_first(reset), KEPT),
    "reset in mid-body once": (at_first(reset_mid_body), KEPT),
    # it does not
    "429 for ever": (fails(429), "http"),
    "500 for ever": (fails(500), "http"),
    "529 for ever": (fails(529), "http"),
    "error status without end": (sends(b"{" * 200_000, 500), "http"),
    "quota used up": (fails(429, code="insufficient_quota"), "http"),
    "400": (fails(400, "unknown field response_format"), "http"),
    "400, context too long": (fails(400, "This model's maximum context length is 8 tokens"), "context"),
    "401": (fails(401, "bad key"), "http"),
    "403": (fails(403), "http"),
    "404": (fails(404, "no such model"), "http"),
    "404 with HTML": (sends(HTML, 404, {"content-type": "text/html"}), "http"),
    "redirect": (sends(b"", 307, {"location": "http://127.0.0.1:1/v1/chat/completions"}), "http"),
    "hang": (hang, "timeout"),
    "slow trickle": (trickle, "timeout"),
    "chunked without end": (chunked_without_end, "timeout"),
    "connection closed": (hang_up, "unavailable"),
    "connection reset": (reset, "unavailable"),
    "reset in mid-body": (reset_mid_body, "unavailable"),
    "half a body": (half_a_body, "unavailable"),
    "no HTTP": (no_http, "unavailable"),
    "endless body": (endless, "http"),
    "1 MB answer": (says("x" * 1_200_000), "http"),
    "200 with HTML": (sends(HTML, 200, {"content-type": "text/html"}), "http"),
    "200 with nothing": (sends(b""), "http"),
    "200 with half JSON": (sends(completion(KEEP)[:-30]), "http"),
    "200 with a JSON list": (sends(b"[]"), "http"),
    "200 with an error object": (sends(b'{"error": {"message": "overloaded"}}'), "http"),
    "bytes that are no UTF-8": (sends(b'{"choices": [{"message": {"content": "\xff\xfe"}}]}'), "http"),
    "wrong gzip": (sends(completion(KEEP), 200, {"content-encoding": "gzip"}), "unavailable"),
    "deeply nested JSON": (sends(b"[" * 100_000), "http"),
    "no choices": (sends(without("choices")), "http"),
    "empty choices": (sends(b'{"choices": []}'), "http"),
    "no message": (sends(without("choices", 0, "message")), "http"),
    "content is a number": (says(7), "http"),
    "content is null": (says(None), "refused"),
    "content is blank": (says(" \n"), "refused"),
    "no content": (sends(without("choices", 0, "message", "content")), "refused"),
    "refusal": (says(None, refusal="I cannot"), "refused"),
    "content filter": (says("", "content_filter"), "refused"),
    "reasoning only": (says(None, reasoning_content="let me think"), "refused"),
    "reasoning up to the limit": (says("", "length", reasoning="let me think"), "truncated"),
    "length": (says(KEEP[:30], "length"), "truncated"),
    "tool call": (says(None, "tool_calls", tool_calls=[{"id": "1"}]), "refused"),
    "prose": (says("Looks good to me."), "unparseable"),
    "NaN as a step": (says('{"verdict": "revise", "step": NaN, "correction": "x"}'), "unparseable"),
    "a key twice": (says('{"verdict": "keep", "verdict": "revise", "step": 1, "correction": "x"}'), "unparseable"),
    "unknown verdict": (says('{"verdict": "maybe"}'), "unparseable"),
    "step out of range": (says(revise(99)), "step_range"),
    "negative step": (says(revise(-1)), "step_range"),
    "step 1.5": (says(revise(1.5)), "step_range"),
    "no step": (says(revise(None)), "step_range"),
    "a step of 5,000 digits": (says(f'{{"verdict": "revise", "step": {"9" * 5000}}}'), "step_range"),
    "empty correction": (says(revise(1, " ")), "empty_correction"),
    "the same correction": (says(revise(1, "ab")), "same_correction"),
    "too long a correction": (says(revise(1, "z" * 500)), "too_long"),
    # it only looks like a fault
    "wrong content type": (sends(completion(KEEP), 200, {"content-type": "text/plain"}), KEPT),
    "no usage": (sends(without("usage")), KEPT),
    "no finish_reason": (sends(without("choices", 0, "finish_reason")), KEPT),
    "usage of the wrong type": (sends(completion(KEEP).replace(b"100", b'"many"').replace(b"40", b"-4")), KEPT),
    "content in parts": (says([{"type": "text", "text": KEEP[:20]}, {"type": "text", "text": KEEP[20:]}]), KEPT),
    "fenced": (says(f"```json\n{KEEP}\n```"), KEPT),
    "prose around": (says(f"Sure!\n{KEEP}\nDone."), KEPT),
    "thoughts before": (says(f"<think>{revise(1)}</think>{KEEP}"), KEPT),
    "two objects": (says(f"{revise(1)}\n{KEEP}"), KEPT),
    "revise": (says(revise(1)), INSERTED),
    "step as a string": (says(revise("1")), INSERTED),
    "a quote in the correction": (says(revise(1, 'a "q" \\ b')), INSERTED),
}
#: those that take the whole deadline of a call
SLOW = ("hang", "slow trickle", "chunked without end")

"""A chat server that misbehaves on command: raw asyncio in a thread, so that half bodies, resets and wrong bytes are possible."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

MODEL = "judge-1"


@dataclass
class Call:
    """One request, and the means to answer it.

    Attributes:
        number: 0-based number of the request since the server started.
    """

    number: int
    headers: dict[str, str]
    body: dict[str, Any]
    writer: asyncio.StreamWriter = field(repr=False)

    async def send(
        self, body: bytes, status: int = 200, headers: dict[str, str] | None = None, length: int | None = None
    ) -> None:
        lines = {"content-type": "application/json", "content-length": str(len(body) if length is None else length)}
        lines |= headers or {}
        head = f"HTTP/1.1 {status} X\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items() if v) + "\r\n"
        self.writer.write(head.encode("latin-1") + body)
        await self.writer.drain()

    async def answer(self, content: Any, finish_reason: str = "stop", **message: Any) -> None:
        await self.send(completion(content, finish_reason, **message))

    async def error(self, status: int, text: str = "no", headers: dict[str, str] | None = None, code: str = "") -> None:
        await self.send(json.dumps({"error": {"message": text, "code": code}}).encode(), status, headers)

    def reset(self) -> None:
        """Close with a TCP reset instead of a farewell."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def completion(content: Any, finish_reason: str = "stop", **message: Any) -> bytes:
    return json.dumps(
        {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": MODEL,
            "choices": [
                {
                    "index": 0,
                    "finish_reason": finish_reason,
                    "message": {"role": "assistant", "content": content, **message},
                }
            ],
            "usage": {
                "prompt_tokens": 100,
                "completion_tokens": 10,
                "prompt_tokens_details": {"cached_tokens": 40},
            },
        }
    ).encode()


Behaviour = Callable[[Call], Awaitable[None]]


class FaultServer:
    """Serves on 127.0.0.1 until :meth:`stop`; :meth:`start` again takes the same port. ``behaviour`` may be replaced."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.calls: list[Call] = []
        self.port = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> FaultServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(10)

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop = None

    def _run(self, started: threading.Event) -> None:
        loop = self._loop
        assert loop is not None
        server = loop.run_until_complete(
            asyncio.start_server(self._connection, "127.0.0.1", self.port, limit=1 << 24, backlog=512)
        )
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        for writer in list(self._writers):
            writer.transport.abort()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()

    @property
    def _writers(self) -> set[asyncio.StreamWriter]:
        return self.__dict__.setdefault("_open", set())

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
                headers["authorization"] = next(
                    (line.split(": ", 1)[1] for line in head if line.lower().startswith("authorization: ")), ""
                )
                body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))))
                call = Call(len(self.calls), headers, body, writer)
                self.calls.append(call)
                await self.behaviour(call)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort() if writer.transport.is_closing() else writer.close()

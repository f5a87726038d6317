"""`ScriptedEndpoint`: an HTTP server that plays AG-UI streams as a test wrote them down: whole, cut, silent, refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias, final

import msgspec

from ..messages import JSON
from .scripted import Hold


@final
class Cut:
    """The connection breaks here."""


@final
class Close:
    """The connection is closed cleanly here, whatever was told."""


@final
class Refuse:
    """An answer that is no stream: status, body, headers."""

    def __init__(self, status: int, body: JSON = "", headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.body = body
        self.headers = dict(headers or {})


@final
class Raw:
    """Bytes as they are."""

    def __init__(self, data: bytes) -> None:
        self.data = data


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that came in; `body` is its JSON, None without one."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any = field(default=None)


Step: TypeAlias = Mapping[str, Any] | Cut | Close | Refuse | Raw | Hold
Script: TypeAlias = Sequence[Step] | Callable[[Asked], Sequence[Step]]


def sse(event: Mapping[str, Any], event_id: str = "") -> bytes:
    """One event as a frame."""
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}data: {msgspec.json.encode(event).decode()}\n\n".encode()


@final
class ScriptedEndpoint:
    """Plays one script a request, in order; an async context manager.

    A mapping in a script is an event; `Hold` waits until the test releases it. In events the texts `$thread` and `$run`
    stand for the ids of the request.

    Args:
        ids: each event's frame has an id, so that a client can reconnect.

    Attributes:
        asked: the requests that came in.
        closed: how many connections the client closed before their script was over.
    """

    def __init__(self, *scripts: Script, ids: bool = False, headers: Mapping[str, str] | None = None) -> None:
        self.asked: list[Asked] = []
        self.closed = 0
        self.open = 0
        self._scripts = list(scripts)
        self._ids = ids
        self._headers = dict(headers or {})
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.url = ""

    def then(self, *scripts: Script) -> None:
        """Adds scripts for later requests."""
        self._scripts += scripts

    async def __aenter__(self) -> Self:
        """Listens on a port of the loopback."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}/agent"
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Closes everything."""
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            asked = await _read_request(reader)
            if asked is not None:
                self.asked.append(asked)
                self.open += 1
                await self._play(asked, reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _play(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self._scripts.pop(0) if self._scripts else [Refuse(500, "no script is left")]
        steps = script(asked) if callable(script) else script
        playing = asyncio.ensure_future(self._steps(steps, asked, writer))
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({playing, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                self.closed += 1
                playing.cancel()
            else:
                playing.result()
        finally:
            self.open -= 1
            gone.cancel()
            playing.cancel()

    async def _steps(self, steps: Sequence[Step], asked: Asked, writer: asyncio.StreamWriter) -> None:
        if steps and isinstance(steps[0], Refuse):
            _refuse(writer, steps[0])
            await writer.drain()
            return
        head = {"content-type": "text/event-stream", **self._headers}
        lines = "".join([f"{name}: {value}\r\n" for name, value in head.items()])
        writer.write(f"HTTP/1.1 200 OK\r\n{lines}transfer-encoding: chunked\r\n\r\n".encode())
        for number, step in enumerate(steps, 1):
            match step:
                case Cut():
                    await writer.drain()
                    writer.transport.abort()
                    return
                case Close():
                    break
                case Hold():
                    await writer.drain()
                    await step.wait()
                case Raw(data=data):
                    _chunk(writer, data)
                case Refuse():
                    raise AssertionError("Refuse stands first in a script")
                case _:
                    _chunk(writer, sse(_filled(step, asked.body), f"{number}~s" if self._ids else ""))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    if data:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _refuse(writer: asyncio.StreamWriter, step: Refuse) -> None:
    text = isinstance(step.body, str)
    data = step.body.encode() if text else msgspec.json.encode(step.body)
    kind = "text/plain" if text else "application/problem+json"
    head = {"content-type": kind, "content-length": str(len(data)), **step.headers}
    lines = "".join([f"{name}: {value}\r\n" for name, value in head.items()])
    writer.write(f"HTTP/1.1 {step.status} Refused\r\n{lines}\r\n".encode() + data)


def _filled(value: Any, body: Any) -> Any:
    """The ids of the request in the place of `$thread` and `$run`."""
    if isinstance(value, str) and isinstance(body, dict):
        return {"$thread": body.get("threadId"), "$run": body.get("runId")}.get(value, value)
    if isinstance(value, Mapping):
        return {name: _filled(item, body) for name, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, body) for item in value]
    return value


async def _read_request(reader: asyncio.StreamReader) -> Asked | None:
    line = (await reader.readline()).decode("latin-1").split()
    if len(line) < 2:
        return None
    headers: dict[str, str] = {}
    while (raw := await reader.readline()) not in (b"\r\n", b"\n", b""):
        name, _, value = raw.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    length = int(headers.get("content-length", "0"))
    data = await reader.readexactly(length) if length else b""
    return Asked(line[0], line[1], headers, msgspec.json.decode(data) if data else None)


# Short forms of events


def started(**more: JSON) -> dict[str, JSON]:
    """RUN_STARTED of the request's run."""
    return {"type": "RUN_STARTED", "threadId": "$thread", "runId": "$run", **more}


def finished(outcome: JSON = None, **more: JSON) -> dict[str, JSON]:
    """RUN_FINISHED of the request's run."""
    told = {} if outcome is None else {"outcome": outcome}
    return {"type": "RUN_FINISHED", "threadId": "$thread", "runId": "$run", **told, **more}


def failed(message: str, code: str | None = None) -> dict[str, JSON]:
    """RUN_ERROR."""
    return {"type": "RUN_ERROR", "message": message, **({} if code is None else {"code": code})}


def text(message_id: str, *pieces: str, end: bool = True) -> list[dict[str, JSON]]:
    """A text message in pieces."""
    return [
        {"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": "assistant"},
        *[{"type": "TEXT_MESSAGE_CONTENT", "messageId": message_id, "delta": piece} for piece in pieces],
        *([{"type": "TEXT_MESSAGE_END", "messageId": message_id}] if end else []),
    ]


def reasoning(message_id: str, *pieces: str) -> list[dict[str, JSON]]:
    """A span of reasoning in pieces."""
    return [
        {"type": "REASONING_START", "messageId": message_id},
        {"type": "REASONING_MESSAGE_START", "messageId": message_id, "role": "reasoning"},
        *[{"type": "REASONING_MESSAGE_CONTENT", "messageId": message_id, "delta": piece} for piece in pieces],
        {"type": "REASONING_MESSAGE_END", "messageId": message_id},
        {"type": "REASONING_END", "messageId": message_id},
    ]


def tool_call(call_id: str, name: str, *pieces: str, parent: str | None = None) -> list[dict[str, JSON]]:
    """A tool call with its argument text in pieces."""
    owner = {} if parent is None else {"parentMessageId": parent}
    return [
        {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": name, **owner},
        *[{"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": piece} for piece in pieces],
        {"type": "TOOL_CALL_END", "toolCallId": call_id},
    ]


def result(call_id: str, content: str, message_id: str = "") -> dict[str, JSON]:
    """The result of a call."""
    return {
        "type": "TOOL_CALL_RESULT",
        "messageId": message_id or f"{call_id}-result",
        "toolCallId": call_id,
        "content": content,
    }


__all__ = [
    "Asked",
    "Close",
    "Cut",
    "Raw",
    "Refuse",
    "ScriptedEndpoint",
    "failed",
    "finished",
    "reasoning",
    "result",
    "sse",
    "started",
    "text",
    "tool_call",
]

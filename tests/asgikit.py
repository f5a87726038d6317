"""One request to an ASGI application, seen from the other end: what it sends, when, and how it ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self
from urllib.parse import quote

import httpx2

from pilothouse.conversation.controller import AgentController
from pilothouse.core.sse import Frame, SSEReader
from pilothouse.journal.memory import MemoryJournal
from pilothouse.server.app import Server
from pilothouse.testing.scripted import ScriptedProvider

TRUSTED = (("host", "localhost"),)


class Connection:
    """An open request. An async context manager: leaving it leaves the connection.

    Attributes:
        status, headers: of the answer, once it began.
        body: all bytes so far.
        closed: the last chunk came, so the answer ended cleanly.
        error: what the application raised: the connection broke off.
    """

    def __init__(
        self,
        app: Any,
        method: str,
        path: str,
        *,
        json_body: object = None,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        client: tuple[str, int] | None = ("127.0.0.1", 4000),
        root_path: str = "",
        host: str = "localhost",
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.closed = False
        self.error: BaseException | None = None
        self.frames: list[Frame] = []
        self._reader = SSEReader()
        self._changed = asyncio.Event()
        self._gone = asyncio.Event()
        self._accepting = asyncio.Event()
        self._accepting.set()
        data = body if body is not None else b"" if json_body is None else json.dumps(json_body).encode()
        given = {"host": host, "content-length": str(len(data)), **(headers or {})}
        if json_body is not None:
            given.setdefault("content-type", "application/json")
        path, _, query = path.partition("?")
        self._incoming: list[dict[str, Any]] = [{"type": "http.request", "body": data, "more_body": False}]
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": quote(path, safe="/%").encode(),
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
            "client": client,
            "scheme": "http",
            "root_path": root_path,
        }
        self._app = app
        self.task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.leave()
        self.accept()
        assert self.task is not None
        await self.task

    async def _run(self) -> None:
        try:
            await self._app(self.scope, self._receive, self._send)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # the server would break the connection off
            self.error = error
        finally:
            self._changed.set()

    async def _receive(self) -> dict[str, Any]:
        if self._incoming:
            return self._incoming.pop(0)
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        await self._accepting.wait()
        if message["type"] == "http.response.start":
            assert not self.status
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message.get("headers", ())}
        else:
            assert not self.closed, "something was sent after the last chunk"
            chunk = message.get("body", b"")
            self.body += chunk
            self.frames += self._reader.feed(chunk)
            self.closed = not message.get("more_body", False)
        self._changed.set()

    def leave(self) -> None:
        """The peer goes."""
        self._gone.set()

    def stall(self) -> None:
        """The peer accepts nothing more."""
        self._accepting.clear()

    def accept(self) -> None:
        """The peer accepts again."""
        self._accepting.set()

    async def until(self, reached: Any) -> None:
        """Waits until something holds, or the answer is over."""
        while not reached():
            if self.task is not None and self.task.done():
                raise AssertionError(f"it ended before: {self.status} {self.error!r} {self.body[-500:]!r}")
            self._changed.clear()
            await self._changed.wait()

    async def started(self) -> Self:
        """Waits for the head of the answer."""
        await self.until(lambda: self.status)
        return self

    async def ended(self) -> Self:
        """Waits until the application returned or raised."""
        assert self.task is not None
        await asyncio.wait({self.task})
        return self

    @property
    def events(self) -> list[dict[str, Any]]:
        """All events so far."""
        return [json.loads(frame.data) for frame in self.frames]

    @property
    def types(self) -> list[str]:
        """Their types."""
        return [event["type"] for event in self.events]

    @property
    def text(self) -> str:
        """All answer text so far."""
        return "".join(event["delta"] for event in self.events if event["type"] == "TEXT_MESSAGE_CONTENT")

    async def seen(self, text: str) -> None:
        """Waits until a text was streamed."""
        await self.until(lambda: text in self.text)

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


async def ask(
    app: Any, method: str, path: str, body: object = None, *, raw: bytes | None = None, **options: Any
) -> Connection:
    """One request and its whole answer."""
    async with Connection(app, method, path, json_body=body, body=raw, **options) as connection:
        await connection.ended()
        return connection


def run_input(thread: str, run: str, *said: str | dict, **more: Any) -> dict[str, Any]:
    """A run input. A text is a new user message with an id of the run."""
    messages = [
        {"id": f"{run}-u{number}", "role": "user", "content": item} if isinstance(item, str) else item
        for number, item in enumerate(said)
    ]
    return {
        "threadId": thread, "runId": run, "protocolVersion": "1.0", "messages": messages, "tools": [],
        "context": [], "state": {}, "forwardedProps": {}, **more,
    }  # fmt: skip


def served(provider: ScriptedProvider, *, tools: Any = (), **options: Any) -> Server:
    """A server over a scripted model, in memory."""
    options.setdefault("journal", MemoryJournal())
    options.setdefault("drain_timeout", 0.0)
    return Server({"default": AgentController(provider, tools=tools)}, **options)


def http(app: Any, **options: Any) -> httpx2.AsyncClient:
    """A client for answers that end."""
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app, **options), base_url="http://localhost")

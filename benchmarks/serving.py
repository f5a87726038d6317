"""Runs on HTTP without a network: the bytes of a delta, and one run with 1,000 readers. Over sockets: `late`."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import time
from collections.abc import AsyncIterator

from pilothouse.conversation.controller import AgentController
from pilothouse.journal.memory import MemoryJournal
from pilothouse.messages import Message, Text
from pilothouse.records import RunSpec
from pilothouse.responses import ModelRequest, ProviderEvent
from pilothouse.server.app import Server
from pilothouse.server.settings import ServerLimits

from . import floor, ours

OPEN = ServerLimits(
    runs_per_tenant=None, streams=None, streams_per_tenant=None, followers_per_run=None, body=None
)


_PIECE = re.compile(rb'"TEXT_MESSAGE_CONTENT".*"delta":"([^"]*)"')


def post(run_id: str) -> bytes:
    """A run input."""
    message = {"id": f"{run_id}-u", "role": "user", "content": "go"}
    return json.dumps(
        {"threadId": run_id, "runId": run_id, "protocolVersion": "1.0", "messages": [message]}
    ).encode()


class Reader:
    """An ASGI client without a network: counts what it gets."""

    def __init__(self, app: Server, method: str, path: str, body: bytes = b"") -> None:
        self.bytes = 0
        self.text = 0  # characters of what flowed
        self.app = app
        self.body = [body]
        path, _, query = path.partition("?")
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        self.scope = {
            "type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": headers,
            "client": ("127.0.0.1", 1), "root_path": "",
        }  # fmt: skip

    async def run(self) -> None:
        await self.app(self.scope, self._receive, self._send)

    async def _receive(self) -> dict:
        if self.body:
            return {"type": "http.request", "body": self.body.pop(), "more_body": False}
        return await asyncio.get_running_loop().create_future()

    async def _send(self, message: dict) -> None:
        body = message.get("body", b"")
        self.bytes += len(body)
        if b"TEXT_MESSAGE_CONTENT" in body:
            self.text += sum(len(piece) for piece in _PIECE.findall(body))


async def sse_us(count: int) -> tuple[float, float]:
    """A delta from the model to the bytes of one stream; the model gives way before each. With the floor's time."""
    fake = ours.Fake()
    fake.deltas, fake.pause = count, True
    app = Server({"default": AgentController(fake)}, journal=MemoryJournal(), limits=OPEN)
    runs = app._served.by_name["default"].runs
    best, base = float("inf"), float("inf")
    async with app.lifespan():
        for number in range(4):
            gc.collect()
            begin = time.process_time()
            await floor.stream(count, pause=True)
            base = min(base, time.process_time() - begin)
            run_id = f"r{number}"
            begin = time.process_time()
            message = Message(f"{run_id}.0", "user", (Text("go"),))
            await runs.start(RunSpec(run_id, run_id, (message,)), until="accepted")
            reader = Reader(app, "GET", f"/agui?runId={run_id}&offset=-1")
            await reader.run()
            best = min(best, time.process_time() - begin)
            assert reader.text == count * len(floor.DELTA), reader.text
    return (best - base) / count * 1e6, base / count * 1e6


async def fan_out(readers: int, deltas: int) -> float:
    """One run and many readers: µs of processor time a delta and reader, beyond the same run alone."""
    fake = ours.Fake()
    fake.deltas, fake.pause = deltas, True
    app = Server({"default": AgentController(fake)}, journal=MemoryJournal(), limits=OPEN)
    runs = app._served.by_name["default"].runs
    took = {}
    async with app.lifespan():
        for count in (0, readers):
            run_id = f"r{count}"
            message = Message(f"{run_id}.0", "user", (Text("go"),))
            gate = asyncio.Event()
            fake.stream = gated(fake, gate)  # type: ignore[method-assign]
            await runs.start(RunSpec(run_id, run_id, (message,)), until="accepted")
            watching = [Reader(app, "GET", f"/agui?runId={run_id}&offset=-1") for _ in range(count)]
            tasks = [asyncio.ensure_future(reader.run()) for reader in watching]
            for _ in range(50):
                await asyncio.sleep(0)
            begin = time.process_time()
            gate.set()
            await runs.wait_for_terminal(run_id)
            await asyncio.gather(*tasks)
            took[count] = time.process_time() - begin
    return (took[readers] - took[0]) / deltas / readers * 1e6


def gated(fake: ours.Fake, gate: asyncio.Event):
    """The model waits for the gate before its first piece."""
    stream = ours.Fake.stream

    async def waiting(request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
        await gate.wait()
        async for event in stream(fake, request):
            yield event

    return waiting

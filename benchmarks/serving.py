"""Runs on HTTP: bytes of a delta, one run and 1,000 readers, and how late a delta reaches its socket."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator

from pilothouse.conversation.controller import AgentController
from pilothouse.journal.memory import MemoryJournal
from pilothouse.messages import Message, Model, Text
from pilothouse.records import RunSpec
from pilothouse.responses import ModelRequest, ProviderEvent, ResponseStarted, StreamEnd, TextDelta
from pilothouse.server.app import Server
from pilothouse.server.run import serve_forever
from pilothouse.server.settings import ServerLimits

from . import floor, ours

OPEN = ServerLimits(
    runs_per_tenant=None, streams=None, streams_per_tenant=None, followers_per_run=None, body=None
)
RUNS, RATE, SECONDS = 200, 20, 5


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
        self.text = 0
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
        self.bytes += len(message.get("body", b""))


async def sse_us(count: int) -> tuple[float, float]:
    """A delta from the model to the bytes of one stream; the model gives way before each. With the floor's time."""
    fake = ours.Fake()
    fake.deltas, fake.pause = count, True
    app = Server({"default": AgentController(fake)}, journal=MemoryJournal(), limits=OPEN)
    runs = app._house.wings["default"].runs
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
            assert reader.bytes > count * 90, reader.bytes
    return (best - base) / count * 1e6, base / count * 1e6


async def fan_out(readers: int, deltas: int) -> tuple[float, float]:
    """One run and many readers: µs a delta and reader, and how much longer the run took than alone."""
    fake = ours.Fake()
    fake.deltas, fake.pause = deltas, True
    app = Server({"default": AgentController(fake)}, journal=MemoryJournal(), limits=OPEN)
    runs = app._house.wings["default"].runs
    async with app.lifespan():
        took = []
        for number, count in enumerate((0, readers)):
            run_id = f"r{number}"
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
            took.append(time.process_time() - begin)
            await asyncio.gather(*tasks)
            if count:
                took.append(time.process_time() - begin)
        return (took[2] - took[0]) / deltas / readers * 1e6, took[1] / took[0]


def gated(fake: ours.Fake, gate: asyncio.Event):
    """The model waits for the gate before its first piece."""
    stream = ours.Fake.stream

    async def waiting(request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
        await gate.wait()
        async for event in stream(fake, request):
            yield event

    return waiting


# How late: a server in a process of its own, read over sockets


class Clockwork:
    """A model that says what time it is, RATE times a second."""

    tag = "clock"
    default_model = Model("clock", "clock", 100_000)

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
        yield ResponseStarted()
        loop = asyncio.get_running_loop()
        due = loop.time()
        for _ in range(RATE * SECONDS):
            due += 1 / RATE
            await asyncio.sleep(due - loop.time())
            yield TextDelta(0, f"@{time.monotonic_ns()}@")
        yield StreamEnd("complete")

    async def aclose(self) -> None:
        pass


async def serve() -> None:
    """The server's side."""
    app = Server({"default": AgentController(Clockwork())}, journal=MemoryJournal(), limits=OPEN)
    await serve_forever(app, "127.0.0.1", 0, ready=lambda url: print(url, flush=True))


async def listen(port: int, run_id: str, late_ms: list[float]) -> None:
    """One client: how old each piece is when it is read."""
    await asyncio.sleep(int(run_id[1:]) / RUNS / RATE)  # not all at the same moment of a beat
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = post(run_id)
    writer.write(
        b"POST /agui/default HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    while b"RUN_FINISHED" not in (line := await reader.readline()):
        assert line, "the stream broke off"
        if b'"TEXT_MESSAGE_CONTENT"' in line:
            now = time.monotonic_ns()
            late_ms += [(now - int(stamp)) / 1e6 for stamp in line.split(b"@")[1::2]]
    writer.close()


async def latency_ms() -> list[float]:
    """All delays, sorted."""
    server = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import asyncio; from benchmarks import serving; asyncio.run(serving.serve())",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline().rpartition(":")[2])
        late: list[float] = []
        await asyncio.gather(*[listen(port, f"r{number}", late) for number in range(RUNS)])
        return sorted(late)
    finally:
        server.terminate()
        server.wait(60)
        assert server.stdout is not None
        server.stdout.close()

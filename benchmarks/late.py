"""How late a delta reaches its readers on real sockets: 200 runs with one each, and one run with 1,000; beside bare asyncio.

Server and reader are processes of their own, and the reader does nothing but read and look at the clock while it
measures: on two cores, a reader that parses is what is measured. Each piece says when the model made it, by a clock that
both processes share. On a busy machine set `PILOTHOUSE_BENCH_REALTIME=1`, as root: other work then waits for both.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from pilothouse.responses import ModelRequest, ProviderEvent, ResponseStarted, StreamEnd, TextDelta

RATE, SECONDS = 20, 8
"""Pieces a second of each run, and how long it tells them."""

_STAMP = re.compile(rb"@(\d+)@")


class Load(NamedTuple):
    """Who asks for what: `readers` come one after the other within `ramp_s`; `together`: all read the first one's run."""

    readers: int
    ramp_s: float
    together: bool = False


APART = Load(200, 2.0)
CROWD = Load(1000, 4.0, together=True)


class Late(NamedTuple):
    """What was measured.

    Attributes:
        steady: delays in milliseconds once all readers were there, sorted.
        ramp: the same while they came; of a crowd, what was told before a reader came is in it, too.
        cpu_us: the server's processor time for a piece and reader, in microseconds, all that is around it included.
        run_s: from the first piece of the first run to its last.
        stolen: hundredths of the time that the host of a virtual machine gave to somebody else.
    """

    steady: list[float]
    ramp: list[float]
    cpu_us: float
    run_s: float
    stolen: float

    def at(self, share: float) -> float:
        """The delay that so many of the steady pieces do not exceed."""
        return self.steady[min(int(len(self.steady) * share), len(self.steady) - 1)]


class Clockwork:
    """A model that says what time it is, RATE times a second."""

    tag = "clock"

    def __init__(self) -> None:
        from pilothouse.messages import Model

        self.default_model = Model("clock", "clock", 100_000)

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
        yield ResponseStarted()
        async for piece in ticking():
            yield TextDelta(0, piece)
        yield StreamEnd("complete")

    async def aclose(self) -> None:
        pass


async def ticking() -> AsyncIterator[str]:
    """Pieces that say when they were made."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    for _ in range(RATE * SECONDS):
        due += 1 / RATE
        await asyncio.sleep(due - loop.time())
        yield f"@{time.monotonic_ns()}@"


# The servers' side: each says its address, and at its end what processor time it took


def serve() -> None:
    """Ours, in a process of its own."""
    from pilothouse.conversation.controller import AgentController
    from pilothouse.journal.memory import MemoryJournal
    from pilothouse.server.app import Server
    from pilothouse.server.run import serve as run

    from .serving import OPEN

    app = Server({"default": AgentController(Clockwork())}, journal=MemoryJournal(), limits=OPEN)
    run(app, "127.0.0.1", 0, ready=lambda url: print(url, flush=True))
    print(time.process_time())


def serve_floor() -> None:
    """The same frames with nothing around them: a timer and a task for each run, a write for each reader."""
    joined: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        if head.startswith(b"GET"):
            joined.append(writer)
            return
        async for piece in ticking():
            body = b'data: {"type":"TEXT_MESSAGE_CONTENT","delta":"%b"}\n\n' % piece.encode()
            chunk = b"%x\r\n%b\r\n" % (len(body), body)
            for each in (writer, *joined):
                each.write(chunk)
        for each in (writer, *joined):
            each.write(b"14\r\ndata: RUN_FINISHED\n\n\r\n0\r\n\r\n")

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1000)
        print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
        over = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
        await over.wait()
        server.close()

    asyncio.run(main())
    print(time.process_time())


# The reader's side


def _request(load: Load, number: int) -> bytes:
    from .serving import post

    if load.together and number:
        return b"GET /agui/default?runId=r0&offset=-1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    body = post(f"r{number}")
    head = (
        "POST /agui/default HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    )
    return f"{head}{len(body)}\r\n\r\n".encode() + body


def _read(port: int, load: Load) -> list[list[tuple[int, bytes]]]:
    """What each connection got, and when."""
    poll, clock = select.epoll(), time.monotonic_ns
    open_: dict[int, socket.socket] = {}
    got: list[list[tuple[int, bytes]]] = []
    of: dict[int, list[tuple[int, bytes]]] = {}
    requests = [_request(load, number) for number in range(load.readers)]
    began = time.monotonic()
    while open_ or len(got) < load.readers:
        wait = 5.0
        while (number := len(got)) < load.readers:
            if (wait := began + load.ramp_s * number / load.readers - time.monotonic()) > 0:
                break
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall(requests[number])
            connection.setblocking(False)
            open_[connection.fileno()] = connection
            got.append([])
            of[connection.fileno()] = got[-1]
            poll.register(connection.fileno(), select.EPOLLIN)
        for fd, _ in poll.poll(max(wait, 0)):
            data = open_[fd].recv(1 << 16)
            of[fd].append((clock(), data))
            if not data or b"RUN_FINISHED" in data:
                poll.unregister(fd)
                open_.pop(fd).close()
    return got


def _delays(got: list[list[tuple[int, bytes]]], load: Load) -> tuple[list[float], list[float], float]:
    """Steady and while readers came, both sorted, and how long the first run took."""
    steady_from = got[0][0][0] + int((load.ramp_s + 0.5) * 1e9)
    steady: list[float] = []
    ramp: list[float] = []
    mine: list[int] = []
    for chunks in got:
        told: set[bytes] = set()  # a snapshot at the end says everything once more
        for at, data in chunks:
            for stamp in _STAMP.findall(data):
                if stamp not in told:
                    told.add(stamp)
                    (steady if int(stamp) >= steady_from else ramp).append((at - int(stamp)) / 1e6)
        assert load.together or len(told) == RATE * SECONDS, len(told)
        mine = mine or [int(stamp) for stamp in told]
    return sorted(steady), sorted(ramp), (max(mine) - min(mine)) / 1e9


def _ticks() -> tuple[int, int]:
    """Of all processors since boot: stolen, and all."""
    with Path("/proc/stat").open() as stat:
        ticks = [int(word) for word in stat.readline().split()[1:9]]
    return ticks[7], sum(ticks)


def measure(which: str, load: Load) -> Late:
    """Runs a server and reads it."""
    code = f"from benchmarks import late; late.{which}()"
    realtime = ["chrt", "-f", "10"] if os.environ.get("PILOTHOUSE_BENCH_REALTIME") else []
    server = subprocess.Popen([*realtime, sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        port = int(server.stdout.readline().rpartition(":")[2])
        gc.collect()
        gc.disable()
        if realtime:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
        before = _ticks()
        got = _read(port, load)
        after = _ticks()
        if realtime:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        gc.enable()
    finally:
        server.terminate()
        server.wait(60)
    with server.stdout as out:
        cpu = float(out.read().split()[-1])
    steady, ramp, run_s = _delays(got, load)
    stolen = (after[0] - before[0]) / (after[1] - before[1]) * 100
    return Late(steady, ramp, cpu / (len(steady) + len(ramp)) * 1e6, run_s, stolen)

"""A deployment for tests: a real Postgres, workers as processes, web nodes in the test's own loop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

import asyncpg

import cluster_process
from pilothouse.clock import SystemClock
from pilothouse.cluster import Dispatcher
from pilothouse.errors import JournalError
from pilothouse.events import Delta, TextTold
from pilothouse.journal import PostgresJournal
from pilothouse.messages import Message, Text
from pilothouse.records import Record, RunSpec
from pilothouse.runs.controller import RunController
from postgres_server import PostgresServer, shared_server
from temporal_server import shared_temporal

T = TypeVar("T")

ENGINES = ("single", "dbos", "temporal")
WORKER = Path(cluster_process.__file__)


class Worker:
    """One worker process."""

    def __init__(self, *args: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    async def up(self) -> bool:
        """Waits until it works; False if it ended, because it came while the database was away."""
        return await self.line() == ["up"]

    async def line(self) -> list[Any]:
        """What it says next; nothing at its end."""
        assert self._process.stdout is not None
        line = await asyncio.to_thread(self._process.stdout.readline)
        return json.loads(line) if line else []

    def send(self, number: int) -> None:
        """A signal."""
        os.kill(self._process.pid, number)

    async def gone(self) -> int:
        """Waits for its end."""
        return await asyncio.to_thread(self._process.wait, 60)

    def end(self) -> None:
        """Ends it, whatever it does."""
        if self._process.poll() is None:
            self.send(signal.SIGCONT)
            self._process.kill()
        self._process.wait(30)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()


class Deployment:
    """An engine, a schema of its own, and whatever processes a test starts. An async context manager.

    With the engine `single` there are no workers: the one controller of the test's loop drives.
    """

    def __init__(self, engine: str, server: PostgresServer | None = None) -> None:
        self.engine = engine
        self.server = server or shared_server()
        self.dsn = self.server.dsn
        self.schema = f"c{uuid.uuid4().hex[:12]}"
        self.target = shared_temporal() if engine == "temporal" else ""
        self.workers: list[Worker] = []  # those that work
        self._all: list[Worker] = []
        self._one: RunController | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        self.db = await self._stack.enter_async_context(asyncpg.create_pool(self.dsn, min_size=0, max_size=4))
        await self.db.execute(f'CREATE TABLE "{self.schema}_effects" (run_id text)')
        return self

    async def __aexit__(self, *exc: object) -> None:
        for worker in self._all:
            worker.end()
        await self._stack.aclose()

    async def work(self, count: int = 1) -> list[Worker]:
        """Starts workers; none where the one process is all there is."""
        if self.engine == "single":
            return []
        return await asyncio.gather(*[self._worker() for _ in range(count)])

    async def _worker(self) -> Worker:
        """One that works, begun again as a service manager does where it ended at once."""
        while True:
            worker = Worker(self.engine, self.dsn, self.schema, self.target)
            self._all.append(worker)
            if await worker.up():
                self.workers.append(worker)
                return worker

    async def web(self) -> RunController:
        """A node that accepts, follows and commands; the single process is all of its nodes."""
        if self._one is not None:
            return self._one
        journal = await self._stack.enter_async_context(
            PostgresJournal(self.dsn, schema=self.schema, pool_size=6)
        )
        engine: Dispatcher | None = None
        if self.engine != "single":
            engine = cluster_process.dispatcher(self.engine, journal, self.dsn, self.schema, self.target)
            self._stack.push_async_callback(engine.aclose)
            await engine.start()
        runs = RunController(
            cluster_process.agent(self.db, self.schema),
            journal=journal,
            timing=cluster_process.TIMING,
            dispatcher=engine,
        )
        self._stack.push_async_callback(runs.aclose)
        if self.engine == "single":
            self._one = runs
        return runs

    async def effects(self) -> dict[str, int]:
        """How often the tool really ran, by run."""
        rows = await self.db.fetch(f'SELECT run_id, count(*) FROM "{self.schema}_effects" GROUP BY 1')
        return {row[0]: row[1] for row in rows}


def spec(run_id: str, said: str = "go", **more: Any) -> RunSpec:
    """A run that says one thing, in a thread of its own."""
    return RunSpec(run_id, f"thread-{run_id}", (Message(f"{run_id}.0", "user", (Text(said),)),), **more)


class Seen:
    """What a follower was given."""

    def __init__(self, runs: RunController, run_id: str) -> None:
        self.run_id = run_id
        self.items: list[Record | Delta] = []
        self.begun = asyncio.Event()
        self.task = asyncio.ensure_future(self._follow(runs, run_id))

    async def _follow(self, runs: RunController, run_id: str) -> None:
        await patiently(lambda: self._on(runs, run_id))

    async def _on(self, runs: RunController, run_id: str) -> None:
        """From where it is; a client that was told that the journal is away comes back with its cursor."""
        async with runs.stream(run_id, self.facts[-1] if self.facts else 0, through_unknown=True) as items:
            async for item in items:
                self.items.append(item)
                if isinstance(item, Delta):
                    self.begun.set()

    @property
    def facts(self) -> list[int]:
        """The numbers of the facts, in the order in which they came."""
        return [item.seq for item in self.items if isinstance(item, Record)]

    def text(self, message_id: str) -> str:
        """A message's text as a reader puts it together by offset, dropping what it has."""
        text = ""
        for item in self.items:
            body = item.body if isinstance(item, Delta) else None
            if isinstance(body, TextTold) and body.message_id == message_id and body.offset <= len(text):
                text += body.text[len(text) - body.offset :]
        return text


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Asks again while the journal is away, as a client does."""
    while True:
        try:
            return await ask()
        except JournalError as error:
            if not error.retryable:
                raise
            await SystemClock().sleep(0.1)


async def until(condition: Any, seconds: float = 60.0) -> None:
    """Looks until it holds."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await SystemClock().sleep(0.02)

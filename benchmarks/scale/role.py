"""One process of a measured deployment; it prints what it saw as one JSON object.

python -m benchmarks.scale.role append DSN SCHEMA RUNS SECONDS
python -m benchmarks.scale.role watch DSN SCHEMA SECONDS      (the runs come as a line of input)
python -m benchmarks.scale.role worker DSN SCHEMA
python -m benchmarks.scale.role web DSN SCHEMA PREFIX RUNS FOLLOWERS RATE SECONDS STARTING
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from pilothouse.clock import SystemClock
from pilothouse.dispatch.dbos import DBOSDispatcher
from pilothouse.dispatch.limits import DispatchLimits
from pilothouse.events import Delta, ModelRequested, TextTold
from pilothouse.journal import PostgresJournal
from pilothouse.loop.agent import AgentLoop
from pilothouse.messages import Message, Text
from pilothouse.records import Record, RunSpec
from pilothouse.responses import ModelRequest
from pilothouse.runs.controller import RunController
from pilothouse.runs.timing import RunTiming
from pilothouse.testing import SampleRun, ScriptedProvider
from pilothouse.testing.scripted import Sleep

TIMING = RunTiming(lease=5.0)


def say(**found: Any) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(values) or [0.0]
    return {
        "p50": 1000 * ordered[len(ordered) // 2],
        "p99": 1000 * ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)],
    }


async def append(dsn: str, schema: str, runs: str, seconds: str) -> None:
    """Appends of one small fact, each run one after another, for a while."""
    took: list[float] = []
    async with PostgresJournal(dsn, schema=schema) as journal:
        made = [SampleRun(f"{time.time_ns()}-{number}") for number in range(int(runs))]
        for run in made:
            await run.store(journal)
        say(runs=[run.run_id for run in made])
        await asyncio.to_thread(sys.stdin.readline)
        ends = time.perf_counter() + float(seconds)

        async def write(run: SampleRun) -> None:
            while (began := time.perf_counter()) < ends:
                await run.append(journal, run.notes(1))
                took.append(time.perf_counter() - began)

        before = journal.stats().commits
        await asyncio.gather(*[write(run) for run in made])
        commits = journal.stats().commits - before
    say(appends=len(took), per_commit=len(took) / max(commits, 1), **percentiles(took))


async def watch(dsn: str, schema: str, seconds: str) -> None:
    """Waits for runs of another process to move."""
    woken = 0
    async with PostgresJournal(dsn, schema=schema) as journal:
        say(up=True)
        runs = json.loads(await asyncio.to_thread(sys.stdin.readline) or "[]")
        ends = time.perf_counter() + float(seconds)

        async def wait(run_id: str) -> None:
            nonlocal woken
            seen = 0
            while time.perf_counter() < ends:
                seen = await journal.changed(run_id, seen, timeout=1.0)
                woken += 1

        await asyncio.gather(*[wait(run_id) for run_id in runs])
    say(woken=woken)


def script(request: ModelRequest) -> Sequence[Any]:
    """As many pieces a second, for so long, as the message says; each says when it was told."""
    rate, seconds = json.loads(request.messages[0].text)
    items: list[Any] = []
    for _ in range(int(rate * seconds)):
        items += [_Now(), Sleep(1 / rate)]
    return items


class _Now(str):
    """A piece of text that is the time when it is told."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{time.time():.6f} "


async def worker(dsn: str, schema: str) -> None:
    """Drives what it is given."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with PostgresJournal(dsn, schema=schema) as journal:
        engine = DBOSDispatcher(dsn, journal, schema=f"{schema}_dbos", limits=DispatchLimits(worker=500))
        agent = AgentLoop(ScriptedProvider(script, repeat=True, clock=SystemClock()))
        runs = RunController(agent, journal=journal, timing=TIMING, dispatcher=engine)
        runs.work()
        await engine.start()
        say(up=True)
        await stop.wait()
        await engine.drain()
        await runs.aclose(timeout=2)
        await engine.aclose()


async def web(
    dsn: str,
    schema: str,
    prefix: str,
    runs: str,
    followers: str,
    rate: str,
    seconds: str,
    starting: str,
) -> None:
    """Starts runs and follows each with some readers; tells how late what was told arrived."""
    late: list[float] = []
    first: list[float] = []
    async with PostgresJournal(dsn, schema=schema) as journal:
        engine = DBOSDispatcher(dsn, journal, schema=f"{schema}_dbos")
        agent = AgentLoop(ScriptedProvider(script, repeat=True, clock=SystemClock()))
        node = RunController(agent, journal=journal, timing=TIMING, dispatcher=engine)
        say(up=True)
        await asyncio.to_thread(sys.stdin.readline)

        async def follow(run_id: str, began: float, *, counts: bool) -> None:
            async with node.stream(run_id) as items:
                async for item in items:
                    if isinstance(item, Delta) and isinstance(item.body, TextTold):
                        now = time.time()
                        late.extend(now - float(word) for word in item.body.text.split())
                    elif counts and isinstance(item, Record) and isinstance(item.fact, ModelRequested):
                        first.append(item.at_ms / 1000 - began)

        said = json.dumps([float(rate), float(seconds)])
        at_once = asyncio.Semaphore(int(starting))

        async def begin(run_id: str) -> None:
            message = Message(f"{run_id}.0", "user", (Text(said),))
            async with at_once:
                began = time.time()
                await node.start(RunSpec(run_id, run_id, (message,)), until="accepted")
            readers = range(int(followers))
            await asyncio.gather(*[follow(run_id, began, counts=not reader) for reader in readers])

        await asyncio.gather(*[begin(f"{prefix}-{number}") for number in range(int(runs))])
        await node.aclose()
        await engine.aclose()
    say(deltas=len(late), late=percentiles(late), start=percentiles(first))


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    asyncio.run({"append": append, "watch": watch, "worker": worker, "web": web}[role](*rest))

"""A worker of a deployment, in a process of its own: it drives the runs that the engine gives it until it is told to stop.

    python cluster_process.py ENGINE DSN SCHEMA [TARGET]

Its agent answers a message with some text, one call of a tool that must not run twice, and a last word. What the tool
did is in the table `effects` of the schema's database, written by the tool itself. It says `["up"]`, and drains at the
end of its input or at SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import asyncpg

from pilothouse.clock import SystemClock
from pilothouse.cluster import Dispatcher
from pilothouse.dispatch.limits import DispatchLimits
from pilothouse.journal import PostgresJournal
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.context import ToolContext
from pilothouse.loop.tools import tool
from pilothouse.records import Accept
from pilothouse.responses import ModelRequest
from pilothouse.runs.controller import RunController
from pilothouse.runs.timing import RunTiming
from pilothouse.testing import ScriptedProvider
from pilothouse.testing.scripted import Sleep, call

LEASE_S = 3.0
TIMING = RunTiming(lease=LEASE_S, park_after=0.5, stop_grace=2.0, kill_grace=1.0)
WORDS = 20


def script(request: ModelRequest) -> Sequence[Any]:
    """A call first, then the last word; `slow` in what was said makes many pieces, `ask` asks before the call runs."""
    said = "".join([part.text for part in request.messages[0].parts if hasattr(part, "text")])
    words, pause = (WORDS * 3, 0.03) if "slow" in said else (WORDS, 0.005)
    text: list[Any] = []
    for number in range(words):
        text += [f"{number} ", Sleep(pause)]
    if request.messages[-1].role == "tool":
        return [*text, "done"]
    name = "sign" if "ask" in said else "book"
    return [*text, call(name, {"what": "seat"})]


def agent(pool: asyncpg.Pool, schema: str) -> AgentLoop:
    """The loop over a scripted model, with tools whose effects can be counted."""

    async def done(run_id: str) -> str:
        await pool.execute(f'INSERT INTO "{schema}_effects" (run_id) VALUES ($1)', run_id)
        await asyncio.sleep(0.05)
        return "booked"

    @tool(effect="non_idempotent")
    async def book(context: ToolContext, what: str) -> str:
        """Books."""
        return await done(context.run_id)

    @tool(effect="non_idempotent", approval=True)
    async def sign(context: ToolContext, what: str) -> str:
        """Books, once somebody said yes."""
        return await done(context.run_id)

    return AgentLoop(ScriptedProvider(script, repeat=True, clock=SystemClock()), tools=[book, sign])


def dispatcher(
    engine: str, journal: PostgresJournal, dsn: str, schema: str, target: str, **limits: Any
) -> Dispatcher:
    """The engine of a deployment."""
    if engine == "dbos":
        from pilothouse.dispatch.dbos import DBOSDispatcher

        return DBOSDispatcher(dsn, journal, schema=f"{schema}_dbos", limits=DispatchLimits(**limits))
    from pilothouse.dispatch.temporal import TemporalDispatcher

    return TemporalDispatcher(target, deployment=schema, limits=DispatchLimits(**limits), lease=LEASE_S)


def say(*words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


async def work(engine: str, dsn: str, schema: str, target: str = "") -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(sys.stdin.fileno(), stop.set)  # nothing is ever said to it: this is the end
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(asyncpg.create_pool(dsn, min_size=0, max_size=4))
        journal = await stack.enter_async_context(PostgresJournal(dsn, schema=schema, pool_size=6))
        engines = dispatcher(engine, journal, dsn, schema, target, worker=50)
        runs = RunController(agent(pool, schema), journal=journal, timing=TIMING, dispatcher=engines)
        runs.work(accept=Accept())
        await engines.start()
        say("up")
        await stop.wait()
        loop.remove_reader(sys.stdin.fileno())
        await engines.drain()
        await runs.aclose(timeout=3)
        await engines.aclose()
    say("gone")


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))

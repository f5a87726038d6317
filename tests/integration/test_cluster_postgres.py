"""Workers over a real Postgres whose clocks are wrong, and a database that is away for many leases."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack

from typer.testing import CliRunner

from clocks import MachineClock
from clusterkit import patiently
from pilothouse.cli.main import app
from pilothouse.clock import SystemClock
from pilothouse.contracts import Clock
from pilothouse.events import Completed, ContinuityRestored, Noted, RunEnded, TurnEnded, TurnStarted
from pilothouse.journal import PostgresJournal
from pilothouse.messages import Message, Text
from pilothouse.records import RunSpec
from pilothouse.runs.controller import RunController
from pilothouse.runs.timing import RunTiming
from pilothouse.testing import Board, ScriptedRuntime
from pilothouse.testing.runtimes import Leave, UntilStopped
from postgres_server import PostgresServer, shared_dsn

TIMING = RunTiming(lease=2.5, stop_grace=0.2, kill_grace=0.2)
END = (TurnEnded(1), RunEnded(Completed()))
SPEC = RunSpec("r1", "t", (Message("m", "user", (Text("hi"),)),))


async def node(
    stack: AsyncExitStack, dsn: str, schema: str, board: Board, clock: Clock, *script
) -> RunController:
    journal = await stack.enter_async_context(PostgresJournal(dsn, schema=schema))
    dispatcher = board.dispatcher()
    runs = RunController(
        ScriptedRuntime(*script), journal=journal, dispatcher=dispatcher, timing=TIMING, clock=clock
    )
    await stack.enter_async_context(runs)
    if script:
        runs.work()
    await dispatcher.start()
    runs.engine = dispatcher  # type: ignore[attr-defined]
    return runs


async def test_nobodys_clock_but_the_databases_counts() -> None:
    """RC-49, JR-24: workers an hour off in both directions take nothing from each other, and take over in time."""
    schema, board = f"wrong{uuid.uuid4().hex[:12]}", Board()
    async with AsyncExitStack() as stack:
        web = await node(stack, shared_dsn(), schema, board, MachineClock(24.0))
        behind = MachineClock(-1.0)
        late = await node(stack, shared_dsn(), schema, board, behind, TurnStarted(1), UntilStopped(), Leave())
        run = await web.start(SPEC)
        early = await node(stack, shared_dsn(), schema, board, MachineClock(1.0), TurnStarted(1), *END)
        for _ in range(3):  # its sweeps look, and find that the run is driven
            tickets, _ = await early.journal.relay.stranded(  # type: ignore[union-attr]
                early.binding, early.descriptor.digest, after=0, limit=10
            )
            assert tickets == []
            assert (await web.journal.head("r1")).fence == 2  # type: ignore[union-attr]
            await SystemClock().sleep(TIMING.lease / 2)
        behind.freeze()  # it renews nothing any more
        late.engine.die()  # type: ignore[attr-defined]
        assert (await run.wait(timeout=30)).outcome == Completed()
        facts = [record.fact for record in await web.events("r1")]
        assert sum(isinstance(fact, ContinuityRestored) for fact in facts) == 1
        behind.thaw()


async def test_a_database_that_is_away_for_many_leases_loses_nothing() -> None:
    """Unreachable for long: the run waits, keeps what it has to store, and goes on; each fact once."""
    server, board = PostgresServer(), Board()
    away, back = asyncio.Event(), asyncio.Event()

    async def steps(_start, port) -> None:
        for number in range(6):
            if number == 3:
                away.set()
                await back.wait()
            await port.record(Noted("test/step", number))

    try:
        async with AsyncExitStack() as stack:
            web = await node(stack, server.dsn, "away", board, SystemClock())
            await node(stack, server.dsn, "away", board, SystemClock(), TurnStarted(1), steps, *END)
            await web.start(SPEC, until="accepted")
            await away.wait()
            await asyncio.to_thread(server.stop, hard=True)
            back.set()
            await SystemClock().sleep(3 * TIMING.lease)
            await asyncio.to_thread(server.start)
            result = await patiently(lambda: web.wait_for_terminal("r1", timeout=60, through_unknown=True))
            assert result.outcome == Completed()
            records = await web.events("r1")
            steps_stored = [r.fact.data for r in records if isinstance(r.fact, Noted)]
            assert steps_stored[:6] == list(range(6))
            assert (await web.journal.verify()).problems == ()
    finally:
        server.remove()


async def test_a_run_that_was_handed_over_waits_for_a_worker_and_is_not_called_lost() -> None:
    """RC-67: whoever drove it left in order, so its list and its page say what an operator has to do: start a worker."""
    schema, board = f"handed{uuid.uuid4().hex[:12]}", Board()
    async with AsyncExitStack() as stack:
        web = await node(stack, shared_dsn(), schema, board, SystemClock())
        async with AsyncExitStack() as leaving:
            await node(leaving, shared_dsn(), schema, board, SystemClock(), TurnStarted(1), UntilStopped())
            await web.start(SPEC)

        async def said(*args: str) -> list[str]:
            command = ["runs", *args, "--db", f"{shared_dsn()}#{schema}"]
            result = await asyncio.to_thread(CliRunner().invoke, app, command)
            assert result.exit_code == 0, result.output
            return result.stdout.splitlines()

        assert (await said("list", "--status", "running"))[1].split("\t")[2] == "running (waits for a worker)"
        shown = await said("show", "r1")
        assert shown[2] == "status  running (waits for a worker)"
        assert shown[3].startswith("next    pilothouse worker")

"""A process that drives one run and writes to it until it is told that the run is somebody else's."""

from __future__ import annotations

import asyncio
import json
import sys

from pilothouse.contracts import Journal, RunPort
from pilothouse.errors import RecordRefused
from pilothouse.events import Completed, Noted, RunEnded, TurnEnded, TurnStarted
from pilothouse.journal import PostgresJournal, SQLiteJournal
from pilothouse.messages import Message, Text
from pilothouse.records import RunSpec, Start
from pilothouse.runs.controller import RunController
from pilothouse.runs.timing import RunTiming
from pilothouse.testing import ScriptedRuntime

SPEC = RunSpec("contested", "thread", (Message("in", "user", (Text("go"),)),))
TIMING = RunTiming(lease=0.9)
END = (TurnEnded(1), RunEnded(Completed()))


def journal_at(place: str) -> Journal:
    dsn, _, schema = place.partition("#")
    return PostgresJournal(dsn, schema=schema, pool_size=3) if schema else SQLiteJournal(place)


def say(*words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


async def write_on(_start: Start, port: RunPort) -> None:
    """Notes on and on; says what was stored, and how it ended."""
    try:
        while True:
            say("stored", await port.record(Noted("test/first")))
            await asyncio.sleep(0.01)
    except RecordRefused as error:
        say("refused", error.code)
        raise


async def drive(place: str) -> None:
    journal = journal_at(place)
    async with RunController(
        ScriptedRuntime(TurnStarted(1), write_on), journal=journal, timing=TIMING
    ) as runs:
        run = await runs.start(SPEC)
        result = await run.wait()
        say("ended", result.view.status, result.view.last_seq)
    await journal.aclose()


if __name__ == "__main__":
    sys.stdin.readline()
    asyncio.run(drive(sys.argv[1]))

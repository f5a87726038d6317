"""A process that uses a journal, for tests: `python journal_process.py WHAT PATH …`; told to go by a line on stdin.

What it has confirmed it prints at once, a line each, so that a test that kills it knows what must be there.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time

from pilothouse.contracts import Journal
from pilothouse.errors import FenceConflict
from pilothouse.journal import SQLiteJournal, this_process
from pilothouse.records import ClaimRequest
from pilothouse.testing import SampleRun


def say(*words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def claim(name: str) -> ClaimRequest:
    return ClaimRequest(this_process(name), 30_000, time.time_ns() // 1_000_000)


def journal_at(place: str) -> Journal:
    if place.startswith("postgresql:"):
        from pilothouse.journal import PostgresJournal

        dsn, _, schema = place.partition("#")
        return PostgresJournal(dsn, schema=schema)
    return SQLiteJournal(place)


async def first_open(place: str, name: str) -> None:
    """Opens a fresh store at the same time as others, and starts a run in it."""
    journal = journal_at(place)
    await SampleRun(f"run-of-{name}", thread_id=name).store(journal, claim=claim(name))
    say("opened", name)
    await journal.aclose()


async def append(place: str, name: str, count: str) -> None:
    """Writes to a run of its own, says how long each append took, in milliseconds."""
    journal = journal_at(place)
    run = SampleRun(f"run-of-{name}", thread_id=name)
    await run.store(journal, claim=claim(name))
    took = []
    for _ in range(int(count)):
        before = time.perf_counter()
        await run.add(journal, 2, size=200)
        took.append((time.perf_counter() - before) * 1000)
    say("appended", run.head.seq, took)
    await journal.aclose()


async def write_for_ever(place: str, name: str, seed: str) -> None:
    """Several runs at once, appends of any size, artifacts, claims, releases; each confirmation is said."""
    journal = journal_at(place)
    rng = random.Random(int(seed))
    say("up", os.getpid())

    async def one(number: int) -> None:
        run_id = f"run-{name}-{number}"
        run = SampleRun(run_id, thread_id=f"t-{name}-{number % 3}")
        await run.store(journal, claim=claim(name))
        say("stored", run_id, 1)
        while True:
            match rng.randrange(8):
                case 0:
                    ref = await journal.put_blob(rng.randbytes(rng.choice([10, 3_000_000])), "image/png")
                    say("blob", ref.digest)
                case 1:
                    await run.append(journal, run.messages(*["said" * rng.randrange(100)] * 3))
                case 2:
                    run.fence = (await journal.claim(run_id, claim(name))).fence
                case _:
                    await run.add(journal, rng.randrange(1, 5), size=rng.choice([1, 100, 20_000]))
            say("stored", run_id, run.head.seq)

    await asyncio.gather(*[one(number) for number in range(6)])


async def hold(place: str, name: str) -> None:
    """Starts a run, and is then alive without doing anything."""
    journal = journal_at(place)
    run = SampleRun(f"run-of-{name}", thread_id=name)
    await run.store(journal, claim=claim(name))
    await run.append(journal, run.begun())
    say("holding", os.getpid())
    await asyncio.Event().wait()


async def contend(place: str, name: str) -> None:
    """Keeps a run by a short lease that it renews, and writes to it until the store says that it is somebody else's."""
    journal = journal_at(place)
    run = SampleRun(f"run-of-{name}", thread_id=name)
    owner = this_process(name)
    await run.store(journal, claim=ClaimRequest(owner, 600, time.time_ns() // 1_000_000))
    while True:
        await journal.renew(owner, ttl_ms=600, now_ms=time.time_ns() // 1_000_000)
        try:
            await run.add(journal)
        except FenceConflict as error:
            say("fenced", error.fence, error.actual)
            break
        say("stored", run.run_id, run.head.seq)
        await asyncio.sleep(0.01)
    await journal.aclose()


async def forget(place: str, name: str) -> None:
    """Never closes its journal, and ends with an append under way."""
    journal = journal_at(place)
    run = SampleRun(f"run-of-{name}", thread_id=name)
    await run.store(journal, claim=claim(name))
    for _ in range(20):
        await run.add(journal)
    say("confirmed", run.head.seq)
    task = asyncio.create_task(run.add(journal))
    await asyncio.sleep(0)
    task.cancel()
    say("leaving")


if __name__ == "__main__":
    sys.stdin.readline()
    asyncio.run(globals()[sys.argv[1]](*sys.argv[2:]))

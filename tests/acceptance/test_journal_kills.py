"""Processes that are killed or frozen over a shared journal, SQLite and Postgres (run-controller §3.15, §5.17)."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import threading
import time
from contextlib import aclosing
from pathlib import Path

import pytest

from journal_lives import go, lines, process
from pilothouse.contracts import Journal
from pilothouse.errors import FenceConflict, OwnedElsewhere
from pilothouse.journal import PostgresJournal, SQLiteJournal, this_process
from pilothouse.records import ClaimRequest, RunQuery
from pilothouse.testing import SampleRun
from pilothouse.testing.journal_suite.checking import all_records
from postgres_server import shared_dsn

_numbers = itertools.count()


class Place:
    """Where a journal is, told to another process by its name."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.schema = f"kills_{os.getpid()}_{next(_numbers)}"
        self.name = str(folder / "journal.db") if kind == "sqlite" else f"{shared_dsn()}#{self.schema}"

    def open(self) -> Journal:
        dsn, _, schema = self.name.partition("#")
        return PostgresJournal(dsn, schema=schema) if schema else SQLiteJournal(self.name)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path)


@pytest.mark.parametrize("seed", range(6))
async def test_a_killed_process_loses_nothing_that_it_was_confirmed(place: Place, seed: int) -> None:
    """JR-3, JR-7, JR-23, run-controller §3.15: SIGKILL at any moment, several times over one file."""
    rng = random.Random(seed)
    confirmed: dict[str, int] = {}
    blobs: set[str] = set()
    for life in range(3):
        with process("write_for_ever", place.name, f"life{life}", seed * 10 + life) as child:
            go(child)
            assert child.stdout is not None
            assert json.loads(child.stdout.readline())[0] == "up"
            killing = threading.Timer(rng.uniform(0.02, 0.5), child.kill)
            if not life:  # at any moment; later lives are not killed before they confirmed something
                killing.start()
            for what, *words in lines(child):
                if not killing.ident:
                    killing.start()
                if what == "stored":
                    confirmed[str(words[0])] = int(str(words[1]))
                else:
                    blobs.add(str(words[0]))
            killing.join()
        async with aclosing(place.open()) as journal:
            assert (await journal.verify()).problems == ()
            for run_id, seq in confirmed.items():
                records = await all_records(journal, run_id)
                assert len(records) >= seq, run_id
                assert [record.seq for record in records] == list(range(1, len(records) + 1))
            for digest in blobs:
                assert await journal.get_blob(digest)
    assert confirmed


async def test_the_runs_of_a_killed_process_can_be_claimed_at_once(place: Place) -> None:
    """JR-18: its lease would hold for half a minute; its death is known at once. Alive, it keeps its run."""
    request = ClaimRequest(this_process("next"), 30_000, time.time_ns() // 1_000_000)
    with process("hold", place.name, "held") as child:
        go(child)
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())[0] == "holding"
        async with aclosing(place.open()) as journal:
            with pytest.raises(OwnedElsewhere):
                await journal.claim("run-of-held", request)
            (entry,) = (await journal.list(RunQuery())).items
            assert entry.ownership == "elsewhere"
            child.kill()
            child.wait(10)
            before = time.monotonic()
            (entry,) = (await journal.list(RunQuery())).items
            assert entry.ownership == "orphaned"
            run = SampleRun("run-of-held", thread_id="held")
            head = await run.take_over(journal, request)
            assert time.monotonic() - before < 1
            assert (head.fence, head.owner) == (2, "next")
            with pytest.raises(FenceConflict):
                await run.append(journal, run.notes(), fence=1)
            await run.add(journal)
            assert (await journal.verify()).problems == ()


async def test_a_frozen_owner_is_refused_when_it_wakes_up(place: Place) -> None:
    """RC-49, JR-2, issue 3: stopped past its lease, taken over, continued: the store refuses its writes."""
    request = ClaimRequest(this_process("next"), 30_000, time.time_ns() // 1_000_000)
    with process("contend", place.name, "frozen") as child:
        go(child)
        assert child.stdout is not None
        for _ in range(10):
            assert json.loads(child.stdout.readline())[0] == "stored"
        os.kill(child.pid, signal.SIGSTOP)
        async with aclosing(place.open()) as journal:
            run = SampleRun("run-of-frozen", thread_id="frozen")
            while True:  # its process lives, so only its lease can end
                now = ClaimRequest(request.owner, 30_000, time.time_ns() // 1_000_000)
                try:
                    await run.take_over(journal, now)
                except OwnedElsewhere:
                    await journal.changed("run-of-frozen", 10**9, timeout=0.05)
                else:
                    break
            (mine,) = await run.add(journal)
            os.kill(child.pid, signal.SIGCONT)
            said = list(lines(child))
            assert said[-1] == ["fenced", 1, 2]
            records = await all_records(journal, "run-of-frozen")
            assert [record.seq for record in records] == list(range(1, len(records) + 1))
            assert records[-1] == mine
            assert (await journal.verify()).problems == ()

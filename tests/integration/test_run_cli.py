"""`pilothouse runs …` on everything that can be wrong: one line that says what to do, and nothing touched."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import apsw
from click.testing import Result
from typer.testing import CliRunner

from pilothouse.cli.main import app
from pilothouse.errors import PilothouseError
from pilothouse.journal import SQLiteJournal
from pilothouse.journal.liveness import this_process
from pilothouse.records import ClaimRequest, Owner
from pilothouse.testing import SampleRun


def test_what_cannot_be_done_to_a_run_is_said_in_one_line(tmp_path: Path) -> None:
    """RC §4, RC §6: no such run, several, ended, driven by another process, damaged; list, show, verify see past the damage."""

    path = tmp_path / "a.db"

    def run(*args: str, db: Path = path) -> Result:
        return CliRunner().invoke(app, ["runs", *args, "--db", str(db)])

    def lines(result: Result) -> list[str]:
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    def refused(*args: str, words: str, db: Path = path) -> None:
        result = run(*args, db=db)
        assert isinstance(result.exception, PilothouseError), result
        assert words in str(result.exception)
        assert "\n" not in str(result.exception)
        assert result.stdout == ""

    async def fill() -> None:
        async with SQLiteJournal(path) as journal:
            for name in ("run-a", "run-b", "lost", "bad", "live"):
                sample = SampleRun(name, thread_id=name)
                await sample.store(journal, claim=ClaimRequest(this_process(name), 3_600_000, now_ms()))
                await sample.add(journal, 2)
                if name == "run-a":
                    await sample.end(journal)
                if name != "live":
                    await journal.release(Owner(name))

    asyncio.run(fill())
    database = apsw.Connection(str(path))
    database.execute(
        "UPDATE facts SET body = CAST(replace(CAST(body AS TEXT), 'test/', 'tesT/') AS BLOB)"
        " WHERE key IN (SELECT f.key FROM facts f ORDER BY f.key LIMIT 1 OFFSET 11)"
    )
    database.close()
    for name in ("show", "verify", "recover"):
        refused(name, "ghost", words="no run ghost")
    refused("abandon", "ghost", "--reason", "x", words="no run ghost")
    refused("show", "run", words="run names several runs: run-b, run-a")
    refused("abandon", "run-a", "--reason", "x", words="cannot abandon run run-a: it has ended")
    refused("abandon", "lost", "--reason", "  ", words="needs a reason")
    refused("abandon", "live", "--reason", "x", words="cannot control run live because live drives it")
    refused("recover", "run-a", words="cannot recover run run-a: it has ended, completed")
    refused("recover", "live", words="another process drives it")
    refused("list", "--status", "odd", words="--status is one of")
    refused("show", "bad", words="run bad is corrupt at fact")
    refused("abandon", "bad", "--reason", "x", words="run bad is corrupt at fact")
    found = run("verify")
    assert (found.exit_code, "1 problems" in found.stdout, "run bad is corrupt" in found.stdout) == (
        1,
        True,
        True,
    )
    assert run("verify", "lost").exit_code == 0
    listed = [line.split("\t")[0] for line in lines(run("list"))[1:]]
    assert listed == ["live", "bad", "lost", "run-b", "run-a"]
    assert [
        line.split("\t")[0] for line in lines(run("list", "--status", "completed", "--limit", "1"))[1:]
    ] == ["run-a"]
    target = tmp_path / "a.jsonl"
    exported = run("export", str(target))
    assert (exported.exit_code, "left out: run bad is corrupt" in exported.stderr) == (1, True)
    arrived = run("import", str(target), db=tmp_path / "b.db")
    assert arrived.stdout.startswith("4 runs, ")
    assert (arrived.exit_code, "left out: not exported: run bad is corrupt" in arrived.stderr) == (1, True)
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(path.read_bytes()[:40_000])
    newer = tmp_path / "newer.db"
    newer.write_bytes(path.read_bytes()[:60] + (99).to_bytes(4, "big") + path.read_bytes()[64:])
    places = (
        (damaged, "the file is damaged"),
        (newer, "upgrade this Pilothouse"),
        (target, "no SQLite database"),
    )
    for db, words in places:
        kept = db.read_bytes()
        commands = [
            ["list"],
            ["show", "lost"],
            ["verify"],
            ["abandon", "lost", "--reason", "x"],
            ["recover", "lost"],
        ]
        commands += [
            ["export", str(tmp_path / "no.jsonl")],
            ["import", str(target)],
            ["backup", str(tmp_path / "no.db")],
        ]
        for command in commands:
            refused(*command, db=db, words=words)
        assert db.read_bytes() == kept
    assert not list(tmp_path.glob("no.*"))
    assert lines(run("abandon", "lost", "--reason", "not needed")) == [
        "run lost is unknown, abandoned: not needed"
    ]
    refused("abandon", "lost", "--reason", "again", words="it has ended")


def gone() -> ClaimRequest:
    """Of an owner whose lease is long over."""
    return ClaimRequest(Owner("gone"), 1_000, now_ms() - 60_000)


def now_ms() -> int:
    return int(time.time() * 1000)


def test_a_run_that_no_worker_has_taken_yet_is_not_called_lost(tmp_path: Path) -> None:
    """RC-67: a run without an owner so far waits for a worker; one whose owner left is an orphan; both can be abandoned."""
    path = tmp_path / "a.db"

    async def fill() -> None:
        async with SQLiteJournal(path) as journal:
            waits = SampleRun("waits", thread_id="t")
            first = waits.accepted()
            await journal.create(waits.registration, first, summary=waits.summary(first), claim=None)
            await SampleRun("lost", thread_id="t").store(journal, claim=gone())

    def run(*args: str) -> list[str]:
        result = CliRunner().invoke(app, ["runs", *args, "--db", str(path)])
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    asyncio.run(fill())
    rows = [line.split("\t") for line in run("list")[1:]]
    assert [(row[0], row[2]) for row in rows] == [
        ("lost", "unknown (owner gone)"),
        ("waits", "accepted (waits for a worker)"),
    ]
    assert [line.split("\t")[0] for line in run("list", "--status", "accepted")[1:]] == ["waits"]
    assert [line.split("\t")[0] for line in run("list", "--status", "unknown")[1:]] == ["lost"]
    shown = run("show", "waits")
    assert shown[2] == "status  accepted (waits for a worker)"
    assert "pilothouse runs abandon waits" in shown[3]
    assert run("abandon", "waits", "--reason", "no worker") == ["run waits is unknown, abandoned: no worker"]


def test_a_narrow_terminal_gets_short_ids_and_one_line_a_run(tmp_path: Path) -> None:
    """The beginning of an id is enough for every command; a pipe gets all of it."""
    path = tmp_path / "a.db"

    async def fill() -> None:
        async with SQLiteJournal(path) as journal:
            run = SampleRun("3de920b422a1373b71f80901d34172a0", thread_id="kitchen")
            await run.store(journal)
            await run.end(journal)

    asyncio.run(fill())
    for columns, shown in ((60, "3de920b422a1 "), (120, "3de920b422a1373b71f80901d34172a0 ")):
        env = {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": str(columns)}
        lines = CliRunner().invoke(app, ["runs", "list", "--db", str(path)], env=env).stdout.splitlines()
        assert len(lines) == 2
        assert lines[1].startswith(shown)


def test_a_status_is_found_however_far_back_it_is(tmp_path: Path) -> None:
    """RC §6, RC-67: the newest of a status, also behind hundreds of others; an orphan is shown as unknown."""
    path = tmp_path / "a.db"

    async def fill() -> None:
        async with SQLiteJournal(path, durability="off") as journal:
            for number in range(520):
                run = SampleRun(f"run-{number:03}", thread_id="t")
                await run.store(journal, claim=None if number else gone())
                if number:
                    await run.end(journal)

    asyncio.run(fill())
    result = CliRunner().invoke(app, ["runs", "list", "--status", "unknown", "--db", str(path)])
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == ["run", "run-000"]

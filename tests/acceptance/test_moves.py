"""Runs move between journals by the command line: exported, imported, backed up; nothing is overwritten or half there."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from pilothouse.journal import SQLiteJournal
from pilothouse.testing import SampleRun
from served import HELD, Gate, pilothouse


def lines(result) -> list[str]:
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_runs_leave_one_journal_and_arrive_whole_in_another(tmp_path: Path, gate: Gate) -> None:
    """JR-6, JR-30, RC §6: export, import, backup; the second import changes nothing; the copy verifies and goes on."""

    def run(*args: str):
        return pilothouse(*args, cwd=tmp_path, env=gate.env)

    for text in ("first", "second"):
        assert run("chat", str(HELD), "-M", text, "--db", "a.db").returncode == 0
    runs = lines(run("runs", "list", "--db", "a.db"))
    assert len(runs) == 3

    done = run("runs", "export", "a.jsonl", "--db", "a.db")
    assert done.returncode == 0
    assert done.stderr.startswith("2 runs, ")
    stored = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert stored[0]["format"] == "pilothouse-journal"
    assert stored[-1]["end"]["runs"] == 2
    assert run("runs", "export", "-", "--db", "a.db").stdout == (tmp_path / "a.jsonl").read_text()

    assert lines(run("runs", "import", "a.jsonl", "--db", "b.db"))[0].endswith(
        "added; 0 runs were there already"
    )
    again = lines(run("runs", "import", "a.jsonl", "--db", "b.db"))[0]
    assert again == "0 runs, 0 facts added; 2 runs were there already"
    assert [line.split("\t")[:4] for line in lines(run("runs", "list", "--db", "b.db"))] == [
        line.split("\t")[:4] for line in runs
    ]
    assert lines(run("runs", "verify", "--db", "b.db"))[0].endswith(" 0 problems")

    assert lines(run("runs", "backup", "copy.db", "--db", "a.db"))[0].startswith("copy.db: ")
    assert lines(run("runs", "verify", "--db", "copy.db")) == lines(run("runs", "verify", "--db", "a.db"))


def test_what_cannot_be_moved_is_said_and_nothing_is_touched(tmp_path: Path, gate: Gate) -> None:
    """JR-30: an existing target, a foreign file, a torn one, no journal: one line each, the files as they were."""

    def refused(*args: str, words: str) -> None:
        result = pilothouse(*args, cwd=tmp_path, env=gate.env)
        assert result.returncode == 1, result
        assert words in result.stderr + result.stdout, result
        assert "Traceback" not in result.stderr

    refused("runs", "export", "a.jsonl", "--db", "none.db", words="no journal at none.db")
    refused("runs", "import", "none.jsonl", "--db", "b.db", words="no such file: none.jsonl")
    assert not list(tmp_path.glob("*.db*"))
    assert (
        pilothouse("chat", str(HELD), "-M", "hi", "--db", "a.db", cwd=tmp_path, env=gate.env).returncode == 0
    )
    kept = tmp_path / "kept.txt"
    kept.write_text("mine")
    refused("runs", "export", "kept.txt", "--db", "a.db", words="kept.txt exists")
    refused("runs", "backup", "kept.txt", "--db", "a.db", words="kept.txt exists")
    refused("runs", "import", "kept.txt", "--db", "b.db", words="no export")
    assert kept.read_text() == "mine"
    assert not (tmp_path / "b.db").exists()  # nothing came of it
    assert pilothouse("runs", "export", "a.jsonl", "--db", "a.db", cwd=tmp_path, env=gate.env).returncode == 0
    whole = (tmp_path / "a.jsonl").read_bytes()
    (tmp_path / "torn.jsonl").write_bytes(whole[: len(whole) * 2 // 3])
    refused("runs", "import", "torn.jsonl", "--db", "c.db", words="torn")
    assert not list(tmp_path.glob("*.part"))


def test_a_full_disk_is_told_in_one_line(tmp_path: Path) -> None:
    """JR-25: `/dev/full` is a disk without room."""

    async def fill() -> None:
        async with SQLiteJournal(tmp_path / "chat.db") as journal:
            run = SampleRun()
            await run.store(journal)
            await run.end(journal)

    asyncio.run(fill())
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pilothouse", "runs", "export", "-", "--db", "chat.db"],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "pilothouse: cannot write to standard output: No space left on device\n"

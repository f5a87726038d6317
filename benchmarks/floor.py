"""The floor: the same work with a bare async generator, a list of dicts and one SQLite connection."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator

PROMPT = "What is the weather like today?"
DELTA = " tok"


async def _answer(calls_left: int) -> dict:
    if calls_left:
        return {"role": "assistant", "calls": [("add", '{"a": 1, "b": 2}')]}
    return {"role": "assistant", "content": "ok"}


async def turn(calls: int = 0) -> str:
    """One exchange; with `calls` tool round trips before the answer."""
    messages: list[dict] = [{"role": "user", "content": PROMPT}]
    while True:
        reply = await _answer(calls)
        messages.append(reply)
        if "calls" not in reply:
            return reply["content"]
        for _, arguments in reply["calls"]:
            given = json.loads(arguments)
            messages.append({"role": "tool", "content": json.dumps(given["a"] + given["b"])})
        calls -= 1


async def _deltas(count: int, *, pause: bool) -> AsyncIterator[str]:
    for _ in range(count):
        if pause:
            await asyncio.sleep(0)
        yield DELTA


async def stream(count: int, *, pause: bool = False) -> int:
    """Reads so many deltas."""
    parts = [delta async for delta in _deltas(count, pause=pause)]
    return len(parts)


async def woken(count: int) -> int:
    """Reads so many deltas that another task tells, waiting for each."""
    told: list[str] = []
    waiting: list[asyncio.Future[None]] = []

    async def model() -> None:
        async for delta in _deltas(count, pause=True):
            told.append(delta)
            for each in waiting:
                each.set_result(None)
            waiting.clear()

    task = asyncio.ensure_future(model())
    loop, read = asyncio.get_running_loop(), 0
    while read < count:
        if read == len(told):
            waiting.append(loop.create_future())
            await waiting[0]
        read += 1
    await task
    return read


class Durable:
    """A turn with both messages on disk, each in a commit of its own."""

    def __init__(self, path: str, synchronous: str) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(f"PRAGMA synchronous={synchronous}")
        self._db.execute(
            "CREATE TABLE fact(run TEXT, seq INTEGER, body BLOB, PRIMARY KEY(run, seq)) WITHOUT ROWID"
        )

    async def turn(self, number: int) -> None:
        insert = "INSERT INTO fact VALUES(?,?,?)"
        self._db.execute(insert, (f"run-{number}", 0, json.dumps({"user": PROMPT})))
        text = await turn()
        self._db.execute(insert, (f"run-{number}", 1, json.dumps({"assistant": text})))

    def close(self) -> None:
        self._db.close()

"""A hundred people at one process that is killed: each sees the truth of its run from where it was (fixtures 148, 151)."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx2

from asgikit import run_input
from served import ROOT, Gate, Served

PEOPLE, RUNS = 100, 25


class Crowded(Served):
    """The server for a crowd."""

    def command(self) -> list[str]:
        script = ROOT / "tests/acceptance/agents/crowd.py"
        return [sys.executable, str(script), str(self.folder / "chat.db")]


class Person:
    """Follows one run, from the last frame that it saw on."""

    def __init__(self, number: int) -> None:
        self.run = f"r{number % RUNS}"
        self.thread = f"t{number % RUNS}"
        self.cursor = ""
        self.ids: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.half = asyncio.Event()

    async def follow(self, client: httpx2.AsyncClient) -> None:
        """Until the stream ends, however it does."""
        body = run_input(self.thread, self.run, f"hold {self.run}")
        headers = {"last-event-id": self.cursor} if self.cursor else {}
        async with client.stream("POST", "/agui/default", json=body, headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if line.startswith("id: "):
                    self.cursor = line[4:]
                    self.ids.append(self.cursor)
                elif line.startswith("data: "):
                    self.events.append(json.loads(line[6:]))
                    if "First half." in line:
                        self.half.set()

    @property
    def shown(self) -> dict[str, str]:
        """What it sees: texts by message."""
        found: dict[str, str] = {}
        for event in self.events:
            if event["type"] == "TEXT_MESSAGE_START":
                found.setdefault(event["messageId"], "")
            elif event["type"] == "TEXT_MESSAGE_CONTENT":
                found[event["messageId"]] += event["delta"]
        return found


def client(served: Served) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        base_url=served.url,
        timeout=60,
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
    )


async def cut_short(person: Person, http: httpx2.AsyncClient) -> None:
    try:
        await person.follow(http)
    except httpx2.TransportError:
        return
    raise AssertionError(f"a killed server closed cleanly: {person.events[-1]}")


async def test_a_killed_server_loses_nothing_that_a_hundred_people_saw(tmp_path: Path, gate: Gate) -> None:
    """SV-45, SV-56, SV-224, RC §3.15, fixture 151: kill -9 under 100 streams; each goes on at its cursor on the next
    process, sees each text once, one end, and the same as whoever joins anew."""
    served = Crowded(tmp_path, env=gate.env).start()
    people = [Person(number) for number in range(PEOPLE)]
    async with client(served) as http:
        following = [asyncio.create_task(cut_short(person, http)) for person in people]
        await asyncio.gather(*[person.half.wait() for person in people])
        for number in range(
            RUNS
        ):  # what a reader saw may be younger than what is saved; the saved is waited for
            while "First half." not in (await http.get(f"/v1/threads/t{number}/messages")).text:
                await asyncio.sleep(0.02)
        served.kill()
        await asyncio.gather(*following)
    with Crowded(tmp_path, env=gate.env) as again:
        async with client(again) as http:
            following = [asyncio.create_task(person.follow(http)) for person in people]
            for _ in range(RUNS):
                gate.open()
            await asyncio.gather(*following)
            for number in range(RUNS):
                fresh = Person(number)
                await fresh.follow(http)
                assert [text for text in fresh.shown.values()][-1] == "First half. Second half."
                for person in people[number::RUNS]:
                    assert person.shown == fresh.shown
                    assert [event["type"] for event in person.events].count("RUN_FINISHED") == 1
                    assert person.events[-1]["type"] == "RUN_FINISHED"
                    assert len(set(person.ids)) == len(person.ids)
                assert (
                    len(fresh.shown) == 2
                )  # what the crash cut stands there, marked, beside the whole answer
                view = (await http.get(f"/v1/runs/r{number}")).json()
                assert view["status"] == "completed"

"""All four shipped controllers in one conversation: the contract of each, and one send cut at every write (proof 22)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from datakit import sqlite_place
from mcp_server import make
from pilothouse import AgentController, MemoryJournal
from pilothouse.controllers import ChartController, FormController, MCPController, SQLGridController
from pilothouse.controllers.chart.renderer import Renderer
from pilothouse.records import Owner
from pilothouse.testing import AIControllerConformance, FaultyJournal, ScriptedProvider
from pilothouse.testing.scripted import call

QUERY = "SELECT name, id FROM customers ORDER BY id"
SPEC = {"mark": "bar", "encoding": {"x": {"field": "name"}, "y": {"field": "id", "type": "quantitative"}}}
SCRIPT = (
    [
        call("grid__query", {"query": QUERY, "title": "Customers"}),
        call("chart__data", {"query": QUERY}),
        call("form__fill", {"values": {"port": "Oban", "nights": 2}}),
        call("mcp__write", {"word": "once"}),
    ],
    [call("chart__spec", {"spec": SPEC}), call("form__fill", {"values": {"nights": 3}})],
    "done",
)


class Trip(BaseModel):
    port: str
    nights: int


class TestAChart(AIControllerConformance):
    scripts = ([call("chart__data", {"query": QUERY})], "done")

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.source = sqlite_place(tmp_path).source

    def make(self) -> Any:
        return ChartController(self.source)


class TestAnMCPServer(AIControllerConformance):
    scripts = ([call("mcp__add", {"a": 1, "b": 2})], "done")

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make(self) -> Any:
        return MCPController(lambda: make(self.folder), namespace="mcp", approval="never")


class Model:
    """Answers by what it is asked, so that a second process goes on with the same script."""

    tag = "scripted"
    default_model = ScriptedProvider("x").default_model

    def stream(self, request: Any) -> Any:
        results = sum(message.role == "tool" for message in request.messages)
        return ScriptedProvider(SCRIPT[0 if results < 4 else 1 if results < 6 else 2]).stream(request)

    async def aclose(self) -> None:
        return


class Life:
    """One process: its four controllers and its conversation."""

    def __init__(self, journal: Any, folder: Path, renderer: Renderer) -> None:
        source = str(folder / "data.db")
        self.grid = SQLGridController(source)
        self.chart = ChartController(source)
        self.chart.is_open = True
        self.chart._renderer = renderer  # one for all lives: it has no state, and takes a second to start
        self.form: FormController[Trip] = FormController(Trip)
        self.mcp = MCPController(lambda: make(folder), namespace="mcp", approval="never")
        self.controllers = [self.grid, self.chart, self.form, self.mcp]
        self.agent = AgentController(Model(), controllers=self.controllers, journal=journal, thread_id="t")

    def shown(self) -> Any:
        return (
            None if self.grid.view is None else (self.grid.view.rows, self.grid.view.title),
            self.chart.spec,
            self.chart.rows,
            dict(self.form.draft),
        )


_dead: list[object] = []
"""Conversations of processes that died: nobody collects what is in them."""

END = (
    (((("Ada", 1), ("Bo", 2))), "Customers"),
    SPEC,
    ({"name": "Ada", "id": 1}, {"name": "Bo", "id": 2}),
    {"port": "Oban", "nights": 3},
)


async def test_a_send_with_all_four_cut_at_every_write(tmp_path: Path) -> None:
    """Proof 22: each effect at most once; the states are those of the undisturbed run, or none where it did not complete."""
    sqlite_place(tmp_path)
    renderer = Renderer(timeout=60)
    done = tmp_path / "done.txt"
    complete = 0
    for step in range(2, 120):
        at, when = step // 2, ("before", "after")[step % 2]
        done.unlink(missing_ok=True)
        inner = MemoryJournal()
        journal = FaultyJournal(inner)
        cut = journal.crash(at=at, when=when)  # type: ignore[arg-type]
        others = asyncio.all_tasks()
        life = Life(journal, tmp_path, renderer)
        _dead.append(life)

        async def live(life: Life = life) -> None:
            await (await life.agent.send("go", id="r1")).result()

        living = asyncio.ensure_future(live())
        reached = asyncio.ensure_future(cut.reached.wait())
        await asyncio.wait({living, reached}, return_when=asyncio.FIRST_COMPLETED)
        died = reached.done()
        for task in asyncio.all_tasks() - others:
            task.cancel()
        await asyncio.gather(living, reached, return_exceptions=True)
        head = await inner.head("r1")
        if head is not None and head.owner is not None:
            await inner.release(Owner(head.owner))
        second = Life(inner, tmp_path, renderer)
        async with second.agent as agent:
            if head is None:
                continue
            if (await agent.runs.inspect("r1")).state != "terminal":
                await agent.runs.recover("r1")
                await agent.runs.wait_for_terminal("r1")
                while agent.reply is not None:
                    await asyncio.sleep(0.001)
            facts = [record.fact for record in await agent.runs.events("r1")]
            ends = {fact.call_id: fact.outcome for fact in facts if fact.kind == "call_finished"}
            written = done.read_text().split() if done.exists() else []
            assert written in ([], ["once"]), at
            if "unknown" in ends.values():
                assert written == ["once"] or ends, at
            if facts[-1].outcome == type(facts[-1].outcome)() and "unknown" not in ends.values():
                assert second.shown() == END, at
                assert written == ["once"], at
                complete += 1
        await second.chart._reader.aclose()
        if not died:
            break
    await renderer.aclose()
    assert at >= 12
    assert complete >= 6

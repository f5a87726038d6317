"""A grid, a chart and a form, whose model waits in mid-answer until the test lets it go on: "fail" fails then, "more" changes
the grid once more."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

from held import wait
from pydantic import BaseModel

from pilothouse import AgentController
from pilothouse.controllers import ChartController, FormController, SQLGridController
from pilothouse.errors import ProviderError
from pilothouse.messages import Model
from pilothouse.responses import ModelRequest, ProviderEvent
from pilothouse.testing.scripted import ScriptedProvider, call

PORTS = Path("ports.db")
if not PORTS.exists():
    with sqlite3.connect(PORTS) as made:
        made.execute("CREATE TABLE ports (name TEXT, berths INTEGER)")
        made.executemany("INSERT INTO ports VALUES (?, ?)", [("Oban", 12), ("Brest", 40), ("Cowes", 7)])
    made.close()

ALL = "SELECT name, berths FROM ports ORDER BY name"
LARGE = "SELECT name, berths FROM ports WHERE berths > 10 ORDER BY name"
BARS = {
    "mark": "bar",
    "encoding": {"x": {"field": "name", "type": "nominal"}, "y": {"field": "berths", "type": "quantitative"}},
}


class Booking(BaseModel):
    name: str
    nights: int = 1
    port: str


class Desk:
    """Fills everything in, waits, then says a sentence."""

    tag = "desk"
    default_model = Model("desk-1", "desk", 100_000)

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
        said = next(message.text for message in reversed(request.messages) if message.role == "user")
        results = 0
        for message in reversed(request.messages):
            if message.role == "user":
                break
            results += message.role == "tool"
        script = ["There you are."]
        if not results:
            query = LARGE if "large" in said else ALL
            script = [
                [
                    call("grid__query", {"query": query, "title": said}),
                    call("chart__data", {"query": query}),
                    call("form__fill", {"values": {"name": said, "nights": 3}}),
                ]
            ]
        elif results == 3:
            script = [[call("chart__spec", {"spec": BARS})]]
        else:
            await wait("model")
            if "fail" in said:
                raise ProviderError("invalid", "no")
        async for event in ScriptedProvider(*script).stream(request):
            yield event

    async def aclose(self) -> None:
        pass


agent = AgentController(
    Desk(),
    controllers=[
        lambda: SQLGridController(PORTS),
        lambda: ChartController(PORTS),
        lambda: FormController(Booking),
    ],
)

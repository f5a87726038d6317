"""Exports of AI controllers over HTTP (SV-165)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import pytest

from asgikit import ask, run_input
from pilothouse import AgentController, BaseAIController, Export, MemoryJournal
from pilothouse.loop.tools import ToolLike, tool
from pilothouse.server.app import Server
from pilothouse.server.auth import BearerTokens, Principal
from pilothouse.testing.scripted import ScriptedProvider, call

CLOSED: list[str] = []


class Counter(BaseAIController):
    """Counts the calls of its tool, by conversation."""

    namespace = "count"

    def __init__(self) -> None:
        self.exports = {"json": self._json, "png": self._png, "svg": self._svg}

    def get_tools(self) -> tuple[ToolLike, ...]:
        @tool(effect="read")
        async def up() -> str:
            """Counts."""
            return "counted"

        return (up,)

    async def _json(self, given: Mapping[str, str]) -> Export:
        if unknown := set(given) - {"as"}:
            raise ValueError(f"there is no parameter {min(unknown)!r}")
        return Export("application/json", json.dumps(dict(given)).encode())

    async def _png(self, given: Mapping[str, str]) -> Export:
        return Export("image/png", b"\x89PNG", "a b.png")

    async def _svg(self, given: Mapping[str, str]) -> Export:
        return Export("image/svg+xml", b"<svg/>")

    async def aclose(self) -> None:
        CLOSED.append("count")


def serving(journal: Any = None, **options: Any) -> Server:
    script = ScriptedProvider([call("count__up", {})], "done", repeat=True)
    agent = AgentController(script, controllers=[Counter])
    return Server({"default": agent}, journal=journal or MemoryJournal(), **options)


async def test_exports_are_listed_and_fetched() -> None:
    """SV-165, TC-124: by key and name, with query parameters; the headers keep a browser from running anything."""
    app = serving()
    async with app.lifespan():
        await ask(app, "POST", "/agui/default", run_input("t", "r1", "go"))
        listed = (await ask(app, "GET", "/v1/threads/t/controllers")).json()
        assert listed == {"items": [{"key": "count", "exports": ["json", "png", "svg"]}]}
        found = await ask(app, "GET", "/v1/threads/t/controllers/count/json?as=x%20y")
        assert (found.status, found.json()) == (200, {"as": "x y"})
        assert found.headers["content-security-policy"] == "sandbox"
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["cache-control"] == "private, no-store"
        png = await ask(app, "GET", "/v1/threads/t/controllers/count/png")
        assert (png.body, png.headers["content-disposition"]) == (
            b"\x89PNG",
            "inline; filename*=UTF-8''a%20b.png",
        )
        svg = await ask(app, "GET", "/v1/threads/t/controllers/count/svg")
        assert svg.headers["content-disposition"].startswith("attachment")
        runs = (await ask(app, "GET", "/v1/threads/t/runs")).json()
        assert len(runs["items"]) == 1


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/threads/t/controllers/count/nosuch", 404),
        ("/v1/threads/t/controllers/nosuch/json", 404),
        ("/v1/threads/other/controllers", 404),
        ("/v1/threads/other/controllers/count/json", 404),
        ("/v1/threads/t/controllers/count/json?what=1", 422),
    ],
)
async def test_what_is_not_there_or_cannot_be(path: str, status: int) -> None:
    """SV-165: unknown key or name 404, bad parameter 422."""
    app = serving()
    async with app.lifespan():
        await ask(app, "POST", "/agui/default", run_input("t", "r1", "go"))
        assert (await ask(app, "GET", path)).status == status


async def test_another_tenants_thread_does_not_exist() -> None:
    """SV-12: scoped like the thread."""
    one, two = "a" * 40, "b" * 40
    auth = BearerTokens(
        {
            sha256(one.encode()).hexdigest(): Principal("one", "one"),
            sha256(two.encode()).hexdigest(): Principal("two", "two"),
        }
    )
    app = serving(auth=auth)
    async with app.lifespan():
        mine, theirs = {"authorization": f"Bearer {one}"}, {"authorization": f"Bearer {two}"}
        await ask(app, "POST", "/agui/default", run_input("t", "r1", "go"), headers=mine)
        assert (await ask(app, "GET", "/v1/threads/t/controllers/count/json", headers=mine)).status == 200
        assert (await ask(app, "GET", "/v1/threads/t/controllers/count/json", headers=theirs)).status == 404


async def test_a_conversation_that_nobody_uses_closes_what_its_controllers_hold() -> None:
    """SV-4, TC-68: after a look too."""
    CLOSED.clear()
    app = serving()
    async with app.lifespan():
        await ask(app, "POST", "/agui/default", run_input("t", "r1", "go"))
        await ask(app, "GET", "/v1/threads/t/controllers/count/json")
    assert CLOSED == ["count", "count"]  # of the send, and of the look


async def test_an_agent_without_controllers_has_an_empty_list() -> None:
    """The page asks for every thread."""
    app = Server({"default": AgentController(ScriptedProvider("hi", repeat=True))}, journal=MemoryJournal())
    async with app.lifespan():
        await ask(app, "POST", "/agui/default", run_input("t", "r1", "go"))
        assert (await ask(app, "GET", "/v1/threads/t/controllers")).json() == {"items": []}


async def test_a_run_that_waits_for_a_person_goes_on_waiting_when_the_server_goes_down() -> None:
    """SV-165, TC-68: closing what AI controllers hold stops no run, neither after a look nor at a drain."""

    class Asking(Counter):
        def get_tools(self) -> tuple[ToolLike, ...]:
            @tool(effect="non_idempotent", approval=True)
            async def up() -> str:
                """Counts, if a person allows it."""
                return "counted"

            return (up,)

    def made() -> Server:
        script = ScriptedProvider([call("count__up", {})], "done", repeat=True)
        return Server(
            {"default": AgentController(script, controllers=[Asking])}, journal=journal, drain_timeout=0.1
        )

    journal = MemoryJournal()
    app = made()
    async with app.lifespan():
        await ask(app, "POST", "/agui/default", run_input("t", "r1", "go"))
        assert (await ask(app, "GET", "/v1/threads/t/controllers/count/json")).status == 200
        assert (await ask(app, "GET", "/v1/runs/r1")).json()["status"] == "waiting"
    again = made()
    async with again.lifespan():
        assert (await ask(again, "GET", "/v1/runs/r1")).json()["status"] == "waiting"

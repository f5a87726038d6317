"""The shared state over AG-UI and the control API; a run that goes on in another process with its controllers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asgikit import Connection, ask, run_input
from controlkit import Number, Plain, Told
from pilothouse import AgentController, MemoryJournal, current_reply
from pilothouse.loop.tools import tool
from pilothouse.server import Principal, RunContext
from pilothouse.server.app import Server
from pilothouse.testing import Hold, ScriptedProvider
from pilothouse.testing.scripted import call


@tool
async def dim(percent: int) -> str:
    """Dims."""
    current_reply().update_state({"lights": percent})
    return "ok"


@asynccontextmanager
async def serving(*scripts: Any, **options: Any) -> AsyncIterator[Server]:
    agent = AgentController(ScriptedProvider(*scripts), tools=[dim], **options)
    app = Server({"default": agent}, journal=MemoryJournal(), drain_timeout=0.0)
    async with app.lifespan():
        yield app


async def post(app: Any, *args: Any, **more: Any) -> Connection:
    return await ask(app, "POST", "/agui/default", run_input(*args, **more))


def states(connection: Connection) -> list[Any]:
    return [
        event.get("snapshot", event.get("delta"))
        for event in connection.events
        if event["type"] in ("STATE_SNAPSHOT", "STATE_DELTA")
    ]


async def test_a_client_sees_the_state_and_proposes_changes() -> None:
    """SV-80, SV-107: a whole first, then changes; only what differs is a change."""
    async with serving([call("dim", {"percent": 30})], "ok", "again", "third") as app:
        first = await post(app, "t", "r1", "dim it", state={"room": "bridge"})
        assert states(first) == [{"room": "bridge"}, [{"op": "add", "path": "/lights", "value": 30}]]
        second = await post(app, "t", "r2", "again", state={"room": "bridge", "lights": 30})
        assert states(second) == []
        third = await post(app, "t", "r3", "third", state={"room": "galley", "lights": 30})
        assert states(third) == [{"room": "galley", "lights": 30}]


async def test_who_joins_is_told_the_state() -> None:
    """SV-80: on joins, in front of anything else that is shown; nothing where a thread has none."""
    hold = Hold()
    async with serving("one", ["two", hold]) as app:
        await post(app, "t", "r1", "1", state={"a": 1})
        body = run_input("t", "r2", "2", state={"a": 1, "b": 2})
        async with Connection(app, "POST", "/agui/default", json_body=body) as tab:
            await hold.reached()
            async with Connection(app, "GET", "/agui/default?runId=r2&offset=-1") as joined:
                await joined.seen("two")
                hold.release()
                await tab.ended()
                await joined.ended()
            assert states(joined) == [{"a": 1}, {"a": 1, "b": 2}]
            types = [event["type"] for event in joined.events]
            assert types[:3] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT"]
            assert states(tab) == [{"a": 1, "b": 2}]


async def test_a_client_cannot_change_what_is_a_controllers() -> None:
    """SV-107, TC-123: left out with a warning; the control API refuses it."""
    async with serving([call("n__add", {"by": 2})], "ok", "two", controllers=[lambda: Number("n")]) as app:
        first = await post(app, "t", "r1", "add", state={"n": 99, "m": 1})
        assert states(first) == [{"m": 1}, [{"op": "add", "path": "/n", "value": 2}]]
        body = {"agent": "default", "thread_id": "t", "input": "x", "state": {"n": 5}}
        refused = await ask(app, "POST", "/v1/runs", body)
        assert refused.status == 422
        body["state"] = {"m": 2}
        begun = await ask(app, "POST", "/v1/runs", body)
        assert begun.status in (200, 201, 202)


async def test_a_veto_of_a_hook_changes_nothing() -> None:
    """SV-107: hooks see the proposal and may refuse it."""

    def veto(event: Any) -> None:
        if event.state and "bad" in event.state:
            raise PermissionError("not that")

    async with serving("one", "two", request_listener=veto) as app:
        refused = await post(app, "t", "r1", "1", state={"bad": 1})
        assert refused.events == [] or refused.events[-1]["type"] == "RUN_ERROR"
        good = await post(app, "t", "r2", "2", state={"good": 1})
        assert states(good) == [{"good": 1}]


@tool(approval=True)
async def deploy() -> str:
    """Deploys."""
    return "deployed"


async def test_a_run_goes_on_in_another_process_with_its_controllers() -> None:
    """TC-115: the thread's conversation is made before anything is written; its state is committed with the end."""
    journal = MemoryJournal()
    told = Told()

    def agent(*scripts: Any) -> AgentController:
        return AgentController(
            ScriptedProvider(*scripts),
            tools=[deploy],
            controllers=[lambda: Number("n", told), lambda: Plain(told, "p")],
        )

    before = agent([call("n__add", {"by": 2})], [call("deploy")])
    app = Server({"default": before}, journal=journal, drain_timeout=0.0)
    async with app.lifespan():
        asked = await post(app, "t", "r1", "go")
        assert asked.events[-1]["type"] == "RUN_FINISHED"
        (interrupt,) = asked.events[-1]["outcome"]["interrupts"]
    told.clear()
    app = Server({"default": agent("done")}, journal=journal, drain_timeout=0.0)
    async with app.lifespan():
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
        answered = await post(app, "t", "r2", resume=resume)
        assert answered.events[-1]["type"] == "RUN_FINISHED"
        assert states(answered)[-1] == {"n": 2}
        for _ in range(1000):
            if told.of("response p"):
                break
            await asyncio.sleep(0)
        (event,) = told.of("request p")
        assert event[1].resumed
        assert [entry[1].ending for entry in told.of("response p")] == ["completed"]


@pytest.mark.parametrize("size", [1, 50_000])
async def test_a_factory_is_given_the_same_where_another_process_takes_the_run_up(size: int) -> None:
    """TC-69, TC-115, SV-14: who asked, with roles and attributes, and all that the client said; small or large."""
    journal = MemoryJournal()
    contexts: list[RunContext] = []
    ada = Principal("ada", "acme", frozenset({"admin", "ops"}), {"department": "harbour"})

    def served(*scripts: Any) -> Server:
        def factory(context: RunContext) -> AgentController:
            contexts.append(context)
            return AgentController(
                ScriptedProvider(*scripts),
                tools=[deploy],
                controllers=[Number(context.principal.id or "nobody")],
            )

        async def auth(_: Any) -> Principal:
            return ada

        return Server({"default": factory}, journal=journal, auth=auth, drain_timeout=0.0)

    tool = {"name": "toast", "description": "d", "parameters": {"type": "object", "properties": {}}}
    given = {
        "forwardedProps": {"theme": "dark", "draft": "x" * size},
        "context": [{"description": "page", "value": "/a"}],
        "tools": [tool],
    }
    app = served([call("ada__add", {"by": 2})], [call("deploy")])
    async with app.lifespan():
        asked = await post(app, "t", "r1", "go", **given)
        (interrupt,) = asked.events[-1]["outcome"]["interrupts"]
        before = contexts[-1]
    contexts.clear()
    app = served("done")
    async with app.lifespan():
        assert [context.principal.id for context in contexts] == [""]  # the template, for nobody
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
        answered = await post(app, "t", "r2", resume=resume)
        assert answered.events[-1]["type"] == "RUN_FINISHED"
        assert states(answered)[-1] == {"ada": 2}
    assert contexts[1] == before
    assert before.principal == ada
    assert (before.run_id, before.thread_id, before.client_tools[0].name) == ("r1", "t", "toast")
    assert before.forwarded_props["draft"] == "x" * size


async def test_a_plain_tool_of_a_run_that_goes_on_elsewhere_knows_its_send() -> None:
    """TC §2, TC-122: without any controller; what the request brought is in the first note there too."""
    journal = MemoryJournal()

    @tool(approval=True)
    async def dim_later(percent: int) -> str:
        """Dims, once it may."""
        current_reply().update_state({"lights": percent})
        return "ok"

    def agent(*scripts: Any) -> AgentController:
        return AgentController(ScriptedProvider(*scripts), tools=[dim_later])

    app = Server({"default": agent([call("dim_later", {"percent": 7})])}, journal=journal, drain_timeout=0.0)
    async with app.lifespan():
        asked = await post(app, "t", "r1", "go", state={"room": "bridge"})
        (interrupt,) = asked.events[-1]["outcome"]["interrupts"]
    app = Server({"default": agent("done")}, journal=journal, drain_timeout=0.0)
    async with app.lifespan():
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
        answered = await post(app, "t", "r2", resume=resume)
        assert answered.events[-1]["type"] == "RUN_FINISHED"
        assert states(answered) == [{"room": "bridge", "lights": 7}]


async def test_steering_of_a_run_at_rest_elsewhere_passes_the_interceptor() -> None:
    """TC-26: by the control API, before anybody has sent to that thread in this process."""
    journal = MemoryJournal()
    seen: list[tuple[str, str]] = []

    def agent(*scripts: Any) -> AgentController:
        def look(event: Any) -> None:
            seen.append((event.kind, event.text))
            if event.kind == "steer":
                event.reject("no")

        return AgentController(ScriptedProvider(*scripts), tools=[deploy], interceptor=look)

    app = Server({"default": agent([call("deploy")])}, journal=journal, drain_timeout=0.0)
    async with app.lifespan():
        await post(app, "t", "r1", "go")
    app = Server({"default": agent("done")}, journal=journal, drain_timeout=0.0)
    async with app.lifespan():
        body = {"kind": "steer", "message": "rude"}
        refused = await ask(app, "POST", "/v1/runs/r1/commands", body)
        assert refused.status == 422, refused.body
        assert refused.json()["code"] == "send_refused"
    assert seen == [("send", "go"), ("steer", "rude")]


@pytest.mark.parametrize("state", [5, "text", [1]])
async def test_a_state_that_is_no_object(state: Any) -> None:
    """SV-107: ignored over AG-UI, refused by the control API."""
    async with serving("one") as app:
        assert states(await post(app, "t", "r1", "1", state=state)) == []
        body = {"agent": "default", "thread_id": "t2", "input": "x", "state": state}
        assert (await ask(app, "POST", "/v1/runs", body)).status == 422

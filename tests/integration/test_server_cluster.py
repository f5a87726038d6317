"""Web nodes and workers as servers over one journal: conversations, AI controllers and interrupts do not know where a run is driven."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from asgikit import Connection, ask, run_input
from controlkit import Number, Told
from pilothouse import AgentController, tool
from pilothouse.errors import OwnedElsewhere
from pilothouse.journal import MemoryJournal
from pilothouse.runs.timing import RunTiming
from pilothouse.server.app import Server
from pilothouse.server.settings import WorkOptions
from pilothouse.testing import Board, ScriptedProvider
from pilothouse.testing.scripted import Hold, call

TIMING = RunTiming(lease=3.0, park_after=0.05)


class Cluster:
    """Servers over one journal in memory, and one engine."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.journal = MemoryJournal()
        self.board = Board()
        self._stack = stack

    async def node(self, definition: Callable, *, works: bool = False) -> Server:
        app = Server(
            {"default": definition},
            journal=self.journal,
            dispatcher=self.board.dispatcher(),
            work=WorkOptions() if works else None,
            timing=TIMING,
            drain_timeout=0.0,
        )
        await self._stack.enter_async_context(app.lifespan())
        return app


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster(stack)


async def test_states_are_committed_where_the_run_is_driven_and_seen_everywhere(cluster: Cluster) -> None:
    """TC-115, SV-4: the worker's controllers stage and commit; the next send, at another node, begins with that."""
    numbers: dict[str, list[Number]] = {"one": [], "two": [], "worker": []}
    told = Told()

    def at(name: str) -> Callable:
        def made(_context: object) -> AgentController:
            numbers[name].append(Number("n", told))
            provider = ScriptedProvider(
                lambda request: (
                    "done" if request.messages[-1].role == "tool" else [call("n__add", {"by": 3})]
                ),
                repeat=True,
            )
            return AgentController(provider, controllers=[numbers[name][-1]])

        return made

    one, two = await cluster.node(at("one")), await cluster.node(at("two"))
    await cluster.node(at("worker"), works=True)
    for node, run in ((one, "r1"), (two, "r2"), (one, "r3")):
        async with Connection(node, "POST", "/agui", json_body=run_input("t", run, "add")) as seen:
            await seen.ended()
        assert seen.types[-1] == "RUN_FINISHED", seen.events[-1]
        assert seen.text == "done"
    results = [event["content"] for event in seen.events if event["type"] == "TOOL_CALL_RESULT"]
    assert results == ["now 9, was 6"]
    assert [number.state for number in numbers["worker"]][-1] == 9
    endings = [event.ending for number in numbers["worker"] for event in number.responses]
    assert endings == ["completed"] * 3


async def test_a_client_tool_is_offered_there_and_answered_from_another_node(cluster: Cluster) -> None:
    """AG: the tools of a client travel with the run; its result comes back through whichever node it finds."""
    provider = ScriptedProvider(
        lambda request: (
            f"it is {request.messages[-1].text}"
            if request.messages[-1].role == "tool"
            else [call("where", {}, call_id="c1")]
        ),
        repeat=True,
    )

    def made(_context: object) -> AgentController:
        return AgentController(provider)

    one, two = await cluster.node(made), await cluster.node(made)
    await cluster.node(made, works=True)
    where = {"name": "where", "description": "Where?", "parameters": {"type": "object", "properties": {}}}
    first = await ask(one, "POST", "/agui", run_input("t", "r1", "where am I?", tools=[where]))
    assert "TOOL_CALL_START" in first.types
    assert first.types[-1] == "RUN_FINISHED"
    answered = [
        {"id": "r1-u0", "role": "user", "content": "where am I?"},
        {
            "id": "a1",
            "role": "assistant",
            "toolCalls": [{"id": "c1", "type": "function", "function": {"name": "where", "arguments": "{}"}}],
        },
        {"id": "t1", "role": "tool", "toolCallId": "c1", "content": "at sea"},
    ]
    second = await ask(two, "POST", "/agui", run_input("t", "r2", *answered, tools=[where]))
    assert second.types[-1] == "RUN_FINISHED"
    assert second.text == "it is at sea"
    assert {tool.name for tool in provider.requests[-1].tools} == {"where"}


async def test_a_run_is_stopped_and_approved_through_any_node(cluster: Cluster) -> None:
    """SV: control of a run that another process drives; an approval at rest goes to whoever takes the run up."""
    ran: list[str] = []
    hold = Hold()

    @tool(effect="non_idempotent", approval=True)
    def sign() -> str:
        """Signs."""
        ran.append("signed")
        return "signed"

    def script(request):
        if request.messages[-1].role == "tool":
            return "done"
        return ["so ", hold] if "long" in request.messages[-1].text else [call("sign", {}, call_id="c1")]

    def made(_context: object) -> AgentController:
        return AgentController(ScriptedProvider(script, repeat=True), tools=[sign])

    one, two = await cluster.node(made), await cluster.node(made)
    await cluster.node(made, works=True)
    begun = await ask(one, "POST", "/v1/runs", {"agent": "default", "input": "sign it"})
    run_id = begun.json()["run_id"]
    async with Connection(
        two, "GET", f"/v1/runs/{run_id}/events", headers={"accept": "text/event-stream"}
    ) as seen:
        await seen.until(lambda: any(event.get("kind") == "request_opened" for event in seen.events))
        request = next(event for event in seen.events if event.get("kind") == "request_opened")["request"]
        body = {
            "command_id": "yes",
            "kind": "answer",
            "request_id": request["id"],
            "resolution": {"kind": "allow"},
        }
        for node in (two, one, two):
            answer = await ask(node, "POST", f"/v1/runs/{run_id}/commands", body)
            assert answer.status == 200, answer.body
            assert answer.json()["state"] in ("accepted", "applied")
        await seen.ended()
    assert seen.events[-1]["status"] == "completed"
    assert ran == ["signed"]
    begun = await ask(two, "POST", "/v1/runs", {"agent": "default", "input": "a long one"})
    run_id = begun.json()["run_id"]
    await hold.reached()
    stopped = await ask(one, "POST", f"/v1/runs/{run_id}/cancel", {"reason": "enough"})
    assert stopped.status == 200, stopped.body
    view = (await ask(two, "GET", f"/v1/runs/{run_id}")).json()
    assert view["status"] == "cancelled"


async def test_a_clients_state_reaches_the_thread_wherever_its_run_is_driven(cluster: Cluster) -> None:
    """SV-107, TC-120 at another node, of an agent with nothing plugged in: it is on the record, and told."""

    def made(_context: object) -> AgentController:
        return AgentController(ScriptedProvider("done", repeat=True))

    web = await cluster.node(made)
    await cluster.node(made, works=True)
    seen = await ask(web, "POST", "/agui", {**run_input("t", "r1", "hi"), "state": {"a": 1}})
    assert seen.types[-1] == "RUN_FINISHED"
    assert [event["snapshot"] for event in seen.events if event["type"] == "STATE_SNAPSHOT"] == [{"a": 1}]
    records = (await cluster.journal.read("r1")).records
    assert [item.fact.data for item in records if getattr(item.fact, "name", "") == "pilothouse/state"] == [
        {"delta": [{"op": "add", "path": "/a", "value": 1}]}
    ]


async def test_the_host_is_told_that_a_run_elsewhere_takes_no_change_of_the_state(cluster: Cluster) -> None:
    """TC-122 at another node: refused by name, and not lost without a word."""
    hold, conversations = Hold(), []

    def asked(_context: object) -> AgentController:
        conversations.append(AgentController(ScriptedProvider()))
        return conversations[-1]

    web = await cluster.node(asked)
    await cluster.node(lambda _context: AgentController(ScriptedProvider(["x", hold])), works=True)
    async with Connection(web, "POST", "/agui", json_body=run_input("t", "r1", "go")) as seen:
        await hold.reached()
        reply = conversations[-1].reply
        with pytest.raises(OwnedElsewhere, match="another process drives it"):
            reply.update_state({"a": 1})
        hold.release()
        await seen.ended()
    assert seen.types[-1] == "RUN_FINISHED"

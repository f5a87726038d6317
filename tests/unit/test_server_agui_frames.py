"""What the frames of the AG-UI face hold, and what is told by option only (server page §6)."""

from __future__ import annotations

import pytest

from aguikit import NAMES, Tape, project
from asgikit import Connection, ask, run_input, served
from pilothouse.conversation.controller import AgentController
from pilothouse.core.agui import events as agui
from pilothouse.core.agui.ends import Names
from pilothouse.core.agui.project import Projector
from pilothouse.core.agui.verify import Verifier
from pilothouse.errors import OwnedElsewhere
from pilothouse.events import (
    Completed,
    MessageAdded,
    ModelRequested,
    RunEnded,
    RunStarted,
    TurnEnded,
    TurnStarted,
)
from pilothouse.journal.memory import MemoryJournal
from pilothouse.loop.tools import tool
from pilothouse.messages import Message, Reasoning, Text
from pilothouse.server.app import Server
from pilothouse.server.settings import AGUIOptions
from pilothouse.testing.scripted import Hold, ScriptedProvider, call, thought

POST = ("POST", "/agui/default")


@tool(effect="read")
async def tide(port: str) -> str:
    """The tide.

    Args:
        port: where
    """
    return f"{port}: 3.1 m"


@tool(approval=True)
async def book(day: str) -> str:
    """Books.

    Args:
        day: which one
    """
    return f"booked {day}"


def resume(view: dict) -> list[dict]:
    """Says yes to all that is asked."""
    return [
        {"interruptId": request["id"], "status": "resolved", "payload": {"approved": True}}
        for request in view["requests"]
    ]


async def test_ids_are_one_for_each_thing_and_the_same_everywhere() -> None:
    """SV-76, SV-78: explicit starts and ends, never chunks; ids are unique, name their parents, and are the same in the
    stream, in the snapshot and in the journal."""
    calls = [call("tide", {"port": "Kiel"}, call_id="c1"), call("tide", {"port": "Brest"}, call_id="c2")]
    provider = ScriptedProvider([thought("hm "), thought("so"), "Let me ", "look.", *calls], ["High."])
    app = served(provider, tools=[tide])
    async with app.lifespan():
        told = await ask(app, *POST, run_input("t1", "r1", "How high?"))
        listed = (await ask(app, "GET", "/v1/threads/t1/messages")).json()["items"]
    assert not [name for name in told.types if name.endswith("_CHUNK")]
    by_type: dict[str, list[dict]] = {}
    for event in told.events:
        by_type.setdefault(event["type"], []).append(event)
    texts = [event["messageId"] for event in by_type["TEXT_MESSAGE_START"]]
    reasoning = [event["messageId"] for event in by_type["REASONING_MESSAGE_START"]]
    results = [event["messageId"] for event in by_type["TOOL_CALL_RESULT"]]
    names = [*texts, *reasoning, *results]
    assert len(set(names)) == len(names) == 5
    assert {event["toolCallId"] for event in by_type["TOOL_CALL_START"]} == {"c1", "c2"}
    assert {event["parentMessageId"] for event in by_type["TOOL_CALL_START"]} == {texts[0]}
    shown = [message["id"] for message in by_type["MESSAGES_SNAPSHOT"][-1]["messages"]]
    assert set(names) <= set(shown)
    kept = [item["id"] for item in listed]
    assert [name for name in shown if name not in reasoning] == kept


async def test_an_answer_goes_to_the_agent_that_asked() -> None:
    """SV-74: whatever agent the address names."""
    asking = AgentController(ScriptedProvider([call("book", {"day": "Monday"})], "Booked."), tools=[book])
    other = ScriptedProvider("I know of nothing.")
    app = Server({"default": asking, "other": AgentController(other)}, journal=MemoryJournal())
    async with app.lifespan():
        await ask(app, *POST, run_input("t1", "r1", "book"))
        view = (await ask(app, "GET", "/v1/runs/r1")).json()
        told = await ask(app, "POST", "/agui/other", run_input("t1", "r2", resume=resume(view)))
        assert told.text == "Booked."
        assert other.requests == []
        assert (await ask(app, "GET", "/v1/runs/r1")).json()["agent"] == "default"


@pytest.mark.parametrize("path", ["/agui/default", "/copilotkit/agent/default/run"])
async def test_turns_are_steps_where_that_is_wished_for(path: str) -> None:
    """SV-77, SV-79, SV-181: around each turn; closed where the run pauses, begun again where it goes on; none without."""
    script = [["One.", call("book", {"day": "Monday"})], ["Two."]]
    for wished in (False, True):
        app = served(ScriptedProvider(*script), tools=[book], agui=AGUIOptions(steps=wished, verify=True))
        async with app.lifespan():
            first = await ask(app, "POST", path, run_input("t1", "r1", "book", protocolVersion=None))
            view = (await ask(app, "GET", "/v1/runs/r1")).json()
            body = run_input("t1", "r2", resume=resume(view), protocolVersion=None)
            second = await ask(app, "POST", path, body)
        for told in (first, second):
            Verifier("legacy").check_all([agui.decode(frame.data) for frame in told.frames])
        steps = [
            [(event["type"][5:], event["stepName"]) for event in told.events if event["type"][:4] == "STEP"]
            for told in (first, second)
        ]
        one, two = ([("STARTED", f"turn {n}"), ("FINISHED", f"turn {n}")] for n in (1, 2))
        assert steps == ([one, [*one, *two]] if wished else [[], []])


async def test_a_pause_is_told_in_the_older_way_too_where_that_is_wished_for() -> None:
    """RC-86: CUSTOM `on_interrupt` with the same interrupts, before the finish."""
    app = served(
        ScriptedProvider([call("book", {"day": "Monday"})]), tools=[book], agui=AGUIOptions(on_interrupt=True)
    )
    async with app.lifespan():
        told = await ask(app, *POST, run_input("t1", "r1", "book"))
    notice, finish = told.events[-2:]
    assert (notice["type"], notice["name"]) == ("CUSTOM", "on_interrupt")
    assert notice["value"] == finish["outcome"]["interrupts"]


@pytest.mark.parametrize(("profile", "count"), [("1.0", 1), ("legacy", 0)])
def test_sealed_reasoning_is_handed_on_to_newer_clients_where_that_is_wished_for(
    profile: agui.Profile, count: int
) -> None:
    """SV §6.2: REASONING_ENCRYPTED_VALUE under the id of the reasoning, in 1.0 alone, by option alone."""
    parts = (Reasoning("hm", raw={"signature": "s"}, tag="a"), Text("hi"), Reasoning("so", tag="a"))
    tape = Tape()
    tape.fact(
        RunStarted(),
        TurnStarted(1),
        ModelRequested(1, 1, "m1"),
        MessageAdded(Message("m1", "assistant", parts), 1),
    )
    tape.fact(TurnEnded(1), RunEnded(Completed()))
    names = Names("thread-1", "run-1", profile=profile, encrypted=True)
    for wished, expected in ((names, count), (NAMES, 0)):
        events = [frame.event for frame in project(tape.items, Projector(wished))]
        sealed = [event for event in events if isinstance(event, agui.ReasoningEncryptedValue)]
        assert len(sealed) == expected
        for event in sealed:
            assert (event.entity_id, event.encrypted_value) == ("m1:reasoning-0", '{"signature":"s"}')


async def test_a_run_of_another_process_is_read_and_followed_and_not_commanded() -> None:
    """SV-132: 409 with the owner's name, so that a router can be told; SV-131: the view answers here, too."""
    journal, hold = MemoryJournal(), Hold()
    owner = served(ScriptedProvider(["half ", hold, "whole"]), journal=journal)
    other = served(ScriptedProvider(), journal=journal, auto_recover="never")
    async with owner.lifespan(), other.lifespan():
        async with Connection(owner, *POST, json_body=run_input("t1", "r1", "go")) as live:
            await live.seen("half ")
            view = (await ask(other, "GET", "/v1/runs/r1")).json()
            assert (view["status"], view["ownership"], view["live"]) == ("running", "elsewhere", True)
            for path, body in (
                ("commands", {"kind": "steer", "input": "faster"}),
                ("cancel", {}),
            ):
                refused = await ask(other, "POST", f"/v1/runs/r1/{path}", body)
                assert (refused.status, refused.json()["code"]) == (409, OwnedElsewhere.code)
                assert refused.json()["owner"]
            async with Connection(other, "GET", "/agui?runId=r1&offset=-1") as reader:
                await reader.until(lambda: "RUN_STARTED" in reader.types)
                hold.release()
                await reader.ended()
            await live.ended()
            assert reader.text == live.text == "half whole"


async def test_a_store_of_threads_that_is_lost_loses_titles_and_pins_only() -> None:
    """SV-157: lists, contents and runs are computed from runs."""
    journal = MemoryJournal()
    app = served(ScriptedProvider("a", "b"), journal=journal)
    async with app.lifespan():
        await ask(app, *POST, run_input("t1", "r1", "first words"))
        await ask(app, "PATCH", "/v1/threads/t1", {"title": "my title", "pinned": True})
        journal.threads.forget("t1")
        again = served(ScriptedProvider("b"), journal=journal)
        async with again.lifespan():
            (item,) = (await ask(again, "GET", "/v1/threads")).json()["items"]
            assert (item["thread_id"], item["title"], item["pinned"]) == ("t1", "first words", False)
            assert item["status"] == "completed"
            items = (await ask(again, "GET", "/v1/threads/t1/messages")).json()["items"]
            assert [each["role"] for each in items] == ["user", "assistant"]
            assert (await ask(again, *POST, run_input("t1", "r2", "more"))).text == "b"

"""Threads told again, histories that come from clients, and CopilotKit's runtime routes (server page §6.4, §8)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asgikit import Connection, ask, run_input, served
from pilothouse.conversation.controller import AgentController
from pilothouse.core.agui import events as agui
from pilothouse.core.agui.verify import Verifier
from pilothouse.errors import ConfigError, JournalUnavailable
from pilothouse.journal.memory import MemoryJournal
from pilothouse.loop.tools import tool
from pilothouse.server.app import Server
from pilothouse.server.settings import AGUIOptions
from pilothouse.testing.scripted import Hold, ScriptedProvider, call, failure, texts, thought


def verified(connection: Connection, profile: agui.Profile = "1.0") -> list[dict[str, Any]]:
    assert connection.status == 200, connection.body
    Verifier(profile).check_all([agui.decode(frame.data) for frame in connection.frames])
    return connection.events


@tool(effect="read")
async def tide() -> str:
    """The tide."""
    return "3.1 m"


async def connect(app: Any, thread: str, path: str = "/agui/default/connect", **more: Any) -> Connection:
    return await ask(app, "POST", path, {"threadId": thread, "runId": "c1", "messages": [], **more})


def shown(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What a client makes of it: roles and texts, in order."""
    found: dict[str, list[str]] = {}
    for event in events:
        match event["type"]:
            case "RUN_STARTED":
                for message in (event.get("input") or {}).get("messages", []):
                    found[message["id"]] = [message["role"], message["content"]]
            case "TEXT_MESSAGE_START":
                found.setdefault(event["messageId"], [event["role"], ""])
            case "TEXT_MESSAGE_CONTENT":
                found[event["messageId"]][1] += event["delta"]
            case "TOOL_CALL_RESULT":
                found[event["messageId"]] = ["tool", event["content"]]
            case "REASONING_MESSAGE_CONTENT":
                found[event["messageId"]] = ["reasoning", event["delta"]]
    return [(role, text) for role, text in found.values()]


@pytest.mark.parametrize("version", ["1.0", None])
async def test_a_thread_is_told_again_run_by_run(version: str | None) -> None:
    """SV-182: each run a RUN_STARTED with its input and one end; a failed one in between; the stream is legal."""
    app = served(
        ScriptedProvider(
            [thought("hm"), call("tide", {})], "It is 3.1 m.", ["half ", failure("auth", "no")], "fine"
        ),
        tools=[tide],
    )
    async with app.lifespan():
        for number, text in enumerate(("tide?", "and now?", "again")):
            await ask(app, "POST", "/agui/default", run_input("t1", f"r{number}", text))
        again = await connect(app, "t1", **({} if version is None else {"protocolVersion": version}))
        events = verified(again, "1.0" if version else "legacy")
        assert again.closed
        starts = [event["runId"] for event in events if event["type"] == "RUN_STARTED"]
        ends = [event["type"] for event in events if event["type"] in ("RUN_FINISHED", "RUN_ERROR")]
        assert starts == ["r0", "r1", "r2"]
        assert ends == ["RUN_FINISHED", "RUN_ERROR", "RUN_FINISHED"]
        assert [one for one in shown(events) if one[1]] == [
            ("user", "tide?"), ("reasoning", "hm"), ("tool", "3.1 m"), ("assistant", "It is 3.1 m."),
            ("user", "and now?"), ("assistant", "half "), ("user", "again"), ("assistant", "fine"),
        ]  # fmt: skip


async def test_a_live_run_is_followed_to_its_end_and_an_unknown_thread_is_empty() -> None:
    """SV-182: what is live streams on; a thread that nobody knows is an empty stream."""
    hold = Hold()
    app = served(ScriptedProvider("one", ["half ", hold, "whole"]))
    async with app.lifespan():
        await ask(app, "POST", "/agui/default", run_input("t1", "r1", "a"))
        async with Connection(app, "POST", "/agui/default", json_body=run_input("t1", "r2", "b")) as first:
            await first.seen("half ")
            body = {"threadId": "t1", "runId": "c", "messages": []}
            async with Connection(app, "POST", "/agui/default/connect", json_body=body) as late:
                await late.seen("half ")
                hold.release()
                await late.ended()
                assert [text for _, text in shown(verified(late))] == ["a", "one", "b", "half whole"]
            await first.ended()
        empty = await connect(app, "nothing")
        assert (empty.status, empty.frames, empty.closed) == (200, [], True)


async def test_an_edited_path_is_told_without_what_was_replaced() -> None:
    """SV-182: only what is on the path to the head is told."""
    app = served(ScriptedProvider("one", "two", "three"))
    async with app.lifespan():
        first = await ask(app, "POST", "/agui/default", run_input("t1", "r1", "a"))
        snapshot = next(event for event in first.events if event["type"] == "MESSAGES_SNAPSHOT")["messages"]
        await ask(app, "POST", "/agui/default", run_input("t1", "r2", *snapshot[:1]))
        again = await connect(app, "t1")
        assert [text for _, text in shown(verified(again))] == ["a", "two"]


# Histories of clients


TRANSCRIPT: list[dict[str, Any]] = [
    {"id": "s", "role": "system", "content": "You are a pirate."},
    {"id": "u1", "role": "user", "content": "tide?"},
    {
        "id": "a1",
        "role": "assistant",
        "content": "Looking.",
        "toolCalls": [
            {"id": "c1", "type": "function", "function": {"name": "tide", "arguments": '{"at":"Bréhat"}'}},
            {"id": "c2", "type": "function", "function": {"name": "tide", "arguments": "{broken"}},
        ],
    },
    {"id": "x1", "role": "tool", "toolCallId": "c1", "content": "3.1 m"},
    {"id": "x9", "role": "tool", "toolCallId": "nothing", "content": "orphan"},
    {"id": "a2", "role": "assistant", "content": "It is 3.1 m."},
    {"id": "u2", "role": "user", "content": "and tomorrow?"},
]


async def test_a_transcript_of_an_unknown_thread_is_imported_once() -> None:
    """SV-102, SV-100, proof 7: it becomes the history, each call with one result; then the thread is the truth."""
    provider = ScriptedProvider("3.2 m.", "Bye.")
    app = served(provider)
    async with app.lifespan():
        first = await ask(app, "POST", "/agui/default", run_input("t1", "r1", *TRANSCRIPT))
        verified(first)
        sent = provider.requests[0].messages
        assert [message.role for message in sent] == [
            "user", "assistant", "tool", "tool", "assistant", "user",
        ]  # fmt: skip
        assert sent[0].text == "tide?"
        assert [message.call_id for message in sent if message.role == "tool"] == ["c1", "c2"]
        items = (await ask(app, "GET", "/v1/threads/t1/messages")).json()["items"]
        assert [item["id"] for item in items][:2] == ["u1", "a1"]
        assert items[-2]["id"] == "u2"
        # From now on the client's list is only a copy: what it says of the past changes nothing.
        lie = [{**item, "content": "other"} if item["id"] == "a2" else item for item in TRANSCRIPT]
        second = await ask(
            app,
            "POST",
            "/agui/default",
            run_input("t1", "r2", *lie, {"id": "u3", "role": "user", "content": "bye"}),
        )
        verified(second)
        assert ("assistant", "It is 3.1 m.") in texts(provider.requests[1].messages)
        assert ("assistant", "3.2 m.") in texts(provider.requests[1].messages)


async def test_with_a_clients_history_each_request_brings_all_of_it() -> None:
    """SV §2 `history="client"`: a stateless client; what it dropped is not sent to the model, nothing is deleted."""
    provider = ScriptedProvider("one", "two", "three")
    app = served(provider, history="client")
    async with app.lifespan():
        first = {"id": "u1", "role": "user", "content": "a"}
        await ask(app, "POST", "/agui/default", run_input("t1", "r1", first))
        changed = {"id": "x", "role": "assistant", "content": "changed"}
        second = {"id": "u2", "role": "user", "content": "b"}
        answer = await ask(app, "POST", "/agui/default", run_input("t1", "r2", first, changed, second))
        verified(answer)
        assert texts(provider.requests[1].messages) == [
            ("user", "a"), ("assistant", "changed"), ("user", "b"),
        ]  # fmt: skip
        await ask(app, "POST", "/agui/default", run_input("t1", "r3", second))
        assert texts(provider.requests[2].messages) == [("user", "b")]
        assert len((await ask(app, "GET", "/v1/threads/t1/runs")).json()["items"]) == 3


def test_another_history_is_a_mistake() -> None:
    """SV §2."""
    with pytest.raises(ConfigError, match="history"):
        served(ScriptedProvider(), history="both")


async def test_a_factory_gets_what_the_client_says_beside_its_message() -> None:
    """SV-14, SV-108: principal, thread, run, forwarded properties, context and client tools; nothing global."""
    seen: list[Any] = []

    def factory(context: Any) -> AgentController:
        seen.append(context)
        return AgentController(ScriptedProvider("ok"))

    app = Server({"default": factory}, journal=MemoryJournal(), drain_timeout=0.0)
    async with app.lifespan():
        body = run_input(
            "t1", "r1", "hi",
            forwardedProps={"model": "big", "pilothouse": {"metadata": {"page": "/a"}}},
            context=[{"description": "page", "value": "/a"}],
        )  # fmt: skip
        await ask(app, "POST", "/agui/default", body)
        context = seen[-1]
        assert (context.principal.id, context.thread_id, context.run_id) == ("local", "t1", "r1")
        assert context.forwarded_props["model"] == "big"
        assert [(entry.description, entry.value) for entry in context.context] == [("page", "/a")]
        parent = {"pilothouse": {"parent": {"run_id": "nothing"}}}
        refused = await ask(app, "POST", "/agui/default", run_input("t1", "r2", "x", forwardedProps=parent))
        assert refused.status == 404


async def test_an_edit_is_noted() -> None:
    """SV §6.2: the reader is told that an earlier message was replaced."""
    app = served(ScriptedProvider("one", "two"), agui=AGUIOptions(verify=True))
    async with app.lifespan():
        first = await ask(app, "POST", "/agui/default", run_input("t1", "r1", "a"))
        snapshot = next(event for event in first.events if event["type"] == "MESSAGES_SNAPSHOT")["messages"]
        await ask(app, "POST", "/agui/default", run_input("t1", "r2", *snapshot, "b"))
        edited = await ask(app, "POST", "/agui/default", run_input("t1", "r3", *snapshot, "c"))
        notes = [event for event in verified(edited) if event["type"] == "CUSTOM"]
        assert [(note["name"], note["value"]) for note in notes] == [
            ("pilothouse.forked", {"messageId": snapshot[-1]["id"]})
        ]


# CopilotKit


async def test_copilotkit_finds_agents_runs_joins_and_stops() -> None:
    """SV-180 … SV-183, by addresses."""
    hold = Hold()
    app = served(ScriptedProvider("hello", ["half ", hold]))
    async with app.lifespan():
        info = (await ask(app, "GET", "/copilotkit/info")).json()
        assert info["mode"] == "sse"
        assert set(info["agents"]) == {"default"}
        path = "/copilotkit/agent/default"
        first = await ask(app, "POST", f"{path}/run", run_input("t1", "r1", "hi", protocolVersion=""))
        assert first.text == "hello"
        async with Connection(app, "POST", f"{path}/run", json_body=run_input("t1", "r2", "go")) as live:
            await live.seen("half ")
            stopped = await ask(app, "POST", f"{path}/stop/t1")
            assert stopped.json() == {"stopped": True}
            await live.ended()
            assert live.closed
        assert (await ask(app, "POST", f"{path}/stop/t1", {"runId": "r9"})).json() == {"stopped": False}
        again = await connect(app, "t1", f"{path}/connect")
        assert [text for _, text in shown(verified(again, "legacy"))] == ["hi", "hello", "go", "half "]


async def test_copilotkit_through_one_address() -> None:
    """SV-184."""
    app = served(ScriptedProvider("hello"))
    async with app.lifespan():
        info = await ask(app, "POST", "/copilotkit", {"method": "info"})
        assert set(info.json()["agents"]) == {"default"}
        one = {"agentId": "default", "threadId": "t1"}
        body = {"method": "agent/run", "params": one, "body": run_input("t1", "r1", "hi")}
        assert (await ask(app, "POST", "/copilotkit", body)).text == "hello"
        body = {"method": "agent/connect", "params": one, "body": {"threadId": "t1", "runId": "c"}}
        assert [text for _, text in shown(verified(await ask(app, "POST", "/copilotkit", body), "legacy"))] == [
            "hi", "hello",
        ]  # fmt: skip
        body = {"method": "agent/stop", "params": one}
        assert (await ask(app, "POST", "/copilotkit", body)).json() == {"stopped": False}
        refused = await ask(app, "POST", "/copilotkit", {"method": "agent/dance"})
        assert (refused.status, refused.json()["code"]) == (422, "invalid_input")
        missing = {"method": "agent/run", "params": {"agentId": "nobody"}, "body": run_input("t1", "r2", "x")}
        assert (await ask(app, "POST", "/copilotkit", missing)).status == 404


class SlowClaims(MemoryJournal):
    """A journal whose claims wait for a gate, as a busy database would."""

    def __init__(self) -> None:
        super().__init__()
        self.immediate = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()

    async def claim(self, run_id, request):
        """Behind the gate."""
        self.asked.set()
        await self.gate.wait()
        return await super().claim(run_id, request)


async def lost(journal: MemoryJournal) -> tuple[str, int]:
    """Leaves a run in mid-answer, as a server that went down; the cursors of its two readers."""
    first = served(ScriptedProvider(["half ", Hold()]), journal=journal)
    async with (
        first.lifespan(),
        Connection(first, "POST", "/agui/default", json_body=run_input("t1", "r1", "go")) as live,
    ):
        await live.seen("half ")
        cursor = live.frames[-1].id
        await first.drain(0.0)
    return cursor, (await journal.head("r1")).head.seq


@pytest.mark.parametrize("with_cursor", [True, False])
async def test_who_comes_back_before_its_run_is_taken_up_again_is_not_told_that_it_is_lost(
    with_cursor: bool,
) -> None:
    """SV-94, SV-224: while the recovery that the server began with is still to come, a stream waits for it."""
    journal = SlowClaims()
    cursor, seq = await lost(journal)
    journal.gate.clear()
    second = served(ScriptedProvider("whole"), journal=journal)
    async with second.lifespan():
        await journal.asked.wait()
        assert (await ask(second, "GET", "/v1/runs/r1")).json()["status"] == "unknown"
        last = {"last-event-id": cursor} if with_cursor else {}
        facts = {"last-event-id": str(seq)} if with_cursor else {}
        body = run_input("t1", "r1", "go")
        async with (
            Connection(second, "POST", "/agui/default", json_body=body, headers=last) as told,
            Connection(
                second, "GET", "/v1/runs/r1/events", headers={"accept": "text/event-stream", **facts}
            ) as raw,
        ):
            await told.started()
            for _ in range(20):  # the time that it would take to be told
                await asyncio.sleep(0)
            assert "RUN_ERROR" not in told.types
            assert not told.closed
            assert not raw.closed
            journal.gate.set()
            await told.ended()
            await raw.ended()
        assert told.types[-1] == "RUN_FINISHED"
        assert "whole" in told.text
        assert raw.events[-1]["status"] == "completed"


async def test_where_the_recovery_fails_the_loss_is_told_then() -> None:
    """SV-94: nobody waits for what does not come."""

    class Refusing(SlowClaims):
        async def claim(self, run_id, request):
            await super().claim(run_id, request)
            raise JournalUnavailable("the store is away")

    journal = Refusing()
    await lost(journal)
    journal.gate.clear()
    second = served(ScriptedProvider("whole"), journal=journal)
    async with second.lifespan():
        await journal.asked.wait()
        async with Connection(second, "GET", "/agui?runId=r1&offset=-1") as told:
            await told.started()
            journal.gate.set()
            await told.ended()
        assert told.events[-1]["type"] == "RUN_ERROR"
        assert told.events[-1]["code"] == "outcome_unknown"

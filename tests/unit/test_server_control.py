"""The run control API and the threads, in process (server page §7)."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote

import pytest

from asgikit import Connection, ask, run_input, served
from pilothouse.journal.memory import MemoryJournal
from pilothouse.loop.tools import tool
from pilothouse.testing.scripted import Cut, Hold, ScriptedProvider, call

POST = ("POST", "/agui/default")


@tool(approval=True)
async def book(day: str) -> str:
    """Books.

    Args:
        day: which one
    """
    return f"booked {day}"


async def start(app, **body):
    return await ask(app, "POST", "/v1/runs", body)


async def done(app, run: str) -> dict:
    return (await ask(app, "GET", f"/v1/runs/{run}?wait=10")).json()


async def test_a_run_is_started_by_api_and_watched_by_another_face() -> None:
    """SV-120: 201 when it is durable; the same run on every face."""
    app = served(ScriptedProvider("hello"))
    async with app.lifespan():
        begun = await start(app, agent="default", thread_id="t1", run_id="r1", input="hi")
        assert begun.status == 201
        assert begun.headers["location"] == "/v1/runs/r1"
        assert begun.json()["thread_id"] == "t1"
        assert (await done(app, "r1"))["status"] == "completed"
        joined = await ask(app, "GET", "/agui?runId=r1&offset=-1")
        assert joined.text == "hello"


async def test_a_start_is_idempotent_by_id_or_key() -> None:
    """SV-15, fixture 120: 200 instead of 201, one run; other content 409."""
    provider = ScriptedProvider("paid", "x")
    app = served(provider)
    async with app.lifespan():
        first = await ask(app, "POST", "/v1/runs", {"input": "pay"}, headers={"idempotency-key": "k1"})
        again = await ask(app, "POST", "/v1/runs", {"input": "pay"}, headers={"idempotency-key": "k1"})
        assert (first.status, again.status) == (201, 200)
        assert again.headers["idempotent-replayed"] == "true"
        assert first.json()["run_id"] == again.json()["run_id"] == "k1"
        other = await ask(app, "POST", "/v1/runs", {"input": "pay twice"}, headers={"idempotency-key": "k1"})
        assert (other.status, other.json()["code"]) == (409, "run_conflict")
        await done(app, "k1")
        assert len(provider.requests) == 1


async def test_a_typing_error_is_not_ignored() -> None:
    """§7: unknown members are 422."""
    app = served(ScriptedProvider())
    async with app.lifespan():
        answer = await start(app, inptu="hi")
        assert answer.status == 422
        assert answer.json()["errors"] == [{"path": "inptu", "message": "is not known here"}]


async def test_lists_are_newest_first_and_filtered() -> None:
    """SV-122, RC-67."""
    app = served(ScriptedProvider("a", "b", ["c", Cut()]))
    async with app.lifespan():
        for run, thread in (("r1", "t1"), ("r2", "t2"), ("r3", "t2")):
            await start(app, run_id=run, thread_id=thread, input="hi")
            await done(app, run)
        page = (await ask(app, "GET", "/v1/runs?limit=2")).json()
        assert [item["run_id"] for item in page["items"]] == ["r3", "r2"]
        rest = (await ask(app, "GET", f"/v1/runs?limit=2&cursor={page['next']}")).json()
        assert [item["run_id"] for item in rest["items"]] == ["r1"]
        found = (await ask(app, "GET", "/v1/runs?thread=t2&status=unknown")).json()
        assert [item["run_id"] for item in found["items"]] == ["r3"]
        assert (await ask(app, "GET", "/v1/runs?status=nonsense")).status == 422


async def test_facts_as_a_page_and_as_a_stream() -> None:
    """SV-123: gap-free numbers; deltas with offsets; `end` names how it ended; resuming by Last-Event-ID."""
    app = served(ScriptedProvider(["he", "llo"]))
    async with app.lifespan():
        await start(app, run_id="r1", input="hi")
        await done(app, "r1")
        page = (await ask(app, "GET", "/v1/runs/r1/events?limit=3")).json()
        assert [event["run_seq"] for event in page["events"]] == [1, 2, 3]
        assert page["next"] == 3
        rest = (await ask(app, "GET", "/v1/runs/r1/events?after=3")).json()
        assert next(event["run_seq"] for event in rest["events"]) == 4
        assert rest["next"] is None
        assert rest["end"]["outcome"] == {"outcome": "completed"}
        kinds = (await ask(app, "GET", "/v1/runs/r1/events?kinds=run_ended")).json()["events"]
        assert [event["kind"] for event in kinds] == ["run_ended"]
        stream = await ask(
            app, "GET", "/v1/runs/r1/events", headers={"accept": "text/event-stream", "last-event-id": "4"}
        )
        facts = [event for event in stream.events if event["type"] == "fact"]
        assert [event["run_seq"] for event in facts] == list(range(5, facts[-1]["run_seq"] + 1))
        assert stream.events[-1]["type"] == "end"
        assert stream.events[-1]["status"] == "completed"


async def test_a_browser_that_has_seen_the_end_is_told_to_stop_coming_back() -> None:
    """SV-49: 204 for a cursor at the end, of an ended run and of one whose outcome is unknown; not while it may go on."""
    hold = Hold()
    journal = MemoryJournal()
    app = served(ScriptedProvider("a", ["half ", hold]), journal=journal, auto_recover="never")

    async def come_back(app, run: str, seq: int, query: str = "") -> Connection:
        headers = {"accept": "text/event-stream", "last-event-id": str(seq)}
        return Connection(app, "GET", f"/v1/runs/{run}/events{query}", headers=headers)

    async with app.lifespan():
        await start(app, run_id="r1", thread_id="t1", input="hi")
        last = (await done(app, "r1"))["last_seq"]
        async with await come_back(app, "r1", last) as again:
            assert (await again.ended()).status == 204
            assert again.body == b""
        async with await come_back(app, "r1", last - 1) as again:
            assert (await again.ended()).types == ["fact", "end"]
        await start(app, run_id="r2", thread_id="t2", input="hi")
        async with Connection(
            app, "GET", "/v1/runs/r2/events", headers={"accept": "text/event-stream"}
        ) as live:
            await live.until(lambda: b"half " in live.body)
            now = (await ask(app, "GET", "/v1/runs/r2")).json()["last_seq"]
            async with await come_back(app, "r2", now) as again:
                assert (await again.started()).status == 200
    left = served(ScriptedProvider(), journal=journal, auto_recover="never")
    async with left.lifespan():
        view = (await ask(left, "GET", "/v1/runs/r2")).json()
        assert view["status"] == "unknown"
        async with await come_back(left, "r2", view["last_seq"]) as again:
            assert (await again.ended()).status == 204
        async with await come_back(left, "r2", view["last_seq"], "?through_unknown=true") as again:
            assert (await again.started()).status == 200


async def test_a_view_names_the_segments_of_a_run() -> None:
    """SV-121, SV-70: each AG-UI run by its own id, with the fact from which it is; bounded: nothing that was said."""
    provider = ScriptedProvider([call("book", {"day": "Monday"})], "Booked, no secrets.")
    app = served(provider, tools=[book])
    async with app.lifespan():
        await ask(app, "POST", "/agui/default", run_input("t1", "r1", "book the secret day"))
        view = (await ask(app, "GET", "/v1/runs/r1")).json()
        assert [(item["run_id"], item["first_seq"]) for item in view["segments"]] == [("r1", 1)]
        assert view["agent"] == "default"
        assert view["live"] is True
        (request,) = view["requests"]
        resume = [{"interruptId": request["id"], "status": "resolved", "payload": {"approved": True}}]
        body = run_input("t1", "r1-second", resume=resume)
        assert (await ask(app, "POST", "/agui/default", body)).types[-1] == "RUN_FINISHED"
        for name in ("r1", "r1-second"):  # SV-71: any segment's id names the run
            view = (await ask(app, "GET", f"/v1/runs/{name}")).json()
            first, second = view["segments"]
            assert (first["run_id"], second["run_id"]) == ("r1", "r1-second")
            assert first["first_seq"] == 1 < second["first_seq"] <= view["last_seq"]
            assert view["live"] is False
            assert "secret" not in json.dumps(view)


async def test_deltas_are_streamed_with_offsets() -> None:
    """SV-123: a reader that keeps its lengths shows each text once."""
    hold = Hold()
    app = served(ScriptedProvider([hold, "he", "llo"]))
    async with app.lifespan():
        await start(app, run_id="r1", input="hi")
        async with Connection(
            app, "GET", "/v1/runs/r1/events", headers={"accept": "text/event-stream"}
        ) as stream:
            await stream.until(lambda: any(event.get("kind") == "model_requested" for event in stream.events))
            hold.release()
            await stream.ended()
            told = [event for event in stream.events if event["type"] == "delta" and event["kind"] == "text"]
            assert [(event.get("offset", 0), event["text"]) for event in told] == [(0, "he"), (2, "llo")]
        silent = await ask(
            app, "GET", "/v1/runs/r1/events?deltas=false", headers={"accept": "text/event-stream"}
        )
        assert "delta" not in silent.types


async def test_a_cursor_of_a_lost_journal_gets_an_explicit_resync() -> None:
    """SV-47, fixture 151: never a silent gap."""
    app = served(ScriptedProvider("a"))
    async with app.lifespan():
        await start(app, run_id="r1", input="hi")
        await done(app, "r1")
        stream = await ask(
            app, "GET", "/v1/runs/r1/events?after=120", headers={"accept": "text/event-stream"}
        )
        assert stream.types[0] == "resync_required"
        assert next(event["run_seq"] for event in stream.events if event["type"] == "fact") == 1


async def test_replay_then_live_without_a_gap() -> None:
    """Fixture 145: 41…150, each once, in order, while 50 more facts come."""
    from pilothouse.events import Completed, Noted, RunEnded
    from pilothouse.records import Descriptor
    from pilothouse.server.app import Server

    more = asyncio.Event()

    class Emitter:
        def describe(self) -> Descriptor:
            return Descriptor("emitter", cancel="confirmed", recovery="journal")

        async def run(self, start, port) -> None:
            for number in range(98):
                await port.record(Noted("test/item", number))
            await more.wait()
            for number in range(49):
                await port.record(Noted("test/more", number))
            await port.record(RunEnded(Completed()))

    from pilothouse.journal.memory import MemoryJournal

    app = Server({"default": lambda _: Emitter()}, journal=MemoryJournal(), drain_timeout=0.0)
    async with app.lifespan():
        await start(app, run_id="r1", input="hi")
        async with Connection(
            app, "GET", "/v1/runs/r1/events?after=40", headers={"accept": "text/event-stream"}
        ) as stream:
            await stream.until(lambda: stream.frames)
            more.set()
            await stream.ended()
        seqs = [event["run_seq"] for event in stream.events if event["type"] == "fact"]
        assert seqs == list(range(41, 151))


async def test_cancel_and_again() -> None:
    """SV-130: 200 with the ack; on an ended run 200 with the view, nothing changed."""
    app = served(ScriptedProvider(["a", Hold()]))
    async with app.lifespan():
        await start(app, run_id="r1", input="hi")
        stopped = await ask(app, "POST", "/v1/runs/r1/cancel", {"reason": "enough"})
        assert (stopped.status, stopped.json()["state"]) == (200, "applied")
        view = await done(app, "r1")
        assert view["outcome"] == {"outcome": "cancelled", "reason": "enough"}
        again = await ask(app, "POST", "/v1/runs/r1/cancel", {})
        assert (again.status, again.json()["last_seq"]) == (200, view["last_seq"])


async def test_the_ways_out_of_unknown() -> None:
    """SV-130, RC-54, RC-60: abandon needs a reason and only serves what is lost; recover goes on from the facts."""
    app = served(ScriptedProvider(["half ", Cut()], "whole", ["half ", Cut()]))
    async with app.lifespan():
        await start(app, run_id="r1", input="hi")
        assert (await done(app, "r1"))["status"] == "unknown"
        recovered = await ask(app, "POST", "/v1/runs/r1/recover", {})
        assert recovered.status == 200
        assert (await done(app, "r1"))["status"] == "completed"
        healthy = await ask(app, "POST", "/v1/runs/r1/abandon", {"reason": "why not"})
        assert (healthy.status, healthy.json()["code"]) == (409, "not_unknown")

        await start(app, run_id="r2", input="hi")
        assert (await done(app, "r2"))["status"] == "unknown"
        assert (await ask(app, "POST", "/v1/runs/r2/abandon", {})).status == 422
        left = (await ask(app, "POST", "/v1/runs/r2/abandon", {"reason": "seen enough"})).json()
        assert left["outcome"]["settled"] is True
        assert left["outcome"]["by"] == "local"
        messages = (await ask(app, "GET", "/v1/threads/r2/messages")).json()["items"]
        assert messages[-1]["delivery"] == {
            "phase": "complete", "outcome": "interrupted", "reason": "abandoned",
        }  # fmt: skip


async def test_commands_are_acknowledged_again_and_refused_without_a_trace() -> None:
    """SV-124, RC-36: the same id again is a duplicate; what cannot be is 409 with the ack in it."""
    hold = Hold()
    app = served(ScriptedProvider(["a", hold], "steered"))
    async with app.lifespan():
        await start(app, run_id="r1", input="hi")
        steer = {"command_id": "c1", "kind": "steer", "message": "faster"}
        body = {
            **steer,
            "message": {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "faster"}]},
        }
        first = await ask(app, "POST", "/v1/runs/r1/commands", body)
        assert (first.status, first.json()["state"]) == (200, "accepted")
        again = await ask(app, "POST", "/v1/runs/r1/commands", body)
        assert again.json()["duplicate"] is True
        other = {**body, "message": {**body["message"], "id": "m2"}}
        conflict = await ask(app, "POST", "/v1/runs/r1/commands", other)
        assert (conflict.status, conflict.json()["code"]) == (409, "command_conflict")
        read = await ask(app, "GET", "/v1/runs/r1/commands/c1")
        assert read.json()["command_id"] == "c1"
        hold.release()
        view = await done(app, "r1")
        late = await ask(app, "POST", "/v1/runs/r1/commands", {"kind": "steer", "message": "late"})
        assert (late.status, late.json()["code"], late.json()["ack"]["state"]) == (409, "ended", "rejected")
        assert (await done(app, "r1"))["last_seq"] == view["last_seq"]
        wrong = await ask(app, "POST", "/v1/runs/r1/commands", {"kind": "dance"})
        assert (wrong.status, wrong.json()["code"]) == (422, "invalid_command")
        assert (await ask(app, "GET", "/v1/runs/r1/commands/nothing")).status == 404


async def test_a_long_poll_answers_when_it_ends() -> None:
    """SV-131."""
    hold = Hold()
    app = served(ScriptedProvider(["a", hold]))
    async with app.lifespan():
        await start(app, run_id="r1", input="hi")
        async with Connection(app, "GET", "/v1/runs/r1?wait=30") as waiting:
            assert (await ask(app, "GET", "/v1/runs/r1")).json()["status"] == "running"
            hold.release()
            await waiting.ended()
            assert waiting.json()["status"] == "completed"


# Threads


async def test_threads_are_listed_titled_pinned_archived_searched() -> None:
    """SV-150, SV-151."""
    app = served(ScriptedProvider("a", "b", "c"))
    async with app.lifespan():
        for number, text in enumerate(["Why is the sky blue?", "x" * 100, "Tides"]):
            await start(app, run_id=f"r{number}", thread_id=f"t{number}", input=text)
            await done(app, f"r{number}")
        items = (await ask(app, "GET", "/v1/threads")).json()["items"]
        titles = {item["thread_id"]: item["title"] for item in items}
        assert titles["t0"] == "Why is the sky blue?"
        assert len(titles["t1"]) == 80
        assert {item["status"] for item in items} == {"completed"}
        await ask(app, "PATCH", "/v1/threads/t0", {"title": "Sky", "pinned": True})
        await ask(app, "PATCH", "/v1/threads/t2", {"archived": True})
        items = (await ask(app, "GET", "/v1/threads")).json()["items"]
        assert [item["thread_id"] for item in items] == ["t0", "t1"]
        archived = (await ask(app, "GET", "/v1/threads?archived=true")).json()["items"]
        assert [item["thread_id"] for item in archived] == ["t2"]
        found = (await ask(app, "GET", "/v1/threads?q=sky")).json()["items"]
        assert [item["title"] for item in found] == ["Sky"]
        assert (await ask(app, "PATCH", "/v1/threads/nothing", {"title": "x"})).status == 404
        assert (await ask(app, "PATCH", "/v1/threads/t0", {"titel": "x"})).status == 422


async def test_threads_that_were_begun_elsewhere_are_listed_too() -> None:
    """JR-30: a thread without a record is listed from its runs."""
    from pilothouse.conversation.controller import AgentController
    from pilothouse.journal.memory import MemoryJournal

    journal = MemoryJournal()
    chat = AgentController(ScriptedProvider("from a terminal"), journal=journal)
    await (await chat.send("hello there")).wait_closed()
    app = served(ScriptedProvider("from the page"), journal=journal)
    async with app.lifespan():
        item = (await ask(app, "GET", "/v1/threads")).json()["items"][0]
        assert (item["title"], item["agent"], item["status"]) == ("hello there", "default", "completed")
        messages = (await ask(app, "GET", f"/v1/threads/{item['thread_id']}/messages")).json()["items"]
        assert messages[-1]["parts"] == [{"type": "text", "text": "from a terminal"}]
        later = await ask(app, *POST, run_input(item["thread_id"], "r2", "and here"))
        assert later.text == "from the page"
    await chat.aclose()


async def test_messages_of_a_live_run_say_streaming_and_page_from_the_end() -> None:
    """SV-152."""
    hold = Hold()
    app = served(ScriptedProvider(["half " * 1000, hold, "rest"]))
    async with app.lifespan():
        await start(app, run_id="r1", thread_id="t1", input="hi")
        async with Connection(
            app, "GET", "/v1/runs/r1/events", headers={"accept": "text/event-stream"}
        ) as seen:
            await seen.until(lambda: any(event.get("kind") == "partial_saved" for event in seen.events))
            found = (await ask(app, "GET", "/v1/threads/t1/messages")).json()
            assert found["active_run"] == {"run_id": "r1", "status": "running"}
            assert found["items"][-1]["delivery"] == {"phase": "streaming", "outcome": None}
            hold.release()
            await seen.ended()
        found = (await ask(app, "GET", "/v1/threads/t1/messages?limit=1")).json()
        assert found["active_run"] is None
        assert len(found["items"]) == 1
        before = (await ask(app, "GET", f"/v1/threads/t1/messages?before={found['next']}")).json()
        assert [item["role"] for item in before["items"]] == ["user"]


async def test_a_deleted_thread_and_its_runs_are_gone() -> None:
    """SV-155: 404 at once, idempotent; a live run makes it 409 unless it is cancelled."""
    app = served(ScriptedProvider("a", ["b", Hold()]))
    async with app.lifespan():
        await start(app, run_id="r1", thread_id="t1", input="hi")
        await done(app, "r1")
        assert (await ask(app, "DELETE", "/v1/threads/t1")).status == 204
        assert (await ask(app, "DELETE", "/v1/threads/t1")).status == 204
        for path in ("/v1/threads/t1", "/v1/runs/r1", "/v1/threads/t1/messages", "/agui?runId=r1&offset=-1"):
            assert (await ask(app, "GET", path)).status == 404
        assert (await ask(app, "GET", "/v1/threads")).json()["items"] == []
        assert (await ask(app, "GET", "/v1/runs")).json()["items"] == []

        await start(app, run_id="r2", thread_id="t2", input="hi")
        refused = await ask(app, "DELETE", "/v1/threads/t2")
        assert (refused.status, refused.json()["run_id"]) == (409, "r2")
        assert (await ask(app, "DELETE", "/v1/threads/t2?cancel=true&purge=true")).status == 204
        assert (await ask(app, "GET", "/v1/runs/r2")).status == 404


async def test_a_thread_can_be_made_before_its_first_run() -> None:
    """SV-16: idempotent by key."""
    app = served(ScriptedProvider("a"))
    async with app.lifespan():
        headers = {"idempotency-key": "k"}
        made = await ask(app, "POST", "/v1/threads", {"title": "Plans"}, headers=headers)
        again = await ask(app, "POST", "/v1/threads", {"title": "Plans"}, headers=headers)
        assert (made.status, again.status) == (201, 200)
        assert made.json()["thread_id"] == again.json()["thread_id"]
        assert (await ask(app, "GET", "/v1/threads")).json()["items"][0]["title"] == "Plans"


async def test_input_requests_and_unknown_things() -> None:
    """SV-131, SV-12."""
    app = served(ScriptedProvider("a"))
    async with app.lifespan():
        await start(app, run_id="r/1", input="hi")
        found = await ask(app, "GET", "/v1/runs/r%2F1/input")
        assert found.json()["items"][0]["parts"] == [{"type": "text", "text": "hi"}]
        assert (await ask(app, "GET", "/v1/runs/r%2F1/requests")).json() == {"items": []}
        assert (await ask(app, "PUT", "/v1/runs")).status == 405
        assert (await ask(app, "PUT", "/v1/runs")).headers["allow"] == "GET, POST"
        assert (await ask(app, "GET", "/v1/nothing")).status == 404


@pytest.mark.parametrize(
    ("raw", "headers", "status", "code"),
    [
        (b"{", {"content-type": "application/json"}, 400, "invalid_json"),
        (b'{"a":NaN}', {"content-type": "application/json"}, 400, "invalid_json"),
        (b'{"input":1e999}', {"content-type": "application/json"}, 400, "invalid_json"),
        (b'{"input":-1e999}', {"content-type": "application/json"}, 400, "invalid_json"),
        (b'{"input":"\xff"}', {"content-type": "application/json"}, 400, "invalid_json"),
        (b'{"limits":' + b"1" * 5000 + b"}", {"content-type": "application/json"}, 400, "invalid_json"),
        (b"[]", {"content-type": "application/json"}, 422, "invalid_input"),
        (b"a=1", {"content-type": "application/x-www-form-urlencoded"}, 415, "media_type"),
        (b"{}", {}, 415, "media_type"),
        (b"[" * 100_000, {"content-type": "application/json"}, 422, "invalid_input"),
        (b'{"a":' * 70 + b"1" + b"}" * 70, {"content-type": "application/json"}, 422, "invalid_input"),
        (b"{}", {"content-type": "application/json", "content-length": "99999999"}, 413, "too_large"),
    ],
)
async def test_bodies_that_cannot_be_read(raw: bytes, headers: dict, status: int, code: str) -> None:
    """SV-19, SV §13: 400, 413, 415, 422 as problem documents."""
    app = served(ScriptedProvider())
    async with app.lifespan():
        answer = await ask(app, "POST", "/v1/runs", raw=raw, headers=headers)
        problem = answer.json()
        assert (answer.status, problem["code"], problem["status"]) == (status, code, status)
        assert answer.headers["content-type"] == "application/problem+json"
        assert problem["type"] == f"urn:pilothouse:problem:{code}"


ODD = ["\0", "a\0b", "\x1b", "\x7f", "x" * 201]


@pytest.mark.parametrize("odd", ODD)
async def test_what_cannot_be_an_id_is_not_even_looked_up(odd: str) -> None:
    """SV-13, SV §13: 404 or 422 on every route; a store that refuses NUL in a question is not asked one."""

    class Strict(MemoryJournal):
        """As Postgres: no text with NUL."""

        async def head(self, run_id):
            assert "\0" not in run_id
            return await super().head(run_id)

        async def list(self, query, **more):
            assert "\0" not in repr(query).replace("\\x00", "\0")
            return await super().list(query, **more)

    app = served(ScriptedProvider("a"), journal=Strict())
    async with app.lifespan():
        await start(app, run_id="r1", thread_id="t1", input="hi")
        name = quote(odd, safe="")
        for method, template, _ in app.routes.table:
            path = template.replace("{agent}", "default")
            for field in ("run", "thread", "command", "digest", "key", "export"):
                path = path.replace(f"{{{field}}}", name)
            body = {} if method in ("POST", "PATCH") else None
            for query in ("", f"?runId={name}", f"?threadId={name}", f"?thread={name}&agent={name}&q={name}"):
                answer = await ask(app, method, path + query, body)
                assert answer.status < 500, (method, path, query, answer.body)
        for body in (
            run_input(odd, "r2", "hi"),
            run_input("t2", odd, "hi"),
            run_input("t2", "r2", "hi", forwardedProps={"pilothouse": {"when_busy": []}}),
            run_input("t2", "r2", "hi", forwardedProps={"pilothouse": {"when_busy": {"a": 1}}}),
        ):
            assert (await ask(app, *POST, body)).status == 422
        single = {"method": "agent/stop", "params": {}, "body": {}}
        assert (await ask(app, "POST", "/copilotkit", single)).status == 422


async def test_lone_surrogates_and_numbers_without_measure_are_no_fault_of_ours() -> None:
    """SV §13, RC-4: surrogates become U+FFFD wherever they stand; a number beyond all facts is the end."""
    app = served(ScriptedProvider("a"))
    async with app.lifespan():
        await start(app, run_id="r1", thread_id="t1", input="hi")
        await done(app, "r1")
        odd = {"title": "\ud800", "metadata": {"k\ud800": "\ud800"}}
        made = await ask(app, "POST", "/v1/threads", odd)
        assert (made.status, made.json()["title"]) == (201, "\ufffd")
        assert (await ask(app, "PATCH", "/v1/threads/t1", odd)).json()["metadata"] == {"k\ufffd": "\ufffd"}
        assert (
            await ask(app, "POST", "/v1/threads/t1/fork", {"from": "r1", "title": "\ud800"})
        ).status == 201
        beyond = "9" * 40
        page = await ask(app, "GET", f"/v1/runs/r1/events?after={beyond}&limit={beyond}")
        assert (page.status, page.json()["events"]) == (200, [])


async def test_a_body_that_does_not_come_is_given_up() -> None:
    """SV §13: 408."""
    from pilothouse.testing.clock import StepClock

    clock = StepClock()
    app = served(ScriptedProvider(), clock=clock)
    hanging = Connection(app, "POST", "/v1/runs", headers={"content-type": "application/json"})
    hanging._incoming = []
    await app.start()
    async with hanging:
        await clock.advance(31.0)
        await hanging.ended()
        assert (hanging.status, json.loads(hanging.body)["code"]) == (408, "body_timeout")

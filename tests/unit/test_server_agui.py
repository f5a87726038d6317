"""The AG-UI face, in process: start, follow, join, resume, stop, busy threads (server page §6)."""

from __future__ import annotations

import asyncio

import pytest

from asgikit import Connection, ask, run_input, served
from pilothouse.core.agui import events as agui
from pilothouse.core.agui.verify import Verifier
from pilothouse.journal.memory import MemoryJournal
from pilothouse.loop.tools import tool
from pilothouse.messages import Usage
from pilothouse.server.settings import AGUIOptions, CancelAfter, ServerLimits
from pilothouse.server.stream import StreamCut
from pilothouse.testing import FaultyJournal
from pilothouse.testing.clock import StepClock
from pilothouse.testing.scripted import Cut, Hold, ScriptedProvider, call, failure, thought

VERIFY = AGUIOptions(verify=True)


def verified(connection: Connection, profile: agui.Profile = "1.0") -> list[agui.Event]:
    """The events of a stream that ended; legal from first to last."""
    events = [agui.decode(frame.data) for frame in connection.frames]
    Verifier(profile).check_all(events)
    return events


async def post(app, body: dict, path: str = "/agui/default", **options) -> Connection:
    return await ask(app, "POST", path, body, **options)


async def test_an_answer_is_streamed_and_ends_with_its_usage() -> None:
    """SV-40, SV-42, SV-55, SV-75: headers, the first bytes, a legal stream, one terminal event, then a clean close."""
    app = served(ScriptedProvider([thought("hm"), "hel", "lo", Usage(3, output=2)]), agui=VERIFY)
    async with app.lifespan():
        answer = await post(app, run_input("t1", "r1", "hi"))
        events = verified(answer)
        assert answer.text == "hello"
        assert answer.closed
        assert answer.error is None
        assert answer.body.startswith(b"retry: 1000\n\n: ")
        assert events[-1].usage == [agui.TokenUsage("scripted", "scripted-1", 3, 2, 5)]
        assert answer.headers["pilothouse-run-id"] == "r1"
        assert answer.headers["pilothouse-thread-id"] == "t1"
        assert (await ask(app, "GET", "/v1/runs/r1")).json()["status"] == "completed"


async def test_tool_calls_and_results_are_streamed() -> None:
    """SV §6.2: announced, run, answered."""

    @tool(effect="read")
    async def tide(place: str) -> str:
        """The tide."""
        return f"3.1 m at {place}"

    app = served(
        ScriptedProvider([call("tide", {"place": "Bréhat"}, call_id="c1")], "It is 3.1 m."), tools=[tide]
    )
    async with app.lifespan():
        answer = await post(app, run_input("t1", "r1", "tide?"))
        verified(answer)
        kinds = [kind for kind in answer.types if kind.startswith("TOOL")]
        assert kinds == ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"]
        result = next(event for event in answer.events if event["type"] == "TOOL_CALL_RESULT")
        assert result["content"] == "3.1 m at Bréhat"


async def test_leaving_does_not_stop_and_joining_shows_the_text_once() -> None:
    """SV-60, SV-62, fixture 148: a closed tab is a reader that left."""
    hold = Hold()
    app = served(ScriptedProvider(["a", hold, "b"]))
    async with app.lifespan():
        async with Connection(app, "POST", "/agui/default", json_body=run_input("t1", "r1", "go")) as tab:
            await tab.seen("a")
        assert (await ask(app, "GET", "/v1/runs/r1")).json()["status"] == "running"
        async with Connection(app, "GET", "/agui/default?runId=r1&offset=-1") as again:
            await again.until(lambda: "MESSAGES_SNAPSHOT" in again.types)
            hold.release()
            await again.ended()
            assert again.text == "ab"
            verified(again)
            snapshot = again.events[1]
            assert [message["content"] for message in snapshot["messages"]] == ["go"]


async def test_every_cut_is_resumed_from_its_id() -> None:
    """SV-45, proof 2: cut behind each frame of a real stream, go on from its id: nothing twice, nothing missing."""
    app = served(ScriptedProvider([thought("hm"), "one ", "two ", "three"]), agui=VERIFY)
    async with app.lifespan():
        whole = await post(app, run_input("t1", "r1", "go"))
        shown = [(frame.id, frame.data) for frame in whole.frames if frame.id]
        for number, (frame_id, _) in enumerate(shown[:-1]):
            rest = await post(app, run_input("t1", "r1", "go"), headers={"last-event-id": frame_id})
            assert rest.headers["idempotent-replayed"] == "true"
            got = [(frame.id, frame.data) for frame in rest.frames if frame.id]
            text = b"".join(data for _, data in got)
            assert [one for one, _ in got][-1] == shown[-1][0]
            assert whole.text.endswith(rest.text)
            before = "".join(
                event["delta"]
                for event in whole.events[: number + 1]
                if event["type"] == "TEXT_MESSAGE_CONTENT"
            )
            assert before + rest.text == whole.text, text


async def test_a_cursor_at_the_end_repeats_the_terminal_frame() -> None:
    """SV-49."""
    app = served(ScriptedProvider("done"))
    async with app.lifespan():
        whole = await post(app, run_input("t1", "r1", "go"))
        again = await ask(app, "GET", "/agui?runId=r1", headers={"last-event-id": whole.frames[-1].id})
        assert again.types == ["RUN_FINISHED"]
        assert again.closed


@pytest.mark.parametrize("cursor", ["nonsense", "99999~00000000", "3~ffffffff"])
async def test_a_cursor_that_cannot_be_gone_on_from_starts_over(cursor: str) -> None:
    """SV-47, fixture 151: never 400, never a silent gap: RUN_STARTED and MESSAGES_SNAPSHOT first."""
    app = served(ScriptedProvider("done"))
    async with app.lifespan():
        await post(app, run_input("t1", "r1", "go"))
        again = await post(app, run_input("t1", "r1", "go"), headers={"last-event-id": cursor})
        assert again.status == 200
        assert again.types[:2] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
        assert again.text == "done"
        verified(again)


async def test_the_same_run_id_is_one_run() -> None:
    """SV-15, SV-72, fixture 120: twenty at once, again later, other content."""
    provider = ScriptedProvider("paid")
    app = served(provider)
    async with app.lifespan():
        body = run_input("t1", "k1", "pay")
        answers = await asyncio.gather(*[post(app, body) for _ in range(20)])
        assert {answer.text for answer in answers} == {"paid"}
        assert len(provider.requests) == 1
        later = await post(app, body)
        assert (later.status, later.text) == (200, "paid")
        other = await post(app, run_input("t1", "k1", "pay twice"))
        assert (other.status, other.json()["code"]) == (409, "run_conflict")
        elsewhere = await post(app, run_input("t2", "k1", "pay"))
        assert (elsewhere.status, elsewhere.json()["code"]) == (409, "run_conflict")


async def test_stop_ends_the_run_for_everybody_and_the_next_send_works() -> None:
    """SV-183, fixture 110: cancelled, never an error; the model's connection is closed; text stays."""
    provider = ScriptedProvider(["one ", Hold()], "next answer")
    app = served(provider)
    async with app.lifespan():
        async with Connection(app, "POST", "/agui/default", json_body=run_input("t1", "r1", "go")) as first:
            await first.seen("one ")
            async with Connection(app, "GET", "/agui?runId=r1&offset=-1") as second:
                await second.until(lambda: "RUN_STARTED" in second.types)
                stopped = await ask(app, "POST", "/agui/default/stop", {"threadId": "t1", "runId": "r1"})
                assert stopped.json() == {"stopped": True}
                await asyncio.gather(first.ended(), second.ended())
                for reader in (first, second):
                    assert reader.events[-1]["outcome"] == {"type": "cancelled"}
                    assert reader.text == "one "
                    verified(reader)
        assert provider.open == 0
        again = await ask(app, "POST", "/agui/default/stop", {"threadId": "t1"})
        assert again.json() == {"stopped": False}
        listed = (await ask(app, "GET", "/v1/threads/t1/messages")).json()["items"]
        assert listed[-1]["delivery"] == {"phase": "complete", "outcome": "aborted"}
        sent = listed[0]["id"]
        following = await post(
            app, run_input("t1", "r2", {"id": sent, "role": "user", "content": "go"}, "and now?")
        )
        assert following.text == "next answer"


async def test_stop_of_something_unknown_stops_nothing() -> None:
    """The page asks to stop what it does not know to have begun."""
    app = served(ScriptedProvider())
    async with app.lifespan():
        answer = await ask(app, "POST", "/agui/default/stop", {"threadId": "new", "runId": "r9"})
        assert (answer.status, answer.json()) == (200, {"stopped": False})


async def test_a_failure_is_told_once_with_its_code() -> None:
    """RC-86, SV-95, fixture 177."""
    app = served(
        ScriptedProvider(["half ", failure("auth", "HTTP 401: key sk-abcdef123456 is wrong", status=401)])
    )
    async with app.lifespan():
        answer = await post(app, run_input("t1", "r1", "go"))
        verified(answer)
        assert answer.events[-1]["code"] == "auth"
        assert "401" in answer.events[-1]["message"]
        assert "sk-abc" not in answer.body.decode()


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (Cut(), "the model's response ended without saying that it was complete"),
        (Cut(ConnectionResetError()), "the connection to the model broke in the middle of its response"),
    ],
)
async def test_an_undeclared_end_is_unknown_not_finished(cut: Cut, words: str) -> None:
    """SV-55, PV-2: nothing guessed; a silent end and a broken connection are told apart."""
    app = served(ScriptedProvider(["half ", cut]))
    async with app.lifespan():
        answer = await post(app, run_input("t1", "r1", "go"))
        verified(answer)
        assert answer.events[-1]["type"] == "RUN_ERROR"
        assert answer.events[-1]["code"] == "outcome_unknown"
        assert answer.events[-1]["message"].endswith(words)
        view = (await ask(app, "GET", "/v1/runs/r1")).json()
        assert (view["status"], view["outcome"], view["live"]) == ("unknown", None, False)
        assert (view["unknown"]["cause"], view["unknown"]["reason"]) == ("eof", words)
        assert set(view["unknown"]["ways"]) == {"recover", "abandon"}
        last = (await ask(app, "GET", "/v1/threads/t1/messages")).json()["items"][-1]
        assert last["delivery"]["outcome"] == "interrupted"


async def test_a_send_after_an_unknown_run_hangs_on_it_and_leaves_it_as_it_is() -> None:
    """SV-224, AC-122: an orphan never makes its thread busy for ever."""
    app = served(ScriptedProvider(["half ", Cut()], "next"))
    async with app.lifespan():
        await post(app, run_input("t1", "r1", "go"))
        after = await post(
            app, run_input("t1", "r2", {"id": "r1-u0", "role": "user", "content": "go"}, "more")
        )
        assert after.text == "next"
        assert (await ask(app, "GET", "/v1/runs/r1")).json()["status"] == "unknown"
        assert (await ask(app, "GET", "/v1/runs/r2")).json()["parent"]["run_id"] == "r1"


async def test_a_legacy_client_gets_what_it_can_take() -> None:
    """SV-90, SV-91: no protocolVersion is a 0.0.5x client; the query overrides."""
    app = served(ScriptedProvider(["one ", Hold()], ["two ", Hold()]), agui=VERIFY)
    async with app.lifespan():
        for run, path, legacy in (("r1", "/agui/default", True), ("r2", "/agui/default?profile=1.0", False)):
            body = run_input(f"t-{run}", run, "go")
            del body["protocolVersion"]
            async with Connection(app, "POST", path, json_body=body) as tab:
                await tab.until(lambda tab=tab: tab.text)
                await ask(app, "POST", "/agui/default/stop", {"threadId": f"t-{run}"})
                await tab.ended()
                verified(tab, "legacy" if legacy else "1.0")
                assert ("outcome" in tab.events[-1]) is not legacy
                assert ("CUSTOM" in tab.types) is legacy


# A list that lags, edits, regenerates, retries (SV-101)


async def test_a_client_that_missed_the_answer_is_merged_by_id() -> None:
    """SV-101, fixture 150: 200, no second answer for one user message, nothing deleted."""
    provider = ScriptedProvider("saved answer", "second")
    app = served(provider)
    async with app.lifespan():
        await post(app, run_input("t1", "r1", "first"))
        sent = {"id": "r1-u0", "role": "user", "content": "first"}
        lagging = await post(app, run_input("t1", "r2", sent, "and then?"))
        assert lagging.status == 200
        assert [message.text for message in provider.requests[1].messages] == [
            "first",
            "saved answer",
            "and then?",
        ]
        listed = (await ask(app, "GET", "/v1/threads/t1/messages")).json()["items"]
        assert [item["role"] for item in listed] == ["user", "assistant", "user", "assistant"]


async def test_an_edited_message_makes_a_branch() -> None:
    """SV-101: the new run hangs on what stands before the edited message; the old branch stays."""
    provider = ScriptedProvider("a1", "a2", "a2 again")
    app = served(provider)
    async with app.lifespan():
        await post(app, run_input("t1", "r1", "u1"))
        known = [
            {"id": "r1-u0", "role": "user", "content": "u1"},
            {"id": "r1-1-1", "role": "assistant", "content": "a1"},
        ]
        await post(app, run_input("t1", "r2", *known, "u2"))
        await post(app, run_input("t1", "r3", *known, "u2, edited"))
        assert [message.text for message in provider.requests[2].messages] == ["u1", "a1", "u2, edited"]
        view = (await ask(app, "GET", "/v1/runs/r3")).json()
        assert view["parent"] == {"run_id": "r1", "keep_through": "r1-1-1"}
        assert (await ask(app, "GET", "/v1/runs/r2")).json()["status"] == "completed"


async def test_no_new_message_regenerates_an_answered_one() -> None:
    """SV-101, RC-68."""
    provider = ScriptedProvider("first answer", "other answer")
    app = served(provider)
    async with app.lifespan():
        await post(app, run_input("t1", "r1", "u1"))
        again = await post(app, run_input("t1", "r2", {"id": "r1-u0", "role": "user", "content": "u1"}))
        assert again.text == "other answer"
        assert [message.text for message in provider.requests[1].messages] == ["u1"]


async def test_no_new_message_retries_a_failed_run() -> None:
    """SV-101, AC-50: on from the last committed exchange; an unknown run is abandoned on the record first."""
    app = served(ScriptedProvider(["half ", failure("overloaded")], ["half ", Cut()], "whole"))
    async with app.lifespan():
        said = {"id": "r1-u0", "role": "user", "content": "u1"}
        await post(app, run_input("t1", "r1", "u1"))
        assert (await post(app, run_input("t1", "r2", said))).events[-1]["code"] == "outcome_unknown"
        third = await post(app, run_input("t1", "r3", said))
        assert third.text == "whole"
        statuses = [(await ask(app, "GET", f"/v1/runs/{run}")).json()["status"] for run in ("r1", "r2", "r3")]
        assert statuses == ["failed", "unknown", "completed"]
        assert (await ask(app, "GET", "/v1/runs/r2")).json()["outcome"]["settled"] is True


async def test_nothing_to_answer_is_refused_before_the_stream_opens() -> None:
    """SV-73."""
    app = served(ScriptedProvider("a1"))
    async with app.lifespan():
        empty = await post(app, run_input("t1", "r1"))
        assert (empty.status, empty.json()["code"]) == (422, "nothing_to_do")


# A busy thread (SV-116)


def policy(name: str) -> dict:
    return {"forwardedProps": {"pilothouse": {"when_busy": name}}}


async def busy(name: str | None, *, followed: bool = True):
    """A second send while the first one streams."""
    hold = Hold()
    provider = ScriptedProvider(["a", hold, "b"], "second")
    app = served(provider)
    async with app.lifespan():
        async with Connection(app, "POST", "/agui/default", json_body=run_input("t1", "r1", "one")) as first:
            await first.seen("a")
            if not followed:
                first.leave()
                await first.ended()
            more = {} if name is None else policy(name)
            body = run_input("t1", "r2", {"id": "r1-u0", "role": "user", "content": "one"}, "two", **more)
            async with Connection(app, "POST", "/agui/default", json_body=body) as second:
                await second.started()
                yield app, provider, hold, first, second


async def test_raise_refuses_the_second_and_leaves_the_first_alone() -> None:
    """Fixture 121 (`reject`)."""
    async for app, _, hold, first, second in busy("raise"):
        await second.ended()
        assert second.status == 409
        assert (second.json()["code"], second.json()["run_id"]) == ("thread_busy", "r1")
        hold.release()
        await first.ended()
        assert first.text == "ab"
        assert (await ask(app, "GET", "/v1/runs/r2")).status == 404


async def test_queue_runs_the_second_after_the_first() -> None:
    """Fixture 121: its stream opens at once and stays on comments until the run is registered."""
    async for _, provider, hold, first, second in busy("queue"):
        assert second.status == 200
        assert second.frames == []
        hold.release()
        await asyncio.gather(first.ended(), second.ended())
        assert (first.text, second.text) == ("ab", "second")
        assert [message.text for message in provider.requests[1].messages] == ["one", "ab", "two"]


async def test_supersede_keeps_the_partial_and_goes_on() -> None:
    """Fixture 121, SV-117."""
    async for app, _, _, first, second in busy("supersede"):
        await asyncio.gather(first.ended(), second.ended())
        assert first.events[-1]["outcome"] == {"type": "cancelled"}
        assert second.text == "second"
        items = (await ask(app, "GET", "/v1/threads/t1/messages")).json()["items"]
        assert items[1]["delivery"] == {"phase": "complete", "outcome": "interrupted", "reason": "superseded"}


async def test_the_default_supersedes_only_what_nobody_follows() -> None:
    """SV-116: a send after a closed tab works, a double click is harmless."""
    async for _, _, _, _, second in busy(None, followed=True):
        await second.ended()
        assert second.status == 409
    async for _, _, _, _, second in busy(None, followed=False):
        await second.ended()
        assert (second.status, second.text) == (200, "second")


async def test_steer_gives_the_message_to_the_live_run() -> None:
    """AG-84: the stream follows the run that took it."""
    hold = Hold()
    app = served(ScriptedProvider(["a", hold, "b"], "taken in"))
    async with app.lifespan():
        async with Connection(app, "POST", "/agui/default", json_body=run_input("t1", "r1", "one")) as first:
            await first.seen("a")
            body = run_input(
                "t1", "r2", {"id": "r1-u0", "role": "user", "content": "one"}, "two", **policy("steer")
            )
            async with Connection(app, "POST", "/agui/default", json_body=body) as second:
                await second.started()
                hold.release()
                await asyncio.gather(first.ended(), second.ended())
                assert first.text == "abtwotaken in"
                assert "taken in" in second.text
                verified(first)
                verified(second)


async def test_rollback_takes_the_parent_of_what_it_replaces() -> None:
    """Fixture 121: the first is cancelled and left off the path."""
    hold = Hold()
    provider = ScriptedProvider("a0", ["a", hold], "second")
    app = served(provider)
    async with app.lifespan():
        await post(app, run_input("t1", "r0", "zero"))
        known = [
            {"id": "r0-u0", "role": "user", "content": "zero"},
            {"id": "r0-1-1", "role": "assistant", "content": "a0"},
        ]
        async with Connection(
            app, "POST", "/agui/default", json_body=run_input("t1", "r1", *known, "one")
        ) as first:
            await first.seen("a")
            told = [*known, {"id": "r1-u2", "role": "user", "content": "one"}]
            second = await post(app, run_input("t1", "r2", *told, "two", **policy("rollback")))
            assert second.text == "second"
        assert [message.text for message in provider.requests[2].messages] == ["zero", "a0", "two"]


@pytest.mark.parametrize("name", ["queue", "supersede", "rollback", "steer"])
@pytest.mark.parametrize("path", ["/agui/default", "/v1/runs"])
async def test_a_policy_holds_for_a_send_whose_forerunner_is_not_registered_yet(name: str, path: str) -> None:
    """SV-116, fixture 121: what is sent in the same moment is not refused because the disk was slow."""
    provider = ScriptedProvider(lambda asked: ["to ", asked.messages[-1].text], repeat=True)
    app = served(provider, journal=FaultyJournal(MemoryJournal(), immediate=False))
    said = ["one", "two", "three"]

    async def send(text: str) -> Connection:
        if path == "/v1/runs":
            body = {"thread_id": "t1", "run_id": text, "input": text, "when_busy": name}
            return await ask(app, "POST", path, body)
        return await post(app, run_input("t1", text, text, **policy(name)))

    async with app.lifespan():
        answers = await asyncio.gather(*[send(text) for text in said])
        assert [answer.status for answer in answers if answer.status >= 300] == []
        while (await ask(app, "GET", "/v1/runs?status=running")).json()["items"]:
            await asyncio.sleep(0)
        if name == "queue":
            for text in said:
                assert (await ask(app, "GET", f"/v1/runs/{text}?wait=10")).json()["status"] == "completed"
        if name in ("queue", "supersede"):  # a steer that came too late waits for the next send
            items = (await ask(app, "GET", "/v1/threads/t1/messages")).json()["items"]
            told = ["".join(part.get("text", "") for part in item["parts"]) for item in items]
            assert sorted(text for text in told if text in said) == sorted(said)
    assert provider.open == 0


async def test_an_unknown_policy_is_refused() -> None:
    app = served(ScriptedProvider("a"))
    async with app.lifespan():
        answer = await post(app, run_input("t1", "r1", "hi", **policy("drop")))
        assert answer.status == 422
        assert "when_busy" in answer.json()["errors"][0]["path"]


# Bad input (server page §13)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"runId": "r", "messages": []}, "threadId"),
        ({"threadId": "t", "messages": []}, "runId"),
        ({"threadId": "t", "runId": "r"}, "messages"),
        ({"threadId": "t", "runId": "r", "messages": {}}, "messages"),
        ({"threadId": "t", "runId": "r", "messages": ["x"]}, "messages[0]"),
        ({"threadId": "t", "runId": "r", "messages": [{"role": "user"}]}, "messages[0].id"),
        ({"threadId": "t", "runId": "r", "messages": [{"id": "m"}]}, "messages[0].role"),
        ({"threadId": "t" * 201, "runId": "r", "messages": []}, "threadId"),
        ({"threadId": "t\n", "runId": "r", "messages": []}, "threadId"),
        ({"threadId": "t", "runId": "r", "messages": [], "tools": [{}]}, "tools[0].name"),
        (
            {"threadId": "t", "runId": "r", "messages": [], "resume": [{"interruptId": "x"}]},
            "resume[0].status",
        ),
    ],
)
async def test_what_does_not_name_a_run_is_refused_with_paths(body: dict, path: str) -> None:
    """SV §13."""
    app = served(ScriptedProvider())
    async with app.lifespan():
        answer = await post(app, body)
        assert answer.status == 422
        assert path in [error["path"] for error in answer.json()["errors"]]


async def test_what_we_can_do_without_is_dropped() -> None:
    """SV-100: unknown parts, repeated ids, orphan tool messages, absent lists; the run runs."""
    provider = ScriptedProvider("fine")
    app = served(provider)
    async with app.lifespan():
        body = {
            "threadId": "t", "runId": "r", "state": None,
            "messages": [
                {"id": "x", "role": "tool", "toolCallId": "nobody", "content": "late"},
                {"id": "m", "role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "hologram"}]},
                {"id": "m", "role": "user", "content": "again"},
            ],
        }  # fmt: skip
        answer = await post(app, body)
        assert answer.text == "fine"
        assert provider.requests[0].messages[-1].text == "hi"


async def test_text_that_cannot_be_encoded_is_accepted() -> None:
    """RC-4, SV §13: surrogates become U+FFFD, NUL stays."""
    app = served(ScriptedProvider("fine"))
    async with app.lifespan():
        raw = (
            b'{"threadId":"t","runId":"r","messages":[{"id":"m","role":"user","content":"a\\ud800b\\u0000"}]}'
        )
        answer = await ask(
            app, "POST", "/agui/default", raw=raw, headers={"content-type": "application/json"}
        )
        assert answer.text == "fine"
        said = (await ask(app, "GET", "/v1/threads/t/messages")).json()["items"][0]
        assert said["parts"][0]["text"] == "a\ufffdb\x00"


async def test_an_unknown_agent_or_run_is_not_found() -> None:
    """SV-12: the same answer for all."""
    app = served(ScriptedProvider())
    async with app.lifespan():
        answers = [
            await post(app, run_input("t", "r", "hi"), path="/agui/nobody"),
            await ask(app, "GET", "/agui/default?runId=nothing"),
            await ask(app, "GET", "/v1/runs/nothing"),
        ]
        bodies = [{**answer.json(), "instance": ""} for answer in answers]
        assert [answer.status for answer in answers] == [404] * 3
        assert bodies[0] == bodies[1] == bodies[2]


async def test_hydrate_tells_messages_the_live_run_and_nothing_for_an_unknown_thread() -> None:
    """SV-156."""
    hold = Hold()
    app = served(ScriptedProvider(["a", hold, "b"]))
    async with app.lifespan():
        assert (await ask(app, "GET", "/agui/default?threadId=new")).json()["messages"] == []
        async with Connection(app, "POST", "/agui/default", json_body=run_input("t1", "r1", "one")) as first:
            await first.seen("a")
            found = (await ask(app, "GET", "/agui/default?threadId=t1")).json()
            assert found["activeRun"] == {"runId": "r1"}
            assert found["messages"][0]["content"] == "one"
            hold.release()
            await first.ended()
        found = (await ask(app, "GET", "/agui/default?threadId=t1")).json()
        assert found["activeRun"] is None
        assert [message["role"] for message in found["messages"]] == ["user", "assistant"]


# What becomes of a run that nobody follows (SV-60)


@pytest.mark.parametrize(
    ("option", "status"), [("continue", "running"), ("cancel", "cancelled"), (CancelAfter(10.0), "cancelled")]
)
async def test_the_policy_for_a_run_that_nobody_follows(option, status: str) -> None:
    """SV-60: on by default; the other policies cancel with the ordinary command."""
    clock = StepClock()
    app = served(ScriptedProvider(["a", Hold()]), on_disconnect=option, clock=clock)
    async with _opened(app):
        async with Connection(app, "POST", "/agui/default", json_body=run_input("t1", "r1", "one")) as tab:
            await tab.seen("a")
        await clock.advance(5)
        if isinstance(option, CancelAfter):
            assert (await ask(app, "GET", "/v1/runs/r1")).json()["status"] == "running"
        await clock.advance(6)
        view = (await ask(app, "GET", "/v1/runs/r1")).json()
        assert view["status"] == status
        if status == "cancelled":
            assert view["outcome"]["reason"] == "disconnected"


class _opened:
    """A server whose clock stands still: closed by hand at the end."""

    def __init__(self, app) -> None:
        self.app = app

    async def __aenter__(self) -> None:
        await self.app.start()

    async def __aexit__(self, *exc: object) -> None:
        closing = asyncio.ensure_future(self.app.drain(0.0))
        while not closing.done():
            await self.app.clock.advance(1.0)
        await closing


async def test_limits_of_streams_and_runs() -> None:
    """§2 limits: 429 with Retry-After, and what is live stays untouched."""
    limits = ServerLimits(runs_per_tenant=1, followers_per_run=2)
    app = served(ScriptedProvider(["a", Hold()], "x"), limits=limits)
    async with app.lifespan():
        async with Connection(app, "POST", "/agui/default", json_body=run_input("t1", "r1", "one")) as first:
            await first.seen("a")
            more = await post(app, run_input("t2", "r2", "two"))
            assert (more.status, more.json()["code"]) == (429, "too_many_runs")
            assert "retry-after" in more.headers
            async with Connection(app, "GET", "/agui?runId=r1&offset=-1") as second:
                await second.until(lambda: "RUN_STARTED" in second.types)
                third = await ask(app, "GET", "/agui?runId=r1&offset=-1")
                assert (third.status, third.json()["code"]) == (429, "too_many_streams")
            await ask(app, "POST", "/agui/default/stop", {"threadId": "t1"})


async def test_draining_refuses_new_runs_and_cuts_streams_of_runs_that_go_on() -> None:
    """SV-221, SV-222: cut, not closed; no terminal event; the run is handed to recovery."""
    app = served(ScriptedProvider(["a", Hold()]))
    await app.start()
    async with Connection(app, "POST", "/agui/default", json_body=run_input("t1", "r1", "one")) as tab:
        await tab.seen("a")
        drained = await app.drain(0.0)
        await tab.ended()
        assert isinstance(tab.error, StreamCut)
        assert not tab.closed
        assert tab.events[-1] == {"type": "CUSTOM", "name": "pilothouse.cut", "value": {"reason": "draining"}}
        assert drained.handed_over == ("r1",)
    refused = await post(app, run_input("t1", "r2", "two"))
    assert (refused.status, refused.json()["code"]) == (503, "draining")
    for path in ("/agui?runId=r1&offset=-1", "/v1/runs/r1/events"):
        back = await ask(
            app, "GET", path, headers={"accept": "text/event-stream"}
        )  # at once, as it was told to: it must not read the loss here
        assert (back.status, back.json()["code"], back.headers["retry-after"]) == (503, "draining", "5")
    assert (await ask(app, "GET", "/readyz")).status == 503
    assert (await ask(app, "GET", "/healthz")).status == 200

"""The AI SDK face over ASGI: what is posted, what is streamed, what is refused (server page §9)."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest

from asgikit import Connection, ask, run_input, served
from pilothouse.journal.memory import MemoryJournal
from pilothouse.loop.context import ToolContext
from pilothouse.loop.tools import tool
from pilothouse.responses import StreamEnd
from pilothouse.server.auth import BearerTokens, Principal
from pilothouse.server.settings import StreamOptions
from pilothouse.server.stream import StreamCut
from pilothouse.testing.scripted import Hold, ScriptedProvider, call, failure

AT = "/aisdk/default"


@tool(approval=True)
async def buy(what: str) -> str:
    """Buys something."""
    return f"bought {what}"


def user(text: str, name: str) -> dict[str, Any]:
    return {"id": name, "role": "user", "parts": [{"type": "text", "text": text}]}


def chat(thread: str, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": thread, "messages": list(messages), "trigger": "submit-message", **more}


def parts(told: Connection) -> list[dict[str, Any]]:
    assert told.status == 200, told.body
    return [json.loads(frame.data) for frame in told.frames if frame.data != b"[DONE]"]


def text(told: Connection) -> str:
    return "".join(part["delta"] for part in parts(told) if part["type"] == "text-delta")


def done(told: Connection) -> bool:
    return told.closed and told.frames[-1].data == b"[DONE]"


def answered(told: Connection, approved: Any = True, **more: Any) -> dict[str, Any]:
    """The assistant message of a run that asked, with the approval's answer."""
    found = parts(told)
    (asked,) = [part for part in found if part["type"] == "tool-approval-request"]
    (made,) = [part for part in found if part["type"] == "tool-input-available"]
    approval = {"id": asked["approvalId"], "approved": approved, **more}
    part = {
        "type": f"tool-{made['toolName']}", "toolCallId": made["toolCallId"], "state": "approval-responded",
        "input": made["input"], "approval": approval,
    }  # fmt: skip
    return {"id": found[0]["messageId"], "role": "assistant", "parts": [{"type": "step-start"}, part]}


@pytest.mark.parametrize(
    ("script", "end"),
    [
        (["hello"], {"type": "finish", "finishReason": "stop"}),
        ([["half", StreamEnd("length")]], {"type": "finish", "finishReason": "length"}),
        ([failure("auth", "HTTP 401", status=401)], {"type": "error"}),
    ],
)
async def test_a_run_ends_once_with_done_behind_it(script: Any, end: dict[str, Any]) -> None:
    """SV-40, SV-44, SV-200, SV-201: headers, no frame ids, one end."""
    app = served(ScriptedProvider(*script))
    async with app.lifespan():
        told = await ask(app, "POST", AT, chat("t1", user("hi", "u1")))
        assert told.headers["x-vercel-ai-ui-message-stream"] == "v1"
        assert told.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert told.headers["x-accel-buffering"] == "no"
        assert told.headers["pilothouse-thread-id"] == "t1"
        assert done(told)
        assert not any(frame.id for frame in told.frames)
        found = parts(told)
        assert end.items() <= found[-1].items()
        assert found[0] == {
            "type": "start",
            "messageId": f"pilothouse-run:{told.headers['pilothouse-run-id']}",
        }
        assert (await ask(app, "GET", f"{AT}/t1/stream")).status == 204


@pytest.mark.parametrize("how", ["drain", "max_duration"])
async def test_a_cut_is_no_end(how: str) -> None:
    """SV-56, SV-201, fixture 181: neither an end nor `[DONE]`; the connection breaks off, and the run goes on."""
    hold = Hold()
    limit = 0.05 if how == "max_duration" else None
    app = served(ScriptedProvider(["First. ", hold, "Second."]), streams=StreamOptions(max_duration=limit))
    async with app.lifespan(), Connection(app, "POST", AT, json_body=chat("t1", user("hi", "u1"))) as told:
        await told.until(lambda: b"First" in told.body)
        if how == "drain":
            await app.drain(0.0)
        await told.ended()
        assert isinstance(told.error, StreamCut)
        assert not told.closed
        assert b"[DONE]" not in told.body
        kinds = [part["type"] for part in parts(told)]
        assert not {"finish", "error", "abort"} & set(kinds)
        assert kinds[-1] == "data-pilothouse-cut"
        hold.release()


async def test_who_comes_back_is_told_the_message_from_its_start_and_a_stop_is_an_abort() -> None:
    """SV-60, SV-202, SV-204: on the same id; the stop reaches the run, whoever follows it."""
    hold = Hold()
    app = served(ScriptedProvider(["First. ", hold, "Second."]))
    async with app.lifespan():
        async with Connection(app, "POST", AT, json_body=chat("t1", user("hi", "u1"))) as first:
            await first.until(lambda: b"First" in first.body)
        async with Connection(app, "GET", f"{AT}/t1/stream") as again:
            await again.until(lambda: b"First" in again.body)
            assert again.headers["x-vercel-ai-ui-message-stream"] == "v1"
            stopped = await ask(app, "POST", f"{AT}/t1/stop")
            assert stopped.json() == {"stopped": True}
            await again.ended()
        assert done(again)
        assert parts(again)[0] == parts(first)[0]
        assert text(again) == "First. "
        assert parts(again)[-1] == {"type": "abort", "reason": "stopped"}
        assert (await ask(app, "POST", f"{AT}/t1/stop")).json() == {"stopped": False}


async def test_an_approval_is_answered_once_and_the_same_message_goes_on() -> None:
    """SV-103, SV-203: `start` without an id, then the output; posted again it is the same stream, answered otherwise 409."""
    app = served(ScriptedProvider([call("buy", {"what": "tea"})], "Done."), tools=[buy])
    async with app.lifespan():
        first = await ask(app, "POST", AT, chat("t1", user("buy", "u1")))
        assert parts(first)[-1] == {"type": "finish", "finishReason": "tool-calls"}
        waiting = await ask(app, "GET", f"{AT}/t1/stream")  # a run that waits is live
        assert [part["type"] for part in parts(waiting)] == [part["type"] for part in parts(first)]
        refused = await ask(app, "POST", AT, chat("t1", user("buy", "u1"), user("and?", "u2")))
        assert (refused.status, refused.json()["code"]) == (409, "requests_pending")
        assert (
            await ask(app, "POST", AT, chat("t1", user("buy", "u1"), answered(first, None)))
        ).status == 422
        body = chat("t1", user("buy", "u1"), answered(first), messageId=parts(first)[0]["messageId"])
        second = await ask(app, "POST", AT, body)
        found = parts(second)
        assert found[0] == {"type": "start"}
        assert [part for part in found if part["type"].startswith("tool-")] == [
            {"type": "tool-output-available", "toolCallId": "call-1-1", "output": "bought tea"}
        ]
        assert text(second) == "Done."
        assert done(second)
        assert (await ask(app, "POST", AT, body)).frames == second.frames
        other = await ask(app, "POST", AT, chat("t1", user("buy", "u1"), answered(first, approved=False)))
        assert (other.status, other.json()["code"]) == (409, "request_not_pending")
        assert len((await ask(app, "GET", "/v1/threads/t1/runs")).json()["items"]) == 1


async def test_a_denied_call_is_told_so_also_to_who_comes_later() -> None:
    """SV-202, SV-203: the replay of a run whose approval was answered shows that it was asked."""
    hold = Hold()
    app = served(ScriptedProvider([call("buy", {"what": "tea"})], [hold, "Pity."]), tools=[buy])
    async with app.lifespan():
        first = await ask(app, "POST", AT, chat("t1", user("buy", "u1")))
        body = chat("t1", user("buy", "u1"), answered(first, approved=False, reason="too dear"))
        async with Connection(app, "POST", AT, json_body=body) as second:
            await hold.reached()
            async with Connection(app, "GET", f"{AT}/t1/stream") as again:
                await again.until(lambda: b"tool-output-denied" in again.body)
                hold.release()
                await again.ended()
            await second.ended()
        kinds = [part["type"] for part in parts(again) if part["type"].startswith("tool-")]
        assert kinds[-2:] == ["tool-approval-request", "tool-output-denied"]
        kinds = [part["type"] for part in parts(second) if part["type"].startswith("tool-")]
        assert kinds == ["tool-output-denied"]


async def test_the_same_message_again_is_the_same_run() -> None:
    """SV-15, SV-70: a POST whose answer was lost; other content under the key is a conflict."""
    provider = ScriptedProvider("hello", repeat=True)
    app = served(provider)
    async with app.lifespan():
        body = chat("t1", user("hi", "u1"))
        first = await ask(app, "POST", AT, body)
        again = await ask(app, "POST", AT, body)
        assert again.frames == first.frames
        assert again.headers["idempotent-replayed"] == "true"
        keyed = await ask(app, "POST", AT, chat("t2", user("hi", "u1")), headers={"idempotency-key": "k1"})
        assert keyed.headers["pilothouse-run-id"] == "k1"
        other = await ask(app, "POST", AT, chat("t2", user("ho", "u2")), headers={"idempotency-key": "k1"})
        assert (other.status, other.json()["code"]) == (409, "run_conflict")
        assert len(provider.requests) == 2


async def test_the_thread_is_the_truth() -> None:
    """SV-100, SV-101: a client that missed the answer, one that sends its last message only, one with an invented past."""
    provider = ScriptedProvider(lambda request: [f"to {request.messages[-1].text}"], repeat=True)
    app = served(provider)
    async with app.lifespan():
        first = await ask(app, "POST", AT, chat("t1", user("one", "u1")))
        await ask(app, "POST", AT, chat("t1", user("one", "u1"), user("two", "u2")))
        await ask(app, "POST", AT, chat("t1", user("three", "u3")))
        lie = {
            "id": parts(first)[0]["messageId"],
            "role": "assistant",
            "parts": [{"type": "text", "text": "lie"}],
        }
        await ask(app, "POST", AT, chat("t1", user("one", "u1"), lie, user("four", "u4")))
        assert [message.text for message in provider.requests[2].messages] == [
            "one", "to one", "two", "to two", "three",
        ]  # fmt: skip
        assert "lie" not in str(provider.requests[3].messages)


async def test_an_unknown_thread_with_a_past_is_imported() -> None:
    """SV-102: text, a call with its result, and an approval that nobody will answer any more."""
    provider = ScriptedProvider("hello")
    app = served(provider)
    past = {
        "id": "a1",
        "role": "assistant",
        "parts": [
            {"type": "step-start"}, {"type": "reasoning", "text": "hm"}, {"type": "text", "text": "Look: "},
            {"type": "tool-tide", "toolCallId": "c1", "state": "output-available", "input": {"p": 1}, "output": {"m": 3}},
            {"type": "dynamic-tool", "toolName": "x", "toolCallId": "c2", "state": "approval-requested", "input": {}},
            {"type": "step-start"}, {"type": "text", "text": "3 m."},
        ],
    }  # fmt: skip
    async with app.lifespan():
        told = await ask(app, "POST", AT, chat("t1", user("tide?", "u1"), past, user("and now?", "u2")))
        assert text(told) == "hello"
        roles = [message.role for message in provider.requests[0].messages]
        assert roles == ["user", "assistant", "tool", "tool", "assistant", "user"]


async def test_regenerate_is_by_id() -> None:
    """SV-205: an earlier answer, a user message, one that failed; an unknown id is refused."""
    provider = ScriptedProvider(
        "one", "two", "one again", "one once more", failure("auth", "no", status=401), "three"
    )
    app = served(provider)
    async with app.lifespan():
        first = parts(await ask(app, "POST", AT, chat("t1", user("a", "u1"))))[0]["messageId"]
        await ask(app, "POST", AT, chat("t1", user("b", "u2")))
        again = {"trigger": "regenerate-message"}
        told = await ask(app, "POST", AT, chat("t1", user("a", "u1"), messageId=first, **again))
        assert text(told) == "one again"
        assert len(provider.requests[-1].messages) == 1
        told = await ask(app, "POST", AT, chat("t1", user("a", "u1"), messageId="u1", **again))
        assert text(told) == "one once more"
        await ask(app, "POST", AT, chat("t1", user("c", "u3")))
        told = await ask(app, "POST", AT, chat("t1", user("a", "u1"), user("c", "u3"), **again))
        assert text(told) == "three"
        wrong = await ask(app, "POST", AT, chat("t1", user("a", "u1"), messageId="nobody", **again))
        assert wrong.status == 422


async def test_files_reach_the_model_and_wrong_bodies_are_told_where() -> None:
    """SV-100, SV §13: 422 with paths; parts that are not known are dropped."""
    provider = ScriptedProvider("hello", repeat=True)
    app = served(provider)
    picture = {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AAEC"}
    message = {
        "id": "u1",
        "role": "user",
        "parts": [picture, {"type": "data-x", "data": 1}, {"type": "text", "text": "?"}],
    }
    async with app.lifespan():
        await ask(app, "POST", AT, chat("t1", message))
        (sent,) = provider.requests[0].messages
        assert [getattr(part, "data", None) or getattr(part, "text", "") for part in sent.parts] == [
            b"\0\1\2",
            "?",
        ]
        for body, path in (
            ({"messages": []}, "id"),
            (chat("."), "id"),
            ({"id": "t"}, "messages"),
            (chat("t", trigger="dance"), "trigger"),
            (chat("t", messageId=3), "messageId"),
            (chat("t", {"id": "u", "role": "user"}), "messages[0].parts"),
            (chat("t", {"role": "user", "parts": [3]}), "messages[0].id"),
        ):
            told = await ask(app, "POST", AT, body)
            assert (told.status, told.json()["errors"][0]["path"]) == (422, path)
        assert (await ask(app, "POST", f"{AT}/%2E%2E/stop", {})).status == 422
        assert (await ask(app, "GET", f"{AT}/../stream")).status == 422
        assert (await ask(app, "POST", "/aisdk/nobody", chat("t", message))).status == 404


async def test_other_faces_see_the_run_and_other_tenants_do_not() -> None:
    """SV-12, SV-13, proof 9: one runs table under all faces; a chat of the same id is another tenant's own."""
    hold = Hold()
    names = "ab"
    tokens = {sha256(name.encode()).hexdigest(): Principal(name, f"tenant-{name}") for name in names}
    mine, theirs = ({"authorization": f"Bearer {name}"} for name in names)
    app = served(ScriptedProvider(["secret ", hold, "."], repeat=True), auth=BearerTokens(tokens))
    async with app.lifespan():
        body = run_input("t1", "r1", "hi")
        async with Connection(app, "POST", "/agui/default", json_body=body, headers=mine) as other:
            await hold.reached()
            assert (await ask(app, "GET", f"{AT}/t1/stream", headers=theirs)).status == 204
            assert (await ask(app, "POST", f"{AT}/t1/stop", {}, headers=theirs)).json() == {"stopped": False}
            assert (await ask(app, "GET", f"{AT}/t1/stream")).status == 401
            async with Connection(app, "GET", f"{AT}/t1/stream", headers=mine) as told:
                await told.until(lambda: b"secret" in told.body)
                hold.release()
                await told.ended()
            await other.ended()
        assert parts(told)[0]["messageId"] == "pilothouse-run:r1"
        assert text(told) == "secret ."


async def test_where_a_cut_would_be_hidden_it_is_an_error() -> None:
    """SV-58, SV-201: with `cut="error"` the note is followed by the error, then `[DONE]`, and the run goes on."""
    hold = Hold()
    streams = StreamOptions(max_duration=0.05, cut="error")
    app = served(ScriptedProvider(["First. ", hold, "Second."]), streams=streams)
    async with app.lifespan():
        told = await ask(app, "POST", AT, chat("t1", user("hi", "u1")))
        assert done(told)
        assert parts(told)[-1]["type"] == "error"
        assert {"type": "data-pilothouse-error", "data": {"code": "stream_cut"}, "transient": True} in parts(
            told
        )
        async with Connection(app, "GET", f"{AT}/t1/stream") as again:
            await again.until(lambda: b"First" in again.body)
            hold.release()
            await again.ended()
        assert text(again) == "First. Second."


async def test_a_message_for_a_live_run_goes_by_the_one_table() -> None:
    """SV-116: refused while somebody follows; `steer` follows the run that took it in, from the start of its message."""
    hold = Hold()
    app = served(ScriptedProvider(["First. ", hold, "Second."], "Third."))
    async with app.lifespan():
        async with Connection(app, "POST", AT, json_body=chat("t1", user("hi", "u1"))) as first:
            await first.until(lambda: b"First" in first.body)
            busy = await ask(app, "POST", AT, chat("t1", user("hi", "u1"), user("faster", "u2")))
            assert (busy.status, busy.json()["code"]) == (409, "thread_busy")
            steer = chat("t1", user("hi", "u1"), user("faster", "u2"), pilothouse={"when_busy": "steer"})
            async with Connection(app, "POST", AT, json_body=steer) as second:
                await second.until(lambda: b"First" in second.body)
                hold.release()
                await second.ended()
            await first.ended()
        assert parts(second)[0] == parts(first)[0]
        assert text(second) == text(first) == "First. Second.Third."
        notes = [part["data"] for part in parts(first) if part["type"] == "data-pilothouse-message"]
        assert notes == [{"id": "u2", "text": "faster"}]


async def test_a_question_within_a_call_is_answered_by_its_output() -> None:
    """SV-93, SV-203: the protocol has no question of its own: a note says what is asked, the call's output answers."""

    @tool(effect="human")
    async def question(ctx: ToolContext[Any]) -> str:
        """Asks the user."""
        return "they said " + str(await ctx.ask("Which colour?", schema=str))

    app = served(ScriptedProvider([call("question", {})], "Done."), tools=[question])
    async with app.lifespan():
        first = await ask(app, "POST", AT, chat("t1", user("ask", "u1")))
        (asked,) = [part["data"] for part in parts(first) if part["type"] == "data-pilothouse-request"]
        assert (asked["message"], asked["toolCallId"]) == ("Which colour?", "call-1-1")
        part = {
            "type": "tool-question", "toolCallId": "call-1-1", "state": "output-available", "input": {},
            "output": "green",
        }  # fmt: skip
        message = {"id": parts(first)[0]["messageId"], "role": "assistant", "parts": [part]}
        second = await ask(app, "POST", AT, chat("t1", user("ask", "u1"), message))
        assert text(second) == "Done."
        assert parts(second)[-1] == {"type": "finish", "finishReason": "stop"}
        told = (await ask(app, "GET", "/v1/threads/t1/messages")).json()["items"]
        assert "they said green" in str(told)


async def test_parallel_approvals_are_answered_together() -> None:
    """SV-103, fixture 127: one of two is refused with the list of what is missing, and nothing is performed."""
    app = served(
        ScriptedProvider([call("buy", {"what": "tea"}), call("buy", {"what": "gin"})], "Done."), tools=[buy]
    )
    async with app.lifespan():
        first = await ask(app, "POST", AT, chat("t1", user("buy", "u1")))
        asked = [part for part in parts(first) if part["type"] == "tool-approval-request"]
        assert len(asked) == 2

        def message(*approved: bool) -> dict[str, Any]:
            made = [
                {
                    "type": "tool-buy", "toolCallId": one["toolCallId"], "input": {}, "state": "approval-responded",
                    "approval": {"id": one["approvalId"], "approved": yes},
                }
                for one, yes in zip(asked, approved, strict=False)
            ]  # fmt: skip
            return {"id": parts(first)[0]["messageId"], "role": "assistant", "parts": made}

        refused = await ask(app, "POST", AT, chat("t1", user("buy", "u1"), message(True)))
        assert (refused.status, refused.json()["code"]) == (409, "requests_pending")
        second = await ask(app, "POST", AT, chat("t1", user("buy", "u1"), message(True, False)))
        kinds = {
            part["toolCallId"]: part["type"] for part in parts(second) if part["type"].startswith("tool-")
        }
        assert [kinds[one["toolCallId"]] for one in asked] == ["tool-output-available", "tool-output-denied"]
        assert text(second) == "Done."


async def test_after_a_restart_the_run_is_told_to_its_end() -> None:
    """SV-202, SV-222, SV-224: handed over in mid-answer, taken up by the next server; the message has the same id."""
    journal, hold = MemoryJournal(), Hold()
    app = served(ScriptedProvider(["First. ", hold, "Second."]), journal=journal)
    async with app.lifespan(), Connection(app, "POST", AT, json_body=chat("t1", user("hi", "u1"))) as first:
        await first.until(lambda: b"First" in first.body)
        await app.drain(0.0)
        await first.ended()
    app = served(ScriptedProvider(["First. ", "Second."]), journal=journal)
    async with app.lifespan():
        told = await ask(app, "GET", f"{AT}/t1/stream")
        assert parts(told)[0] == parts(first)[0]
        assert text(told).endswith("First. Second.")
        assert done(told)

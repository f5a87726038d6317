"""`AGUIAgent` over real HTTP: ends that nobody told, reconnection, refusals, interrupts, stops (agent-contract §3.15)."""

from __future__ import annotations

import asyncio
import gc
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from agentkit import tasks_of
from pilothouse.agent_errors import RecoveryRequired, RequestPending, StoreConflict, UnsupportedOption
from pilothouse.agents import MemoryInterruptStore
from pilothouse.agents.signals import watch
from pilothouse.errors import AgentBusy, UsageError
from pilothouse.messages import Image, Text, ToolSpec
from pilothouse.projection import AgentMessage, Err, InterruptAnswer, MessageDelivery, Ok, Reconciled
from pilothouse.remote import AgentLimits, AGUIAgent, Reconnect, agent_from
from pilothouse.remote.function import FunctionWire
from pilothouse.testing import FakeBackend, ScriptedEndpoint
from pilothouse.testing.agent_suite.driving import consistent, shown, texts, until
from pilothouse.testing.endpoint import (
    Asked,
    Close,
    Cut,
    Raw,
    Refuse,
    failed,
    finished,
    reasoning,
    result,
    started,
    text,
    tool_call,
)
from pilothouse.testing.scripted import Hold
from pilothouse.transport import NoAnswer

FAST = Reconnect(attempts=3, first_delay=0.0, max_delay=0.0)
ASK = finished(
    {"type": "interrupt", "interrupts": [{"id": "i1", "reason": "confirmation", "message": "ok?"}]}
)


class Line(FunctionWire):
    """A transport that may be down; `carried` is what it was given."""

    def __init__(self, *scripts: Any) -> None:
        super().__init__(FakeBackend(*scripts).run)
        self.down = False
        self.carried: list[bytes] = []

    @asynccontextmanager
    async def request(self, method, url, *, headers, content, timeouts):
        self.carried.append(content)
        if self.down:
            raise NoAnswer("it is down", sent=False)
        async with super().request(
            method, url, headers=headers, content=content, timeouts=timeouts
        ) as answer:
            yield answer


@asynccontextmanager
async def pair(*scripts: Any, ids: bool = False, answer_headers: Any = None, **options: Any):
    async with ScriptedEndpoint(*scripts, ids=ids, headers=answer_headers) as endpoint:
        options.setdefault("reconnect", FAST)
        agent = AGUIAgent(endpoint.url, **options)
        await agent.open()
        try:
            yield agent, endpoint
        finally:
            await agent.aclose()


# The table *Ends*

PROOFLESS = [Cut(), Close()]


@pytest.mark.parametrize("end", PROOFLESS, ids=["cut", "closed"])
async def test_an_end_before_any_event_may_be_tried_again(end) -> None:
    """Table *Ends*: a graceful close and a broken connection are the same thing."""
    async with pair([end], [started(), *text("a", "yes"), finished()]) as (agent, endpoint):
        assert await agent.submit("hi") == "interrupted"
        error = agent.error.get()
        assert (error.kind, error.recovery, error.retryable, error.detail) == (
            "interrupted",
            "retry",
            True,
            None,
        )
        assert await agent.retry() == "success"
        assert [item["content"] for item in endpoint.asked[1].body["messages"]] == ["hi"]
        assert endpoint.asked[0].body["runId"] != endpoint.asked[1].body["runId"]
        assert texts(agent) == [("user", "hi"), ("assistant", "yes")]


@pytest.mark.parametrize("end", PROOFLESS, ids=["cut", "closed"])
async def test_an_end_after_any_event_is_not_repeated(end) -> None:
    """Table *Ends*, AG-103."""
    async with pair([started(), *text("a", "some", end=False), end]) as (agent, _):
        assert await agent.submit("hi") == "interrupted"
        error = agent.error.get()
        assert (error.recovery, error.retryable) == ("none", False)
        assert error.detail
        with pytest.raises(RecoveryRequired):
            agent.retry()
        assert texts(agent)[-1] == ("assistant", "some")


@pytest.mark.parametrize(
    "script",
    [
        [Raw(b"")],
        [Close()],
        [Raw(b"<html>hello</html>")],
    ],
)
async def test_an_answer_that_tells_nothing_is_a_silent_end(script) -> None:
    """AG-192."""
    headers = {"content-type": "text/html"} if b"html" in getattr(script[0], "data", b"") else None
    async with pair(script, answer_headers=headers) as (agent, _):
        assert await agent.submit("hi") == "interrupted"
        assert agent.error.get().recovery == "retry"


async def test_nothing_left_where_nobody_listens() -> None:
    """§3.6: a refused connection is retryable; the text is ours."""
    async with ScriptedEndpoint() as endpoint:
        url = endpoint.url
    agent = AGUIAgent(url)
    assert await agent.submit("hi") == "error"
    error = agent.error.get()
    assert (error.kind, error.retryable, error.recovery) == ("connection", True, None)
    await agent.aclose()


async def test_with_somebody_to_ask_it_is_asked() -> None:
    """Table *Ends*, AG-64, AG-115, AG-117: `check` once anything left; a conclusive answer clears the error."""
    asked = []

    async def reconcile(request):
        asked.append(request)
        done = AgentMessage("a", "assistant", MessageDelivery("a", "complete", "success"), "whole")
        mine = AgentMessage("u", "user", MessageDelivery("u", "complete", "success"), "hi")
        return Reconciled("completed" if len(asked) > 1 else "unknown", (mine, done))

    async with pair([started(), Cut()], reconcile=reconcile) as (agent, endpoint):
        assert await agent.submit("hi") == "interrupted"
        error = agent.error.get()
        assert error.recovery == "check"
        await agent.check_status()
        assert agent.error.get() is error  # unknown: the same object stays (AG-117)
        await agent.check_status()
        assert (agent.status.get(), agent.error.get()) == ("idle", None)
        assert texts(agent) == [("user", "hi"), ("assistant", "whole")]
        assert len(endpoint.asked) == 1  # nothing was resubmitted (AG-116)
        assert asked[0].run_id == endpoint.asked[0].body["runId"]


async def test_a_check_that_fails_changes_nothing() -> None:
    """AG-65, AG-119: also one that is overtaken by a submission."""
    hold = Hold()

    async def reconcile(request):
        await hold.wait()
        raise ConnectionError("nobody there")

    async with pair([started(), Cut()], [started(), *text("b", "two"), finished()], reconcile=reconcile) as (
        agent,
        _,
    ):
        await agent.submit("hi")
        error = agent.error.get()
        checking = agent.check_status()
        with pytest.raises(AgentBusy):
            agent.check_status()
        hold.release()
        await checking
        assert agent.error.get() is error
        late = agent.check_status()
        assert await agent.submit("again") == "success"
        await late
        assert agent.error.get() is None


async def test_an_answer_that_comes_too_late_is_dropped() -> None:
    """AG-119: after a newer request was admitted, and after a thread switch."""
    for switch in (False, True):
        hold = Hold()

        async def reconcile(request, hold=hold):
            await hold.wait()
            old = AgentMessage("x", "assistant", MessageDelivery("x", "complete", "success"), "late")
            return Reconciled("completed", (old,))

        script = [started(), *text("b", "two"), finished()]
        async with pair([started(), Cut()], script, reconcile=reconcile) as (agent, _):
            await agent.submit("hi")
            checking = agent.check_status()
            if switch:
                agent.set_thread("other")
            else:
                await agent.submit("again")
            hold.release()
            await checking
            assert "late" not in str(texts(agent))


# Reconnection

STREAM = [
    started(),
    *text("a", "He", "ll", "o"),
    *tool_call("c", "look", "{}", parent="a"),
    result("c", "1"),
    finished(),
]


@pytest.mark.parametrize("cut", range(1, len(STREAM)))
async def test_a_stream_with_ids_is_taken_up_again(cut: int) -> None:
    """Table *Ends*: same POST, same run id, `Last-Event-ID`; no gap, no duplicate, the status stays running."""

    def rest(asked: Asked) -> list[Any]:
        last = int(asked.headers["last-event-id"].partition("~")[0])
        frames = [(f"{n}~s", step) for n, step in enumerate(STREAM, 1)][last - 1 :]  # one is repeated
        from pilothouse.testing.endpoint import _filled, sse

        return [Raw(sse(_filled(step, asked.body), name)) for name, step in frames[1 if last == 1 else 0 :]]

    async with pair([*STREAM[:cut], Cut()], rest, ids=True) as (agent, endpoint):
        with consistent(agent) as wrong:
            seen: list[str] = []
            agent.status.subscribe(seen.append)
            assert await agent.submit("hi") == "success"
        assert wrong == []
        assert seen == ["running", "idle"]
        assert texts(agent) == [("user", "hi"), ("assistant", "Hello")]
        assert endpoint.asked[0].body == endpoint.asked[1].body
        assert [call.result for call in agent.tool_calls.get()] == [1]


async def test_a_server_that_starts_over_replaces() -> None:
    """Table *Ends*: a RUN_STARTED of the same run means that the server starts over."""
    again = [started(), *text("b", "whole"), finished()]
    async with pair([started(), *text("a", "partial", end=False), Cut()], again, ids=True) as (agent, _):
        assert await agent.submit("hi") == "success"
        assert texts(agent) == [("user", "hi"), ("assistant", "whole")]


async def test_what_the_user_said_outlives_a_snapshot_of_a_stream_that_tells_several_runs() -> None:
    """AG-52, AG-57: no snapshot within the action that said it takes the message away."""
    stale = {"type": "MESSAGES_SNAPSHOT", "messages": [{"id": "a", "role": "assistant", "content": "xx"}]}
    async with pair([started(), finished(), started(), stale, finished()]) as (agent, _):
        assert await agent.submit("hi") == "success"
        assert ("user", "hi") in texts(agent)


async def test_reconnection_ends() -> None:
    """Table *Ends*: exhausted, it is like any other end without proof."""
    scripts = [[started(), *text("a", "x", end=False), Cut()], *([[Cut()]] * 5)]
    async with pair(*scripts, ids=True) as (agent, endpoint):
        assert await agent.submit("hi") == "interrupted"
        assert len(endpoint.asked) == 1 + 3
        assert agent.error.get().recovery == "none"


# Refusals

REFUSALS = [
    (Refuse(500, "boom"), "server", True, "HTTP 500: boom"),
    (Refuse(401, {"detail": "who are you"}), "auth", False, "who are you"),
    (Refuse(404, {"title": "not found"}), "server", False, "not found"),
    (Refuse(429, "slow", {"retry-after": "7"}), "server", True, "slow"),
    (Refuse(409, {"code": "thread_busy", "detail": "busy"}), "server", False, "busy"),
    (Refuse(503, ""), "server", True, "HTTP 503"),
]


@pytest.mark.parametrize(("answer", "kind", "retryable", "said"), REFUSALS)
async def test_refusals(answer, kind, retryable, said) -> None:
    """AG-192, §3.6: the problem body's own words; an ordinary run failed."""
    async with pair([answer]) as (agent, _):
        op = agent.submit("hi")
        assert await op == "error"
        error = agent.error.get()
        assert error.run_id == op.run_id  # a run without any event owns its failure (AG-205)
        assert (error.kind, error.retryable, error.status) == (kind, retryable, answer.status)
        assert said in str(error)
        assert error.retry_after == (7.0 if answer.status == 429 else None)
        assert texts(agent) == [("user", "hi")]


async def test_limits() -> None:
    """AG-191: too large is a failure with that code; a message of the user is refused in the call."""
    limits = AgentLimits(frame=300, message=10, messages=4)
    async with pair(
        [started(), *text("a", "x" * 500), finished()],
        [started(), *text("b", "1"), *text("c", "2"), *text("d", "3"), *text("e", "4"), finished()],
        limits=limits,
    ) as (agent, _):
        with pytest.raises(UsageError, match="limit"):
            agent.submit("x" * 11)
        assert await agent.submit("hi") == "error"
        assert agent.error.get().code == "too_large"
        assert await agent.submit("hi") == "error"
        assert agent.error.get().code == "too_large"


@pytest.mark.parametrize(
    "endless",
    [
        [*text("a", *["x" * 10] * 30, end=False), Hold()],
        [*reasoning("r", *["x" * 10] * 30), Hold()],
        [
            {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "n"},
            *[{"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "x" * 10}] * 30,
            Hold(),
        ],
        [
            {"type": "SUBAGENT_STARTED", "subagentRunId": "s", "name": "n"},
            *[{**event, "subagentRunId": "s"} for event in text("a", *["x" * 10] * 30, end=False)],
            Hold(),
        ],
    ],
    ids=["text", "reasoning", "arguments", "subagent"],
)
async def test_a_message_has_an_end(endless) -> None:
    """AG-191: of whatever it consists; what was shown stays, and the connection is closed."""
    async with pair([started(), *endless], limits=AgentLimits(message=100)) as (agent, endpoint):
        assert await agent.submit("hi") == "error"
        assert agent.error.get().code == "too_large"
        while endpoint.open:
            await asyncio.sleep(0)


async def test_events_for_a_slow_reader_are_bounded(caplog) -> None:
    """AG-191, §2: the newest are kept, and a warning says so; a reader that keeps up loses nothing."""
    script = [started(), *[{"type": "CUSTOM", "name": "n", "value": n} for n in range(50)], finished()]
    async with pair(script, limits=AgentLimits(events=8)) as (agent, _):
        slow, seen = aiter(agent.events), []
        agent.events.subscribe(lambda event: seen.append(event.data))
        assert await agent.submit("hi") == "success"
        assert seen == list(range(50))
        assert [(await anext(slow)).data for _ in range(8)] == list(range(42, 50))
        await slow.aclose()
    assert "the oldest are dropped" in caplog.text


async def test_silence_has_an_end() -> None:
    """AG-191: `send_timeout` for the head, `idle_timeout` for the body; comments count as life."""
    alive = [Raw(b": still here\n\n")] * 3
    script = [started(), *alive, *text("a", "x", end=False), Hold()]
    async with pair(script, idle_timeout=0.2) as (agent, _):
        assert await agent.submit("hi") == "interrupted"
        assert "nothing came" in str(agent.error.get())
    writers: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    agent = AGUIAgent(f"http://127.0.0.1:{port}/x", send_timeout=0.2)
    assert await agent.submit("hi") == "interrupted"
    assert agent.error.get().recovery == "retry"
    await agent.aclose()
    for writer in writers:
        writer.close()
        await writer.wait_closed()
    silent.close()
    await silent.wait_closed()


async def test_a_violation_fails_the_run_and_keeps_the_text() -> None:
    """AG-195: the offending event is in the cause; `repair` goes on."""
    script = [started(), *text("a", "kept", end=False), finished()]
    async with pair(script) as (agent, _):
        assert await agent.submit("hi") == "error"
        error = agent.error.get()
        assert error.code == "protocol"
        assert error.__cause__.data.type == "RUN_FINISHED"
        assert texts(agent)[-1] == ("assistant", "kept")
    async with pair(script, on_violation="repair") as (agent, _):
        assert await agent.submit("hi") == "success"


# Terminal events

CODES = [
    ("auth", "auth", False),
    ("rate_limit", "server", True),
    ("transport", "connection", True),
    ("invalid_request", "server", False),
    ("something_else", "server", True),
    ("503", "server", True),
    ("401", "auth", False),
    (None, "server", True),
]


@pytest.mark.parametrize(("code", "kind", "retryable"), CODES)
async def test_run_errors(code, kind, retryable) -> None:
    """§3.6: a failure that the stream tells."""
    async with pair([started(), *text("a", "x"), failed("it broke", code)]) as (agent, _):
        assert await agent.submit("hi") == "error"
        error = agent.error.get()
        assert (error.kind, error.retryable, error.recovery) == (kind, retryable, None)
        assert "it broke" in str(error)
        assert agent.messages.get()[-1].delivery.outcome == "error"


async def test_an_unknown_outcome_is_interrupted() -> None:
    """RC-86, AG-193."""
    for script in (
        [started(), failed("lost", "outcome_unknown")],
        [started(), finished({"type": "teleported"})],
    ):
        async with pair(script) as (agent, _):
            assert await agent.submit("hi") == "interrupted"
            assert agent.error.get().kind == "interrupted"


async def test_a_cancelled_run_is_no_error() -> None:
    """RC-86."""
    async with pair([started(), *text("a", "x"), finished({"type": "cancelled"})]) as (agent, _):
        assert await agent.submit("hi") == "aborted"
        assert (agent.status.get(), agent.error.get()) == ("idle", None)


async def test_a_late_run_error_turns_the_run_into_failed() -> None:
    """AG-207: status and error change, deliveries stay, its batch may not be answered."""
    hold = Hold()
    async with pair([started(), *text("a", "x"), ASK, hold, failed("after all")]) as (agent, _):
        op = agent.submit("hi")
        await until(agent, "idle")
        assert agent.interrupt.get() is not None
        hold.release()
        await op
        assert agent.status.get() == "error"
        assert str(agent.error.get()) == "after all"
        assert agent.messages.get()[-1].delivery.outcome == "paused"
        assert agent.interrupts.phase.get() == "none"


async def test_the_first_failure_is_the_one_shown() -> None:
    """AG-207: RUN_ERROR, then the connection breaks."""
    async with pair([started(), failed("the cause"), Cut()]) as (agent, _):
        assert await agent.submit("hi") == "error"
        assert str(agent.error.get()) == "the cause"


async def test_other_names_are_legal_on_the_wire() -> None:
    """AG-206: a finish that names another run settles as success."""
    other = {"type": "RUN_FINISHED", "threadId": "x", "runId": "y"}
    async with pair([started(), *text("a", "x"), other]) as (agent, _):
        assert await agent.submit("hi") == "success"


# What goes out

PNG = b"\x89PNG"


async def test_what_is_posted() -> None:
    """AG-190, AG-70, AG-145: parts as parts, the catalog, the state, no null, the version by profile."""
    for profile in ("auto", "1.0", "legacy"):
        async with pair([started(), finished()], profile=profile, auth="secret", headers={"X-A": "1"}) as (
            agent,
            endpoint,
        ):
            agent.client_tools.set_catalog([ToolSpec("show", "Shows.", {"type": "object", "properties": {}})])
            await agent.submit([Text("see"), Image("image/png", data=PNG)], state={"n": 1})
            (asked,) = endpoint.asked
            body = asked.body
            assert asked.headers["authorization"] == "Bearer secret"
            assert asked.headers["x-a"] == "1"
            assert body["state"] == {"n": 1}
            assert body["tools"][0]["name"] == "show"
            assert ("protocolVersion" in body) == (profile != "legacy")
            assert None not in body.values()
            part = body["messages"][0]["content"][1]
            if profile == "legacy":
                assert part == {"type": "binary", "mimeType": "image/png", "data": "iVBORw=="}
            else:
                source = {"type": "data", "value": "iVBORw==", "mimeType": "image/png"}
                assert part == {"type": "image", "source": source}


async def test_a_state_patch_is_shown_and_rolled_back() -> None:
    """AG-72: rolled back once if the run fails before the first snapshot; a retry sends it again."""
    told = {"type": "STATE_SNAPSHOT", "snapshot": {"n": 3}}
    async with pair(
        [started(), failed("no")], [started(), told, failed("later")], [started(), finished()], state={"n": 1}
    ) as (agent, endpoint):
        op = agent.submit("hi", state={"n": 2})
        assert dict(agent.state.get()) == {"n": 2}
        await op
        assert dict(agent.state.get()) == {"n": 1}
        await agent.stop()
        await agent.retry()
        assert endpoint.asked[1].body["state"] == {"n": 2}
        assert dict(agent.state.get()) == {"n": 3}
        await agent.retry()
        assert endpoint.asked[2].body["state"] == {"n": 3}


async def test_a_retry_keeps_what_was_done() -> None:
    """AG-81: an assistant message all of whose calls have results stays with them; provisional text goes."""
    async with pair(
        [
            started(),
            *text("a", "look"),
            *tool_call("c", "look", parent="a"),
            result("c", "1"),
            *text("b", "ha"),
            failed("no"),
        ],
        [started(), *text("d", "done"), finished()],
    ) as (agent, endpoint):
        await agent.submit("hi")
        await agent.retry()
        roles = [item["role"] for item in endpoint.asked[1].body["messages"]]
        assert roles == ["user", "assistant", "tool"]
        assert texts(agent) == [("user", "hi"), ("assistant", "look"), ("assistant", "done")]


# Stop

RUN = [
    started(),
    *reasoning("r", "hm"),
    *text("a", "one"),
    *tool_call("c1", "look", parent="a"),
    *tool_call("c2", "look", parent="a"),
    result("c1", "1"),
    result("c2", "2"),
    *text("b", "two"),
    ASK,
]


@pytest.mark.parametrize("at", range(len(RUN)))
async def test_a_stop_at_any_event(at: int) -> None:
    """§5.8, AG-90 … AG-94: aborted, the server sees the close, nothing appears later, the next submission works."""
    hold = Hold()
    async with pair([*RUN[:at], hold, *RUN[at:]], [started(), *text("z", "next"), finished()]) as (
        agent,
        endpoint,
    ):
        with consistent(agent) as wrong:
            op = agent.submit("hi")
            await hold.reached()
            stopping = agent.stop()
            assert (agent.status.get(), agent.error.get()) == ("idle", None)
            assert await stopping == "will_stop"
            assert await op == "aborted"
            before = agent.messages.get()
            hold.release()
            assert await agent.submit("on") == "success"
        assert wrong == []
        assert agent.messages.get()[: len(before)] == before
        assert endpoint.closed == 1
        assert texts(agent)[-2:] == [("user", "on"), ("assistant", "next")]


async def test_a_stop_rolls_the_state_back() -> None:
    """AG-72, §3.16: once, if the backend had not told its state."""
    holds = [Hold(), Hold()]
    told = {"type": "STATE_SNAPSHOT", "snapshot": {"n": 3}}
    async with pair([started(), holds[0]], [started(), told, holds[1]], state={"n": 1}) as (agent, _):
        agent.submit("hi", state={"n": 2})
        await holds[0].reached()
        await agent.stop()
        assert dict(agent.state.get()) == {"n": 1}
        agent.submit("hi", state={"n": 2})
        await holds[1].reached()
        async for state in watch(agent.state):
            if dict(state) == {"n": 3}:
                break
        await agent.stop()
        assert dict(agent.state.get()) == {"n": 3}


async def test_stop_is_no_answer() -> None:
    """AG-95: the batch of a foreign backend stays; after a dispatched answer it is uncertain."""
    hold = Hold()
    async with pair([started(), ASK], [started(), hold, finished()]) as (agent, _):
        await agent.submit("hi")
        assert await agent.stop() == "nothing"
        assert agent.interrupts.phase.get() == "pending"
        agent.submit(resume=True)
        await hold.reached()
        async for phase in watch(agent.interrupts.phase):
            if phase == "acknowledged":
                break
        await agent.stop()
        assert agent.interrupts.phase.get() == "uncertain"
        with pytest.raises(RequestPending):
            agent.submit("more")
        with pytest.raises(RecoveryRequired):
            agent.retry()


# Interrupts


@pytest.mark.parametrize(
    ("setting", "native", "expected"),
    [
        ("auto", True, "resume"),
        ("auto", False, "command"),
        ("command", True, "command"),
        ("native", False, "resume"),
        ("mastra", False, "mastra"),
    ],
)
async def test_answers_on_the_wire(setting, native, expected) -> None:
    """AG-210, AG-132: an explicit setting beats the shape seen; a null payload is left off."""
    notice = {"type": "CUSTOM", "name": "on_interrupt", "value": {"id": "i1", "toolCallId": "c1"}}
    ask = [ASK] if native else [notice, finished()]
    async with pair([started(), *ask], [started(), finished()], interrupt_wire=setting) as (agent, endpoint):
        assert await agent.submit("hi") == "paused"
        asking_run = endpoint.asked[0].body["runId"]
        assert await agent.submit(resume={"ok": 1}) == "success"
        body = endpoint.asked[1].body
        if expected == "resume":
            assert body["resume"] == [{"interruptId": "i1", "status": "resolved", "payload": {"ok": 1}}]
            assert body["forwardedProps"] == {}
        else:
            assert "resume" not in body
            command = body["forwardedProps"]["command"]
            assert command["resume"] == {"ok": 1}
            event = {"toolCallId": "c1", "runId": asking_run}
            assert command.get("interruptEvent") == (event if expected == "mastra" else None)


async def test_a_null_payload_is_left_off() -> None:
    """AG-132."""
    async with pair([started(), ASK], [started(), finished()]) as (agent, endpoint):
        await agent.submit("hi")
        await agent.submit(resume=None)
        assert endpoint.asked[1].body["resume"] == [{"interruptId": "i1", "status": "resolved"}]


async def test_a_batch_of_two() -> None:
    """AG-131, AG-212: every item exactly once; an expired one can only be cancelled; refused before any request."""
    two = [
        {"id": "i1", "reason": "confirmation", "expiresAt": "not a time"},
        {"id": "i2", "reason": "input_required", "responseSchema": {"type": "object", "required": ["x"]}},
    ]
    async with pair(
        [started(), finished({"type": "interrupt", "interrupts": two})], [started(), finished()]
    ) as (agent, endpoint):
        await agent.submit("hi")
        for bad in (True, [InterruptAnswer("i1"), InterruptAnswer("i2", payload={"x": 1})]):
            with pytest.raises(UsageError):
                agent.submit(resume=bad)
        good = [InterruptAnswer("i1", "cancelled"), InterruptAnswer("i2", payload={"x": 1})]
        assert len(endpoint.asked) == 1
        assert await agent.submit(resume=good) == "success"
        assert [entry["status"] for entry in endpoint.asked[1].body["resume"]] == ["cancelled", "resolved"]


@pytest.mark.parametrize("interrupts", [[], [{"id": "a", "reason": "x"}, {"id": "a", "reason": "x"}]])
async def test_an_impossible_batch_fails_the_run(interrupts) -> None:
    """AG-134."""
    script = [started(), finished({"type": "interrupt", "interrupts": interrupts})]
    async with pair(script) as (agent, _):
        assert await agent.submit("hi") == "error"
        assert agent.error.get().code == "protocol"
        assert agent.interrupts.phase.get() == "none"


async def test_an_answer_that_never_left_is_kept_for_retry() -> None:
    """AG-80, AG-81, AG-102: the same bytes under the same run id."""
    line = Line([started(), ASK])
    agent = AGUIAgent("line://", reconnect=FAST, transport=line)
    await agent.submit("hi")
    line.down = True
    assert await agent.submit(resume=True) == "error"
    assert agent.error.get().kind == "connection"
    assert agent.interrupts.phase.get() == "pending"
    with pytest.raises(RequestPending, match="retry"):
        agent.submit(resume=False)
    assert not agent.interrupt.get().resumable
    assert await agent.retry() == "error"
    _, first, again = line.carried
    assert first == again
    await agent.aclose()


@pytest.mark.parametrize(
    ("answer", "phase", "may_answer"),
    [
        (Refuse(422, "no"), "pending", True),
        (Refuse(401, "who"), "pending", False),
        (Refuse(500, "?"), "uncertain", False),
    ],
)
async def test_an_answer_that_is_refused(answer, phase, may_answer) -> None:
    """§3.9: what the server refused for what it says may be answered otherwise; a 5xx leaves it open what happened."""
    async with pair([started(), ASK], [answer], [started(), finished()]) as (agent, _):
        await agent.submit("hi")
        assert await agent.submit(resume=True) == "error"
        assert agent.interrupts.phase.get() == phase
        if may_answer:
            assert await agent.submit(resume=False) == "success"
        elif phase == "pending":
            assert await agent.retry() == "success"
        else:
            with pytest.raises(RequestPending):
                agent.submit("more")


async def checked(agent: AGUIAgent) -> None:
    """Asks, once no other question is open."""
    while True:
        with suppress(AgentBusy):
            return await agent.check_status()
        await asyncio.sleep(0)


async def test_a_cut_answer_is_asked_about_once() -> None:
    """AG-121, AG-120: acknowledged is not finished."""
    answers = [Reconciled("acknowledged"), Reconciled("completed")]
    asked = []

    async def reconcile(request):
        asked.append(request)
        return answers[len(asked) - 1]

    async with pair([started(), ASK], [started(), Cut()], reconcile=reconcile) as (agent, endpoint):
        await agent.submit("hi")
        assert await agent.submit(resume=True) == "interrupted"
        while not asked:
            await asyncio.sleep(0)
        assert len(asked) == 1
        assert agent.is_input_blocked.get()
        assert agent.interrupts.phase.get() == "uncertain"
        assert agent.error.get().recovery == "check"
        assert asked[0].batch[0].id == "i1"
        await checked(agent)
        assert agent.interrupts.phase.get() == "none"
        assert agent.error.get() is None
        assert len(endpoint.asked) == 2


@pytest.mark.parametrize("reconciled", [Reconciled("pending", batch=()), Reconciled("unknown")])
async def test_what_the_backend_says_decides_the_phase(reconciled) -> None:
    """AG-139."""

    async def reconcile(request):
        return reconciled

    async with pair([started(), ASK], [Cut()], reconcile=reconcile) as (agent, _):
        await agent.submit("hi")
        await agent.submit(resume=True)
        await checked(agent)
        expected = "pending" if reconciled.status == "pending" else "uncertain"
        assert agent.interrupts.phase.get() == expected


async def test_two_instances_have_one_winner() -> None:
    """AG-130, AG-139: the loser sends nothing and reads the phases again."""
    store = MemoryInterruptStore()
    async with pair([started(), ASK], [started(), finished()], store=store, thread_id="t", agent_id="x") as (
        first,
        endpoint,
    ):
        await first.submit("hi")
        second = AGUIAgent(endpoint.url, store=store, thread_id="t", agent_id="x")
        await second.open()
        assert second.interrupts.phase.get() == "pending"
        op = second.submit(resume=True)
        late = first.submit(resume=False)
        outcomes = await asyncio.gather(op, late, return_exceptions=True)
        assert sorted(type(item).__name__ for item in outcomes) == ["RequestPending", "str"]
        assert len(endpoint.asked) == 2
        await second.aclose()


@pytest.mark.parametrize("write", [1, 2, 3])
async def test_a_crash_at_each_write_is_read_with_care(write: int) -> None:
    """§5.11, AG-139: claim, intent to send, boundary."""

    class Dying(MemoryInterruptStore):
        writes = 0
        dead = False

        async def save(self, key, record, *, expected):
            if self.dead:
                raise StoreConflict(key, expected, expected)
            done = await super().save(key, record, expected=expected)
            self.writes += 1
            self.dead = self.writes == write + 1
            return done

    store = Dying()
    async with pair([started(), ASK], [started(), Cut()], store=store, thread_id="t") as (agent, endpoint):
        await agent.submit("hi")
        await asyncio.gather(agent.submit(resume=True), return_exceptions=True)
        store.dead = False
        fresh = AGUIAgent(endpoint.url, store=store, thread_id="t")
        await fresh.open()
        assert fresh.interrupts.phase.get() in ("uncertain", "recovery-required")
        with pytest.raises(RequestPending):
            fresh.submit("more")
        await fresh.aclose()


# Client tools

SHOW = ToolSpec("show", "Shows.", {"type": "object", "properties": {}})
CALLS = [
    started(),
    *text("a", "x"),
    *tool_call("c1", "show", parent="a"),
    *tool_call("c2", "show", parent="a"),
]


async def test_results_are_sent_once_they_are_settled() -> None:
    """AG-146 … AG-149: one run for all; a failed hand-off is repeated with the same bytes."""
    async with pair(
        [*CALLS, finished()], [Refuse(503, "busy")], [started(), *text("b", "ok"), finished()]
    ) as (agent, endpoint):
        tools = agent.client_tools
        tools.set_catalog([SHOW])
        await agent.submit("hi")
        assert [call.id for call in tools.pending.get()] == ["c1", "c2"]
        tools.settle("c1", Err("no"))
        assert [call.id for call in tools.pending.get()] == ["c2"]
        assert await tools.resolve("c2", Ok([1])) == "error"
        assert await agent.submit("go on") == "success"
        for asked in endpoint.asked[1:]:
            results = [item for item in asked.body["messages"] if item["role"] == "tool"]
            assert results == [
                {"id": "c1:result", "role": "tool", "toolCallId": "c1", "content": "no", "error": "no"},
                {"id": "c2:result", "role": "tool", "toolCallId": "c2", "content": "[1]"},
            ]
            assert [tool["name"] for tool in asked.body["tools"]] == ["show"]


async def test_the_backends_own_list_decides() -> None:
    """AG-146."""
    done = finished({"type": "success", "pendingToolCallIds": ["c2"]})
    async with pair([*CALLS, done]) as (agent, _):
        agent.client_tools.set_catalog([SHOW])
        assert await agent.submit("hi") == "paused"
        assert [call.id for call in agent.client_tools.pending.get()] == ["c2"]


async def test_open_calls_are_settled_when_the_user_goes_on() -> None:
    """AG-79, AG-148: the thread never keeps a client call without a result."""
    async with pair([*CALLS, finished()], [started(), *text("b", "ok"), finished()]) as (agent, endpoint):
        agent.client_tools.set_catalog([SHOW])
        await agent.submit("hi")
        await agent.submit("never mind")
        roles = [item["role"] for item in endpoint.asked[1].body["messages"]]
        assert roles == ["user", "assistant", "tool", "tool", "user"]


# Life


async def test_a_late_end_of_an_older_run_touches_nothing() -> None:
    """AG-205, §3.16: its connection was closed; whatever it still says is about itself."""
    hold = Hold()
    late = [
        started(),
        *text("a", "old", end=False),
        hold,
        {"type": "TEXT_MESSAGE_END", "messageId": "a"},
        failed("late"),
    ]
    async with pair(late, [started(), *text("b", "new"), finished()]) as (agent, _):
        first = agent.submit("1")
        await shown(agent, "old")
        second = agent.submit("2", when_busy="supersede")
        hold.release()
        assert [await first, await second] == ["interrupted", "success"]
        assert (agent.status.get(), agent.error.get()) == ("idle", None)
        assert agent.messages.get()[1].delivery.outcome == "interrupted"


async def test_a_subagent_is_one_object_an_invocation() -> None:
    """AG-160 … AG-162: the same while it streams, another when the id is used again; emptied at each run's start."""
    child = {"subagentRunId": "s"}
    part = [{**event, **child} for event in text("m", "their words")]
    script = [started(), {"type": "SUBAGENT_STARTED", "name": "scout", **child}, *part, {"type": "SUBAGENT_FINISHED", **child},
              *text("a", "mine"), finished()]  # fmt: skip
    async with pair(script, script, [started(), finished()]) as (agent, _):
        seen: list[Any] = []
        agent.subagents.subscribe(lambda found: seen.append(dict(found)))
        assert await agent.submit("1") == "success"
        first = agent.subagents.get()["s"]
        assert all(found in ({}, {"s": first}) for found in seen)
        assert (first.name, first.status.get(), first.messages.get()[-1].text) == (
            "scout",
            "complete",
            "their words",
        )
        assert texts(agent) == [("user", "1"), ("assistant", "mine")]
        assert await agent.submit("2") == "success"
        assert agent.subagents.get()["s"] is not first
        assert await agent.submit("3") == "success"
        assert dict(agent.subagents.get()) == {}


async def test_a_thread_switch_leaves_the_old_run() -> None:
    """§3.16: events of the old thread change nothing."""
    hold = Hold()
    async with pair([started(), *text("a", "x", end=False), hold, *text("b", "late")]) as (agent, _endpoint):
        op = agent.submit("hi")
        await shown(agent, "x")
        agent.set_thread("other")
        assert (agent.messages.get(), agent.status.get(), agent.thread_id) == ((), "idle", "other")
        assert await op == "aborted"
        hold.release()
        await asyncio.sleep(0)
        assert agent.messages.get() == ()
        assert await agent.retry() == "nothing"  # AG-82


async def test_options_that_a_plain_endpoint_cannot_take() -> None:
    """AG-78."""
    async with pair([started(), *text("a", "x", end=False), Hold()]) as (agent, _):
        agent.submit("hi")
        with pytest.raises(UnsupportedOption):
            agent.submit("no", when_busy="steer")


async def test_a_run_is_rolled_back_where_the_list_of_messages_is_the_conversation() -> None:
    """AG-78: what began is gone from the list, whatever it began with; its late events change nothing."""
    open_end = [started(), *text("b", "x", end=False), Hold()]
    scripts = [
        [started(), *text("a", "one"), finished()],
        open_end,
        [started(), *text("c", "two"), finished()],
    ]
    async with pair(*scripts) as (agent, endpoint):
        assert await agent.submit("1") == "success"
        first = agent.submit("2", state={"draft": 2})
        await shown(agent, "x")
        assert agent.state.get() == {"draft": 2}
        second = agent.submit("3", when_busy="rollback")
        said = [("user", "1"), ("assistant", "one"), ("user", "3")]
        assert texts(agent) == said
        assert await first == "interrupted"
        assert await second == "success"
        assert texts(agent) == [*said, ("assistant", "two")]
        body = endpoint.asked[2].body
        assert [item["content"] for item in body["messages"]] == ["1", "one", "3"]
        assert (body["state"], body["forwardedProps"]) == ({}, {})


async def test_an_agent_of_a_function() -> None:
    """§6: `agent_from`: an `Agent` from one async generator of events."""
    closed = []

    async def backend(asked):
        try:
            yield {"type": "RUN_STARTED", "threadId": asked["threadId"], "runId": asked["runId"]}
            said = asked["messages"][-1]["content"]
            if said == "fail":
                raise RuntimeError("HTTP 503: mine")
            yield {"type": "TEXT_MESSAGE_CHUNK", "messageId": "a", "delta": f"you said {said}"}
            yield {"type": "RUN_FINISHED", "threadId": asked["threadId"], "runId": asked["runId"]}
        finally:
            closed.append(1)

    async with agent_from(backend) as agent:
        assert await agent.submit("hi") == "success"
        assert texts(agent)[-1] == ("assistant", "you said hi")
        assert await agent.submit("fail") == "error"
        assert agent.error.get().status == 503
    assert len(closed) == 2


async def test_many_runs_leave_nothing_behind() -> None:
    """§5.16: flat memory, no live task, no open connection."""
    script = [started(), *text("a", "x"), finished()]
    async with pair(*([script] * 160)) as (agent, endpoint):
        counts = []
        for number in range(160):
            assert await agent.submit("hi") == "success"
            agent.set_thread(None)
            if number % 40 == 39:
                await asyncio.sleep(0)
                gc.collect()
                counts.append(len(gc.get_objects()))
        assert not tasks_of(agent)
        assert endpoint.open == 0
        assert counts[-1] - counts[1] < 500

"""What observers are told, in which order, and what their mistakes can do: nothing (AC-53 … AC-69, AC-123 … AC-129)."""

from __future__ import annotations

import asyncio
import gc

import pytest

from convkit import Log, passes, texts
from pilothouse.conversation.controller import AgentController
from pilothouse.core.lifecycle import AgentState
from pilothouse.events import Cancelled, Completed, Failed
from pilothouse.loop.config import LoopConfig, RetryPolicy
from pilothouse.loop.tools import tool
from pilothouse.testing.scripted import Hold, ScriptedProvider, call, failure


@pytest.mark.parametrize("pause_buffer", [0, 3])
async def test_a_pause_stops_reading_at_its_bound_and_loses_nothing(pause_buffer: int) -> None:
    """AC-56: back-pressure; 0 stops at once; a piece that was read already is kept."""
    hold = Hold()
    provider = ScriptedProvider(["a", hold, *["bc"] * 50])
    async with AgentController(provider, pause_buffer=pause_buffer) as agent:
        reply = await agent.send("hi")
        await hold.reached()
        agent.pause()
        hold.release()
        await passes(200)
        held = agent._stage._buffered
        assert held <= pause_buffer + 2
        assert (provider.open, reply.text) == (1, "a")
        agent.resume()
        assert (await reply.result()).text == "a" + "bc" * 50


async def test_while_paused_no_tool_starts_and_no_request_is_made() -> None:
    """AC-55: a response with calls is flushed and appended, `paused` stays; resume goes on with the tools."""
    started = []

    @tool
    async def look() -> str:
        """Look."""
        started.append(1)
        return "seen"

    hold = Hold()
    provider = ScriptedProvider(["a", hold, "b", call("look")], "done")
    async with AgentController(provider, tools=[look]) as agent:
        reply = await agent.send("hi")
        await hold.reached()
        agent.pause()
        hold.release()
        await passes(200)
        assert (agent.state, started, texts(agent)) == (AgentState.PAUSED, [], ["hi", "ab"])
        agent.resume()
        assert (await reply.result()).text == "done"
        assert texts(agent) == ["hi", "ab", "seen", "done"]


@pytest.mark.parametrize("ending", ["end", "error"])
async def test_ends_and_errors_while_paused_flush_first(ending: str) -> None:
    """AC-54, AC-61, AC-62: what was buffered is shown while the state reads paused."""
    log, hold, states = Log(), Hold(), []
    last = ["b"] if ending == "end" else ["b", failure("auth")]
    async with AgentController(ScriptedProvider(["a", hold, *last])) as agent:
        agent.subscribe(log)
        agent.update_options(on_response_chunk=lambda *_: states.append(agent.state.value))
        reply = await agent.send("hi")
        await hold.reached()
        agent.pause()
        hold.release()
        await reply.wait()
        assert states == ["streaming", "paused"]
        expected = ["messages", "state", "complete"] if ending == "end" else ["state", "error"]
        assert log.names()[-len(expected) - 1 :] == ["chunk", *expected]
        assert reply.text == "ab"


async def test_abort_while_paused_keeps_what_was_never_shown_apart() -> None:
    """AC-95: the buffered rest is `unapplied`."""
    holds = [Hold(), Hold()]
    async with AgentController(ScriptedProvider(["a", holds[0], "b", "c", holds[1]])) as agent:
        await agent.send("hi")
        await holds[0].reached()
        agent.pause()
        holds[0].release()
        await holds[1].reached()
        assert agent.abort()
        assert (agent.partial.text, agent.partial.unapplied) == ("a", "bc")
        assert (agent.current_response_text, agent.state) == ("a", AgentState.IDLE)


async def test_resume_inside_a_callback_flushes_after_it_and_a_pause_in_the_flush_stops_it() -> None:
    """AC-64: each piece once, in order."""
    seen, hold = [], Hold()
    provider = ScriptedProvider(["A", "B", "C", hold, "D"])
    async with AgentController(provider) as agent:

        def chunk(piece, text):
            seen.append(f"<{piece}")
            if piece == "A":
                agent.pause()
            if piece == "B" and agent.state is AgentState.STREAMING and not seen.count("pause"):
                seen.append("pause")
                agent.pause()
            seen.append(f"{piece}>")

        agent.update_options(on_response_chunk=chunk)
        reply = await agent.send("hi")
        await hold.reached()
        assert (seen, agent.state) == (["<A", "A>"], AgentState.PAUSED)
        agent.resume()
        assert (seen[2:], agent.state) == (["<B", "pause", "B>"], AgentState.PAUSED)
        assert reply.text == "AB"
        agent.resume()
        hold.release()
        assert (await reply.result()).text == "ABCD"
        assert [entry for entry in seen if entry[0] == "<"] == ["<A", "<B", "<C", "<D"]


async def test_pause_and_resume_inside_one_callback() -> None:
    """AC-64, proof 19: no doubles."""
    async with AgentController(ScriptedProvider(list("ABC"))) as agent:
        seen = []

        def chunk(piece, text):
            agent.pause()
            agent.resume()
            seen.append((piece, text))

        agent.update_options(on_response_chunk=chunk)
        assert (await (await agent.send("hi")).result()).text == "ABC"
        assert seen == [("A", "A"), ("B", "AB"), ("C", "ABC")]


@pytest.mark.parametrize(
    "where", ["on_response_start", "on_response_chunk", "on_state_change", "on_messages_change"]
)
async def test_abort_inside_each_callback_sticks(where: str) -> None:
    """AC-65, proof 8: idle, the stream closed, no later start, chunk, complete or error; the next send completes."""
    log = Log()
    provider = ScriptedProvider(["a", "b"], "next")
    async with AgentController(provider) as agent:
        agent.subscribe(log)

        def stop(*_):
            if agent.reply is not None and agent.last_reply is None:
                agent.abort()
                log.entries.append(("aborted",))

        agent.update_options(**{where: stop})
        reply = await agent.send("hi")
        assert await reply.wait() == Cancelled("aborted")
        assert await reply.wait_closed(5)
        assert (agent.state, provider.open) == (AgentState.IDLE, 0)
        after = log.names()[log.names().index("aborted") :]
        assert not {"start", "chunk", "complete", "error"} & set(after)
        assert log.states()[-1] == "idle"
        agent.update_options(**{where: None})
        unasked = where in ("on_state_change", "on_messages_change")  # stopped before the provider was called
        assert (await (await agent.send("again")).result()).text == ("ab" if unasked else "next")


async def test_every_observer_sees_every_change_in_order() -> None:
    """AC-64: also where one of them stops or clears in the middle."""
    first, last = Log(), Log()
    async with AgentController(ScriptedProvider("x")) as agent:
        agent.subscribe(first)

        class Clearing:
            def on_messages_change(self, messages):
                if len(messages) == 2:
                    agent.reset()

        agent.subscribe(Clearing())
        agent.subscribe(last)
        await (await agent.send("hi")).wait()
        for log in (first, last):
            assert log.states() == ["sending", "streaming", "complete", "idle"]
            assert [entry[1] for entry in log.entries if entry[0] == "messages"] == [1, 2, 0]
            assert "complete" not in log.names()
        assert (agent.messages, agent.last_reply, agent.state) == ((), None, AgentState.IDLE)


async def test_reset_in_a_flush_at_the_end_leaves_nothing_behind() -> None:
    """AC-65, proof 8: each step of a flush."""
    hold = Hold()
    async with AgentController(ScriptedProvider(["a", hold, "b", "c"], "next")) as agent:
        agent.update_options(on_response_chunk=lambda piece, _: agent.reset() if piece == "b" else None)
        reply = await agent.send("hi")
        await hold.reached()
        agent.pause()
        hold.release()
        assert isinstance(await reply.wait(), Cancelled)
        await reply.wait_closed()
        assert (agent.messages, agent.state, agent.current_response_text) == ((), AgentState.IDLE, "")
        await (await agent.send("again")).result()
        assert texts(agent) == ["again", "next"]


async def test_abort_in_error_drops_what_is_still_to_be_told() -> None:
    """AC-14, AC-65: to idle; the send stays failed."""
    log = Log()
    async with AgentController(ScriptedProvider(failure("auth"))) as agent:
        agent.update_options(on_state_change=lambda state: agent.abort() if state == "error" else None)
        agent.subscribe(log)
        reply = await agent.send("hi")
        assert isinstance(reply.outcome, Failed)
        assert (agent.state, agent.error) == (AgentState.IDLE, None)
        assert "error" not in log.names()


@pytest.mark.parametrize("kind", ["plain", "async", "observer", "host"])
async def test_whatever_raises_the_run_is_the_same(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """AC-66, proof 18: logged at ERROR, told to on_callback_error, and that is all."""
    told = []

    def boom(*_):
        raise RuntimeError("mine")

    async def async_boom(*_):
        raise RuntimeError("mine")

    class Host:
        request_update = boom

    names = [
        "on_response_start",
        "on_response_chunk",
        "on_response_complete",
        "on_state_change",
        "on_messages_change",
    ]
    options = {name: async_boom if kind == "async" else boom for name in names} if kind != "host" else {}
    host = Host() if kind == "host" else None
    if kind == "observer":
        observer, options = type("Observer", (), dict.fromkeys(names, boom))(), {}
    async with AgentController(
        ScriptedProvider(["a", "b"]),
        host=host,
        on_callback_error=lambda error, name: told.append(name),
        **options,
    ) as agent:
        if kind == "observer":
            agent.subscribe(observer)
        reply = await agent.send("hi")
        assert (await reply.result()).text == "ab"
        assert (agent.state, reply.outcome, texts(agent)) == (AgentState.COMPLETE, Completed(), ["hi", "ab"])
    assert set(told) == ({"request_update"} if kind == "host" else set(names))
    assert any(record.levelname == "ERROR" and record.exc_info for record in caplog.records)
    caplog.clear()


@pytest.mark.parametrize(
    ("name", "occasion"),
    [
        ("on_state_change", 0), ("on_state_change", 1), ("on_state_change", 2), ("on_messages_change", 0),
        ("on_messages_change", 1), ("on_response_start", 0), ("on_response_chunk", 0), ("on_response_complete", 0),
    ],
)  # fmt: skip
async def test_a_cancellation_out_of_a_callback_leaves_no_send_behind(name: str, occasion: int) -> None:
    """AC-66, AC-51: it is not swallowed, and the next send completes."""
    seen: list[object] = []

    def leave(*_) -> None:
        seen.append(name)
        if len(seen) == occasion + 1:
            raise asyncio.CancelledError

    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    once = LoopConfig(retry=RetryPolicy(attempts=1))
    async with AgentController(ScriptedProvider("1", "2"), config=once, **{name: leave}) as agent:
        try:
            await asyncio.wait_for((await agent.send("a")).wait(), 5)
        except asyncio.CancelledError:
            assert agent.state is AgentState.IDLE
        await passes()
        assert not agent.is_busy
        reply = await asyncio.wait_for(agent.send("b"), 5)
        assert (await asyncio.wait_for(reply.result(), 5)).text in ("1", "2")


async def test_an_error_in_the_error_callback_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    """AC-66."""

    def boom(*_):
        raise RuntimeError("mine")

    async with AgentController(
        ScriptedProvider(failure("auth")), on_error=boom, on_callback_error=boom
    ) as agent:
        assert isinstance((await agent.send("hi")).outcome, Failed)
        assert agent.state is AgentState.ERROR
    caplog.clear()


async def test_waiting_chunks_of_async_callbacks_are_joined() -> None:
    """AC-67: beyond 1,024 waiting, neighbours become one: the text whole, the accumulated text the latest."""
    gate, seen = asyncio.Event(), []

    async def chunk(piece, text):
        await gate.wait()
        seen.append((piece, len(text)))

    async with AgentController(ScriptedProvider(["x"] * 3000), on_response_chunk=chunk) as agent:
        await (await agent.send("hi")).result()
        gate.set()
    assert "".join(piece for piece, _ in seen) == "x" * 3000
    assert len(seen) <= 1026
    assert seen[-1][1] == 3000


async def test_async_callbacks_of_a_stopped_send_are_dropped_with_it() -> None:
    """AC-65: those that wait, too."""
    seen, hold = [], Hold()

    async def chunk(piece, text):
        seen.append(piece)

    async with AgentController(ScriptedProvider(["a", hold]), on_response_chunk=chunk) as agent:
        agent.subscribe(type("Stop", (), {"on_response_chunk": lambda self, *_: agent.abort()})())
        await agent.send("hi")
        await passes()
    assert seen == []
    hold.release()


async def test_send_works_from_the_callbacks_of_an_end() -> None:
    """AC-69: awaited by an async callback, started as a task by a plain one."""
    answers = []

    async def complete(message):
        answers.append(message.text)
        if len(answers) == 1:
            await (await agent.send("more")).result()

    async with AgentController(ScriptedProvider("one", "two"), on_response_complete=complete) as agent:
        await (await agent.send("hi")).result()
        while len(answers) < 2:
            await asyncio.sleep(0)
    assert answers == ["one", "two"]
    assert texts(agent) == ["hi", "one", "more", "two"]


async def test_subscribing_and_unsubscribing() -> None:
    """AC-68: after the option's callback, in order; removal is idempotent; something without a method is refused."""
    order = []
    async with AgentController(ScriptedProvider("x"), on_error=lambda _: None) as agent:
        agent.update_options(on_response_complete=lambda _: order.append("option"))
        for name in ("one", "two"):
            agent.subscribe(
                type("O", (), {"on_response_complete": lambda self, _, name=name: order.append(name)})()
            )
        log = Log()
        remove = agent.subscribe(log)
        remove()
        remove()
        with pytest.raises(TypeError, match="on_response_start"):
            agent.subscribe(object())
        await (await agent.send("hi")).result()
        assert (order, log.entries) == (["option", "one", "two"], [])


async def test_the_host_is_told_after_the_fields_changed() -> None:
    """AC-123: nothing else on it is called; one call a visible change at least, before the causing call returns."""
    seen, hold = [], Hold()

    class Host:
        def request_update(self):
            seen.append(
                (agent.state.value, len(agent.messages), agent.current_response_text, agent.pause_requested)
            )

    agent = AgentController(ScriptedProvider([hold, "a"]), host=Host())
    task = asyncio.ensure_future(agent.send("hi"))
    await hold.reached()
    agent.pause()
    assert seen[-1] == ("sending", 1, "", True)
    agent.resume()
    assert seen[-1] == ("sending", 1, "", False)
    hold.release()
    await (await task).result()
    assert ("streaming", 1, "a", False) in seen
    assert seen[-1] == ("complete", 2, "a", False)
    before = len(seen)
    agent.reset()
    assert seen[before:][-1] == ("idle", 0, "", False)
    await agent.aclose()


async def test_several_responses_show_no_text_twice() -> None:
    """AC-89, AC-129: a start and empty text for each stream, a change for each message, `complete` once."""
    log, live = Log(), []

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    async with AgentController(
        ScriptedProvider(["Let me.", call("look")], ["It ", "is."]), tools=[look]
    ) as agent:
        agent.subscribe(log)
        agent.update_options(on_messages_change=lambda _: live.append(agent.current_response_text))
        reply = await agent.send("hi")
        assert (await reply.result()).text == "It is."
        assert reply.text == "Let me.It is."
        assert "".join([piece async for piece in reply]) == reply.text
        assert [message.role for message in reply.messages] == ["assistant", "tool", "assistant"]
    assert log.names().count("start") == 2
    assert log.names().count("complete") == 1
    assert [entry[1] for entry in log.entries if entry[0] == "messages"] == [1, 2, 3, 4]
    assert live == ["", "", "", "It is."]


async def test_nothing_of_a_text_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """AC-125: ids, states, sizes and types only; a failure at WARNING even without callbacks."""
    caplog.set_level("DEBUG")
    async with AgentController(
        ScriptedProvider(["secret answer", failure("auth", "secret reason")])
    ) as agent:
        await (await agent.send("secret question")).wait()
    assert "secret" not in caplog.text
    assert any(
        record.levelname == "WARNING" and "ProviderError" in record.message for record in caplog.records
    )


async def test_a_long_answer_in_small_pieces_costs_the_same_at_its_end() -> None:
    """AC-69, proof 21: linear; the work is counted in objects alive, not in time."""
    async with AgentController(ScriptedProvider(["x"] * 100_000)) as agent:
        reply = await agent.send("hi")
        await reply.result()
        gc.collect()
        assert len(reply.text) == 100_000
        assert reply._pieces is None

"""AgentController: a conversation and the life of each send, over the memory journal and a scripted provider."""

from __future__ import annotations

import asyncio
import math
import re

import pytest

from pilothouse.conversation.controller import AgentController
from pilothouse.conversation.extras import Refused
from pilothouse.core.lifecycle import AgentState
from pilothouse.errors import (
    AgentBusy,
    AgentClosed,
    ConfigError,
    ConversationFull,
    InvalidTarget,
    MessageTooLong,
    NothingToDo,
    NotOpened,
    ReplyCancelled,
    ReplyFailed,
    RunConflict,
    SendTimeout,
    StreamIdleTimeout,
    UsageError,
)
from pilothouse.events import Cancelled, Completed, Failed, Truncated, Unknown
from pilothouse.journal.memory import MemoryJournal
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.config import LoopConfig
from pilothouse.messages import Message, Text
from pilothouse.responses import ResponseStarted, StreamEnd
from pilothouse.testing.clock import StepClock
from pilothouse.testing.scripted import Cut, Hold, ScriptedProvider, Sleep, failure


class Log:
    """An observer that writes down what it is told."""

    def __init__(self) -> None:
        self.entries: list[tuple] = []

    def on_state_change(self, state):
        self.entries.append(("state", state.value))

    def on_messages_change(self, messages):
        self.entries.append(("messages", len(messages)))

    def on_response_start(self, response_id):
        self.entries.append(("start",))

    def on_response_chunk(self, piece, text):
        self.entries.append(("chunk", piece, text))

    def on_response_complete(self, message):
        self.entries.append(("complete", message.text))

    def on_error(self, error):
        self.entries.append(("error", type(error).__name__))


def texts(agent: AgentController) -> list[str]:
    return [message.text for message in agent.messages]


async def test_an_answer_streams_and_ends_in_the_conversation() -> None:
    """AC-30 … AC-39, AC-58 … AC-61: the order in which observers are told, each with its own values."""
    log = Log()
    hold = Hold()
    async with AgentController(ScriptedProvider([ResponseStarted(), hold, "Hel", "lo"])) as agent:
        agent.subscribe(log)
        reply = await agent.send("hi")
        assert agent.state is AgentState.STREAMING
        hold.release()
        assert "".join([piece async for piece in reply]) == "Hello"
        assert (await reply.result()).text == "Hello"
        assert agent.state is AgentState.COMPLETE
    assert log.entries == [
        ("state", "sending"),
        ("messages", 1),
        ("start",),
        ("state", "streaming"),
        ("chunk", "Hel", "Hel"),
        ("chunk", "lo", "Hello"),
        ("messages", 2),
        ("state", "complete"),
        ("complete", "Hello"),
    ]


async def test_send_registers_in_one_step_with_the_memory_journal() -> None:
    """AC-40: when the coroutine first gives way, the state is sending and the message is shown."""
    agent = AgentController(ScriptedProvider("x"))
    coroutine = agent.send("hi")
    assert agent.state is AgentState.IDLE
    task = asyncio.ensure_future(coroutine)
    await asyncio.sleep(0)
    assert (agent.state, texts(agent)) == (AgentState.SENDING, ["hi"])
    await (await task).result()
    await agent.aclose()


@pytest.mark.parametrize("when", ["sending", "streaming"])
async def test_abort_is_at_once_idle_and_the_next_send_works(when: str) -> None:
    """AC-79, AC-80, AC-95, AC-96: cancelled, never an error; the stream is closed; the partial is kept."""
    hold = Hold()
    script = ["half", hold] if when == "streaming" else [hold]
    provider = ScriptedProvider(script, "next")
    async with AgentController(provider) as agent:
        sending = asyncio.ensure_future(agent.send("one"))
        await hold.reached()
        assert agent.abort()
        assert agent.state is AgentState.IDLE
        reply = await sending
        assert reply.outcome == Cancelled("aborted")
        with pytest.raises(ReplyCancelled):
            await reply.result()
        assert await reply.wait_closed()
        assert provider.open == 0
        assert (reply.partial.text if reply.partial else None) == ("half" if when == "streaming" else None)
        assert texts(agent) == ["one"]
        assert not agent.abort()
        assert (await (await agent.send("two")).result()).text == "next"
        assert texts(agent) == ["one", "two", "next"]


async def test_abort_and_send_in_one_step() -> None:
    """AC-120: answer k belongs to question k after any number of stops."""
    hold = Hold()
    async with AgentController(ScriptedProvider(["first", hold], "second")) as agent:
        await agent.send("one")
        await hold.reached()
        agent.abort()
        reply = await agent.send("two")
        assert (await reply.result()).text == "second"
        assert texts(agent) == ["one", "two", "second"]


async def test_a_failure_before_and_after_the_stream() -> None:
    """AC-93, AC-97: the state is error, `on_error` fires once, `send` resolves; the text so far is kept."""
    log = Log()
    provider = ScriptedProvider(failure("auth", "no such key"), ["some", failure("server_error", "boom")])
    async with AgentController(provider) as agent:
        agent.subscribe(log)
        reply = await agent.send("one")
        assert isinstance(await reply.wait(), Failed)
        assert (agent.state, agent.partial) == (AgentState.ERROR, None)
        with pytest.raises(ReplyFailed, match="no such key"):
            await reply.result()
        reply = await agent.send("two")
        assert isinstance(await reply.wait(), Failed)
        assert (agent.current_response_text, agent.partial.text) == ("some", "some")
        assert [entry for entry in log.entries if entry[0] == "error"] == [("error", "ProviderError")] * 2
        assert texts(agent) == ["one", "two"]
        assert not agent.abort()
        assert agent.state is AgentState.IDLE


async def test_a_stream_that_ends_without_saying_so_is_unknown_and_retry_abandons_it_on_the_record() -> None:
    """AC-94, AC-50, AG-104: unknown is no finish; the decision to go on is recorded."""
    async with AgentController(ScriptedProvider(["half", Cut()], "whole")) as agent:
        reply = await agent.send("one")
        assert isinstance(await reply.wait(), Unknown)
        assert agent.state is AgentState.ERROR
        again = await agent.retry()
        assert (await again.result()).text == "whole"
        assert texts(agent) == ["one", "whole"]
        old = await agent.runs.inspect(reply.id)
        assert (old.outcome.settled, old.outcome.reason) == (True, f"retried as {again.id}")


async def test_guards_refuse_without_a_trace() -> None:
    """AC-46 … AC-48, AC-160 … AC-162: nothing changed, called or told."""
    hold = Hold()
    provider = ScriptedProvider([hold])
    async with AgentController(provider, max_message_length=3, max_messages=4) as agent:
        with pytest.raises(MessageTooLong, match="4 characters, the limit is 3"):
            await agent.send("four")
        with pytest.raises(TypeError, match="content must be str"):
            await agent.send(b"x")  # type: ignore[arg-type]
        with pytest.raises(NothingToDo):
            await agent.send(None)
        assert (agent.state, agent.messages, provider.requests) == (AgentState.IDLE, (), [])
        running = asyncio.ensure_future(agent.send("one"))
        await hold.reached()
        with pytest.raises(AgentBusy, match="cannot send while sending"):
            await agent.send("two")
        with pytest.raises(AgentBusy):
            agent.set_messages([])
        hold.release()
        await (await running).wait()
        agent.set_messages([Message(str(n), "user", (Text("x"),)) for n in range(3)])
        with pytest.raises(ConversationFull):
            await agent.send("two")
    with pytest.raises(AgentClosed):
        await agent.send("x")


async def test_the_same_id_is_the_same_send() -> None:
    """AC-41: also while busy and after the end; other content is a conflict."""
    async with AgentController(ScriptedProvider("answer")) as agent:
        first = await agent.send("hi", id="k1")
        assert await agent.send("hi", id="k1") is first
        await first.result()
        assert await agent.send("hi", id="k1") is first
        with pytest.raises(RunConflict):
            await agent.send("other", id="k1")
        assert texts(agent) == ["hi", "answer"]


async def test_pause_buffers_and_resume_flushes_in_order() -> None:
    """AC-53, AC-54, AC-128: nothing is lost, nothing is shown while paused."""
    log = Log()
    holds = [Hold(), Hold()]
    async with AgentController(ScriptedProvider(["a", holds[0], "b", "c", holds[1], "d"])) as agent:
        agent.subscribe(log)
        reply = await agent.send("hi")
        await holds[0].reached()
        agent.pause()
        assert agent.state is AgentState.PAUSED
        holds[0].release()
        await holds[1].reached()
        assert (agent.current_response_text, reply.text) == ("a", "a")
        agent.resume()
        assert (agent.current_response_text, agent.state) == ("abc", AgentState.STREAMING)
        holds[1].release()
        assert (await reply.result()).text == "abcd"
    chunks = [entry[1] for entry in log.entries if entry[0] == "chunk"]
    assert chunks == ["a", "b", "c", "d"]


async def test_a_pause_while_sending_is_remembered() -> None:
    """AC-53: at hand-over straight to paused."""
    hold, later = Hold(), Hold()
    async with AgentController(ScriptedProvider([hold, "x", later])) as agent:
        sending = asyncio.ensure_future(agent.send("hi"))
        await hold.reached()
        agent.pause()
        assert (agent.state, agent.pause_requested) == (AgentState.SENDING, True)
        hold.release()
        reply = await sending
        assert (agent.state, agent.pause_requested, reply.text) == (AgentState.PAUSED, False, "")
        agent.resume()
        later.release()
        assert (await reply.result()).text == "x"


async def test_reset_clears_and_a_new_thread_begins() -> None:
    """AC-84: nothing is deleted from the journal."""
    async with AgentController(ScriptedProvider("one", "two")) as agent:
        first = await agent.send("hi")
        await first.result()
        thread = agent.thread_id
        agent.reset()
        assert (agent.messages, agent.current_response_text, agent.state) == ((), "", AgentState.IDLE)
        assert agent.thread_id != thread
        await (await agent.send("again")).result()
        assert texts(agent) == ["again", "two"]
        assert await agent.runs.has_run(first.id)


async def test_regenerate_answers_again_on_another_branch() -> None:
    """AC-50: the nearest user message before it; the old branch stays."""
    async with AgentController(ScriptedProvider("one", "two", "three")) as agent:
        first = await agent.send("hi")
        answer = await first.result()
        with pytest.raises(InvalidTarget):
            await agent.regenerate(agent.messages[0].id)
        again = await agent.regenerate(answer.id)
        assert (await again.result()).text == "two"
        assert texts(agent) == ["hi", "two"]
        assert [entry.message.text for entry in await agent.runs.history(first.id)] == ["hi", "one"]
        await (await agent.send("more")).result()
        assert texts(agent) == ["hi", "two", "more", "three"]


async def test_a_callback_that_raises_changes_nothing() -> None:
    """AC-66: logged, handed to on_callback_error, and that is all."""
    told = []

    def boom(*_):
        raise RuntimeError("mine")

    async with AgentController(
        ScriptedProvider(["a", "b"]),
        on_response_chunk=boom,
        on_state_change=boom,
        on_callback_error=lambda error, name: told.append(name),
    ) as agent:
        reply = await agent.send("hi")
        assert (await reply.result()).text == "ab"
        assert agent.state is AgentState.COMPLETE
    assert told == ["on_state_change"] * 2 + ["on_response_chunk"] * 2 + ["on_state_change"]


async def test_abort_inside_a_callback_sticks() -> None:
    """AC-65: no chunk, complete or error of that send is delivered after it."""
    log = Log()

    def stop(piece, text):
        agent.abort()

    async with AgentController(ScriptedProvider(["a", "b", "c"]), on_response_chunk=stop) as agent:
        agent.subscribe(log)
        reply = await agent.send("hi")
        assert await reply.wait() == Cancelled("aborted")
        assert await reply.wait_closed()
        assert (agent.state, reply.text) == (AgentState.IDLE, "a")
    names = [entry[0] for entry in log.entries]
    assert "complete" not in names
    assert names.count("chunk") <= 1
    assert log.entries[-1] == ("state", "idle")


async def test_async_callbacks_run_in_order_and_do_not_hold_the_machine() -> None:
    """AC-67: one after another in one task."""
    seen = []

    async def slow(piece, text):
        await asyncio.sleep(0)
        seen.append(piece)

    async with AgentController(ScriptedProvider(list("abc")), on_response_chunk=slow) as agent:
        await (await agent.send("hi")).result()
    assert seen == ["a", "b", "c"]


async def test_the_source_s_measured_timeouts() -> None:
    """AC-77: a long answer completes, silence trips, steady gaps do not (seed 000), in simulated time."""
    clock = StepClock()

    async def play(*script, **options):
        provider = ScriptedProvider(list(script), clock=clock)
        agent = AgentController(provider, clock=clock, **options)
        task = asyncio.ensure_future(agent.send("hi"))
        for _ in range(40):
            await clock.advance(0.05)
        reply = await task
        outcome = reply.outcome
        await agent.aclose()
        return outcome, agent

    beat = [item for n in range(8) for item in (Sleep(0.15), str(n))]
    outcome, _ = await play("x", *beat, send_timeout=0.5)
    assert outcome == Completed()
    outcome, agent = await play("x", Hold(), stream_idle_timeout=0.3)
    assert isinstance(outcome, Failed)
    assert isinstance(agent.last_reply.error, StreamIdleTimeout)
    assert agent.current_response_text == "x"
    outcome, _ = await play("x", *beat, stream_idle_timeout=0.3)
    assert outcome == Completed()
    outcome, agent = await play(Hold(deaf=True), send_timeout=0.5)
    assert isinstance(agent.last_reply.error, SendTimeout)


async def test_the_output_limit_is_a_result_with_a_mark() -> None:
    """AC-91: truncated returns its message, with the stop reason."""
    async with AgentController(ScriptedProvider(["cut", StreamEnd("length")])) as agent:
        reply = await agent.send("hi")
        message = await reply.result()
        assert (message.text, message.stop_reason, reply.outcome) == ("cut", "length", Truncated())
        assert agent.state is AgentState.COMPLETE


async def test_a_thread_is_opened_again_from_its_journal() -> None:
    """AC-122: facts alone give the messages again; sending to an unopened thread is refused."""
    journal = MemoryJournal()
    async with AgentController(ScriptedProvider("one"), journal=journal, thread_id="t") as agent:
        await (await agent.send("hi")).result()
    later = AgentController(ScriptedProvider("two"), journal=journal, thread_id="t")
    with pytest.raises(NotOpened):
        await later.send("x")
    async with later:
        assert texts(later) == ["hi", "one"]
        await (await later.send("more")).result()
        assert texts(later) == ["hi", "one", "more", "two"]
    await journal.aclose()


async def test_text_forms_are_providers() -> None:
    """AC-105 … AC-107, AC-110: a generator, a coroutine, an object; one attempt, raising is failure."""

    async def generator(messages):
        yield messages[-1].text.upper()
        yield None
        yield "!"

    async def coroutine(messages, options):
        return f"{len(messages)} {options.system_prompt}"

    class Backend:
        async def send(self, messages, options):
            class Answer:
                id = "r-1"

                async def stream(self):
                    yield "from "
                    yield "send"

            answer = Answer()
            answer.stream = answer.stream()
            return answer

    async def broken(messages):
        yield "a"
        raise ValueError("no more")

    async def answer(provider, **options):
        async with AgentController(provider, **options) as agent:
            reply = await agent.send("hi")
            await reply.wait()
            return reply

    assert (await answer(generator)).text == "HI!"
    assert (await answer(coroutine, system_prompt="be kind")).text == "1 be kind"
    assert (await answer(Backend())).text == "from send"
    failed = await answer(broken)
    assert (failed.text, type(failed.error)) == ("a", ValueError)
    with pytest.raises(TypeError, match="a provider is"):
        AgentController(lambda messages: "x")
    with pytest.raises(TypeError, match="the class Backend"):
        AgentController(Backend)
    with pytest.raises(TypeError, match="write `async def`"):
        AgentController(lambda messages: "x")
    with pytest.raises(UsageError, match=r"cannot call tools: use a Provider, as pilothouse\.provider"):
        AgentController(generator, tools=[print])


def test_a_slip_in_a_name_is_answered_with_the_right_one() -> None:
    """Also where the right one is no option but another argument of the constructor."""
    for wrong, right in (("tool", "tools"), ("jurnal", "journal"), ("systemprompt", "system_prompt")):
        with pytest.raises(ConfigError, match=f"did you mean '{right}'"):
            AgentController(ScriptedProvider(), **{wrong: None})


def test_a_configuration_that_nobody_would_read_is_refused() -> None:
    """`config=` is the loop's: over a ready loop or a text-only model it would have no effect."""

    async def silent(_messages):
        yield ""

    with pytest.raises(UsageError, match="a Runtime brings its own"):
        AgentController(AgentLoop(ScriptedProvider()), config=LoopConfig())
    with pytest.raises(UsageError, match="a text-only one has no loop"):
        AgentController(silent, config=LoopConfig())


def test_a_second_asyncio_run_is_told_that_the_first_has_ended() -> None:
    """AC-121: a conversation belongs to one loop; what to do depends on whether that is still there."""
    agent = AgentController(ScriptedProvider("one", "two"))

    async def ask() -> str:
        return (await (await agent.send("hi")).result()).text

    assert asyncio.run(ask()) == "one"
    with pytest.raises(UsageError, match=r"has ended, so make a conversation in each asyncio\.run"):
        asyncio.run(ask())


@pytest.mark.parametrize(
    ("value", "result"),
    [
        (None, 60.0), (0, math.inf), (-1, math.inf), (-0.0, math.inf), (math.inf, math.inf),
        (-math.inf, math.inf), (math.nan, 60.0), ("5", 60.0), (False, 60.0), ([], 60.0),
        (0.001, 0.001), (10**400, 2_147_483.0), (3_000_000, 2_147_483.0), (5, 5.0),
    ],
)  # fmt: skip
def test_odd_timeouts_mean_what_they_most_likely_mean(value: object, result: float) -> None:
    """AC-70: the sanitizing table."""
    agent = AgentController(ScriptedProvider(), send_timeout=value)  # type: ignore[arg-type]
    assert agent.options["send_timeout"] == result


def test_counts_and_names_are_checked() -> None:
    """AC-71, AC-163."""
    for bad in (
        {"max_messages": 0},
        {"max_messages": math.nan},
        {"nonsense": 1},
        {"on_error": 3},
        {"params": {1: 2}},
    ):
        with pytest.raises(ConfigError):
            AgentController(ScriptedProvider(), **bad)  # type: ignore[arg-type]


async def test_queued_sends_run_in_turn_and_supersede_replaces() -> None:
    """TC-90: queue is FIFO; supersede cancels the live send and keeps its partial."""
    hold = Hold()
    async with AgentController(ScriptedProvider(["one", hold], "two", "three")) as agent:
        first = await agent.send("1")
        await hold.reached()
        second = asyncio.ensure_future(agent.send("2", when_busy="queue"))
        await asyncio.sleep(0)
        hold.release()
        assert (await (await second).result()).text == "two"
        assert first.outcome == Completed()
    hold = Hold()
    async with AgentController(ScriptedProvider(["one", hold], "two")) as agent:
        first = await agent.send("1")
        await hold.reached()
        second = await agent.send("2", when_busy="supersede")
        assert (await second.result()).text == "two"
        assert first.outcome == Cancelled("superseded")
        assert first.partial.text == "one"
        dropped = await agent.send("3")
        assert not isinstance(dropped.outcome, Refused)
        await dropped.wait()


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"journal": "chat.db"}, 'SQLiteJournal("chat.db")'),
        ({"thread_id": 5}, "thread_id must be a str, got int"),
        ({"thread_id": ""}, "thread_id must have 1 to 200 characters"),
        ({"thread_id": "a\nb"}, "control characters"),
        ({"host": object()}, "request_update"),
        ({"clock": 3}, "monotonic"),
        ({"config": {"model": "x"}}, "config must be a LoopConfig, got dict"),
    ],
)
def test_a_part_that_cannot_work_is_told_when_the_conversation_is_made(part: dict, says: str) -> None:
    """AC-163: by the name of the argument, with what it should be."""
    with pytest.raises(ConfigError, match=re.escape(says)):
        AgentController(ScriptedProvider(), **part)


def test_a_models_name_is_no_provider_and_the_error_says_what_is() -> None:
    """AC-160."""
    with pytest.raises(TypeError, match=re.escape("pilothouse.provider('openai:gpt-5')")):
        AgentController("openai:gpt-5")

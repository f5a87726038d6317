"""What is accepted as a provider, and what each form gives (AC-100 … AC-113), attachments (AC-114 … AC-119)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from convkit import Log, passes, texts
from pilothouse.conversation.attachments import Attachment
from pilothouse.conversation.controller import AgentController
from pilothouse.core.lifecycle import AgentState
from pilothouse.errors import ProviderContractError, ReplyFailed
from pilothouse.events import (
    Completed,
    Failed,
    MessageAdded,
    ReasoningTold,
    RunEnded,
    RunStarted,
    TextTold,
)
from pilothouse.journal.memory import MemoryJournal
from pilothouse.messages import Audio, File, Image, Message, Text, Video
from pilothouse.records import Descriptor
from pilothouse.testing.clock import StepClock
from pilothouse.testing.scripted import Hold, ScriptedProvider


class Stream:
    """The source's answer: an id, a stream, and something to say about it."""

    def __init__(self, *pieces, response_id="r-1", metadata=None):
        self.id = response_id
        self.metadata = metadata or {}
        self.closed = 0
        self.opened_closed = 0
        self.stream = self._play(pieces)

    async def _play(self, pieces):
        try:
            for piece in pieces:
                if isinstance(piece, Exception):
                    raise piece
                if isinstance(piece, Hold):
                    await piece.wait()
                else:
                    yield piece
        finally:
            self.closed += 1

    async def aclose(self):
        self.opened_closed += 1


class Backend:
    """The source's form of a provider."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.options = []
        self.messages = []

    async def send(self, messages, options):
        self.messages.append(messages)
        self.options.append(options)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def form(kind: str, *pieces):
    """The same pieces in each of the text forms."""
    if kind == "object":
        return Backend(Stream(*pieces))
    if kind == "generator":

        async def generate(messages, options):
            for piece in pieces:
                if isinstance(piece, Exception):
                    raise piece
                yield piece

        return generate

    async def answer(messages):
        return Stream(*pieces)

    return answer


FORMS = ("object", "generator", "coroutine")


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["a", None, "", "b", None], "ab"),
        ([], ""),
        (["x\ud83d", "\ude00y"], "x😀y"),
        (["a\ud83d"], "a\ufffd"),
        (["\ude00b"], "\ufffdb"),
    ],
)
async def test_each_form_gives_the_same_record_for_the_same_pieces(
    kind: str, pieces: list, text: str
) -> None:
    """AC-100, AC-105 … AC-107, AC-110: exhaustion is the declared end; odd pieces, halves of characters, no pieces."""
    log = Log()
    async with AgentController(form(kind, *pieces)) as agent:
        agent.subscribe(log)
        reply = await agent.send("hi")
        assert (await reply.result()).text == text
        assert isinstance(reply.outcome, Completed)
        assert (reply.text, texts(agent)) == (text, ["hi", text])
        assert "" not in log.chunks()
        assert "".join(log.chunks()) == text
        assert log.names().count("start") == 1
        assert await reply.wait_closed(5)


@pytest.mark.parametrize("kind", FORMS)
async def test_raising_is_a_failed_stream_with_the_original_exception(kind: str) -> None:
    """AC-93, AC-101: the text so far is kept; one attempt."""
    mine, told = ValueError("no more"), []
    async with AgentController(form(kind, "a", mine), on_error=told.append) as agent:
        reply = await agent.send("hi")
        outcome = await reply.wait()
        assert isinstance(outcome, Failed)
        assert (outcome.kind, outcome.retryable, told) == ("provider", True, [mine])
        assert (reply.partial.text, reply.error) == ("a", mine)
        with pytest.raises(ReplyFailed) as caught:
            await reply.result()
        assert caught.value.__cause__ is mine


@pytest.mark.parametrize(
    ("kind", "pieces"),
    [("generator", [ValueError("x")]), ("object", None)],
)
async def test_raising_before_the_stream_is_no_broken_stream(kind: str, pieces: list | None) -> None:
    """AC-97, AC-106: no response start, no partial, the previous text stays."""
    log = Log()
    provider = Backend(Stream("before"), ValueError("x")) if pieces is None else None
    async with AgentController(provider or form("coroutine", "before")) as agent:
        await (await agent.send("1")).result()
        if provider is None:
            agent.set_provider(form(kind, *pieces))
        agent.subscribe(log)
        reply = await agent.send("2")
        assert isinstance(reply.outcome, Failed)
        assert (reply.partial, agent.current_response_text, agent.state) == (None, "before", AgentState.ERROR)
        assert "start" not in log.names()


@pytest.mark.parametrize(
    "answer", [None, "text", 3, Stream(3), type("S", (), {"stream": "text", "id": "x"})()]
)
async def test_what_is_no_stream_is_refused_before_hand_over(answer: object) -> None:
    """AC-109, AC-110: naming the type; no response start where nothing was handed over."""
    log = Log()
    async with AgentController(Backend(answer)) as agent:
        agent.subscribe(log)
        reply = await agent.send("hi")
        outcome = await reply.wait()
        assert (outcome.kind, outcome.retryable) == ("provider_contract", False)
        assert isinstance(reply.error, ProviderContractError)
        assert "got " in str(reply.error)
        assert ("start" in log.names()) == isinstance(answer, Stream)


async def test_a_coroutine_may_answer_with_one_text() -> None:
    """AC-107."""

    async def answer(messages):
        return f"you said {messages[-1].text}"

    async with AgentController(answer) as agent:
        assert (await (await agent.send("hi")).result()).text == "you said hi"


async def test_a_form_gets_the_messages_and_the_options_and_cannot_edit_them() -> None:
    """AC-52: an immutable tuple that ends with the new message; params as they were given; unset is None."""
    params = {"temperature": 0.5, "vendor": {"x": [1]}}
    backend = Backend(Stream("a"), Stream("b"))
    async with AgentController(backend, params=params) as agent:
        reply = await agent.send("1", id="one")
        await reply.result()
        options = backend.options[0]
        assert backend.messages[0] == agent.messages[:1]
        assert isinstance(backend.messages[0], tuple)
        assert (options.model, options.system_prompt, options.params) == (None, None, params)
        assert (options.reply_id, options.thread_id) == ("one", agent.thread_id)
        options.params["vendor"]["x"].append(2)
        agent.update_options(model="m", system_prompt="be kind")
        await (await agent.send("2")).result()
        later = backend.options[1]
        assert (later.model, later.system_prompt, later.params) == ("m", "be kind", params)
        assert [message.text for message in backend.messages[1]] == ["1", "a", "2"]


@pytest.mark.parametrize("how", ["abort", "reset", "set_provider", "aclose", "end", "error", "timeout"])
async def test_the_signal_fires_on_all_named_routes_and_never_after_a_normal_end(how: str) -> None:
    """AC-83, AC-112, AC-81: it says why; stream and response object are closed on every end."""
    hold, clock = Hold(), StepClock()
    last = {"end": "b", "error": ValueError("x")}.get(how, hold)
    stream = Stream("a", last)
    backend = Backend(stream)
    agent = AgentController(backend, clock=clock, stream_idle_timeout=3)
    reply = await agent.send("hi")
    signal = backend.options[0].signal
    if how in ("end", "error"):
        await reply.wait()
    elif how == "timeout":
        await hold.reached()
        await clock.advance(3)
        await reply.wait()
    else:
        await hold.reached()
        assert not signal.is_set()
        outcome = getattr(agent, how)(*([ScriptedProvider()] if how == "set_provider" else []))
        if how == "aclose":
            await outcome
    await passes(50)
    reasons = {
        "abort": "aborted",
        "aclose": "closed",
        "end": "",
        "error": "provider",
        "timeout": "idle_timeout",
    }
    assert (signal.is_set(), signal.reason) == (how != "end", reasons.get(how, how))
    assert (stream.closed, stream.opened_closed) == (1, 1)
    await agent.aclose()


async def test_a_stream_that_comes_too_late_is_closed_unread() -> None:
    """AC-81, AC-80: a provider that swallows its cancellation and then answers."""
    stream, reached = Stream("late"), asyncio.Event()

    class Deaf:
        async def send(self, messages, options):
            reached.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return stream

    agent = AgentController(Deaf())
    task = asyncio.ensure_future(agent.send("hi"))
    await reached.wait()
    assert agent.abort()
    reply = await task
    assert await reply.wait_closed(5)
    assert (reply.text, stream.opened_closed, agent.state) == ("", 1, AgentState.IDLE)
    await agent.aclose()
    await stream.stream.aclose()


async def test_an_error_that_says_a_whole_page_is_a_failure_like_any_other() -> None:
    """AC-93, AC-101: its end is known; the record has the beginning of its text, `on_error` all of it."""

    async def answer(messages):
        yield "a"
        raise ValueError("\ud800 page " * 100_000)

    async with AgentController(answer) as agent:
        outcome = await (await agent.send("x")).wait()
        assert isinstance(outcome, Failed)
        assert outcome.kind == "provider"
        assert len(str(agent.error)) == 700_000


async def test_a_provider_that_cancels_itself_has_failed() -> None:
    """AC-101: `provider_cancelled`, which a person may retry."""
    async with AgentController(form("generator", "a", asyncio.CancelledError())) as agent:
        pass

    async def cancels(messages):
        yield "a"
        raise asyncio.CancelledError

    async with AgentController(cancels) as agent:
        reply = await agent.send("hi")
        outcome = await reply.wait()
        assert (outcome.kind, outcome.retryable, reply.text) == ("provider_cancelled", True, "a")


async def test_metadata_is_read_when_the_response_ends_and_an_odd_id_is_kept() -> None:
    """AC-111: however it ends; the message has the loop's own id, the response's stands on the reply."""
    hold = Hold()
    stream = Stream("a", hold, metadata={"tokens": 1})
    async with AgentController(Backend(stream, Stream("b", response_id=7))) as agent:
        reply = await agent.send("1")
        stream.metadata["tokens"] = 2
        hold.release()
        message = await reply.result()
        assert reply.metadata == {"tokens": 2, "provider_id": "r-1"}
        assert reply.response_id == "r-1"
        second = await agent.send("2")
        await second.result()
        assert second.metadata["provider_id"] == 7
        ids = [item.id for item in agent.messages]
        assert len(set(ids)) == len(ids)
        assert message.id in ids


def _function(messages):
    return "x"


def _generator(messages):
    yield "x"


class _SyncSend:
    def send(self, messages, options):
        return "x"


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        (None, "NoneType"),
        (Backend, "the class Backend"),
        (_function, "a sync function"),
        (_generator, "a sync generator function"),
        (_SyncSend(), "_SyncSend"),
        ("openai", "str"),
    ],
)
def test_anything_else_is_refused_by_name(bad: object, shown: str) -> None:
    """AC-104, AC-109, AC-164: in the constructor and in set_provider, where the old one stays."""
    with pytest.raises(TypeError, match=f"a provider is .*; got {shown}"):
        AgentController(bad)
    good = ScriptedProvider()
    agent = AgentController(good)
    with pytest.raises(TypeError):
        agent.set_provider(bad)
    assert agent.provider is good


class Foreign:
    """A whole agent that is not our loop: it plays what a test wrote down."""

    def __init__(self, *steps, clock=None):
        self.steps = steps
        self.clock = clock
        self.deaf = False

    def describe(self):
        return Descriptor("foreign", cancel="confirmed", commands=("cancel",))

    async def run(self, start, port):
        await port.record(RunStarted())
        for step in self.steps:
            if isinstance(step, float):
                await self.clock.sleep(step)
            elif isinstance(step, Hold):
                await step.wait()
            elif isinstance(step, TextTold | ReasoningTold):
                port.tell(step)
            else:
                await port.record(step)
        await port.record(RunEnded(Completed()))


def said(text: str, message_id: str = "m1") -> MessageAdded:
    return MessageAdded(Message(message_id, "assistant", (Text(text),), stop_reason="complete"))


async def test_a_runtime_is_a_provider_too() -> None:
    """AC-108: hand-over is its first delta or message; what it did not stream is told when its message comes."""
    log = Log()
    runtime = Foreign(
        TextTold("m1", 0, "Hel"), TextTold("m1", 0, "lo", 3), said("Hello!"), said("More.", "m2")
    )
    async with AgentController(runtime) as agent:
        agent.subscribe(log)
        reply = await agent.send("hi")
        assert (await reply.result()).text == "More."
        assert (reply.text, texts(agent)) == ("Hello!More.", ["hi", "Hello!", "More."])
        assert log.chunks() == ["Hel", "lo", "!", "More."]
        assert log.names().count("start") == 2


@pytest.mark.parametrize("limit", ["send_timeout", "stream_idle_timeout"])
async def test_a_silent_runtime_is_ended_by_its_send_s_limits(limit: str) -> None:
    """AC-72, AC-75, AC-108: the port around its port trips, its task is cancelled, the run fails on the record."""
    clock, hold = StepClock(), Hold()
    steps = (
        [hold]
        if limit == "send_timeout"
        else [TextTold("m1", 0, "a"), 2.9, ReasoningTold("m1", 1, "b"), hold]
    )
    async with AgentController(Foreign(*steps, clock=clock), clock=clock, **{limit: 3}) as agent:
        task = asyncio.ensure_future(agent.send("hi"))
        await clock.advance(2.9)
        assert agent.is_busy
        await clock.advance(2.9 if limit != "send_timeout" else 0)
        assert agent.is_busy
        await clock.advance(0.2)
        reply = await task
        kind = "send_timeout" if limit == "send_timeout" else "idle_timeout"
        outcome = await reply.wait()
        assert (outcome.kind, agent.state) == (kind, AgentState.ERROR)
        assert (await agent.runs.inspect(reply.id)).status == "failed"
        assert await reply.wait_closed()


def test_attachments_become_the_part_that_their_type_names(tmp_path: Path) -> None:
    """AC-115, AC-119: copied, checked, the filename reduced to its last component."""
    assert Attachment(url="https://x.org/a", mime_type="image/png") == Image("image/png", "https://x.org/a")
    data = bytearray(b"abc")
    made = Attachment(data=data, mime_type="audio/wav", filename="../a/b.wav")
    data[0] = 0
    assert made == Audio("audio/wav", data=b"abc", filename="b.wav")
    assert isinstance(Attachment(url="https://x.org/a", mime_type="video/mp4"), Video)
    (tmp_path / "n.txt").write_text("hi")
    (tmp_path / "odd.zzz").write_text("hi")
    assert Attachment.from_path(tmp_path / "n.txt") == File("text/plain", data=b"hi", filename="n.txt")
    assert Attachment.from_path(tmp_path / "odd.zzz").mime_type == "application/octet-stream"
    assert isinstance(made, Attachment)
    assert not isinstance(Text("x"), Attachment)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "url and data"),
        ({"url": "https://x.org", "data": b"x"}, "url and data"),
        ({"data": b""}, "data"),
        ({"data": "text"}, "data"),
        ({"url": "/relative"}, "url"),
        ({"url": "file:///etc/passwd"}, "url"),
        ({"url": "JavaScript:alert(1)"}, "url"),
        ({"url": "https://x.org/\n"}, "url"),
        ({"url": "https:///x"}, "url"),
        ({"data": b"x", "mime_type": "png"}, "mime_type"),
        ({"data": b"x", "mime_type": 3}, "mime_type"),
        ({"data": b"x", "mime_type": None}, "mime_type"),
        ({"url": "https://[x"}, "url"),
        ({"data": b"x", "filename": 3}, "filename"),
    ],
)
def test_what_is_no_attachment_is_refused(fields: dict, field: str) -> None:
    """AC-115: ValueError naming the field."""
    with pytest.raises(ValueError, match=field):
        Attachment(**{"mime_type": "image/png", **fields})


async def test_bytes_are_stored_once_and_reach_the_provider_unchanged() -> None:
    """AC-116: after a restart too; the view has digests and sizes, never bytes."""
    journal, picture = MemoryJournal(), Attachment(data=b"picture", mime_type="image/png")
    provider = ScriptedProvider("a", "b", "c", "d")
    async with AgentController(provider, journal=journal, thread_id="t") as agent:
        await (await agent.send("look", [picture, picture])).result()
        assert agent.messages[0].attachments == (picture, picture)
        spec = await agent.runs.registered(agent.last_reply.id)
        kept = [part.artifact for part in spec.input[0].attachments]
        assert [part.data for part in spec.input[0].attachments] == [None, None]
        assert kept[0] == kept[1]
        assert await journal.get_blob(kept[0].digest) == b"picture"
        view = agent.view()
        assert view.messages[0].attachments[0].artifact.bytes == 7
        assert b"picture" not in msgspec.json.encode(view)
    async with AgentController(provider, journal=journal, thread_id="t") as later:
        for prompt in ("again", "and again", "and once more"):
            await (await later.send(prompt)).result()
    assert len(provider.requests) == 4
    for request in provider.requests:
        assert request.messages[0].attachments == (picture, picture)

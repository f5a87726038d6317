"""The conversation against the table of its states: random calls, pieces, ends and callbacks (proof 23 of the AC page)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from itertools import pairwise
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from convkit import passes
from pilothouse.conversation.controller import AgentController
from pilothouse.conversation.options import CALLBACKS
from pilothouse.conversation.reply import Reply
from pilothouse.core.lifecycle import TRANSITIONS, AgentState, Input, Refused, step
from pilothouse.errors import AgentBusy, UsageError
from pilothouse.messages import Message, Model, Text
from pilothouse.responses import ErrorInfo, ModelRequest, ProviderEvent, ResponseStarted, StreamEnd, TextDelta

BUSY = (AgentState.SENDING, AgentState.STREAMING, AgentState.PAUSED)
ACTIONS = ("abort", "pause", "resume", "reset", "boom")


class Puppet:
    """A provider whose one open stream does what the machine says."""

    tag = "puppet"
    default_model = Model("puppet", "puppet")

    def __init__(self) -> None:
        self.open = 0
        self.said: dict[int, list[str]] = {}
        self.requests = 0
        self._items: asyncio.Queue[ProviderEvent | BaseException | None] = asyncio.Queue()

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
        self.open += 1
        self.requests += 1
        self._items = items = asyncio.Queue()
        try:
            while True:
                item = await items.get()
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                yield item
                if isinstance(item, StreamEnd):
                    return
        finally:
            self.open -= 1

    def say(self, item: ProviderEvent | BaseException | None) -> None:
        self._items.put_nowait(item)

    async def aclose(self) -> None:
        pass


class Conversation(RuleBasedStateMachine):
    """Drives one controller; the model is the table, and what was delivered."""

    @initialize(journal=st.sampled_from(["memory", "slow"]))
    def begin(self, journal: str) -> None:
        from convkit import SlowJournal

        self.loop = asyncio.new_event_loop()
        self.puppet = Puppet()
        self.told: list[AgentState] = []
        self.shown: list[tuple[Message, ...]] = []
        self.replies: dict[str, Reply] = {}
        self.outcomes: dict[str, object] = {}
        self.delivered: dict[str, str] = {}  # of a reply: what its stream gave before its end
        self.chunks: dict[str, str] = {}
        self.sends: list[asyncio.Task[Any]] = []
        self.count = 0
        self.action: str | None = None
        self.after_stop: list[str] = []
        self.finished: set[str] = set()
        self.agent = AgentController(
            self.puppet,
            journal=SlowJournal() if journal == "slow" else None,
            on_callback_error=lambda error, name: None,
            max_messages=float("inf"),
        )
        self.agent.subscribe(self)
        self.agent.update_options(**dict.fromkeys(CALLBACKS, self._act))

    # As an observer

    def on_state_change(self, state: AgentState) -> None:
        self.told.append(state)

    def on_messages_change(self, messages: tuple[Message, ...]) -> None:
        self.shown.append(messages)

    def on_response_chunk(self, piece: str, text: str) -> None:
        live = self.agent.reply
        if live is not None:
            assert not live.dead, "a piece of a dead send was told"
            self.chunks[live.id] = self.chunks.get(live.id, "") + piece

    def _act(self, *_: object) -> None:
        action, self.action = self.action, None
        if action == "boom":
            raise RuntimeError("mine")
        if action is not None:
            getattr(self.agent, action)()

    # Helpers

    def run(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(work)

    def call(self, name: str, *arguments: object) -> Any:
        """A call of the controller on its own loop; callbacks do nothing meanwhile."""
        self.action = None

        async def on_loop() -> Any:
            return getattr(self.agent, name)(*arguments)

        return self.run(on_loop())

    def settle(self) -> None:
        self.run(passes(60))
        for task in [task for task in self.sends if task.done()]:
            self.sends.remove(task)
            with contextlib.suppress(UsageError):
                reply = task.result()
                self.replies[reply.id] = reply

    def start(self, work: Awaitable[Any]) -> None:
        async def begin() -> asyncio.Task[Any]:
            return asyncio.ensure_future(work)

        self.sends.append(self.run(begin()))

    def apply(self, entry: Input) -> AgentState:
        """What the table says of a synchronous call."""
        return step(self.agent.state, entry)

    # Calls

    @rule()
    def send(self) -> None:
        self.count += 1
        busy = self.agent.is_busy
        self.start(self.agent.send(f"question {self.count}", id=f"r{self.count}"))
        if busy:
            self.settle()
            assert f"r{self.count}" not in [reply.id for reply in self.replies.values()]
            return
        self.settle()
        assert self.agent.state in (*BUSY, AgentState.IDLE)

    @rule()
    def retry(self) -> None:
        self.start(self.agent.retry())
        self.settle()

    @rule()
    def regenerate(self) -> None:
        answers = [message.id for message in self.agent.messages if message.role == "assistant"]
        if answers:
            self.start(self.agent.regenerate(answers[-1]))
            self.settle()

    @rule()
    def abort(self) -> None:
        self.action = None
        expected = self.apply(Input.ABORT)
        live, busy = self.agent.reply, self.agent.is_busy
        assert self.call("abort") == busy
        assert self.agent.state is expected
        if live is not None:
            assert live.outcome is not None
        self.settle()

    @rule()
    def pause(self) -> None:
        expected = self.apply(Input.PAUSE)
        sending = self.agent.state is AgentState.SENDING
        self.call("pause")
        assert self.agent.state is expected
        assert self.agent.pause_requested == sending
        self.settle()

    @rule()
    def resume(self) -> None:
        expected = self.apply(Input.RESUME)
        self.call("resume")
        assert self.agent.state is expected
        assert not self.agent.pause_requested
        self.settle()

    @rule()
    def reset(self) -> None:
        self.call("reset")
        assert (self.agent.state, self.agent.messages) == (AgentState.IDLE, ())
        assert (self.agent.last_reply, self.agent.error, self.agent.current_response_text) == (None, None, "")
        self.settle()

    @rule()
    def set_messages(self) -> None:
        state = self.agent.state
        try:
            expected = self.apply(Input.SET_MESSAGES)
        except Refused:
            try:
                self.call("set_messages", [])
            except AgentBusy:
                return
            raise AssertionError("a live send did not refuse set_messages") from None
        self.count += 1
        self.call("set_messages", [Message(f"base{self.count}", "user", (Text("restored"),))])
        assert self.agent.state is expected is state
        self.settle()

    @rule()
    def set_provider(self) -> None:
        expected = self.apply(Input.SET_PROVIDER)
        self.call("set_provider", self.puppet)
        assert self.agent.state is expected
        self.settle()

    @rule(action=st.sampled_from(ACTIONS))
    def prepare_callback(self, action: str) -> None:
        self.action = action

    @rule()
    def cancel_caller(self) -> None:
        for task in self.sends:
            task.cancel()
        self.run(asyncio.wait(self.sends)) if self.sends else None
        self.sends = []
        self.settle()

    # What the provider does

    def streaming(self) -> bool:
        return self.puppet.open == 1

    @precondition(streaming)
    @rule(text=st.text(alphabet="abc", min_size=1, max_size=3))
    def piece(self, text: str) -> None:
        live = self.agent.reply
        self.puppet.say(TextDelta(0, text))
        if live is not None:
            self.delivered[live.id] = self.delivered.get(live.id, "") + text
        self.settle()

    @precondition(streaming)
    @rule()
    def opening(self) -> None:
        self.puppet.say(ResponseStarted())
        self.settle()

    @precondition(streaming)
    @rule(end=st.sampled_from(["complete", "error", "cut", "length", "raise"]))
    def end(self, end: str) -> None:
        live = self.agent.reply
        item: Any = {
            "complete": StreamEnd("complete"),
            "length": StreamEnd("length"),
            "error": StreamEnd("error", error=ErrorInfo("auth", "no")),
            "cut": None,
            "raise": RuntimeError("adapter"),
        }[end]
        if live is not None and not self.delivered.get(live.id) and end in ("complete", "length"):
            self.piece("x")
        self.puppet.say(item)
        self.settle()

    # What always holds

    @invariant()
    def consistent(self) -> None:
        if not hasattr(self, "agent"):
            return
        agent = self.agent
        assert (agent.error is not None) == (agent.state is AgentState.ERROR)
        assert agent.is_busy == (agent.state in BUSY)
        assert (agent.reply is not None) == agent.is_busy
        assert agent.is_streaming == (agent.state in (AgentState.STREAMING, AgentState.PAUSED))
        assert self.puppet.open <= 1
        ids = [message.id for message in agent.messages]
        assert len(set(ids)) == len(ids)
        if self.shown:
            assert [message.id for message in self.shown[-1]] == ids

    @invariant()
    def told_states_are_a_path(self) -> None:
        if not hasattr(self, "agent"):
            return
        path = [AgentState.IDLE, *self.told]
        for before, after in pairwise(path):
            assert before is not after
            assert after in TRANSITIONS[before].values(), (before, after)
        assert path[-1] is self.agent.state

    @invariant()
    def replies_keep_their_ends_and_their_text(self) -> None:
        if not hasattr(self, "agent"):
            return
        for name, reply in self.replies.items():
            if reply.outcome is not None:
                assert self.outcomes.setdefault(name, reply.outcome) == reply.outcome
            delivered = self.delivered.get(name, "")
            unapplied = reply.partial.unapplied if reply.partial is not None else ""
            assert delivered.startswith(reply.text + unapplied), (delivered, reply.text, unapplied)
            assert self.chunks.get(name, "") in (reply.text, reply.text[: len(self.chunks.get(name, ""))])

    def teardown(self) -> None:
        if not hasattr(self, "agent"):
            return
        self.settle()
        for task in self.sends:
            task.cancel()
        self.run(self._finish())
        self.loop.close()

    async def _finish(self) -> None:
        agent = self.agent
        agent.abort()
        await passes(100)
        head = agent._sender.thread.head
        if head is not None:
            path = await agent.runs.history(head)
            assert [m.id for m in agent.messages] == [entry.message.id for entry in path if entry.complete]
        await agent.aclose()
        await passes(50)
        assert self.puppet.open == 0
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert [task for task in left if "pilothouse" in task.get_name()] == []


Conversation.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestConversation = Conversation.TestCase

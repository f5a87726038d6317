"""Trees of sends, retries, regenerations and edits over both journals, restarted at any point (AC-50, AC-122, AC-171).

A question costs one effect. However its answer breaks, retrying and continuing never pay again; regenerating and editing
ask anew and may. What is shown is the path to the head, before and after a restart.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilothouse.conversation.controller import AgentController
from pilothouse.conversation.extras import RunExtras
from pilothouse.errors import NothingToDo
from pilothouse.journal.memory import MemoryJournal
from pilothouse.journal.sqlite import SQLiteJournal
from pilothouse.loop.tools import tool
from pilothouse.records import Parent
from pilothouse.responses import ModelRequest
from pilothouse.testing.scripted import Cut, Hold, ScriptedProvider, call, failure

ENDINGS = ("ok", "ok", "failed", "unknown", "stopped", "stopped in the tool")
MOVES = st.one_of(
    st.tuples(st.just("send"), st.sampled_from(ENDINGS)),
    st.tuples(st.just("retry"), st.sampled_from(ENDINGS)),
    st.tuples(st.just("continue"), st.sampled_from(ENDINGS)),
    st.tuples(st.just("regenerate"), st.sampled_from(ENDINGS)),
    st.tuples(st.just("edit"), st.sampled_from(ENDINGS)),
    st.tuples(st.just("restart"), st.just("ok")),
)


class Tree:
    """A conversation with one paying tool, and what the tool was paid for."""

    def __init__(self, journal: Any, reopen: Any) -> None:
        self.journal, self.reopen = journal, reopen
        self.paid: Counter[str] = Counter()
        self.allowed: Counter[str] = Counter()
        self.asked = 0
        self.ending = "ok"
        self.hold = Hold()
        self.agent = self.make()

    def make(self) -> AgentController:
        @tool
        async def pay(question: str) -> str:
            """Pay."""
            self.paid[question] += 1
            if self.ending == "stopped in the tool":
                await self.hold.wait()
            return f"paid for {question}"

        def play(request: ModelRequest) -> list[Any]:
            messages = request.messages
            last = max(n for n, message in enumerate(messages) if message.role == "user")
            question = messages[last].text
            results = [message for message in messages[last:] if message.role == "tool"]
            if not results:
                return [call("pay", {"question": question})]
            broken = {"failed": [failure("auth")], "unknown": [Cut()], "stopped": [self.hold]}
            return [f"about {question}", *broken.get(self.ending, [])]

        provider = ScriptedProvider(play, repeat=True)
        return AgentController(provider, tools=[pay], journal=self.journal, thread_id="t")

    async def move(self, kind: str, ending: str) -> None:
        self.ending, self.hold = ending, Hold()
        agent = self.agent
        users = [message for message in agent.messages if message.role == "user"]
        answers = [message for message in agent.messages if message.role == "assistant" and message.text]
        match kind:
            case "restart":
                await self.restart()
                return
            case "send":
                self.asked += 1
                self.allowed[f"q{self.asked}"] += 1
                sending = agent.send(f"q{self.asked}")
            case "edit":
                head = agent._sender.thread.head
                if head is None:
                    return
                self.asked += 1
                self.allowed[f"q{self.asked}"] += 1
                path = await agent.runs.history(head)
                at = path[0]
                parent = Parent(at.run_id, at.message.id)
                sending = agent.send(f"q{self.asked}", extras=RunExtras(parent=parent))
            case "regenerate":
                if not answers:
                    return
                at_answer = agent.messages.index(answers[-1])
                asked = [m for m in agent.messages[:at_answer] if m.role == "user"][-1]
                self.allowed[asked.text] += 1
                sending = agent.regenerate(answers[-1].id)
            case "retry":
                sending = agent.retry()
            case _:
                sending = agent.send(None)
        assert users is not None
        await self.finish(sending, ending)

    async def finish(self, sending: Any, ending: str) -> None:
        task = asyncio.ensure_future(sending)
        if ending.startswith("stopped"):
            reached = asyncio.ensure_future(self.hold.reached())
            await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
            if not reached.done() and not task.done():
                await asyncio.wait({task})
            if reached.done():
                self.agent.abort()
            elif not task.exception() and task.result().outcome is None:
                done = asyncio.ensure_future(task.result().wait())
                await asyncio.wait({done, reached}, return_when=asyncio.FIRST_COMPLETED)
                self.agent.abort()
                await done
            reached.cancel()
        try:
            reply = await task
        except NothingToDo:
            return
        await reply.wait()
        await reply.wait_closed()

    async def restart(self) -> None:
        shown = [message.id for message in self.agent.messages]
        await self.agent.aclose()
        self.journal = await self.reopen(self.journal)
        self.agent = await self.make().open()
        assert [message.id for message in self.agent.messages] == shown

    async def check(self) -> None:
        for question, times in self.paid.items():
            assert times <= self.allowed[question], (question, times, self.allowed[question])
        head = self.agent._sender.thread.head
        if head is not None:
            path = await self.agent.runs.history(head)
            complete = [entry.message.id for entry in path if entry.complete]
            assert [message.id for message in self.agent.messages] == complete
        messages = self.agent.messages
        proposed = [item.call_id for message in messages for item in message.tool_calls]
        assert sorted(proposed) == sorted(m.call_id for m in messages if m.role == "tool")


async def play(journal: Any, reopen: Any, moves: list[tuple[str, str]]) -> None:
    tree = Tree(journal, reopen)
    for kind, ending in moves:
        await tree.move(kind, ending)
        await tree.check()
    await tree.agent.aclose()
    await tree.journal.aclose()


async def _same(journal: Any) -> Any:
    return journal


@settings(max_examples=60, deadline=None)
@given(st.lists(MOVES, min_size=1, max_size=8))
def test_no_retry_repeats_an_effect_in_memory(moves: list[tuple[str, str]]) -> None:
    """AC-50, AC-122: every prefix of any tree of sends."""
    asyncio.run(play(MemoryJournal(), _same, moves))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(MOVES, min_size=2, max_size=6))
def test_no_retry_repeats_an_effect_on_disk(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[str, str]]
) -> None:
    """The same over a file that is closed and opened again."""
    path: Path = tmp_path_factory.mktemp("tree") / "t.db"

    async def again(journal: Any) -> Any:
        await journal.aclose()
        return SQLiteJournal(path, durability="off")

    asyncio.run(play(SQLiteJournal(path, durability="off"), again, moves))

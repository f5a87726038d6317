"""A stop at every fact and delta of a run (issue 2 step 5; LP-42, LP-43, RC-39, AC-79, AC-120)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pilothouse import AgentController, Cancelled, Completed, MemoryJournal, SQLiteJournal, tool
from pilothouse.events import CallFinished, CallStarted, Delta, ModelRequested, TurnStarted
from pilothouse.records import Record
from pilothouse.testing.scripted import ScriptedProvider, call, thought


class Journey:
    """One conversation whose first send has text, reasoning, two tools and a final answer."""

    def __init__(self, journal: object) -> None:
        self.effects: list[str] = []

        @tool(effect="read")
        async def look(port: str) -> str:
            """Look up a port."""
            self.effects.append(f"look {port}")
            await asyncio.sleep(0)
            return "seen"

        @tool
        def book(port: str) -> str:
            """Book a berth."""
            self.effects.append(f"book {port}")
            return "booked"

        def play(request):
            if request.messages[-1].text == "And now?":
                return "The next answer."
            if any(message.role == "tool" for message in request.messages):
                return ["All ", "done."]
            calls = [call("look", {"port": "Brest"}), call("book", {"port": "Brest"})]
            return [thought("Let me "), thought("look."), "I will ", "look.", *calls]

        self.provider = ScriptedProvider(play, repeat=True)
        self.agent = AgentController(self.provider, tools=[look, book], journal=journal)
        self.items: list[Record | Delta] = []
        self.before = (0, [])

    async def run(self, stop_at: int | None) -> bool:
        """Sends, stops at the item of that number; whether there was still something to stop."""
        agent = self.agent
        stopped = False

        def watch(item: Record | Delta) -> None:
            nonlocal stopped
            self.items.append(item)
            if len(self.items) - 1 == stop_at and agent.reply is not None:
                stopped = agent.abort()
                self.before = (len(self.provider.requests), list(self.effects))

        agent.subscribe(Watcher(agent, watch))
        reply = await agent.send("Book me a berth in Brest.")
        await reply.wait()
        assert await reply.wait_closed(5)
        return stopped


class Watcher:
    """Begins to observe a run as soon as its message is shown, so that no item is missed."""

    def __init__(self, agent: AgentController, watch) -> None:
        self.agent, self.watch, self.seen = agent, watch, False

    def on_messages_change(self, messages) -> None:
        if not self.seen and self.agent.reply is not None:
            self.seen = True
            self.agent.runs.observe(self.agent.reply.id, self.watch)


@pytest.fixture(params=["memory", "sqlite"])
def make_journal(request: pytest.FixtureRequest, tmp_path: Path):
    count = iter(range(10_000))
    return (
        MemoryJournal
        if request.param == "memory"
        else lambda: SQLiteJournal(tmp_path / f"{next(count)}.db", durability="off")
    )


async def test_stopped_at_every_event_index_it_ends_cancelled_and_the_next_send_works(
    make_journal, capsys: pytest.CaptureFixture[str]
) -> None:
    """Always *cancelled*, nothing starts afterwards, the model's stream is closed, every call has one result."""
    async with make_journal() as journal:
        whole = Journey(journal)
        await whole.run(None)
        assert [message.text for message in whole.agent.messages][-1] == "All done."
        total = len(whole.items)
        await whole.agent.aclose()

    indexes = decided = 0
    for index in range(total):
        async with make_journal() as journal:
            journey = Journey(journal)
            agent = journey.agent
            stopped = await journey.run(index)
            if not stopped:  # the end was durable, in the same append as this item: it has won
                assert agent.last_reply.outcome == Completed()
                decided += 1
                continue
            indexes += 1
            reply = agent.last_reply
            assert isinstance(reply.outcome, Cancelled), (index, reply.outcome)
            facts = await agent.runs.events(reply.id)
            stop = next(fact.seq for fact in facts if fact.fact.kind == "stop_requested")
            starting = CallStarted | ModelRequested | TurnStarted
            assert [fact for fact in facts if fact.seq > stop and isinstance(fact.fact, starting)] == [], (
                index
            )
            # What shared an append with the item was recorded already; it must not have been acted on.
            assert (len(journey.provider.requests), journey.effects) == journey.before, index
            assert journey.provider.open == 0
            view = await agent.runs.inspect(reply.id)
            assert view.status == "cancelled", (
                index,
                view.unknown,
                [f.fact.kind for f in facts],
                facts[-1].fact,
            )
            assert not view.calls
            proposed = [
                call.call_id
                for fact in facts
                if fact.fact.kind == "message_added"
                for call in fact.fact.message.tool_calls
            ]
            finished = [fact.fact.call_id for fact in facts if isinstance(fact.fact, CallFinished)]
            assert sorted(proposed) == sorted(finished), index

            again = await agent.send("And now?")
            assert (await again.result()).text == "The next answer."
            assert journey.effects == journey.before[1]
            request = journey.provider.requests[-1]
            asked = {call.call_id for message in request.messages for call in message.tool_calls}
            answered = [message.call_id for message in request.messages if message.role == "tool"]
            assert sorted(asked) == sorted(answered), index
            await agent.aclose()
    with capsys.disabled():
        print(f"\nstopped at {indexes} of {total} event indexes; at {decided} the end was decided already")
    assert decided <= 4  # the attempt's end, the answer, the turn's end and the run's end share one append
    assert indexes == total - decided

"""What the tests of conversations share: an observer that writes down what it is told, and slow or failing journals."""

from __future__ import annotations

import asyncio

from pilothouse.conversation.controller import AgentController
from pilothouse.core.lifecycle import AgentState
from pilothouse.journal.memory import MemoryJournal


class Log:
    """An observer that writes down what it is told, with the state it saw."""

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

    def names(self) -> list[str]:
        return [entry[0] for entry in self.entries]

    def states(self) -> list[str]:
        return [entry[1] for entry in self.entries if entry[0] == "state"]

    def chunks(self) -> list[str]:
        return [entry[1] for entry in self.entries if entry[0] == "chunk"]


def texts(agent: AgentController) -> list[str]:
    return [message.text for message in agent.messages]


async def passes(count: int = 20) -> None:
    """Lets everything that is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(agent: AgentController, state: AgentState) -> None:
    """Waits until the conversation is in that state."""
    for _ in range(2000):
        if agent.state is state:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"still {agent.state.value}, not {state.value}")


class SlowJournal:
    """A memory journal whose registrations and appends wait to be let through, as one on disk does."""

    immediate = False

    def __init__(self) -> None:
        self._inner = MemoryJournal()
        self.open = asyncio.Event()
        self.open.set()
        self.failure: Exception | None = None
        self.registrations = 0

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def create(self, *args, **named):
        self.registrations += 1
        await self.open.wait()
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        return await self._inner.create(*args, **named)

    async def append(self, *args, **named):
        await asyncio.sleep(0)
        return await self._inner.append(*args, **named)

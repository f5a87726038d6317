"""The backend of an agent under test: what it is to do in its next run, in words that every backend can play."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from ...agent_contracts import Agent
from ...agents.signals import watch
from ...messages import JSON
from ..scripted import Hold

Capabilities: TypeAlias = frozenset[str]
"""`tools`, `reasoning`, `usage`, `interrupts`, `client_tools`, `check`, `queue`, `history`."""


@dataclass(frozen=True)
class Say:
    """Answer text, piece by piece."""

    pieces: tuple[str, ...]


@dataclass(frozen=True)
class Think:
    """Reasoning, before what follows."""

    pieces: tuple[str, ...]


@dataclass(frozen=True)
class Use:
    """A tool call that the backend itself answers with `result`."""

    name: str
    args: Mapping[str, JSON]
    result: str


@dataclass(frozen=True)
class HandOver:
    """A call of a client tool: the run stops here and waits for its result."""

    name: str
    args: Mapping[str, JSON]


@dataclass(frozen=True)
class Ask:
    """The run asks for an approval and waits. What the next plan says happens after the answer."""


@dataclass(frozen=True)
class Fail:
    """The run fails here, in a way that may be tried again."""

    message: str = "it broke"


@dataclass(frozen=True)
class Lose:
    """The connection breaks here, and nobody says how the run ended."""


Step: TypeAlias = Say | Think | Use | HandOver | Ask | Fail | Lose | Hold


def say(*pieces: str) -> Say:
    """Answer text."""
    return Say(pieces)


def think(*pieces: str) -> Think:
    """Reasoning."""
    return Think(pieces)


class AgentDriver:
    """Makes agents over one kind of backend; subclass it for yours.

    Attributes:
        capabilities: what the backend can do; tests that need more are not run against it.
    """

    capabilities: ClassVar[Capabilities] = frozenset()

    async def make(self) -> Agent[Any]:
        """A fresh agent, open, on an empty thread."""
        raise NotImplementedError

    async def another(self) -> Agent[Any]:
        """Another agent on the thread of the one made last (capability `history`)."""
        raise NotImplementedError

    def plan(self, *steps: Step) -> None:
        """What the backend does in its next run, or in the next part of a run that waits."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Ends what was made."""


async def until(agent: Agent[Any], status: str) -> None:
    """Waits until the agent has that status."""
    async for value in watch(agent.status):
        if value == status:
            return


async def shown(agent: Agent[Any], text: str) -> None:
    """Waits until the last message has that text."""
    async for messages in watch(agent.messages):
        if messages and messages[-1].text == text:
            return


def texts(agent: Agent[Any]) -> list[tuple[str, str]]:
    """Role and text of each message, tool messages left out."""
    return [(item.role, item.text) for item in agent.messages.get() if item.role != "tool"]


@contextmanager
def consistent(agent: Agent[Any]) -> Iterator[list[str]]:
    """Looks at the whole agent at each notification: what may never be seen together is written down (AG-5)."""
    wrong: list[str] = []

    def look(_: object) -> None:
        status, error = agent.status.get(), agent.error.get()
        if (status == "error") != (error is not None):
            wrong.append(f"{status} with error {error!r}")
        if agent.is_loading.get() and status != "running":
            wrong.append(f"loading while {status}")
        ids = [item.id for item in agent.messages.get()]
        if len(set(ids)) != len(ids):
            wrong.append(f"an id twice: {ids}")
        for item in agent.messages.get():
            done = item.delivery.phase == "complete"
            if done != (item.delivery.outcome is not None):
                wrong.append(f"{item.id}: {item.delivery}")
            if not done and status != "running":
                wrong.append(f"{item.id} streams while {status}")

    leave = [signal.subscribe(look) for signal in _signals(agent)]
    try:
        yield wrong
    finally:
        for end in leave:
            end()


def _signals(agent: Agent[Any]) -> Sequence[Any]:
    names = ("messages", "status", "is_loading", "error", "tool_calls", "state", "interrupt", "usage")
    return [signal for name in names if (signal := getattr(agent, name, None)) is not None]


Check: TypeAlias = Callable[[Any, AgentDriver], Coroutine[Any, Any, None]]


__all__ = [
    "AgentDriver",
    "Ask",
    "Capabilities",
    "Check",
    "Fail",
    "HandOver",
    "Lose",
    "Say",
    "Step",
    "Think",
    "Use",
    "consistent",
    "say",
    "shown",
    "texts",
    "think",
    "until",
]

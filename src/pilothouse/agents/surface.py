"""What every agent of ours shows, and the status machine behind it (agent-contract §3.1 … §3.5).

A `Surface` draws the values of a `Source` (what the agent's runs have told) and of the open batch of interrupts. Whatever
changes one of them or the status does so inside `batch()`, and what differs is told when that is left (AG-5). Whoever
makes the changes holds the surface; whoever holds the agent sees its signals: those of `Agent`, in `Published`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

from ..agent_errors import AgentError
from ..contracts import Clock
from ..core.agui.reduce import Child
from ..core.display import Display
from ..core.interrupts import Interrupts as Book
from ..errors import AgentBusy
from ..messages import JSON
from ..projection import (
    EMPTY,
    AgentEvent,
    AgentInterrupt,
    AgentMessage,
    AgentStatus,
    AgentToolCall,
    AgentUsage,
    Delivered,
    Interrupt,
    InterruptPhase,
)
from .operation import Later, Operation
from .signals import BUFFER, Cell, Events, Hub
from .subagents import Subagents
from .tasks import Tasks

RESUMABLE: Final = frozenset({"pending"})


class Attempt:
    """One admitted action: the identity that is tested on every event and after every await (AG-43).

    Attributes:
        run_id: of the run that it starts or answers.
        op: what the caller holds.
        message_id: of the message of the user that was shown for it; empty where it added none.
        live: it is the current one, nobody stopped it.
        task: what drives it.
    """

    def __init__(self, run_id: str, message_id: str = "") -> None:
        self.run_id = run_id
        self.op = Operation(asyncio.get_running_loop(), run_id)
        self.message_id = message_id
        self.live = True
        self.task: asyncio.Task[None] | None = None


class Source(Protocol):
    """What the runs of an agent have told."""

    @property
    def display(self) -> Display:
        """Messages and calls."""
        ...

    @property
    def state(self) -> Mapping[str, JSON]:
        """The backend's state; the same object while it is the same."""
        ...

    @property
    def children(self) -> Mapping[str, Child]:
        """Sub-agents of the run."""
        ...

    def begin(self, generation: str, run_id: str, *, continues: bool) -> None:
        """Another attempt is told from here on; `continues`: it goes on with the message that was last."""
        ...


class Batch:
    """The signals of the open batch of interrupts (`agent.interrupts`)."""

    def __init__(self, hub: Hub) -> None:
        self.phase: Cell[InterruptPhase] = Cell(hub, "none", "interrupts.phase")
        self.batch: Cell[tuple[Interrupt, ...]] = Cell(hub, (), "interrupts.batch")
        self.generation: Cell[int] = Cell(hub, 0, "interrupts.generation")


class Published:
    """The base of agents: the signals of a surface, under the names of the contract.

    Attributes:
        stopping: a stop was asked for, and the run is not known to have settled.
        interrupts: the whole batch of open requests with its phase.
    """

    def __init__(self, surface: Surface) -> None:
        self._surface = surface
        self.name = surface.name
        self.messages = surface.messages
        self.status = surface.status
        self.is_loading = surface.is_loading
        self.error = surface.error
        self.tool_calls = surface.tool_calls
        self.state = surface.state
        self.events = surface.events
        self.usage = surface.usage
        self.interrupt = surface.interrupt
        self.is_input_blocked = surface.is_input_blocked
        self.subagents = surface.subagents
        self.stopping = surface.stopping
        self.interrupts = surface.interrupts

    @property
    def in_flight(self) -> bool:
        """Whether an action was admitted and its run has not settled."""
        return self._surface.attempt is not None


class Surface:
    """The values of one agent, and who may change them: the current attempt.

    Attributes:
        attempt: the current one; None while nothing is in flight.
        book: the open batch of interrupts.
        hydrated: what the backend has of the thread was loaded, or nothing is to be loaded.
        checking: the backend is being asked what became of a run.
        also: called whenever signals are brought up to date, for values that are not the surface's.
    """

    def __init__(
        self, name: str, clock: Clock, source: Source, *, publish_interval: float = 0.0, buffer: int = BUFFER
    ) -> None:
        self.name = name
        self.clock = clock
        self.display = source.display
        self.tasks = Tasks(name)
        self.book = Book()
        self.attempt: Attempt | None = None
        self.hydrated = True
        self.checking = False
        self.also: Callable[[], None] = _nothing_more
        hub = self.hub = Hub()
        self.messages: Cell[tuple[AgentMessage, ...]] = Cell(hub, (), "messages")
        self.status: Cell[AgentStatus] = Cell(hub, "idle", "status")
        self.is_loading: Cell[bool] = Cell(hub, value=False, name="is_loading")
        self.error: Cell[AgentError | None] = Cell(hub, None, "error")
        self.tool_calls: Cell[tuple[AgentToolCall, ...]] = Cell(hub, (), "tool_calls")
        self.state: Cell[Mapping[str, JSON]] = Cell(hub, EMPTY, "state")
        self.usage: Cell[AgentUsage | None] = Cell(hub, None, "usage")
        self.interrupt: Cell[AgentInterrupt | None] = Cell(hub, None, "interrupt")
        self.is_input_blocked: Cell[bool] = Cell(hub, value=False, name="is_input_blocked")
        self.stopping: Cell[bool] = Cell(hub, value=False, name="stopping")
        self.interrupts = Batch(hub)
        self.events: Events[AgentEvent] = Events(hub, buffer)
        self._subagents = Subagents(hub)
        self.subagents = self._subagents.signal
        self._source = source
        self._generations = 0
        self._interval = publish_interval
        self._published = 0.0
        self._due: asyncio.TimerHandle | None = None
        self._depth = 0

    # Publishing

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Whatever changes inside is told as one, when the outermost is left."""
        with self.hub.batch():
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth:
                    self._publish()

    def _publish(self) -> None:
        """Brings the signals up to the values; text that flows may wait for its interval (AG-8)."""
        if self.attempt is None or not self._interval:
            self._publish_messages()
        elif self.display.messages is not self.messages.get():
            wait = self._published + self._interval - self.clock.monotonic()
            if wait <= 0:
                self._publish_messages()
            elif self._due is None and self.tasks.loop is not None:
                self._due = self.tasks.loop.call_later(wait, self._publish_due)
        self.tool_calls.set(self.display.calls)
        self.state.set(self._source.state)
        self._subagents.publish(self._source.children)
        self._publish_interrupts()
        self.also()

    def _publish_messages(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._interval:
            self._published = self.clock.monotonic()
        self.messages.set(self.display.messages)

    def _publish_due(self) -> None:
        self._due = None
        with self.hub.batch():
            self._publish_messages()

    def _publish_interrupts(self) -> None:
        book = self.book
        self.interrupts.phase.set(book.phase)
        self.interrupts.batch.set(book.batch)
        self.interrupts.generation.set(book.generation)
        self.interrupt.set(_shown(book))
        self.is_input_blocked.set(not self.hydrated or self.checking or book.phase != "none")

    # The status machine (§3.4)

    def current(self, attempt: Attempt) -> bool:
        """Whether what is heard of an attempt still counts."""
        return attempt is self.attempt and attempt.live and not self.tasks.closed

    def check_free(self, action: str) -> None:
        """Refuses an action that needs an agent at rest.

        Raises:
            AgentBusy: a run is in flight.
        """
        if self.attempt is not None:
            raise AgentBusy(action, f"run {self.attempt.run_id} is running")

    def admit(self, attempt: Attempt, *, continues: bool = False) -> None:
        """An action is admitted: running, before anything was sent (AG-40, AG-41)."""
        self.attempt = attempt
        self._generations += 1
        self._source.begin(f"{attempt.run_id}#{self._generations}", attempt.run_id, continues=continues)
        self.status.set("running")
        self.is_loading.set(True)
        self.error.set(None)
        self.usage.set(None)

    def end(
        self,
        attempt: Attempt,
        outcome: Delivered,
        *,
        error: AgentError | None = None,
        reason: str | None = None,
        usage: AgentUsage | None = None,
    ) -> None:
        """The run of the current attempt is over, or pauses; one of another attempt touches nothing (AG-43)."""
        if attempt is not self.attempt:
            return
        with self.batch():
            self.leave(outcome, reason)
            self.rest(error)
            self.usage.set(usage)

    def leave(self, outcome: Delivered, reason: str | None = None) -> None:
        """Nothing more of the current attempt is told; the status is for whatever comes next."""
        self.display.end(outcome, reason)
        if self.attempt is not None:
            self.attempt.live = False
            self.attempt = None

    def check(self, ask: Callable[[], Coroutine[Any, Any, None]]) -> Later[None]:
        """The backend is asked what became of a run; one question at a time (AG-118)."""
        with self.batch():
            self.checking = True
        late: Later[None] = Later(asyncio.get_running_loop())
        self.tasks.spawn(ask(), "check").add_done_callback(lambda _: late.settle(None))
        return late

    def admit_check(self) -> None:
        """Refuses a question.

        Raises:
            AgentClosed, AgentBusy: nothing was changed.
        """
        self.tasks.enter("check the status")
        self.check_free("check the status")
        if self.checking:
            raise AgentBusy("check the status", "another check is open")

    def rest(self, error: AgentError | None = None) -> None:
        """Nothing is in flight: idle, or an error."""
        self.status.set("idle" if error is None else "error")
        self.is_loading.set(False)
        self.error.set(error)


def _nothing_more() -> None:
    """An agent whose values are all on its surface."""


def _shown(book: Book) -> AgentInterrupt | None:
    """The one that is shown: the card goes when the backend acknowledges the answer (AG-41)."""
    if not book.batch or book.phase in ("none", "acknowledged", "collecting"):
        return None
    first = book.batch[0]
    return AgentInterrupt(first.id, first.value, resumable=book.phase in RESUMABLE and book.decision is None)


__all__ = ["Attempt", "Batch", "Published", "Source", "Surface"]

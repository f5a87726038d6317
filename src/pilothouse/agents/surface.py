"""What every agent of ours has: the signals, the guards of its thread, and the one way to publish.

An agent is one `Surface`. It owns a `Display`; whatever changes the display or the status does so inside `batch()`, and
what differs is told when the batch is left (AG-5).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from ..agent_errors import AgentError
from ..contracts import Clock
from ..core.display import Display
from ..core.interrupts import Interrupts as Book
from ..errors import AgentClosed, UsageError
from ..messages import JSON
from ..projection import (
    EMPTY,
    AgentEvent,
    AgentInterrupt,
    AgentMessage,
    AgentOutcome,
    AgentStatus,
    AgentToolCall,
    AgentUsage,
    Delivered,
    Interrupt,
    InterruptPhase,
)
from .operation import Later, Operation
from .signals import Cell, Events, Hub

logger = logging.getLogger("pilothouse.agents")


class Attempt:
    """One admitted action: the identity that is tested on every event and after every await (AG-43).

    Attributes:
        run_id: of the run that it starts or answers.
        op: what the caller holds.
        message_id: of the message of the user that was shown for it; empty where it added none.
        live: it is the current one, nobody stopped it.
        task: what drives it.
        stopped: a stop was ordered: nothing of it may begin any more.
        begun: the task has run.
        handed: it was given to whoever runs it; before that nothing of it is anywhere but here.
    """

    def __init__(self, run_id: str, op: Operation, generation: str, message_id: str = "") -> None:
        self.run_id = run_id
        self.op = op
        self.generation = generation
        self.message_id = message_id
        self.live = True
        self.stopped = False
        self.begun = self.handed = True
        self.task: asyncio.Task[Any] | None = None
        self.caught_up = asyncio.Event()  # what was known of its run when it was joined is shown
        self.leave: Callable[[], None] | None = None  # takes back the callback of the caller's cancel token


class Batch:
    """The signals of the open batch of interrupts (`agent.interrupts`)."""

    def __init__(self, hub: Hub) -> None:
        self.phase: Cell[InterruptPhase] = Cell(hub, "none", "interrupts.phase")
        self.batch: Cell[tuple[Interrupt, ...]] = Cell(hub, (), "interrupts.batch")
        self.generation: Cell[int] = Cell(hub, 0, "interrupts.generation")


class Surface:
    """Base of `LocalAgent` and `AGUIAgent`.

    Attributes:
        stopping: a stop was asked for, and the run is not known to have settled.
        interrupts: the whole batch of open requests with its phase.
    """

    def __init__(self, name: str, clock: Clock, display: Display, publish_interval: float = 0.0) -> None:
        self.name = name
        hub = self._hub = Hub()
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
        self.events: Events[AgentEvent] = Events(hub)
        self._clock = clock
        self._display = display
        self._book = Book()
        self._attempt: Attempt | None = None
        self._generations = 0
        self._hydrated = True
        self._checking = False
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._interval = publish_interval
        self._published = 0.0
        self._due: asyncio.TimerHandle | None = None
        self._depth = 0

    # Guards

    def _enter(self, action: str) -> asyncio.AbstractEventLoop:
        """Every action passes here first: one event loop owns an agent, the first that uses it (AG-9).

        Raises:
            AgentClosed, UsageError: nothing was changed.
        """
        if self._closed:
            raise AgentClosed(action)
        loop: asyncio.AbstractEventLoop | None
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is None or (self._loop is not None and loop is not self._loop):
            raise UsageError(
                f"cannot {action} from here: an agent lives on its event loop's thread; elsewhere use"
                " loop.call_soon_threadsafe"
            )
        self._loop = loop
        return loop

    @property
    def in_flight(self) -> bool:
        """Whether an action was admitted and its run has not settled."""
        return self._attempt is not None

    def _current(self, attempt: Attempt) -> bool:
        return attempt is self._attempt and attempt.live and not self._closed

    def _generation(self, run_id: str) -> str:
        self._generations += 1
        return f"{run_id}#{self._generations}"

    # Publishing

    @contextmanager
    def _batch(self) -> Iterator[None]:
        """Whatever changes inside is told as one, when the outermost is left."""
        with self._hub.batch():
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth:
                    self._publish()

    def _publish(self) -> None:
        """Brings the signals up to the values; text that flows may wait for its interval (AG-8)."""
        streaming = self.status.get() == "running" and self._attempt is not None
        if not streaming or not self._interval or self._forced:
            self._publish_messages()
        elif self._display.messages is not self.messages.get():
            wait = self._published + self._interval - self._clock.monotonic()
            if wait <= 0:
                self._publish_messages()
            elif self._due is None and self._loop is not None:
                self._due = self._loop.call_later(wait, self._publish_due)
        self.tool_calls.set(self._display.calls)
        self._show_interrupts()
        self._publish_more()

    _forced = False

    def _publish_messages(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._interval:
            self._published = self._clock.monotonic()
        self.messages.set(self._display.messages)

    def _publish_due(self) -> None:
        self._due = None
        with self._hub.batch():
            self._publish_messages()

    def _publish_more(self) -> None:
        """What a subclass shows besides."""

    def _show_interrupts(self) -> None:
        book = self._book
        self.interrupts.phase.set(book.phase)
        self.interrupts.batch.set(book.batch)
        self.interrupts.generation.set(book.generation)
        self.interrupt.set(_shown(book))
        self.is_input_blocked.set(not self._hydrated or self._checking or book.phase != "none")

    # The status machine (§3.4)

    def _admit(self, attempt: Attempt, *, continues: bool = False) -> None:
        """An action is admitted: running, before anything was sent (AG-40, AG-41)."""
        self._attempt = attempt
        self._begin_display(attempt, continues=continues)
        self.status.set("running")
        self.is_loading.set(True)
        self.error.set(None)
        self.usage.set(None)

    def _begin_display(self, attempt: Attempt, *, continues: bool) -> None:
        self._display.begin(attempt.generation, attempt.run_id, continues=continues)

    def _end(
        self,
        attempt: Attempt,
        outcome: Delivered,
        *,
        error: AgentError | None = None,
        reason: str | None = None,
        usage: AgentUsage | None = None,
    ) -> None:
        """The run of the current attempt is over, or pauses; one of another attempt touches nothing (AG-43)."""
        if attempt is not self._attempt:
            return
        with self._batch():
            self._display.end(outcome, reason)
            self._attempt = None
            attempt.live = False
            self.status.set("idle" if error is None else "error")
            self.is_loading.set(False)
            self.error.set(error)
            self.usage.set(usage)

    def _settle(self, attempt: Attempt, outcome: AgentOutcome) -> None:
        if attempt.leave is not None:
            attempt.leave()
            attempt.leave = None
        attempt.op.settle(outcome)

    # Tasks

    def _spawn(self, work: Any, name: str) -> asyncio.Task[Any]:
        assert self._loop is not None
        task = self._loop.create_task(work, name=f"pilothouse-{self.name}-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task of agent %s failed", self.name, exc_info=error)

    async def _end_tasks(self) -> None:
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _nothing(self) -> Operation:
        """An action that had nothing to do."""
        op = Operation(asyncio.get_running_loop())
        op.settle("nothing")
        return op

    def _later(self, value: Any) -> Later[Any]:
        made: Later[Any] = Later(asyncio.get_running_loop())
        made.settle(value)
        return made


RESUMABLE: Final = frozenset({"pending"})


def _shown(book: Book) -> AgentInterrupt | None:
    """The one that is shown: the card goes when the backend acknowledges the answer (AG-41)."""
    if not book.batch or book.phase in ("none", "acknowledged", "collecting"):
        return None
    first = book.batch[0]
    return AgentInterrupt(first.id, first.value, resumable=book.phase in RESUMABLE and book.decision is None)


__all__ = ["Attempt", "Batch", "Surface"]

"""The life of an attempt: written, sent, told (agent-contract §3.15)."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from ..agent_contracts import InterruptStore
from ..agent_errors import (
    AgentError,
)
from ..agents.operation import Later, Operation
from ..agents.surface import Attempt, Published, Surface
from ..contracts import Clock
from ..core.agui import events as agui
from ..core.agui.reading import Arrived, OnViolation, ProtocolFault, TooLarge
from ..core.agui.reduce import Reducer
from ..core.agui.told import written
from ..core.classify import classify
from ..core.display import Content
from ..core.interrupts import Decision, Step
from ..messages import JSON, InputPart, Text
from ..projection import AgentUsage, Delivered, ToolOutcome
from ..transport import BrokenBody, NoAnswer, Transport
from .asked import InterruptWire, WireProfile, body_of
from .check import Reconcile
from .control import RunControlClient
from .exchange import AgentLimits, Exchange, Reconnect, Silence, merged
from .tools import RemoteTools
from .wire import Auth, Wire, credentials

logger = logging.getLogger("pilothouse.remote")


class Sending(Attempt):
    """An attempt of this agent.

    Attributes:
        body: what is sent, byte for byte.
        ordinary: no answer and no continuation of client tools: what of it nobody saw may be repeated.
        resuming: it answers the open batch.
        carried: client results that it carries.
        state_before: the state without the patch that it sends; None once that is settled.
        exchange: its request; None before it was made.
        told: its end was told: `finished` or `failed`.
        seen: any event of it came.
        behind: the message behind which it began; None for the first of a conversation.
    """

    def __init__(self, run_id: str, op: Operation, message_id: str = "", body: bytes = b"") -> None:
        super().__init__(run_id, op, message_id)
        self.body = body
        self.ordinary = True
        self.resuming = False
        self.carried: frozenset[str] = frozenset()
        self.state_before: Mapping[str, JSON] | None = None
        self.exchange: Exchange | None = None
        self.told = ""
        self.seen = False
        self.outcome: Delivered = "interrupted"
        self.join = ""
        self.url = ""
        self.behind: str | None = None
        self.op_over = asyncio.Event()  # its operation has settled
        op.on_done(self.op_over.set)


class Captured:
    """What `retry` repeats (AG-80): the patch of the state, and the answer where it was one."""

    def __init__(self, patch: Mapping[str, JSON] | None, decision: Decision | None = None) -> None:
        self.patch = patch
        self.decision = decision
        self.rolled_back = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an agent is set up with; the words are those of `AGUIAgent`."""

    url: str
    name: str
    thread_id: str | None
    headers: Mapping[str, str]
    auth: Auth | None
    profile: WireProfile
    interrupt_wire: InterruptWire
    on_violation: OnViolation
    control: RunControlClient | None
    reconcile: Reconcile | None
    store: InterruptStore | None
    reconnect: Reconnect
    send_timeout: float | None
    idle_timeout: float | None
    transport: Wire | None
    limits: AgentLimits
    stop_grace: float
    publish_interval: float
    clock: Clock
    new_id: Callable[[], str]


class Running(Published, ABC):
    """The layer that runs attempts: everything that happens while a stream is read."""

    def __init__(self, settings: Settings) -> None:
        clock = settings.clock
        self._reducer = Reducer(clock.monotonic)
        surface = Surface(
            settings.name,
            clock,
            self._reducer,
            publish_interval=settings.publish_interval,
            buffer=settings.limits.events,
        )
        super().__init__(surface)
        self._settings = settings
        self._new_id = settings.new_id
        self._thread = settings.thread_id or self._new_id()
        self._control = settings.control
        self._store = settings.store
        self._revision = 0
        self._own = settings.transport is None
        self._wire: Wire = Transport() if settings.transport is None else settings.transport
        self._captured: Captured | None = None
        self._queue: list[tuple[Sending, Callable[[], None]]] = []
        self._last: Sending | None = None
        self._native = True
        self._auto_checked = ""
        self._stops: set[asyncio.Task[Any]] = set()  # stops that our server has not confirmed yet
        self.check_status: Callable[[], Later[None]] | None = None
        self.client_tools = RemoteTools(
            self._surface.hub,
            self._surface.display,
            batch=self._surface.batch,
            free=lambda: self._surface.attempt is None,
            go_on=self._continuation,
            deliver=self._deliver if settings.control is not None else None,
        )
        surface.also = self.client_tools.publish
        surface.hydrated = settings.store is None

    @property
    def url(self) -> str:
        """The endpoint."""
        return self._settings.url

    # What the layers above do

    @abstractmethod
    def _continuation(self) -> Operation:
        """Goes on with results of client tools."""

    @abstractmethod
    async def _deliver(self, outcomes: dict[str, ToolOutcome]) -> None:
        """Gives results to the backend without going on."""

    @abstractmethod
    async def _claim(self, attempt: Sending) -> bool:
        """Claims the batch that the attempt answers."""

    @abstractmethod
    def _finished(self, attempt: Sending, event: agui.RunFinished) -> None:
        """RUN_FINISHED."""

    @abstractmethod
    def _failed(self, attempt: Sending, event: agui.RunError) -> None:
        """RUN_ERROR."""

    @abstractmethod
    async def _close(self, attempt: Sending, exchange: Exchange, failure: AgentError | None) -> None:
        """The connection is closed."""

    @abstractmethod
    async def _save(self) -> None:
        """Keeps the phase of the interrupts."""

    @abstractmethod
    def _check_once(self, attempt: Sending) -> None:
        """Asks the first question after a cut answer."""

    @abstractmethod
    async def _hydrate(self) -> None:
        """Shows what our server has of the thread."""

    @property
    def thread_id(self) -> str:
        """The thread's id."""
        return self._thread

    def _begin(
        self,
        attempt: Sending,
        *,
        patch: Mapping[str, JSON] | None = None,
        continues: bool = False,
        props: Mapping[str, JSON] | None = None,
        resume: Sequence[JSON] | None = None,
    ) -> None:
        """Everything that is seen of an action happens here; its request is written now and sent by its task."""
        if patch:
            attempt.state_before = self._reducer.state
            self._reducer.set_state({**self._reducer.state, **patch})
        attempt.carried = self.client_tools.staged
        attempt.behind = self._front(attempt, continues=continues)
        self._surface.admit(attempt, continues=continues)
        if attempt.message_id:
            self._surface.display.mark_sent(attempt.message_id)
        if not attempt.body and not attempt.url:
            attempt.body = body_of(
                self._thread,
                attempt.run_id,
                written(self._surface.display),
                self.client_tools.catalog,
                self._reducer.state,
                props or {},
                resume=resume,
                profile=self._settings.profile,
            )
        self._last = attempt
        attempt.task = self._surface.tasks.spawn(self._run(attempt), f"run-{attempt.run_id[:8]}")

    def _front(self, attempt: Sending, *, continues: bool) -> str | None:
        """The message behind which an attempt begins; one that goes on with a run began where that did."""
        if continues and self._last is not None:
            return self._last.behind
        ids = [message.id for message in self._surface.display.messages if message.id != attempt.message_id]
        return ids[-1] if ids else None

    async def _run(self, attempt: Sending) -> None:
        """Sends, tells, ends. Cancelled by a stop, a thread switch and the close."""
        if attempt.resuming and not await self._claim(attempt):
            return
        while stops := [task for task in self._stops if task is not attempt.task and not task.done()]:
            await asyncio.wait(stops)  # two runs never write to one thread (AG-91)
        exchange = attempt.exchange = Exchange(
            self._wire,
            attempt.url or self.url,
            attempt.body,
            self._request_headers,
            method="GET" if attempt.url else "POST",
            clock=self._surface.clock,
            reconnect=self._settings.reconnect,
            limits=self._settings.limits,
            on_violation=self._settings.on_violation,
            send_timeout=self._settings.send_timeout,
            idle_timeout=self._settings.idle_timeout,
        )
        failure: AgentError | None = None
        try:
            async with aclosing(exchange.events()) as batches:
                async for batch in batches:
                    if not self._take(attempt, exchange, batch):
                        break
        except asyncio.CancelledError:
            raise
        except ProtocolFault as fault:
            failure = _protocol(fault)
        except (NoAnswer, Silence, BrokenBody) as error:
            failure = AgentError(str(error), "connection", retryable=True)
            failure.__cause__ = error
        except Exception as error:  # noqa: BLE001 - whatever it is, the run has one end
            failure = classify(error)
        await self._close(attempt, exchange, failure)

    async def _request_headers(self) -> dict[str, str]:
        return merged(self._settings.headers, await credentials(self._settings.auth))

    def _take(self, attempt: Sending, exchange: Exchange, batch: list[Arrived]) -> bool:
        """Tells what arrived together; False once nobody wants more of it."""
        self._reducer.ours = self._reducer.ours or exchange.ours
        with self._surface.batch():
            for event, _ in batch:
                if self._surface.tasks.closed or (not attempt.live and not attempt.told):
                    return False
                self._event(attempt, event)
        for item in self._reducer.take_events():
            self.events.emit(item)
        return True

    def _event(self, attempt: Sending, event: agui.Event) -> None:
        attempt.seen = True
        match event:
            case agui.RunStarted():
                self._started(attempt, event)
            case agui.RunFinished():
                if attempt is self._surface.attempt:
                    self._finished(attempt, event)
            case agui.RunError():
                self._failed(attempt, event)
            case _ if attempt is self._surface.attempt:
                self._reducer.apply(event)
                self._notice(attempt)
                self._check_limits(event)
            case _:
                pass

    def _check_limits(self, event: agui.Event) -> None:
        limits = self._settings.limits
        if len(self._surface.display.messages) > limits.messages:
            raise TooLarge(f"more than {limits.messages} messages")
        if self._reducer.size_of(event) > limits.message:
            raise TooLarge(f"a message of more than {limits.message} characters")

    def _started(self, attempt: Sending, event: agui.RunStarted) -> None:
        if attempt.resuming and self._surface.book.phase == "resuming":
            self._step(Step.STARTED)
        if attempt.told and self._surface.attempt is None and attempt is self._last:
            attempt.told, attempt.live = "", True  # a stream that tells several runs
            self._surface.display.end("success")
            self._surface.admit(attempt)
            if attempt.message_id:  # what this action said is still on its way
                self._surface.display.mark_sent(attempt.message_id)
        elif attempt is self._surface.attempt and attempt.join == "begun":
            self._reducer.start_over()
        attempt.join = "begun"

    def _notice(self, attempt: Sending) -> None:
        """An older notice of a pause (AG-136)."""
        seen, self._reducer.interrupts = self._reducer.interrupts, []
        if seen:
            self._see(attempt, seen, native=False)

    def _see(self, attempt: Sending, batch: Any, *, native: bool) -> None:
        self._native = native
        try:
            self._surface.book.see(batch, attempt.run_id, native=native)
        except ValueError as error:
            raise ProtocolFault(str(error)) from error

    def _over(
        self,
        attempt: Sending,
        outcome: Delivered,
        *,
        error: AgentError | None = None,
        usage: AgentUsage | None = None,
        reason: str | None = None,
    ) -> None:
        """The run has an end: status, deliveries, and the patch that a backend never confirmed (AG-72)."""
        attempt.outcome = outcome
        if outcome in ("error", "interrupted", "aborted"):
            self._roll_back(attempt)
        attempt.state_before = None
        self._surface.end(attempt, outcome, error=error, reason=reason, usage=usage)

    def _roll_back(self, attempt: Sending) -> None:
        before = attempt.state_before
        if before is None or self._reducer.state_told:
            return
        attempt.state_before = None
        self._reducer.set_state(dict(before))
        if self._captured is not None:
            self._captured.rolled_back = True

    def _next(self) -> None:
        """The next of the queue."""
        if (
            self._queue
            and self._surface.attempt is None
            and not self._surface.tasks.closed
            and self._surface.book.phase == "none"
        ):
            _, start = self._queue.pop(0)
            start()

    def _step(self, step: Step) -> None:
        self._surface.book.step(step)

    def _step_if(self, step: Step) -> None:
        if self._surface.book.admits(step):
            self._surface.book.step(step)


def _protocol(fault: ProtocolFault) -> AgentError:
    code = "too_large" if isinstance(fault, TooLarge) else "protocol"
    error = AgentError(f"the backend broke the protocol: {fault}", "server", code=code)
    error.__cause__ = fault
    return error


def content_of(parts: tuple[InputPart, ...] | None) -> Content:
    """What is shown of the parts of a message: one text as a text."""
    if parts is not None and len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return parts or ""


__all__ = ["Captured", "Running", "Sending", "Settings", "content_of"]

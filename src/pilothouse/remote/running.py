"""The life of an attempt: written, sent, heard, closed; and those that wait for their turn (agent-contract §3.15)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import final

from ..agent_errors import AgentError, RequestPending, StoreConflict
from ..agents.operation import Operation
from ..agents.surface import Surface
from ..core.agui.reading import ProtocolFault, TooLarge
from ..core.agui.reduce import Reducer
from ..core.agui.told import written
from ..core.classify import classify
from ..messages import JSON
from ..transport import BrokenBody, NoAnswer
from .asked import WireProfile, body_of
from .attempt import Sending
from .exchange import Endpoint, Exchange, Silence
from .listening import Listener
from .phases import Phases
from .tools import RemoteTools

Closed = Callable[[Sending, AgentError | None], Awaitable[None]]


@final
class Runner:
    """Runs the attempts of a thread, one at a time.

    Args:
        closed: called when the connection of an attempt is closed and its run has an end; settles it.

    Attributes:
        thread_id: of the thread.
        captured: the submission that `retry` repeats (AG-80); None for none.
    """

    def __init__(
        self,
        surface: Surface,
        reducer: Reducer,
        endpoint: Endpoint,
        client_tools: RemoteTools,
        listener: Listener,
        phases: Phases,
        *,
        thread_id: str,
        profile: WireProfile,
        closed: Closed,
    ) -> None:
        self.thread_id = thread_id
        self.captured: Sending | None = None
        self._surface = surface
        self._reducer = reducer
        self._endpoint = endpoint
        self._tools = client_tools
        self._listener = listener
        self._phases = phases
        self._profile = profile
        self._closed = closed
        self._queue: list[tuple[Sending, Callable[[], None]]] = []
        self._awaited: set[asyncio.Task[None]] = set()

    # Those that wait for their turn

    def enqueue(self, attempt: Sending, start: Callable[[], None]) -> None:
        """Starts it once nothing is in flight."""
        self._queue.append((attempt, start))

    def next(self) -> None:
        """Starts the next of them, if its turn has come."""
        free = self._surface.attempt is None and not self._surface.tasks.closed
        if self._queue and free and self._surface.book.phase == "none":
            _, start = self._queue.pop(0)
            start()

    def withdraw(self, op: Operation | None = None) -> None:
        """Takes back the one of an operation; None: all of them."""
        for attempt in [attempt for attempt, _ in self._queue if op is None or attempt.op is op]:
            self._queue = [item for item in self._queue if item[0] is not attempt]
            with self._surface.batch():
                if attempt.message_id:
                    self._surface.display.remove(attempt.message_id)
            attempt.op.settle("aborted")

    @property
    def queued(self) -> list[Operation]:
        """Their operations."""
        return [attempt.op for attempt, _ in self._queue]

    # One attempt

    def begin(
        self,
        attempt: Sending,
        *,
        patch: Mapping[str, JSON] | None = None,
        continues: bool = False,
        props: Mapping[str, JSON] | None = None,
        resume: Sequence[JSON] | None = None,
    ) -> Operation:
        """Everything that is seen of an action happens here; its request is written now and sent by its task."""
        surface = self._surface
        if patch:
            attempt.state_before = self._reducer.state
            self._reducer.set_state({**self._reducer.state, **patch})
        attempt.carried = self._tools.staged
        attempt.behind = self._front(attempt, continues=continues)
        surface.admit(attempt, continues=continues)
        if attempt.message_id:
            surface.display.mark_sent(attempt.message_id)
        if not attempt.body and not attempt.url:
            attempt.body = body_of(
                self.thread_id,
                attempt.run_id,
                written(surface.display),
                self._tools.catalog,
                self._reducer.state,
                props or {},
                resume=resume,
                profile=self._profile,
            )
        self._listener.last = attempt
        attempt.task = surface.tasks.spawn(self._run(attempt), f"run-{attempt.run_id[:8]}")
        return attempt.op

    def _front(self, attempt: Sending, *, continues: bool) -> str | None:
        """The message behind which an attempt begins; one that goes on with a run began where that did."""
        if continues and self._listener.last is not None:
            return self._listener.last.behind
        ids = [message.id for message in self._surface.display.messages if message.id != attempt.message_id]
        return ids[-1] if ids else None

    def wait_for(self, stop: asyncio.Task[None]) -> None:
        """No request is sent before this is over: two runs never write to one thread (AG-91)."""
        self._awaited.add(stop)
        stop.add_done_callback(self._awaited.discard)

    async def _run(self, attempt: Sending) -> None:
        """Sends, tells, ends. Cancelled by a stop, a thread switch and the close."""
        if attempt.resuming and not await self._claim(attempt):
            return
        while stops := [task for task in self._awaited if task is not attempt.task and not task.done()]:
            await asyncio.wait(stops)
        exchange = attempt.exchange = Exchange(self._endpoint, attempt.body, attempt.url)
        failure = await self._hear(attempt, exchange)
        self._listener.close(attempt, exchange, failure)
        await self._closed(attempt, failure)

    async def _claim(self, attempt: Sending) -> bool:
        """Whether the batch is this attempt's to answer: of two instances, one wins (AG-130)."""
        surface = self._surface
        try:
            await self._phases.claim()
        except StoreConflict:
            ids = [item.id for item in surface.book.batch]
            await self._phases.load()
            with surface.batch():
                self._listener.roll_back(attempt)
                if attempt.message_id:
                    surface.display.remove(attempt.message_id)
                surface.end(attempt, "aborted")
            attempt.op.refuse(RequestPending("answer", ids, "answered by another instance"))
            return False
        return True

    async def _hear(self, attempt: Sending, exchange: Exchange) -> AgentError | None:
        """Tells all that comes; what ended it, if that was a failure."""
        try:
            async with aclosing(exchange.events()) as batches:
                async for batch in batches:
                    if not self._listener.take(attempt, batch, ours=exchange.ours):
                        break
        except ProtocolFault as fault:
            return _protocol(fault)
        except (NoAnswer, Silence, BrokenBody) as error:
            failure = AgentError(str(error), "connection", retryable=True)
            failure.__cause__ = error
            return failure
        except Exception as error:  # noqa: BLE001 - whatever it is, the run has one end
            return classify(error)
        return None


def _protocol(fault: ProtocolFault) -> AgentError:
    code = "too_large" if isinstance(fault, TooLarge) else "protocol"
    error = AgentError(f"the backend broke the protocol: {fault}", "server", code=code)
    error.__cause__ = fault
    return error


__all__ = ["Closed", "Runner"]

"""`AGUIAgent`: the `Agent` contract over any AG-UI 1.0 or 0.0.5x endpoint, ours included (agent-contract §3.15).

What is shown is `core/agui/reduce`, what a stream is and how it ends is `exchange`, what a request holds is `asked`.
Here is the life of an attempt: admitted, sent, told, ended; what an end means that nobody told; and how an answer, a
retry or a question about an uncertain run gets out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final, Self, final, get_args

from msgspec import UNSET

from ..agent_contracts import InterruptStore
from ..agent_errors import (
    AgentError,
    RecoveryRequired,
    RequestPending,
    StoreConflict,
    UnsupportedOption,
    UnsupportedPart,
)
from ..agents.given import WENT_ON, check_policy, checked_parts, target_of
from ..agents.operation import Later, Operation
from ..agents.subagents import Subagents
from ..agents.surface import Attempt, Surface
from ..clock import SystemClock
from ..contracts import CancelToken, Clock
from ..core.agui import events as agui
from ..core.agui.reading import Arrived, OnViolation, ProtocolFault, TooLarge
from ..core.agui.reduce import Reducer
from ..core.agui.told import interrupt_of, usage_of, written
from ..core.classify import classify, of_kind, of_status
from ..core.display import Told
from ..core.interrupts import Attempt as Answering
from ..core.interrupts import Step
from ..errors import AgentBusy, RunConflict, UsageError
from ..loop.jsonschema import problems_of
from ..messages import JSON, MEDIA, InputPart, Text
from ..projection import AgentMessage, AgentUsage, Delivered, Err, StopResult, ToolOutcome, WhenBusy
from ..responses import RETRYABLE, ErrorKind
from ..runs.controller import random_id
from ..transport import BrokenBody, NoAnswer, Transport
from .asked import InterruptWire, WireProfile, answered, body_of, checked_state
from .check import Reconcile, Verdict, ask_control, ask_reconcile
from .control import RunControlClient
from .exchange import AgentLimits, Exchange, Reconnect, Silence, merged
from .tools import RemoteTools
from .wire import Auth, Wire, credentials

logger = logging.getLogger("pilothouse.remote")

_REMEMBERED: Final = 1_000
_ATTEMPTS: Final = 16
"""How many older attempts are remembered by run id (AG-205)."""


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
    """

    def __init__(
        self, run_id: str, op: Operation, generation: str, message_id: str = "", body: bytes = b""
    ) -> None:
        super().__init__(run_id, op, generation, message_id)
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


class Captured:
    """What `retry` repeats (AG-80): the patch of the state, and the answer where it was one."""

    def __init__(self, patch: Mapping[str, JSON] | None, answering: Answering | None = None) -> None:
        self.patch = patch
        self.answering = answering
        self.rolled_back = False


@final
class AGUIAgent(Surface):
    """An `Agent` over an AG-UI endpoint; an async context manager.

    Args:
        url: of the endpoint that takes the POST.
        agent_id: names the agent in logs and in the keys of `store`.
        headers, auth: go with every request; `auth` is a bearer token, headers, or a function that gives headers.
        messages, state: what is shown before the first run.
        profile: what is put on the wire: `auto` and `1.0` say their version, `legacy` is for servers before 1.0.
        interrupt_wire: how answers go out; `auto` follows how the question came.
        on_violation: whether an illegal event fails the run, or is repaired where nothing has to be guessed.
        control: of a Pilothouse server: makes `check_status` answerable, and a stop provable.
        reconcile: the same for another backend: an async function.
        store: keeps the phases of interrupts over restarts, and between instances.
        transport: what opens requests; default is an HTTP client of its own.
    """

    def __init__(
        self,
        url: str,
        *,
        agent_id: str | None = None,
        thread_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        auth: Auth | None = None,
        messages: Sequence[AgentMessage] = (),
        state: Mapping[str, JSON] | None = None,
        profile: WireProfile = "auto",
        interrupt_wire: InterruptWire = "auto",
        on_violation: OnViolation = "fail",
        control: RunControlClient | None = None,
        reconcile: Reconcile | None = None,
        store: InterruptStore | None = None,
        reconnect: Reconnect = Reconnect(),  # noqa: B008 - a value
        send_timeout: float | None = 60.0,
        idle_timeout: float | None = None,
        transport: Wire | None = None,
        limits: AgentLimits = AgentLimits(),  # noqa: B008 - a value
        stop_grace: float = 10.0,
        publish_interval: float = 0.0,
        clock: Clock | None = None,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self._reducer = Reducer(clock.monotonic)
        super().__init__(agent_id or "agui", clock, self._reducer.display, publish_interval)
        self.url = url
        self._new_id = new_id or random_id
        self._thread = thread_id or self._new_id()
        self._headers = merged(headers or {})
        self._auth = auth
        self._profile: WireProfile = profile
        self._interrupt_wire: InterruptWire = interrupt_wire
        self._on_violation: OnViolation = on_violation
        self._control = control
        self._reconcile = reconcile
        self._store = store
        self._revision = 0
        self._reconnect = reconnect
        self._send_timeout = send_timeout
        self._idle_timeout = idle_timeout
        self._own = transport is None
        self._wire: Wire = Transport() if transport is None else transport
        self._limits = limits
        self._grace = stop_grace
        self._captured: Captured | None = None
        self._keys: dict[str, tuple[object, Operation]] = {}
        self._queue: list[tuple[Sending, Callable[[], None]]] = []
        self._last: Sending | None = None
        self._older: dict[str, Sending] = {}
        self._native = True
        self._auto_checked = ""
        self._children = Subagents(self._hub)
        self.subagents = self._children.signal
        self.client_tools = RemoteTools(
            self._hub,
            self._display,
            free=lambda: self._attempt is None,
            go_on=self._continuation,
            deliver=self._deliver if control is not None else None,
        )
        can_check = control is not None or reconcile is not None
        self.check_status: Callable[[], Later[None]] | None = self._check_status if can_check else None
        self._reducer.set_state(dict(checked_state(state) or {}))
        self._hydrated = store is None
        with self._batch():
            self._display.restore([_restored(message) for message in messages])

    # Opening and closing

    @property
    def thread_id(self) -> str:
        """The thread's id."""
        return self._thread

    async def open(self) -> Self:
        """Loads what a store or our server knows of the thread; nothing is run. Idempotent."""
        self._enter("open")
        if self._store is not None:
            await self._load_phases()
        if self._control is not None and self._attempt is None:
            await self._hydrate()
        with self._batch():
            self._hydrated = True
        return self

    async def __aenter__(self) -> Self:
        """Opens."""
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        """Closes."""
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connection; values stay, actions raise. The backend is not asked to stop. Idempotent."""
        if self._closed:
            return
        self._closed = True
        attempt = self._attempt
        await self._end_tasks()
        if attempt is not None:
            self._end(attempt, "interrupted", reason="closed")
        for waiting in [attempt, *[item for item, _ in self._queue]]:
            if waiting is not None:
                self._settle(waiting, "interrupted")
        self._queue.clear()
        if self._own:
            await self._wire.aclose()

    def set_thread(self, thread_id: str | None, *, messages: Sequence[AgentMessage] = ()) -> None:
        """Another conversation: what runs is left, and its late events change nothing."""
        self._enter("switch the thread")
        attempt = self._attempt
        if attempt is not None and attempt.task is not None:
            attempt.task.cancel()
        with self._batch():
            if attempt is not None:
                self._end(attempt, "aborted", reason="thread_switch")
                self._settle(attempt, "aborted")
            for waiting, _ in self._queue:
                self._settle(waiting, "aborted")
            self._queue.clear()
            self._thread = thread_id or self._new_id()
            self._captured, self._last, self._older = None, None, {}
            self._book.restore((), "")
            self.client_tools.drop()
            self._reducer.set_state({})
            self._reducer.children = {}
            self._display.clear()
            self._display.restore([_restored(message) for message in messages])
            self.status.set("idle")
            self.error.set(None)
            self.usage.set(None)

    def _publish_more(self) -> None:
        self.state.set(self._reducer.state)
        self._children.publish(self._reducer.children)
        self.client_tools.publish()

    # submit

    def submit(
        self,
        message: str | Sequence[InputPart] | None = None,
        *,
        resume: object = UNSET,
        state: Mapping[str, JSON] | None = None,
        cancel: CancelToken | None = None,
        key: str | None = None,
        when_busy: WhenBusy = "raise",
        interrupt_generation: int | None = None,
        stop_on_cancel: bool = False,
    ) -> Operation:
        """See `Agent.submit`. Failures land on `error`; awaiting raises only what a store refuses."""
        self._enter("submit")
        parts = self._sendable(checked_parts(message))
        patch = checked_state(state)
        check_policy(when_busy)
        content = (parts, patch, None if resume is UNSET else repr(resume))
        if key is not None and (known := self._keys.get(key)) is not None:
            if known[0] != content:
                raise RunConflict(key)
            return known[1]
        run_id = key or self._new_id()
        if resume is not UNSET:
            op = self._resume(resume, interrupt_generation, parts, patch, run_id, cancel)
        else:
            op = self._send(parts, patch, run_id, when_busy, cancel)
        if stop_on_cancel:
            op.stop_on_cancel(lambda: self._cancel(op))
        if key is not None:
            self._keys[key] = (content, op)
            if len(self._keys) > _REMEMBERED:
                del self._keys[next(iter(self._keys))]
        return op

    def _sendable(self, parts: tuple[InputPart, ...] | None) -> tuple[InputPart, ...] | None:
        size = 0
        for part in parts or ():
            if isinstance(part, MEDIA):
                if part.data is None and not part.url:
                    raise UnsupportedPart("artifact", self.name)
                size += len(part.data or b"")
            elif isinstance(part, Text):
                size += len(part.text)
        if size > self._limits.message:
            raise UsageError(f"the message has {size} bytes, the limit is {self._limits.message}")
        return parts

    def _send(
        self,
        parts: tuple[InputPart, ...] | None,
        patch: Mapping[str, JSON] | None,
        run_id: str,
        when_busy: WhenBusy,
        cancel: CancelToken | None,
    ) -> Operation:
        if not self._hydrated:
            raise AgentBusy("submit", "the agent is not opened: use `async with agent`")
        self._book.check_open("submit")
        busy = self._attempt
        if busy is not None:
            if when_busy in ("steer", "rollback"):
                raise UnsupportedOption(f"when_busy={when_busy!r}", self.name)
            if when_busy == "raise":
                raise AgentBusy("submit", f"run {busy.run_id} is running")
            if when_busy == "drop":
                return self._nothing()
        loop = asyncio.get_running_loop()
        op = Operation(loop, run_id)
        if cancel is not None and cancel.is_set():
            op.run_id = None
            op.settle("aborted")
            return op
        attempt = Sending(run_id, op, "", self._new_id() if parts is not None else "")
        content = _content(parts)

        def start() -> None:
            with self._batch():
                self._captured = Captured(patch) if parts is not None or patch is not None else None
                self.client_tools.settle_all(WENT_ON)
                if attempt.message_id:
                    if queued:
                        self._display.release(attempt.message_id)
                    else:
                        self._display.add_user(attempt.message_id, content)
                self._begin(attempt, patch=patch)

        queued = busy is not None and when_busy == "queue"
        if queued:
            with self._batch():
                if attempt.message_id:
                    self._display.add_user(attempt.message_id, content, sent=False, waits=True)
            self._queue.append((attempt, start))
        else:
            if busy is not None:
                self._supersede(busy)
            start()
        if cancel is not None:
            attempt.leave = cancel.on_set(lambda: loop.call_soon_threadsafe(self._cancel, op))
        return op

    def _supersede(self, busy: Attempt) -> None:
        """The live run gives way, its partial is kept."""
        self._halt(busy, "interrupted", "superseded")
        if self._control is not None:
            self._spawn(self._told_to_stop(busy.run_id), "supersede")
        self._settle(busy, "interrupted")

    async def _told_to_stop(self, run_id: str) -> None:
        assert self._control is not None
        try:
            await self._control.cancel(run_id, "superseded")
        except AgentError as error:
            logger.debug("run %s was not stopped: %s", run_id, error)

    # Beginning an attempt

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
        attempt.generation = self._generation(attempt.run_id)
        if patch:
            attempt.state_before = self._reducer.state
            self._reducer.set_state({**self._reducer.state, **patch})
        attempt.carried = self.client_tools.staged
        self._admit(attempt, continues=continues)
        if attempt.message_id:
            self._display.mark_sent(attempt.message_id)
        if not attempt.body and not attempt.url:
            attempt.body = body_of(
                self._thread,
                attempt.run_id,
                written(self._display),
                self.client_tools.catalog,
                self._reducer.state,
                props or {},
                resume=resume,
                profile=self._profile,
            )
        self._last = attempt
        self._older[attempt.run_id] = attempt
        if len(self._older) > _ATTEMPTS:
            del self._older[next(iter(self._older))]
        attempt.task = self._spawn(self._run(attempt), f"run-{attempt.run_id[:8]}")

    def _begin_display(self, attempt: Attempt, *, continues: bool) -> None:
        self._reducer.begin(attempt.generation, attempt.run_id, continues=continues)

    def _continuation(self) -> Operation:
        """Goes on with results of client tools: one run for all that is settled."""
        self._enter("resolve")
        self._book.check_open("continue")
        if self._attempt is not None:
            raise AgentBusy("continue", f"run {self._attempt.run_id} is running")
        run_id = self._new_id()
        attempt = Sending(run_id, Operation(asyncio.get_running_loop(), run_id), "")
        attempt.ordinary = False
        with self._batch():
            self._captured = None
            self._begin(attempt, continues=True)
        return attempt.op

    # The life of an attempt

    async def _run(self, attempt: Sending) -> None:
        """Sends, tells, ends. Cancelled by a stop, a thread switch and the close."""
        if attempt.resuming and not await self._claim(attempt):
            return
        exchange = attempt.exchange = Exchange(
            self._wire,
            attempt.url or self.url,
            attempt.body,
            self._request_headers,
            method="GET" if attempt.url else "POST",
            clock=self._clock,
            reconnect=self._reconnect,
            limits=self._limits,
            on_violation=self._on_violation,
            send_timeout=self._send_timeout,
            idle_timeout=self._idle_timeout,
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
        return merged(self._headers, await credentials(self._auth))

    def _take(self, attempt: Sending, exchange: Exchange, batch: list[Arrived]) -> bool:
        """Tells what arrived together; False once nobody wants more of it."""
        self._reducer.ours = self._reducer.ours or exchange.ours
        with self._batch():
            for event, _ in batch:
                if self._closed or (not attempt.live and not attempt.told):
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
                if attempt is self._attempt:
                    self._finished(attempt, event)
            case agui.RunError():
                self._failed(attempt, event)
            case _ if attempt is self._attempt:
                self._reducer.apply(event)
                self._notice(attempt)
                self._check_limits()
            case _:
                pass

    def _check_limits(self) -> None:
        if len(self._display.messages) > self._limits.messages:
            raise TooLarge(f"more than {self._limits.messages} messages")

    def _started(self, attempt: Sending, event: agui.RunStarted) -> None:
        if attempt.resuming and self._book.phase == "resuming":
            self._step(Step.STARTED)
        if attempt.told and self._attempt is None and attempt is self._last:
            attempt.told, attempt.live = "", True  # a stream that tells several runs
            self._display.end("success")
            attempt.generation = self._generation(event.run_id)
            self._admit(attempt)
        elif attempt is self._attempt and attempt.join == "begun":
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
            self._book.see(batch, attempt.run_id, native=native)
        except ValueError as error:
            raise ProtocolFault(str(error)) from error

    def _finished(self, attempt: Sending, event: agui.RunFinished) -> None:
        outcome = event.outcome
        usage = usage_of(event.usage) if event.usage is not UNSET else None
        attempt.told = "finished"
        book = self._book
        pending: list[str] | None = None
        if isinstance(outcome, agui.Interrupted):
            self._see(attempt, [interrupt_of(item) for item in outcome.interrupts], native=True)
        elif isinstance(outcome, agui.Success) and outcome.pending_tool_call_ids is not UNSET:
            pending = outcome.pending_tool_call_ids
        self.client_tools.told = None if pending is None else frozenset(pending)
        if book.phase == "collecting":
            self._step(Step.BOUNDARY)
            self._over(attempt, "paused", usage=usage)
        elif isinstance(outcome, agui.CancelledEnd):
            self._step_if(Step.DONE)
            self._over(attempt, "aborted", usage=usage)
        else:
            if book.phase == "resuming":
                self._step(Step.STARTED)
            self._step_if(Step.DONE)
            waiting = bool(pending)
            if not waiting:
                self.client_tools.carried(attempt.carried)
            noted = event.result.get("pilothouse") if isinstance(event.result, dict) else None
            reason = noted.get("reason") if isinstance(noted, dict) else None
            self._over(attempt, "paused" if waiting else "success", usage=usage, reason=reason)

    def _failed(self, attempt: Sending, event: agui.RunError) -> None:
        """RUN_ERROR: the end, or what turns an end into a failure (AG-207)."""
        usage = usage_of(event.usage) if event.usage is not UNSET else None
        if attempt.told == "failed":
            return
        late = attempt.told == "finished"
        attempt.told = "failed"
        code = event.code if event.code is not UNSET else None
        error = self._told_error(attempt, event.message, code)
        if attempt is self._attempt:
            lost = code in ("outcome_unknown", "abandoned")
            self._book_failed(lost=lost)
            delivered: Delivered = "interrupted" if lost else "error"
            self._over(
                attempt,
                delivered,
                error=None if code == "abandoned" else error,
                usage=usage,
                reason="abandoned" if code == "abandoned" else None,
            )
        elif late and self._attempt is None and attempt is self._last:
            self._step_if(Step.VOID)
            attempt.outcome = "error"
            self.status.set("error")
            self.error.set(error)

    def _told_error(self, attempt: Sending, message: str, code: str | None) -> AgentError:
        if code == "outcome_unknown":
            return self._interrupted(attempt, message, code)
        if code is not None and code in _KINDS:
            error = of_kind(code, message, code=code, retryable=code in RETRYABLE)
        elif code is not None and code.isdigit() and len(code) == 3:
            error = of_status(int(code), message)
        else:
            error = AgentError(message or "the run failed", "server", retryable=True, code=code)
        error.run_id = attempt.run_id
        return error

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
        self._end(attempt, outcome, error=error, reason=reason, usage=usage)

    def _roll_back(self, attempt: Sending) -> None:
        before = attempt.state_before
        if before is None or self._reducer.state_told:
            return
        attempt.state_before = None
        self._reducer.set_state(dict(before))
        if self._captured is not None:
            self._captured.rolled_back = True

    # How a stream ended

    async def _close(self, attempt: Sending, exchange: Exchange, failure: AgentError | None) -> None:
        """The connection is closed: the run has an end now, told or not."""
        if attempt is self._attempt and attempt.live and not self._closed:
            with self._batch():
                if failure is not None and exchange.left and failure.kind == "connection":
                    failure = None  # what left is not undone by a connection that broke
                if failure is None and attempt.seen and self._book.phase == "collecting" and not exchange.cut:
                    self._step(Step.BOUNDARY)  # an older backend ends a pause by ending the stream
                    self._over(attempt, "paused")
                elif failure is not None:
                    self._refused(attempt, exchange, failure)
                else:
                    self._lost(attempt, exchange)
        await self._save()
        if attempt.leave is not None:
            attempt.leave()
        attempt.op.settle(attempt.outcome)
        if attempt.resuming and self._book.phase == "uncertain" and self.check_status is not None:
            self._check_once(attempt)
        self._next()

    def _refused(self, attempt: Sending, exchange: Exchange, failure: AgentError) -> None:
        """It failed in a way that says what happened: nothing left, a refusal, or no AG-UI."""
        failure.run_id = attempt.run_id
        book = self._book
        if attempt.resuming and book.phase == "resuming":
            if not exchange.left:
                self._step(Step.UNSENT)  # kept for retry(), byte for byte
            elif failure.status is not None and failure.status < 500:
                self._step(Step.UNSENT)
                if failure.status in (400, 409, 422):
                    book.attempt = None  # refused for what it says: another answer may be given
            else:
                self._step(Step.LOST)
        else:
            self._book_failed()
        self._over(attempt, "error", error=failure)

    def _book_failed(self, *, lost: bool = False) -> None:
        book = self._book
        if book.phase == "collecting":
            self._step(Step.LOST if lost else Step.VOID)
        elif book.phase in ("resuming", "acknowledged"):
            self._step(Step.LOST if lost else Step.FAILED)

    def _lost(self, attempt: Sending, exchange: Exchange) -> None:
        """Nobody told an end (the table *Ends*)."""
        if (
            attempt.resuming and self._book.phase in ("resuming", "acknowledged")
        ) or self._book.phase == "collecting":
            self._step(Step.LOST)
        why = f": {exchange.cut}" if exchange.cut is not None else ""
        error = self._interrupted(attempt, f"the connection ended before the run did{why}", None)
        error.__cause__ = exchange.cut
        self._over(attempt, "interrupted", error=error)

    def _interrupted(self, attempt: Sending, message: str, code: str | None) -> AgentError:
        if self.check_status is not None:
            detail = "ask the backend what became of it"
            return AgentError(
                message, "interrupted", recovery="check", detail=detail, code=code, run_id=attempt.run_id
            )
        if attempt.ordinary and not attempt.seen:
            return AgentError(
                message, "interrupted", retryable=True, recovery="retry", code=code, run_id=attempt.run_id
            )
        detail = "the backend may have done it: look before you send it again"
        return AgentError(
            message, "interrupted", recovery="none", detail=detail, code=code, run_id=attempt.run_id
        )

    def _next(self) -> None:
        """The next of the queue."""
        if self._queue and self._attempt is None and not self._closed and self._book.phase == "none":
            _, start = self._queue.pop(0)
            start()

    # Answers

    def _resume(
        self,
        value: object,
        generation: int | None,
        parts: tuple[InputPart, ...] | None,
        patch: Mapping[str, JSON] | None,
        run_id: str,
        cancel: CancelToken | None,
    ) -> Operation:
        """Answers the open batch: one decision owns it from here on (AG-130)."""
        book = self._book
        now = datetime.fromtimestamp(self._clock.time_ms() / 1000, UTC)
        answers = book.check(value, now=now, generation=generation, problems_of=problems_of)
        if self._attempt is not None:
            raise AgentBusy("resume", f"run {self._attempt.run_id} is running")
        if book.raised_by and self._last is not None and self._last.told == "failed":
            raise RequestPending("answer", [item.id for item in book.batch], "void: their run failed")
        loop = asyncio.get_running_loop()
        op = Operation(loop, run_id)
        if cancel is not None and cancel.is_set():
            op.run_id = None
            op.settle("aborted")
            return op
        resume, props = answered(
            answers, book.batch, self._interrupt_wire, native=self._native, run_id=book.raised_by
        )
        attempt = Sending(run_id, op, "", self._new_id() if parts is not None else "")
        attempt.ordinary, attempt.resuming = False, True
        with self._batch():
            self._step(Step.CLAIM)
            if attempt.message_id:
                self._display.add_user(attempt.message_id, _content(parts))
            self._begin(attempt, patch=patch, continues=True, props=props, resume=resume)
            answering = Answering(self._new_id(), run_id, attempt.body.decode())
            book.attempt = answering
            self._captured = Captured(patch, answering)
            if self._store is None:
                self._step(Step.SENT)
        if cancel is not None:
            attempt.leave = cancel.on_set(lambda: loop.call_soon_threadsafe(self._cancel, op))
        return op

    async def _claim(self, attempt: Sending) -> bool:
        """Writes the claim, then the intent to send; False where another instance has the batch (AG-130, AG-139)."""
        if self._store is None:
            return True
        try:
            await self._write()
            with self._batch():
                self._step(Step.SENT)
            await self._write()
        except StoreConflict:
            ids = [item.id for item in self._book.batch]
            await self._load_phases()
            with self._batch():
                self._roll_back(attempt)
                if attempt.message_id:
                    self._display.remove(attempt.message_id)
                self._end(attempt, "aborted")
            attempt.op.refuse(RequestPending("answer", ids, "answered by another instance"))
            return False
        return True

    def _step(self, step: Step) -> None:
        self._book.step(step)

    def _step_if(self, step: Step) -> None:
        if self._book.admits(step):
            self._book.step(step)

    # Keeping phases

    @property
    def _store_key(self) -> str:
        return f"{self.name}:{self.url}|{self._thread}"

    async def _load_phases(self) -> None:
        assert self._store is not None
        found = await self._store.load(self._store_key)
        if found is None:
            return
        self._revision = found[0]
        with self._batch():
            self._book.load(found[1])

    async def _write(self) -> None:
        assert self._store is not None
        self._revision = await self._store.save(self._store_key, self._book.dump(), expected=self._revision)

    async def _save(self) -> None:
        """Keeps the phase as it is; a lost race is noticed by whoever answers next."""
        if self._store is None or (self._revision == 0 and self._book.phase == "none"):
            return
        try:
            await self._write()
        except StoreConflict:
            await self._load_phases()
        except Exception:
            logger.exception("the phase of the interrupts of thread %s could not be kept", self._thread)

    # stop

    def stop(self, *, grace: float | None = None) -> Later[StopResult]:
        """See `Agent.stop`. The connection is closed; a server of ours is asked to stop, and says that it did."""
        self._enter("stop")
        with self._batch():
            for waiting, _ in self._queue:
                if waiting.message_id:
                    self._display.remove(waiting.message_id)
                self._settle(waiting, "aborted")
            self._queue.clear()
        attempt = self._attempt
        if attempt is None:
            return self._later("nothing")
        return self._stop(attempt, grace)

    def _cancel(self, op: Operation) -> None:
        """A stop for one run alone."""
        if self._closed or op.done():
            return
        if self._attempt is not None and self._attempt.op is op:
            self._stop(self._attempt, None)
            return
        for item in list(self._queue):
            if item[0].op is op:
                self._queue.remove(item)
                with self._batch():
                    self._display.remove(item[0].message_id)
                self._settle(item[0], "aborted")

    def _stop(self, attempt: Attempt, grace: float | None) -> Later[StopResult]:
        self._halt(attempt, "aborted", None)
        late: Later[StopResult] = Later(asyncio.get_running_loop())
        with self._batch():
            self.stopping.set(True)
        self._spawn(self._stopped(attempt, self._grace if grace is None else grace, late), "stop")
        return late

    def _halt(self, attempt: Attempt, outcome: Delivered, reason: str | None) -> None:
        """Nothing more of it is told; its connection is being closed when this returns."""
        assert isinstance(attempt, Sending)
        attempt.live = False
        if attempt.task is not None:
            attempt.task.cancel()
        with self._batch():
            book = self._book
            if attempt.resuming and book.phase in ("claimed", "resuming", "acknowledged"):
                left = attempt.exchange is not None
                if left or book.phase == "acknowledged":
                    self._step_if(Step.LOST)
                elif book.phase in ("claimed", "resuming"):
                    self._step(Step.UNSENT)
                    book.attempt = None
            elif book.phase == "collecting":
                self._step(Step.BOUNDARY)
            self._roll_back(attempt)
            attempt.outcome = outcome
            self._end(attempt, outcome, reason=reason)

    async def _stopped(self, attempt: Attempt, grace: float, late: Later[StopResult]) -> None:
        result: StopResult = "will_stop"
        try:
            if attempt.task is not None:
                await asyncio.wait({attempt.task})
            if self._control is not None:
                result = await self._proved(attempt, grace)
            await self._save()
        finally:
            with self._batch():
                self.stopping.set(False)
            self._settle(attempt, "aborted")
            late.settle(result)
            self._next()

    async def _proved(self, attempt: Attempt, grace: float) -> StopResult:
        assert self._control is not None
        asking = asyncio.ensure_future(self._control.cancel(attempt.run_id, "stopped"))
        limit = asyncio.ensure_future(self._clock.sleep(grace))
        try:
            await asyncio.wait({asking, limit}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                return "unconfirmed"
            error = asking.exception()
            if error is None:
                return "stopped"
            if isinstance(error, AgentError) and error.status == 404:
                return "stopped"  # it never came into being
            logger.warning("the stop of run %s is not confirmed: %s", attempt.run_id, error)
            return "unconfirmed"
        finally:
            asking.cancel()
            limit.cancel()

    # retry, regenerate

    def retry(self) -> Operation:
        """See `Agent.retry`: an answer goes out again byte for byte, anything else as the list of messages is now."""
        self._enter("retry")
        captured = self._captured
        if self._attempt is not None or captured is None:
            return self._nothing()
        book = self._book
        ways = ("check_status()",) if self.check_status is not None else ()
        if captured.answering is not None:
            if book.phase in ("uncertain", "recovery-required", "acknowledged"):
                raise RecoveryRequired("retry the answer", f"it is {book.phase}", ways)
            if book.phase != "pending" or book.attempt is None:
                return self._nothing()
            return self._answer_again(book.attempt, captured)
        self._book.check_open("retry")
        error = self.error.get()
        if error is not None and error.kind == "interrupted" and error.recovery != "retry":
            raise RecoveryRequired("retry", "nobody knows what the run did", ways)
        if self._last is not None and self._last.outcome in ("success", "paused"):
            return self._nothing()
        run_id = self._new_id()
        attempt = Sending(run_id, Operation(asyncio.get_running_loop(), run_id), "")
        with self._batch():
            self._display.cut(self._last_exchange())
            patch = captured.patch if captured.rolled_back else None
            self._captured = Captured(captured.patch)
            self._begin(attempt, patch=patch)
        return attempt.op

    def _answer_again(self, answering: Answering, captured: Captured) -> Operation:
        attempt = Sending(
            answering.run_id,
            Operation(asyncio.get_running_loop(), answering.run_id),
            "",
            body=answering.body.encode(),
        )
        attempt.ordinary, attempt.resuming = False, True
        with self._batch():
            self._step(Step.CLAIM)
            self._begin(attempt, patch=captured.patch if captured.rolled_back else None, continues=True)
            captured.rolled_back = False
            if self._store is None:
                self._step(Step.SENT)
        return attempt.op

    def _last_exchange(self) -> int:
        """How many messages a retry keeps: through the last that wants an answer (AG-81)."""
        messages = self._display.messages
        for place in range(len(messages), 0, -1):
            message = messages[place - 1]
            if message.role == "user":
                return place
            if message.role == "tool":
                owner = self._display.owner_of(message.tool_call_id or "")
                ids = () if owner is None else owner.tool_call_ids
                calls = [self._display.call(item) for item in ids]
                if all(call is not None and call.result is not UNSET for call in calls):
                    return place
        return len(messages)

    def regenerate(self, target: int | str, /) -> Operation:
        """See `Agent.regenerate`. The endpoint gets the shortened list."""
        self._enter("regenerate")
        self._book.check_open("regenerate")
        if self._attempt is not None:
            raise AgentBusy("regenerate", f"run {self._attempt.run_id} is running")
        if isinstance(target, str) and (known := self._display.get(target)) is not None:
            target = known.id
        _, user = target_of(self._display.messages, target)
        run_id = self._new_id()
        attempt = Sending(run_id, Operation(asyncio.get_running_loop(), run_id), "")
        with self._batch():
            self._display.cut(user + 1)
            self._captured = Captured(None)
            self._begin(attempt)
        return attempt.op

    # check_status

    def _check_status(self) -> Later[None]:
        """See `Agent.check_status`: only reads; the answer arrives on the signals."""
        self._enter("check the status")
        if self._attempt is not None:
            raise AgentBusy("check the status", f"run {self._attempt.run_id} is running")
        if self._checking:
            raise AgentBusy("check the status", "another check is open")
        error = self.error.get()
        uncertain = self._book.phase in ("uncertain", "recovery-required")
        if not uncertain and (error is None or error.kind != "interrupted"):
            return self._later(None)
        return self._ask()

    def _ask(self) -> Later[None]:
        late: Later[None] = Later(asyncio.get_running_loop())
        error = self.error.get()
        answering = self._book.attempt
        run_id = answering.run_id if answering is not None else (error.run_id if error is not None else None)
        with self._batch():
            self._checking = True
        self._spawn(self._check(run_id or "", error, late), "check")
        return late

    def _check_once(self, attempt: Sending) -> None:
        """After a cut answer the first question is asked by itself (AG-121)."""
        if self._auto_checked != attempt.run_id and not self._checking and not self._closed:
            self._auto_checked = attempt.run_id
            self._ask()

    async def _check(self, run_id: str, error: AgentError | None, late: Later[None]) -> None:
        thread = self._thread
        verdict: Verdict | None = None
        try:
            if self._control is not None:
                verdict = await ask_control(self._control, self.url, thread, run_id)
            else:
                assert self._reconcile is not None
                book = self._book
                verdict = await ask_reconcile(self._reconcile, thread, run_id, book.batch, book.generation)
        except Exception as why:  # noqa: BLE001 - a failure to ask changes nothing (AG-65)
            logger.warning("nobody could say what became of run %s: %s", run_id, why)
        finally:
            fresh = self.error.get() is error and self._attempt is None and self._thread == thread
            with self._batch():
                self._checking = False
                if verdict is not None and fresh and not self._closed:
                    self._apply(verdict, run_id)
            if self._store is not None and not self._closed:
                await self._save()
            late.settle(None)
            if not self._closed:
                self._next()

    def _apply(self, verdict: Verdict, run_id: str) -> None:
        """What an answer changes (AG-117, AG-120)."""
        if verdict.kind == "unknown":
            logger.warning("run %s is still unknown", run_id)
            return
        if verdict.messages is not None:
            self._display.snapshot(verdict.messages, reasoning=True)
        if verdict.state is not None:
            self._reducer.set_state(verdict.state)
        book = self._book
        if verdict.kind == "waiting":
            if verdict.batch:
                book.restore(verdict.batch, run_id)
            elif book.admits(Step.RESTORED_PENDING):
                self._step(Step.RESTORED_PENDING)
                book.attempt = None
            self._native = True
        elif book.admits(Step.RESTORED_DONE):
            self._step(Step.RESTORED_DONE)
        if verdict.kind == "failed":
            assert verdict.error is not None
            verdict.error.run_id = run_id
            self.status.set("error")
            self.error.set(verdict.error)
            return
        self.error.set(None)
        self.status.set("idle")
        if verdict.kind == "running":
            self._join(run_id)

    # Hydration and joining: a server of ours

    async def _hydrate(self) -> None:
        """What the server has of the thread: messages, a run that lives, requests that wait (AG-138)."""
        assert self._control is not None
        from .check import hydrated

        try:
            found = await hydrated(self._control, self.url, self._thread)
        except AgentError as error:
            logger.warning("thread %s could not be loaded: %s", self._thread, error)
            return
        if self._attempt is not None or self._closed:
            return
        with self._batch():
            if found.messages:
                self._display.snapshot(found.messages, reasoning=True)
            if found.batch:
                self._book.restore(found.batch, found.run_id)
            elif found.run_id:
                self._join(found.run_id)

    def _join(self, run_id: str) -> None:
        """Follows a run that lives: a GET, which starts nothing."""
        from .check import join_url

        assert self._loop is not None
        attempt = Sending(run_id, Operation(self._loop, run_id), "")
        attempt.ordinary = False
        attempt.url = join_url(self.url, self._thread, run_id)
        self._begin(attempt, continues=True)

    async def _deliver(self, outcomes: dict[str, ToolOutcome]) -> None:
        """Gives client results to the waiting run of our server without going on (AG-149, AG-150)."""
        assert self._control is not None
        run_id = self._last.run_id if self._last is not None else ""
        for call_id, outcome in outcomes.items():
            text = outcome.message if isinstance(outcome, Err) else self._display.get(f"{call_id}:result")
            said = text if isinstance(text, str) else (text.text if text is not None else "")
            await self._control.command(
                run_id,
                f"flush:{call_id}"[:190],
                "answer",
                request_id=f"external:{call_id}",
                resolution={
                    "kind": "external",
                    "content": [{"type": "text", "text": said}],
                    "is_error": isinstance(outcome, Err),
                },
                extensions={"pilothouse/terminate": True},
            )


_KINDS: Final = frozenset(get_args(ErrorKind))


def _content(parts: tuple[InputPart, ...] | None) -> Any:
    if parts is not None and len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return parts or ""


def _protocol(fault: ProtocolFault) -> AgentError:
    code = "too_large" if isinstance(fault, TooLarge) else "protocol"
    error = AgentError(f"the backend broke the protocol: {fault}", "server", code=code)
    error.__cause__ = fault
    return error


def _restored(message: AgentMessage) -> Told:
    return Told(
        message.id,
        message.role,
        message.content,
        message.reasoning,
        tool_call_id=message.tool_call_id,
        name=message.name,
        run_id=message.run_id,
        extra=message.extra,
    )


__all__ = ["AGUIAgent"]

"""`AGUIAgent`: the `Agent` contract over any AG-UI 1.0 or 0.0.5x endpoint, ours included (agent-contract §3.15).

A façade: what is shown is `core/agui/reduce`, what a stream is and how it ends is `exchange`, what a request holds is
`asked`. Of its parts a `Runner` sends attempts, one at a time, a `Listener` takes in what is heard of them, an `Answerer` and
a `Sender` make them, a `Stopper` ends them, an `Asker` asks about what nobody knows, and `Phases` are kept in a store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self, final

from msgspec import UNSET

from ..agent_contracts import InterruptStore
from ..agent_errors import AgentError, RecoveryRequired, UnsupportedPart
from ..agents.given import Submission, Submissions, checked_parts, checked_policy, checked_state, target_of
from ..agents.operation import Later, Operation
from ..agents.surface import Published, Surface
from ..clock import SystemClock
from ..commands import TERMINATE
from ..contracts import CancelToken, Clock
from ..core.agui.reading import OnViolation
from ..core.agui.reduce import Reducer
from ..errors import UsageError
from ..messages import JSON, MEDIA, InputPart, Text
from ..projection import AgentMessage, Err, StopResult, ToolOutcome, WhenBusy
from ..runs.controller import random_id
from .answering import Answerer
from .asked import InterruptWire, WireProfile
from .asking import Asker
from .attempt import Sending
from .check import Reconcile, told_message
from .control import RunControlClient
from .exchange import AgentLimits, Endpoint, Reconnect, merged
from .listening import Listener
from .phases import Phases
from .running import Runner
from .sending import Sender
from .stopping import Stopper
from .tools import RemoteTools
from .wire import Auth, Wire


@final
class AGUIAgent(Published):
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
        clock, new_id = clock or SystemClock(), new_id or random_id
        reducer = Reducer(clock.monotonic)
        surface = Surface(
            agent_id or "agui", clock, reducer, publish_interval=publish_interval, buffer=limits.events
        )
        super().__init__(surface)
        self.url = url
        endpoint = Endpoint(
            url,
            transport,
            headers=merged(headers or {}),
            auth=auth,
            clock=clock,
            reconnect=reconnect,
            limits=limits,
            on_violation=on_violation,
            send_timeout=send_timeout,
            idle_timeout=idle_timeout,
        )
        askable = control is not None or reconcile is not None
        tools = self.client_tools = RemoteTools(
            surface, go_on=self._continue, deliver=None if control is None else self._deliver
        )
        listener = Listener(surface, reducer, tools, limits, askable=askable)
        phases = Phases(store, surface, lambda: f"{self.name}:{url}|{self.thread_id}")
        runner = Runner(
            surface,
            reducer,
            endpoint,
            tools,
            listener,
            phases,
            thread_id=thread_id or new_id(),
            profile=profile,
            closed=self._after,
        )
        stopper = Stopper(surface, listener, phases, runner, control=control, grace=stop_grace)
        asker = Asker(surface, reducer, phases, runner, url=url, control=control, reconcile=reconcile)
        self.check_status: Callable[[], Later[None]] | None = asker.check_status if askable else None
        self._reducer = reducer
        self._endpoint = endpoint
        self._limits = limits
        self._control = control
        self._new_id = new_id
        self._listener = listener
        self._phases = phases
        self._runner = runner
        self._stopper = stopper
        self._asker = asker
        self._answerer = Answerer(surface, listener, phases, runner, wire=interrupt_wire, new_id=new_id)
        self._sender = Sender(surface, tools, runner, stopper, control=control, new_id=new_id)
        self._submissions = Submissions(stopper.cancel)
        surface.also = tools.publish
        surface.hydrated = store is None
        reducer.set_state(dict(checked_state(state) or {}))
        with surface.batch():
            surface.display.restore([told_message(message) for message in messages])

    @property
    def thread_id(self) -> str:
        """The thread's id."""
        return self._runner.thread_id

    # Opening and closing

    async def open(self) -> Self:
        """Loads what a store or our server knows of the thread; nothing is run. Idempotent."""
        self._surface.tasks.enter("open")
        await self._phases.load()
        if not self.in_flight:
            await self._asker.hydrate()
        with self._surface.batch():
            self._surface.hydrated = True
        return self

    async def __aenter__(self) -> Self:
        """Opens."""
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        """Closes."""
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connection; values stay, actions raise. The backend is not asked to stop. Idempotent."""
        surface = self._surface
        if surface.tasks.closed:
            return
        attempt, waiting = surface.attempt, self._runner.queued
        await surface.tasks.aclose()
        if attempt is not None:
            surface.end(attempt, "interrupted", reason="closed")
            attempt.op.settle("interrupted")
        for op in waiting:
            op.settle("interrupted")
        await self._endpoint.aclose()

    def set_thread(self, thread_id: str | None, *, messages: Sequence[AgentMessage] = ()) -> None:
        """Another conversation: what runs is left, and its late events change nothing."""
        surface, attempt = self._surface, self._surface.attempt
        surface.tasks.enter("switch the thread")
        if attempt is not None and attempt.task is not None:
            attempt.task.cancel()
        with surface.batch():
            if attempt is not None:
                surface.end(attempt, "aborted", reason="thread_switch")
                attempt.op.settle("aborted")
            self._runner.withdraw()
            self._runner.thread_id = thread_id or self._new_id()
            self._runner.captured = self._listener.last = None
            surface.book.restore((), "")
            self.client_tools.drop()
            self._reducer.set_state({})
            self._reducer.children = {}
            surface.display.clear()
            surface.display.restore([told_message(message) for message in messages])
            surface.rest()
            surface.usage.set(None)

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
        self._surface.tasks.enter("submit")
        given = Submission(
            parts=self._sendable(checked_parts(message)),
            patch=checked_state(state),
            resume=resume,
            generation=interrupt_generation,
            when_busy=checked_policy(when_busy),
            key=key,
            cancel=cancel,
            stop_on_cancel=stop_on_cancel,
        )
        return self._submissions.begin(
            given, lambda: self._answerer.resume(given) if given.answers else self._sender.send(given)
        )

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

    def stop(self, *, grace: float | None = None) -> Later[StopResult]:
        """See `Agent.stop`. The connection is closed; a server of ours is asked to stop, and says that it did."""
        self._surface.tasks.enter("stop")
        return self._stopper.stop(grace)

    # What the parts ask for

    def _continue(self) -> Operation:
        """Goes on with results of client tools: one run for all that is settled."""
        self._surface.tasks.enter("resolve")
        self._surface.book.check_open("continue")
        self._surface.check_free("continue")
        with self._surface.batch():
            self._runner.captured = None
            return self._runner.begin(Sending(self._new_id(), ordinary=False), continues=True)

    async def _deliver(self, outcomes: Mapping[str, ToolOutcome]) -> None:
        """Gives client results to the waiting run of our server without going on (AG-149, AG-150)."""
        assert self._control is not None
        last = self._listener.last
        for call_id, outcome in outcomes.items():
            shown = self._surface.display.get(f"{call_id}:result")
            said = outcome.message if isinstance(outcome, Err) else (shown.text if shown is not None else "")
            await self._control.command(
                "" if last is None else last.run_id,
                f"flush:{call_id}"[:190],
                "answer",
                request_id=f"external:{call_id}",
                resolution={
                    "kind": "external",
                    "content": [{"type": "text", "text": said}],
                    "is_error": isinstance(outcome, Err),
                },
                extensions={TERMINATE: True},
            )

    async def _after(self, attempt: Sending, failure: AgentError | None) -> None:
        """The run of an attempt has its end: what that leaves to do."""
        if attempt.resuming and failure is not None and failure.status == 409:
            await self._asker.hydrate()  # somebody else answered first
        await self._phases.save()
        attempt.op.settle(attempt.outcome)
        if attempt.resuming and self._surface.book.phase == "uncertain":
            self._asker.check_once(attempt.run_id)
        self._runner.next()

    # retry, regenerate

    def retry(self) -> Operation:
        """See `Agent.retry`: an answer goes out again byte for byte, anything else as the list of messages is now."""
        self._surface.tasks.enter("retry")
        captured, book = self._runner.captured, self._surface.book
        if self.in_flight or captured is None:
            return Operation.settled("nothing")
        ways = ("check_status()",) if self.check_status is not None else ()
        if captured.decision is not None:
            if book.phase in ("uncertain", "recovery-required", "acknowledged"):
                raise RecoveryRequired("retry the answer", f"it is {book.phase}", ways)
            if book.phase != "pending" or book.decision is None:
                return Operation.settled("nothing")
            return self._answerer.again(captured, book.decision)
        book.check_open("retry")
        error, last = self.error.get(), self._listener.last
        if error is not None and error.kind == "interrupted" and error.recovery != "retry":
            raise RecoveryRequired("retry", "nobody knows what the run did", ways)
        if last is not None and last.outcome in ("success", "paused"):
            return Operation.settled("nothing")
        with self._surface.batch():
            self._surface.display.cut(self._last_exchange())
            attempt = self._runner.captured = Sending(self._new_id(), patch=captured.patch)
            return self._runner.begin(attempt, patch=captured.patch if captured.rolled_back else None)

    def _last_exchange(self) -> int:
        """How many messages a retry keeps: through the last that wants an answer (AG-81)."""
        messages = self._surface.display.messages
        for place in range(len(messages), 0, -1):
            message = messages[place - 1]
            if message.role == "user":
                return place
            if message.role == "tool":
                owner = self._surface.display.owner_of(message.tool_call_id or "")
                ids = () if owner is None else owner.tool_call_ids
                calls = [self._surface.display.call(item) for item in ids]
                if all(call is not None and call.result is not UNSET for call in calls):
                    return place
        return len(messages)

    def regenerate(self, target: int | str, /) -> Operation:
        """See `Agent.regenerate`. The endpoint gets the shortened list."""
        self._surface.tasks.enter("regenerate")
        self._surface.book.check_open("regenerate")
        self._surface.check_free("regenerate")
        display = self._surface.display
        if isinstance(target, str) and (known := display.get(target)) is not None:
            target = known.id
        _, user = target_of(display.messages, target)
        with self._surface.batch():
            display.cut(user + 1)
            attempt = self._runner.captured = Sending(self._new_id())
            return self._runner.begin(attempt)


__all__ = ["AGUIAgent"]

"""`AGUIAgent`: the `Agent` contract over any AG-UI 1.0 or 0.0.5x endpoint, ours included (agent-contract §3.15).

What is shown is `core/agui/reduce`, what a stream is and how it ends is `exchange`, what a request holds is `asked`.
Here is the life of an attempt: admitted, sent, told, ended; what an end means that nobody told; and how an answer, a
retry or a question about an uncertain run gets out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Self, final

import msgspec
from msgspec import UNSET

from ..agent_contracts import InterruptStore
from ..agent_errors import (
    AgentError,
    RecoveryRequired,
    UnsupportedOption,
    UnsupportedPart,
)
from ..agents.given import WENT_ON, checked_parts, checked_policy, checked_state, target_of
from ..agents.operation import Operation
from ..agents.submissions import Submission, Submissions
from ..agents.surface import Attempt
from ..clock import SystemClock
from ..contracts import CancelToken, Clock
from ..core.agui.reading import OnViolation
from ..core.display import Told
from ..errors import AgentBusy, UsageError
from ..messages import JSON, MEDIA, InputPart, Message, Text
from ..projection import AgentMessage, WhenBusy
from ..runs.controller import random_id
from .asked import InterruptWire, WireProfile
from .asking import Asking
from .check import Reconcile
from .control import RunControlClient
from .exchange import AgentLimits, Reconnect, merged
from .running import Captured, Sending, Settings, content_of
from .wire import Auth, Wire

logger = logging.getLogger("pilothouse.remote")


@final
class AGUIAgent(Asking):
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
        settings = Settings(
            url=url,
            name=agent_id or "agui",
            thread_id=thread_id,
            headers=merged(headers or {}),
            auth=auth,
            profile=profile,
            interrupt_wire=interrupt_wire,
            on_violation=on_violation,
            control=control,
            reconcile=reconcile,
            store=store,
            reconnect=reconnect,
            send_timeout=send_timeout,
            idle_timeout=idle_timeout,
            transport=transport,
            limits=limits,
            stop_grace=stop_grace,
            publish_interval=publish_interval,
            clock=clock or SystemClock(),
            new_id=new_id or random_id,
        )
        super().__init__(settings)
        self._submissions = Submissions(self._cancel)
        if control is not None or reconcile is not None:
            self.check_status = self._check_status
        self._reducer.set_state(dict(checked_state(state) or {}))
        with self._surface.batch():
            self._surface.display.restore([_restored(message) for message in messages])

    # Opening and closing

    async def open(self) -> Self:
        """Loads what a store or our server knows of the thread; nothing is run. Idempotent."""
        self._surface.tasks.enter("open")
        if self._store is not None:
            await self._load_phases()
        if self._control is not None and self._surface.attempt is None:
            await self._hydrate()
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
        if self._surface.tasks.closed:
            return
        self._surface.tasks.closed = True
        attempt = self._surface.attempt
        await self._surface.tasks.aclose()
        if attempt is not None:
            self._surface.end(attempt, "interrupted", reason="closed")
        for waiting in [attempt, *[item for item, _ in self._queue]]:
            if waiting is not None:
                waiting.op.settle("interrupted")
        self._queue.clear()
        if self._own:
            await self._wire.aclose()

    def set_thread(self, thread_id: str | None, *, messages: Sequence[AgentMessage] = ()) -> None:
        """Another conversation: what runs is left, and its late events change nothing."""
        self._surface.tasks.enter("switch the thread")
        attempt = self._surface.attempt
        if attempt is not None and attempt.task is not None:
            attempt.task.cancel()
        with self._surface.batch():
            if attempt is not None:
                self._surface.end(attempt, "aborted", reason="thread_switch")
                attempt.op.settle("aborted")
            for waiting, _ in self._queue:
                waiting.op.settle("aborted")
            self._queue.clear()
            self._thread = thread_id or self._new_id()
            self._captured, self._last = None, None
            self._surface.book.restore((), "")
            self.client_tools.drop()
            self._reducer.set_state({})
            self._reducer.children = {}
            self._surface.display.clear()
            self._surface.display.restore([_restored(message) for message in messages])
            self.status.set("idle")
            self.error.set(None)
            self.usage.set(None)

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
            given, lambda: self._resume(given) if given.answers else self._send(given)
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
        if size > self._settings.limits.message:
            raise UsageError(f"the message has {size} bytes, the limit is {self._settings.limits.message}")
        return parts

    def _send(self, given: Submission) -> Operation:
        parts, patch, when_busy = given.parts, given.patch, given.when_busy
        run_id = given.key or self._new_id()
        if not self._surface.hydrated:
            raise AgentBusy("submit", "the agent is not opened: use `async with agent`")
        self._surface.book.check_open("submit")
        busy = self._surface.attempt
        if busy is not None:
            if when_busy == "steer" and self._control is not None and parts is not None:
                return self._steer(busy, parts, run_id)
            if when_busy == "steer":
                raise UnsupportedOption(f"when_busy={when_busy!r}", self.name)
            if when_busy == "raise":
                raise AgentBusy("submit", f"run {busy.run_id} is running")
            if when_busy == "drop":
                return Operation.settled("nothing")
        if given.cancelled:
            return Operation.settled("aborted")
        op = Operation(asyncio.get_running_loop(), run_id)
        attempt = Sending(run_id, op, self._new_id() if parts is not None else "")
        content = content_of(parts)
        rolled = busy if busy is not None and when_busy == "rollback" else None

        def start() -> None:
            with self._surface.batch():
                if rolled is not None:
                    self._surface.display.cut(self._place_behind(rolled))
                self._captured = Captured(patch) if parts is not None or patch is not None else None
                self.client_tools.settle_all(WENT_ON)
                if attempt.message_id:
                    if queued:
                        self._surface.display.release(attempt.message_id)
                    else:
                        self._surface.display.add_user(attempt.message_id, content)
                self._begin(attempt, patch=patch, props=self._order(when_busy) if busy is not None else None)

        queued = busy is not None and when_busy == "queue"
        if queued:
            with self._surface.batch():
                if attempt.message_id:
                    self._surface.display.add_user(attempt.message_id, content, sent=False, waits=True)
            self._queue.append((attempt, start))
        else:
            if busy is not None:
                self._supersede(busy, told=rolled is not None)
            start()
        return op

    def _place_behind(self, attempt: Attempt) -> int:
        """How many messages stand in front of what an attempt began with."""
        assert isinstance(attempt, Sending)
        ids = [message.id for message in self._surface.display.messages]
        return ids.index(attempt.behind) + 1 if attempt.behind in ids else 0

    def _order(self, when_busy: WhenBusy) -> dict[str, JSON]:
        """What our server is to do with the run that gives way; another one reads it from the list of messages."""
        if self._control is None or when_busy not in ("supersede", "rollback"):
            return {}
        return {"pilothouse": {"when_busy": when_busy}}

    # Beginning an attempt

    def _continuation(self) -> Operation:
        """Goes on with results of client tools: one run for all that is settled."""
        self._surface.tasks.enter("resolve")
        self._surface.book.check_open("continue")
        if self._surface.attempt is not None:
            raise AgentBusy("continue", f"run {self._surface.attempt.run_id} is running")
        run_id = self._new_id()
        attempt = Sending(run_id, Operation(asyncio.get_running_loop(), run_id))
        attempt.ordinary = False
        with self._surface.batch():
            self._captured = None
            self._begin(attempt, continues=True)
        return attempt.op

    # Steering

    def _steer(self, busy: Attempt, parts: tuple[InputPart, ...], key: str) -> Operation:
        """A message for the live run of a server of ours (AG-78, AG-84)."""
        assert isinstance(busy, Sending)
        op = Operation(asyncio.get_running_loop(), busy.run_id)
        steer = Sending(busy.run_id, op, self._new_id())
        with self._surface.batch():
            self._surface.display.add_user(steer.message_id, content_of(parts), sent=False, waits=True)
        self._surface.tasks.spawn(self._send_steer(busy, steer, parts, key), "steer")
        return op

    async def _send_steer(
        self, busy: Sending, steer: Sending, parts: tuple[InputPart, ...], key: str
    ) -> None:
        assert self._control is not None
        message = msgspec.to_builtins(Message(steer.message_id, "user", parts))
        try:
            await self._control.command(busy.run_id, f"steer:{key}"[:190], "steer", message=message)
        except AgentError as error:
            logger.info("run %s did not take a message: %s", busy.run_id, error)
        await busy.op_over.wait()
        if self._surface.display.waits(steer.message_id) and not self._surface.tasks.closed:
            await self._steer_again(busy, steer, parts)
        else:
            steer.op.settle(busy.outcome)

    async def _steer_again(self, busy: Sending, steer: Sending, parts: tuple[InputPart, ...]) -> None:
        """The run had no more use for it: it is submitted as it is, unless the run was stopped."""
        with self._surface.batch():
            self._surface.display.remove(steer.message_id)
        if busy.outcome == "aborted" or self._surface.book.phase != "none":
            steer.op.settle("aborted")
            return
        op = self._send(
            Submission(
                parts=parts,
                patch=None,
                resume=UNSET,
                generation=None,
                when_busy="queue",
                key=None,
                cancel=None,
                stop_on_cancel=False,
            )
        )
        steer.op.run_id = op.run_id
        steer.op.settle(await op)

    # retry, regenerate

    def retry(self) -> Operation:
        """See `Agent.retry`: an answer goes out again byte for byte, anything else as the list of messages is now."""
        self._surface.tasks.enter("retry")
        captured = self._captured
        if self._surface.attempt is not None or captured is None:
            return Operation.settled("nothing")
        book = self._surface.book
        ways = ("check_status()",) if self.check_status is not None else ()
        if captured.decision is not None:
            if book.phase in ("uncertain", "recovery-required", "acknowledged"):
                raise RecoveryRequired("retry the answer", f"it is {book.phase}", ways)
            if book.phase != "pending" or book.decision is None:
                return Operation.settled("nothing")
            return self._answer_again(book.decision, captured)
        self._surface.book.check_open("retry")
        error = self.error.get()
        if error is not None and error.kind == "interrupted" and error.recovery != "retry":
            raise RecoveryRequired("retry", "nobody knows what the run did", ways)
        if self._last is not None and self._last.outcome in ("success", "paused"):
            return Operation.settled("nothing")
        run_id = self._new_id()
        attempt = Sending(run_id, Operation(asyncio.get_running_loop(), run_id))
        with self._surface.batch():
            self._surface.display.cut(self._last_exchange())
            patch = captured.patch if captured.rolled_back else None
            self._captured = Captured(captured.patch)
            self._begin(attempt, patch=patch)
        return attempt.op

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
        if self._surface.attempt is not None:
            raise AgentBusy("regenerate", f"run {self._surface.attempt.run_id} is running")
        if isinstance(target, str) and (known := self._surface.display.get(target)) is not None:
            target = known.id
        _, user = target_of(self._surface.display.messages, target)
        run_id = self._new_id()
        attempt = Sending(run_id, Operation(asyncio.get_running_loop(), run_id))
        with self._surface.batch():
            self._surface.display.cut(user + 1)
            self._captured = Captured(None)
            self._begin(attempt)
        return attempt.op


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

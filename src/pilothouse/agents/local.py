"""`LocalAgent`: the `Agent` contract over one of our conversations (agent-contract §3.14).

A façade with no life of its own: `AgentController`'s send, retry, regenerate, abort and the commands of its runs are
the only ways in, and facts and deltas are the only way out. Whatever run the thread has, whoever started it, is
followed by one `Followed`, and told by one `Telling`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Self, final

from ..agent_errors import AgentError, RecoveryRequired, UnsupportedOption
from ..clock import SystemClock
from ..commands import Answer, Command, ExternalResult, Steer
from ..contracts import CancelToken, Clock
from ..conversation.controller import AgentController
from ..conversation.extras import RunExtras
from ..conversation.reply import Reply
from ..core.classify import of_kind
from ..core.delivery import case_of_wait, reason_of, words
from ..core.display import Display
from ..core.interrupts import Step
from ..core.run import Phase
from ..errors import (
    AgentBusy,
    InvalidTarget,
    NotOpened,
    OwnedElsewhere,
    PilothouseError,
    ReplyCancelled,
    RunConflict,
    UsageError,
)
from ..events import Failed, InputReturned, Outcome, RequestResolved
from ..loop.jsonschema import problems_of
from ..messages import JSON, MEDIA, UNSET, InputPart, Message, Text
from ..projection import AgentOutcome, StopResult, WhenBusy
from ..records import Parent, Record, RunView
from ..runs.controller import random_id
from .answers import interrupt_of, resolution_of
from .localtools import TERMINATE, LocalTools
from .operation import Later, Operation
from .surface import Attempt, Surface
from .telling import Telling, content_of, told_history, told_message

logger = logging.getLogger("pilothouse.agents")

Send = Callable[[str], Awaitable[Reply]]

POLICIES: Final = ("raise", "queue", "drop", "supersede", "steer", "rollback")
WENT_ON: Final = "not answered: the user went on"
_RETRIED: Final = frozenset({"cancelled", "failed", "unknown"})
_REMEMBERED: Final = 1_000


class Followed:
    """A run of the thread that is followed.

    Attributes:
        attempt: whose outcome it decides now; None while it waits for answers, and after a stop.
        over: nothing more of it will be told.
    """

    def __init__(self, run_id: str, telling: Telling) -> None:
        self.run_id = run_id
        self.telling = telling
        self.attempt: Attempt | None = None
        self.over = asyncio.Event()
        self.steers: dict[str, tuple[Attempt, tuple[InputPart, ...]]] = {}  # command id -> who waits for it
        self.stopped = False


@final
class LocalAgent(Surface):
    """An `Agent` over an `AgentController`; an async context manager that opens the thread.

    Args:
        controller: its thread, its sends. Other callers may go on using it.
        stop_grace: seconds that `stop()` waits for the proof that the run has stopped.
        publish_interval: seconds between two publications of streaming text; 0 publishes each piece.
        cancel_on_close: `aclose()` stops a live run instead of leaving it.
        watch_interval: seconds between two looks for runs that others started on the thread.
    """

    subagents = None

    def __init__(
        self,
        controller: AgentController,
        *,
        name: str = "local",
        stop_grace: float = 10.0,
        publish_interval: float = 0.0,
        cancel_on_close: bool = False,
        watch_interval: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or SystemClock()
        super().__init__(name, clock, Display(clock.monotonic), publish_interval)
        self._controller = controller
        self._grace = stop_grace
        self._cancel_on_close = cancel_on_close
        self._watch_interval = watch_interval
        self._thread_id = controller.thread_id
        self._follow: Followed | None = None
        self._queued: dict[Attempt, asyncio.Task[Any]] = {}
        self._captured = False
        self._keys: dict[str, tuple[object, Operation]] = {}
        self._commits: dict[str, asyncio.Future[None]] = {}
        self.client_tools = LocalTools(self._hub, self)
        self._leave = controller.subscribe(self)
        self._show_conversation()

    # Opening and closing

    @property
    def thread_id(self) -> str:
        """The thread's id."""
        return self._controller.thread_id

    @property
    def controller(self) -> AgentController:
        """What is underneath."""
        return self._controller

    async def open(self) -> Self:
        """Opens the thread: shows what the journal has, follows what lives, restores what waits. Idempotent."""
        self._enter("open")
        await self._controller.open()
        await self._load()
        if self._watch_interval and not any("watch" in task.get_name() for task in self._tasks):
            self._spawn(self._watch(), "watch")
        return self

    async def __aenter__(self) -> Self:
        """Opens."""
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        """Closes."""
        await self.aclose()

    async def aclose(self) -> None:
        """Lets go of the conversation: values stay, actions raise, what runs goes on. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._leave()
        attempt = self._attempt
        if self._cancel_on_close and self._follow is not None and not self._follow.over.is_set():
            self._controller.abort()
        await self._end_tasks()
        with self._batch():
            if attempt is not None:
                self._attempt = attempt
                self._end(attempt, "interrupted", reason="closed")
        for waiting in [attempt, *self._queued]:
            if waiting is not None:
                self._settle(waiting, "interrupted")

    # What the conversation tells (its observer methods)

    def on_messages_change(self, _: object) -> None:
        """A message was added, or the conversation was replaced."""
        self._look()

    def on_state_change(self, _: object) -> None:
        """A send began or ended."""
        self._look()

    def _look(self) -> None:
        """Notices commits, sends of other callers, and that the thread was switched."""
        if self._closed:
            return
        controller = self._controller
        if controller.thread_id != self._thread_id or (
            not controller.messages
            and self.messages.get()
            and controller.reply is None
            and not self.in_flight
        ):
            self._switch()
        reply = controller.reply
        if reply is None or not reply.committed:
            return
        if (waiting := self._commits.get(reply.id)) is not None:
            if not waiting.done():
                waiting.set_result(None)
        elif (self._follow is None or self._follow.run_id != reply.id) and self._loop is not None:
            self._join(reply.id)

    def _switch(self) -> None:
        """Another thread: what belonged to the old one is left, and its late events change nothing."""
        self._thread_id = self._controller.thread_id
        follow, attempt = self._follow, self._attempt
        self._follow = None
        with self._batch():
            if follow is not None:
                follow.telling.current = False
                follow.stopped = True
            if attempt is not None:
                self._end(attempt, "aborted", reason="thread_switch")
                self._settle(attempt, "aborted")
            self._captured = False
            self._void_book()
            self.client_tools.drop()
            self._display.clear()
            self.status.set("idle")
            self.error.set(None)
        self._show_conversation()

    def _show_conversation(self) -> None:
        """What the controller shows, before the journal was asked."""
        messages = self._controller.messages
        with self._batch():
            self._display.restore([told_message(message) for message in messages])

    async def _load(self) -> None:
        """The thread as the journal has it."""
        runs = self._controller.runs
        head = await runs.thread_head(self.thread_id)
        if head is None or (self._follow is not None and self._follow.run_id == head):
            return
        view = await runs.inspect(head)
        path = told_history(await runs.history(head))
        if self._attempt is not None or self._closed:
            return
        with self._batch():
            self._display.restore(path)
        self._captured = view.status in _RETRIED
        if view.outcome is None and view.status != "unknown":
            self._join(head)
        elif view.status == "unknown" and view.outcome is None:
            error = self._unknown(
                head, view.unknown.cause if view.unknown else "", uncertain=bool(view.calls)
            )
            with self._batch():
                self.status.set("error")
                self.error.set(error)

    async def _watch(self) -> None:
        """Looks for runs that others start on the thread (AG-44)."""
        while True:
            await self._clock.sleep(self._watch_interval)
            if self._attempt is not None or self._queued or self._commits:
                continue
            try:
                head = await self._controller.runs.thread_head(self.thread_id)
            except PilothouseError as error:
                logger.debug("could not look for runs of thread %s: %s", self.thread_id, error)
                continue
            follow = self._follow
            if head is None or self.in_flight or (follow is not None and head == follow.run_id):
                continue
            if self._controller.reply is None:
                await self._controller.open()
                await self._load()

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
        """See `Agent.submit`. A refusal that the conversation finds before its commit is raised by awaiting."""
        self._enter("submit")
        parts = checked_parts(message)
        if state is not None and not isinstance(state, Mapping):
            raise TypeError(f"state must be a mapping, got {type(state).__name__}")
        if when_busy not in POLICIES:
            raise UsageError(f"when_busy must be one of {', '.join(POLICIES)}, got {when_busy!r}")
        if state is not None:
            raise UnsupportedOption("state", self.name, "the conversation has no shared state")
        content = (parts, None if resume is UNSET else repr(resume))
        if key is not None and (known := self._keys.get(key)) is not None:
            if known[0] != content:
                raise RunConflict(key)
            return known[1]
        if resume is not UNSET:
            if parts is not None:
                raise UnsupportedOption("a message beside resume", self.name, "answer first, then send")
            op = self._resume(resume, interrupt_generation, cancel)
        else:
            op = self._send(parts, key or random_id(), when_busy, cancel)
        if stop_on_cancel:
            op.stop_on_cancel(lambda: self._cancel(op, "cancelled"))
        if key is not None:
            self._keys[key] = (content, op)
            if len(self._keys) > _REMEMBERED:
                del self._keys[next(iter(self._keys))]
        return op

    def _send(
        self,
        parts: tuple[InputPart, ...] | None,
        run_id: str,
        when_busy: WhenBusy,
        cancel: CancelToken | None,
    ) -> Operation:
        if not self._hydrated:
            raise NotOpened("submit", self.thread_id)
        if when_busy not in ("supersede", "rollback"):
            self._book.check_open("submit")
        busy = self._attempt
        if busy is not None and when_busy == "raise":
            raise AgentBusy("submit", f"run {busy.run_id} is running")
        if busy is not None and when_busy == "drop":
            return self._nothing()
        if cancel is not None and cancel.is_set():
            op = Operation(asyncio.get_running_loop())
            op.settle("aborted")
            return op
        message_id = random_id() if parts is not None else ""
        if busy is not None and when_busy == "steer":
            if parts is None:
                raise AgentBusy("continue", f"run {busy.run_id} is running")
            return self._steer(parts, message_id, run_id)
        policy = "queue" if busy is not None and when_busy == "queue" else "raise"
        if busy is not None or self._book.phase != "none":
            policy = policy if policy == "queue" else "supersede"
        self._captured = parts is not None
        parent = self._rolled_back() if when_busy == "rollback" and busy is not None else None

        async def send(name: str) -> Reply:
            extras = RunExtras(
                message_id=message_id or None,
                client_tools=self.client_tools.catalog,
                parent=None if parent is None else await parent,
            )
            return await self._controller.send(parts, id=name, extras=extras, when_busy=policy)  # type: ignore[arg-type]

        return self._begin(run_id, send, parts, message_id, policy=policy, cancel=cancel)

    async def _rolled_back(self) -> Parent:
        """Where the run hangs that is rolled back: the new one takes its place."""
        assert self._follow is not None
        spec = await self._controller.runs.registered(self._follow.run_id)
        if spec.parent is None:
            raise UnsupportedOption("rollback", self.name, "the first run of a thread has nothing before it")
        return spec.parent

    def _begin(
        self,
        run_id: str,
        send: Send,
        parts: tuple[InputPart, ...] | None,
        message_id: str,
        *,
        policy: str = "raise",
        cancel: CancelToken | None = None,
        anew: bool = False,
        cut: int | None = None,
    ) -> Operation:
        """Admits an action: everything that a reader sees of it happens here, before anything is sent (AG-184)."""
        loop = asyncio.get_running_loop()
        attempt = Attempt(run_id, Operation(loop, run_id), self._generation(run_id), message_id)
        waits = policy == "queue"
        with self._batch():
            if not waits:
                self._leave_run(policy)
                if cut is not None:
                    self._display.cut(cut)
                self._admit(attempt, continues=parts is None and not anew)
            if parts is not None:
                self._display.add_user(message_id, content_of(parts), sent=not waits, waits=waits)
        task = self._spawn(self._drive(attempt, send, anew=anew, waits=waits), f"run-{run_id[:8]}")
        attempt.task = task
        if waits:
            self._queued[attempt] = task
        if cancel is not None:
            attempt.leave = cancel.on_set(
                lambda: loop.call_soon_threadsafe(self._cancel, attempt.op, "cancelled")
            )
        return attempt.op

    def _leave_run(self, policy: str) -> None:
        """The run that was shown gives way to another one; its end is not waited for here."""
        follow, before = self._follow, self._attempt
        if follow is not None:
            follow.telling.current = False
        if before is not None:
            before.live = False
            self._display.end("interrupted", "superseded")
            self._attempt = None
            if follow is not None:
                follow.stopped = True
            self._settle(before, "interrupted")
        if policy == "supersede":
            self._void_book()
            self.client_tools.drop()

    def _void_book(self) -> None:
        book = self._book
        if book.admits(Step.CLOSED):
            book.step(Step.CLOSED)
        elif book.phase != "none":
            book.restore((), "")

    # Driving a send

    async def _drive(self, attempt: Attempt, send: Send, *, anew: bool, waits: bool) -> None:
        run_id = attempt.run_id
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.client_tools.asked and not anew:
            await self._went_on()
        self._commits[run_id] = committed
        sending: asyncio.Future[Reply] = asyncio.ensure_future(send(run_id))
        try:
            waiting: set[asyncio.Future[Any]] = {sending, committed}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not committed.done() or sending.done():
                await (await sending).wait_committed()
        except asyncio.CancelledError:
            sending.cancel()
            if self._closed:
                raise
            self._take_back(attempt, None)
            return
        except ReplyCancelled:
            self._take_back(attempt, None)
            return
        except Exception as error:  # noqa: BLE001 - whatever the controller refuses with goes to whoever awaits
            self._take_back(attempt, error)
            return
        finally:
            self._commits.pop(run_id, None)
            self._queued.pop(attempt, None)
            sending.add_done_callback(_seen)
        if waits:
            with self._batch():
                self._display.release(attempt.message_id)
                if attempt.live:
                    self._admit(attempt)
        await self._follow_run(run_id, attempt, anew=anew)

    def _take_back(self, attempt: Attempt, error: BaseException | None) -> None:
        """No run came of it: what was shown at once is taken away (AG-15, AG-184)."""
        self._queued.pop(attempt, None)
        with self._batch():
            if attempt.message_id:
                self._display.remove(attempt.message_id)
            if attempt is self._attempt:
                self._display.end("aborted")
                self._attempt = None
                self.status.set("idle")
                self.is_loading.set(False)
        if not self._closed:
            self._spawn(self._load(), "reload")
        if error is None:
            self._settle(attempt, "aborted")
        else:
            if attempt.leave is not None:
                attempt.leave()
            attempt.op.refuse(error)

    def _join(self, run_id: str) -> None:
        """Follows a run that somebody else started."""
        if self._closed or self._loop is None:
            return
        attempt = Attempt(run_id, Operation(self._loop, run_id), self._generation(run_id))
        with self._batch():
            self._leave_run("join")
            self._admit(attempt, continues=True)
        attempt.task = self._spawn(self._follow_run(run_id, attempt, anew=True), f"join-{run_id[:8]}")

    async def _follow_run(self, run_id: str, attempt: Attempt, *, anew: bool) -> None:
        """Tells a run from its first fact to its end. `anew`: it does not hang on what is shown."""
        runs = self._controller.runs
        follow = Followed(run_id, Telling(self._display, run_id))
        follow.attempt = attempt
        follow.telling.current = attempt.live
        if attempt.live or self._follow is None:
            self._follow = follow
        try:
            if anew:
                await self._rebuild(run_id, attempt)
            async with runs.stream(run_id, recent=True) as items:
                async for item in items:
                    with self._batch():
                        follow.telling.take(item)
                        while (more := items.delta_nowait()) is not None:
                            follow.telling.take(more)
                        self._after(follow, item)
                    if items.idle:
                        self._at_rest(follow)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            logger.exception("following run %s failed", run_id)
            if self._current(attempt):
                self._end(attempt, "interrupted", error=self._unreadable(run_id, error))
                self._settle(attempt, "interrupted")
        else:
            await self._run_over(follow)
        finally:
            follow.over.set()

    async def _rebuild(self, run_id: str, attempt: Attempt) -> None:
        """Shows what stands in front of a run, and its input."""
        runs = self._controller.runs
        front = told_history(await runs.front(run_id))
        given = [told_message(message, run_id) for message in await runs.initial_input(run_id)]
        if attempt.live:
            with self._batch():
                self._display.streaming_attempt = False
                self._display.snapshot([*front, *given], reasoning=True)
                self._display.streaming_attempt = True

    def _after(self, follow: Followed, item: object) -> None:
        """What a fact means besides its text."""
        telling = follow.telling
        for event in telling.events:
            self.events.emit(event)
        telling.events.clear()
        fact = item.fact if isinstance(item, Record) else None
        if isinstance(fact, InputReturned):
            self._returned(follow, fact)
        if follow is not self._follow or follow.stopped:
            return
        book = self._book
        if isinstance(fact, RequestResolved) and book.phase == "resuming":
            book.step(Step.STARTED)
        if follow.attempt is None and not telling.pausing and telling.state.phase is Phase.RUNNING:
            self._goes_on(follow)

    def _goes_on(self, follow: Followed) -> None:
        """Somebody else answered: the run works again."""
        assert self._loop is not None
        attempt = Attempt(
            follow.run_id, Operation(self._loop, follow.run_id), self._generation(follow.run_id)
        )
        follow.attempt = attempt
        if self._book.admits(Step.CLOSED):
            self._book.step(Step.CLOSED)
        self.client_tools.asked = ()
        self._admit(attempt, continues=True)

    def _at_rest(self, follow: Followed) -> None:
        """Nothing more is known at present: a run that only waits for answers pauses here (AG-42)."""
        attempt = follow.attempt
        telling = follow.telling
        if attempt is None or not self._current(attempt) or follow is not self._follow or not telling.pausing:
            return
        requests = tuple(telling.state.requests.values())
        asked = [request for request in requests if request.kind != "external"]
        book = self._book
        follow.attempt = None
        with self._batch():
            if asked:
                if book.phase == "resuming":
                    book.step(Step.STARTED)
                if book.phase in ("none", "acknowledged"):
                    book.see([interrupt_of(request) for request in asked], follow.run_id, native=True)
                    book.step(Step.BOUNDARY)
            elif book.admits(Step.DONE):
                book.step(Step.DONE)
            self.client_tools.asked = tuple([item for item in requests if item.kind == "external"])
            ending = case_of_wait(requests)
            logger.debug("run %s waits: %s", follow.run_id, ending.value)
            self._end(attempt, "paused", usage=telling.usage)
        self._settle(attempt, "paused")

    async def _run_over(self, follow: Followed) -> None:
        """The run has its end, or nobody knows it."""
        state = follow.telling.state
        attempt = follow.attempt
        follow.over.set()
        if follow is self._follow and not follow.stopped:
            with self._batch():
                self._end_book(state.outcome)
                self.client_tools.asked = ()
                if attempt is not None:
                    self._conclude(attempt, follow, state.outcome)
        self._free_steers(follow, state.outcome)
        if attempt is not None and not follow.stopped:
            self._settle(attempt, self._word(state.outcome))
        if self._controller.reply is None and not self._closed:
            await self._controller.open()  # a run that another controller drove moved the thread's head

    def _end_book(self, outcome: Outcome | None) -> None:
        book = self._book
        if book.phase == "resuming":
            book.step(Step.STARTED)
        if book.admits(Step.DONE):
            book.step(Step.DONE)
        elif book.admits(Step.CLOSED):
            book.step(Step.CLOSED)

    @staticmethod
    def _word(outcome: Outcome | None) -> AgentOutcome:
        return "interrupted" if outcome is None else (words(outcome).delivery or "nothing")

    def _conclude(self, attempt: Attempt, follow: Followed, outcome: Outcome | None) -> None:
        """By the one table of endings (RC-86)."""
        usage = follow.telling.usage
        if outcome is None:
            loss = follow.telling.state.loss
            error = self._unknown(
                follow.run_id, loss.cause if loss is not None else "", uncertain=follow.telling.uncertain
            )
            self._display.settle_calls("error", "nobody knows whether the call took effect", "unknown")
            self._end(attempt, "interrupted", error=error, usage=usage)
            return
        found = words(outcome)
        error_shown: AgentError | None = None
        if found.agent == "error":
            assert isinstance(outcome, Failed)
            error_shown = self._failed(follow.run_id, outcome)
        assert found.delivery is not None
        self._end(attempt, found.delivery, error=error_shown, reason=reason_of(outcome), usage=usage)

    @staticmethod
    def _failed(run_id: str, outcome: Failed) -> AgentError:
        after = None if outcome.retry_after_ms is None else outcome.retry_after_ms / 1000
        error = of_kind(
            outcome.kind,
            outcome.message or outcome.kind,
            code=outcome.code,
            retryable=outcome.retryable,
            retry_after=after,
        )
        error.run_id = run_id
        return error

    def _unknown(self, run_id: str, cause: str, *, uncertain: bool) -> AgentError:
        """What can be done about a run of which nobody knows the end (AG-64, AG-183)."""
        message = f"nobody knows how run {run_id} ended" + (f" ({cause})" if cause else "")
        ours = self._controller.runs.descriptor.descriptor.recovery == "journal"
        if ours and not uncertain:
            return AgentError(
                message,
                "interrupted",
                retryable=True,
                recovery="retry",
                code="outcome_unknown",
                run_id=run_id,
            )
        detail = "ask what became of it with check_status(); recover it, or abandon it, on the run controller"
        return AgentError(
            message, "interrupted", recovery="check", detail=detail, code="outcome_unknown", run_id=run_id
        )

    @staticmethod
    def _unreadable(run_id: str, cause: BaseException) -> AgentError:
        error = AgentError(
            f"run {run_id} cannot be followed: {cause}",
            "interrupted",
            recovery="check",
            detail="the run may go on: ask with check_status()",
            run_id=run_id,
        )
        error.__cause__ = cause
        return error

    # Answers

    def _resume(self, value: object, generation: int | None, cancel: CancelToken | None) -> Operation:
        """Answers the open batch: each item is an answer command of the run (AG-141)."""
        book, follow = self._book, self._follow
        now = datetime.fromtimestamp(self._clock.time_ms() / 1000, UTC)
        answers = book.check(value, now=now, generation=generation, problems_of=problems_of)
        assert follow is not None
        requests = follow.telling.state.requests
        commands = []
        attempt_id = random_id()
        for answer in answers:
            resolution = resolution_of(requests[answer.id], answer)
            commands.append(
                Command(f"{attempt_id[:16]}:{answer.id}"[:190], follow.run_id, Answer(answer.id, resolution))
            )
        if cancel is not None and cancel.is_set():
            op = Operation(asyncio.get_running_loop())
            op.settle("aborted")
            return op
        book.step(Step.CLAIM)
        return self._answer(follow, commands)

    def _answer(self, follow: Followed, commands: Sequence[Command]) -> Operation:
        """Goes on with a waiting run."""
        loop = asyncio.get_running_loop()
        attempt = Attempt(follow.run_id, Operation(loop, follow.run_id), self._generation(follow.run_id))
        follow.attempt = attempt
        with self._batch():
            if self._book.phase == "claimed":
                self._book.step(Step.SENT)
            self._admit(attempt, continues=True)
        attempt.task = self._spawn(self._command(follow, attempt, commands), "answer")
        return attempt.op

    async def _command(self, follow: Followed, attempt: Attempt, commands: Sequence[Command]) -> None:
        """Sends answers; one that is refused leaves its request open (RC-41)."""
        refused: BaseException | None = None
        for command in commands:
            try:
                ack = await self._controller.runs.command(command)
            except PilothouseError as error:
                refused = error
            else:
                if ack.state in ("rejected", "unsupported"):
                    refused = UsageError(f"the answer was refused: {ack.message or ack.code}")
            if refused is not None:
                break
        if refused is None or not self._current(attempt) or follow.attempt is not attempt:
            return
        follow.attempt = None
        book = self._book
        requests = [item for item in follow.telling.state.requests.values() if item.kind != "external"]
        with self._batch():
            if book.phase == "resuming":
                book.step(Step.UNSENT)
            if requests:
                book.restore([interrupt_of(request) for request in requests], follow.run_id)
            self._end(attempt, "paused")
        attempt.op.refuse(refused)

    def answer_external(self, outcomes: Mapping[str, ExternalResult], *, terminate: bool) -> Operation:
        """Gives results of client tools to the run that waits for them."""
        follow = self._follow
        assert follow is not None
        extensions: dict[str, JSON] = {TERMINATE: True} if terminate else {}
        commands = [
            Command(f"external:{name}"[:190], follow.run_id, Answer(name, result), extensions)
            for name, result in outcomes.items()
        ]
        return self._answer(follow, commands)

    async def _went_on(self) -> None:
        """Open client tool calls get a result before the conversation goes on (AG-79, AG-148)."""
        follow = self._follow
        requests, self.client_tools.asked = self.client_tools.asked, ()
        if follow is None:
            return
        for request in requests:
            result = ExternalResult((Text(WENT_ON),), is_error=True)
            command = Command(
                f"external:{request.id}"[:190], follow.run_id, Answer(request.id, result), {TERMINATE: True}
            )
            try:
                await self._controller.runs.command(command)
            except PilothouseError as error:
                logger.warning("open call %s was not settled: %s", request.call_id, error)
        await self._run_left(follow)

    async def _run_left(self, follow: Followed) -> None:
        """Waits until a run has its end, here and for the conversation."""
        await follow.over.wait()
        reply = self._controller.reply
        if reply is not None and reply.id == follow.run_id:
            await reply.wait()

    # Steering

    def _steer(self, parts: tuple[InputPart, ...], message_id: str, key: str) -> Operation:
        """A message for the live run (AG-78, AG-84)."""
        follow = self._follow
        if follow is None or self._controller.reply is None:
            raise AgentBusy("steer", "the run is not registered yet")
        attempt = Attempt(follow.run_id, Operation(asyncio.get_running_loop(), follow.run_id), "", message_id)
        with self._batch():
            self._display.add_user(message_id, content_of(parts), sent=False, waits=True)
        command = Command(f"steer:{key}"[:190], follow.run_id, Steer(Message(message_id, "user", parts)))
        follow.steers[command.id] = (attempt, parts)
        self._spawn(self._send_steer(follow, command), "steer")
        return attempt.op

    async def _send_steer(self, follow: Followed, command: Command) -> None:
        try:
            ack = await self._controller.runs.command(command)
        except PilothouseError as error:
            self._steer_back(follow, command.id, error)
            return
        if ack.state in ("rejected", "unsupported"):
            self._steer_back(follow, command.id, None)

    def _returned(self, follow: Followed, fact: InputReturned) -> None:
        if fact.command_id in follow.steers and fact.reason == "run_ended":
            self._steer_back(follow, fact.command_id, None)

    def _steer_back(self, follow: Followed, command_id: str, error: BaseException | None) -> None:
        """The run did not take it: it becomes an ordinary submission, unless the user stopped the run."""
        found = follow.steers.pop(command_id, None)
        if found is None:
            return
        attempt, parts = found
        stopped = follow.stopped or follow.telling.state.stop is not None
        if error is not None or stopped:
            with self._batch():
                self._display.remove(attempt.message_id)
            if error is not None:
                attempt.op.refuse(error)
            else:
                self._settle(attempt, "aborted")
            return
        self._controller.withdraw_undelivered(attempt.message_id)
        self._spawn(self._steer_again(follow, attempt, parts), "steer-again")

    async def _steer_again(self, follow: Followed, attempt: Attempt, parts: tuple[InputPart, ...]) -> None:
        await self._run_left(follow)
        self._controller.withdraw_undelivered(attempt.message_id)
        if self._closed or self._attempt is not None:
            with self._batch():
                self._display.remove(attempt.message_id)
            attempt.op.refuse(AgentBusy("submit", "another run began first"))
            return
        extras = RunExtras(message_id=attempt.message_id, client_tools=self.client_tools.catalog)
        with self._batch():
            self._display.remove(attempt.message_id)
        op = self._begin(
            random_id(),
            lambda name: self._controller.send(parts, id=name, extras=extras),
            parts,
            attempt.message_id,
        )
        attempt.op.run_id = op.run_id
        try:
            self._settle(attempt, await op)
        except Exception as error:  # noqa: BLE001
            attempt.op.refuse(error)

    def _free_steers(self, follow: Followed, outcome: Outcome | None) -> None:
        """Steers that the run took settle with it."""
        for attempt, _ in follow.steers.values():
            self._settle(attempt, self._word(outcome))
        follow.steers.clear()

    # stop

    def stop(self, *, grace: float | None = None) -> Later[StopResult]:
        """See `Agent.stop`. A run that waits for answers is cancelled too: its requests close with a result each."""
        self._enter("stop")
        return self._stop(grace)

    def _cancel(self, op: Operation, reason: str) -> None:
        """A stop for one run alone."""
        if self._closed or op.done():
            return
        attempt = self._attempt
        if attempt is not None and attempt.op is op:
            self._stop(None, queued=False)
            return
        for waiting in list(self._queued):
            if waiting.op is op:
                self._withdraw(waiting)

    def _withdraw(self, waiting: Attempt) -> None:
        waiting.live = False
        for reply in self._controller.queued:
            if reply.id == waiting.run_id:
                reply.abort()
        if (task := self._queued.get(waiting)) is not None and waiting.run_id not in self._commits:
            task.cancel()
            self._take_back(waiting, None)

    def _stop(self, grace: float | None, *, queued: bool = True) -> Later[StopResult]:
        attempt, follow = self._attempt, self._follow
        waits = follow is not None and not follow.over.is_set() and not follow.stopped
        if queued:
            for waiting in list(self._queued):
                self._withdraw(waiting)
        if attempt is None and not waits:
            return self._later("nothing")
        if (
            attempt is not None
            and follow is not None
            and follow.attempt is attempt
            and self._decided(attempt)
        ):
            return self._later("nothing")  # its end is on its way, and stays what it is (AG-93)
        with self._batch():
            self._display.end("aborted")
            if attempt is not None:
                attempt.live = False
            self._attempt = None
            self._void_book()
            self.client_tools.stopped()
            self.status.set("idle")
            self.is_loading.set(False)
            self.error.set(None)
            self.stopping.set(True)
        if follow is not None and follow.attempt is attempt:
            follow.telling.current = False
            follow.stopped = True
        else:
            follow = None
        self._captured = True
        late: Later[StopResult] = Later(asyncio.get_running_loop())
        run_id = attempt.run_id if attempt is not None else (follow.run_id if follow is not None else "")
        asked = self._order_stop(run_id, attempt)
        self._spawn(self._stopped(run_id, attempt, follow, asked, grace, late), "stop")
        return late

    def _decided(self, attempt: Attempt) -> bool:
        """Whether the run's end is fixed though it was not told yet."""
        last = self._controller.last_reply
        return last is not None and last.id == attempt.run_id and last.outcome is not None

    def _order_stop(self, run_id: str, attempt: Attempt | None) -> Awaitable[Any] | None:
        """Tells whatever runs to stop, before this returns where it is here."""
        controller = self._controller
        reply = controller.reply
        if reply is not None and reply.id == run_id:
            controller.abort()
            return None
        if attempt is not None and attempt.run_id not in self._commits and attempt.task is not None:
            task, follow = attempt.task, self._follow
            if follow is None or follow.run_id != run_id:  # the task never ran: nothing was registered
                task.cancel()
                self._take_back(attempt, None)
                return None
        if controller.runs.cancel_nowait(run_id, "stopped"):
            return None
        return controller.runs.cancel(run_id, "stopped")

    async def _stopped(
        self,
        run_id: str,
        attempt: Attempt | None,
        follow: Followed | None,
        asked: Awaitable[Any] | None,
        grace: float | None,
        late: Later[StopResult],
    ) -> None:
        """Waits for the proof, bounded (AG-91)."""
        result: StopResult = "stopped"
        limit = asyncio.ensure_future(self._clock.sleep(self._grace if grace is None else grace))
        proof = asyncio.ensure_future(self._proof(run_id, attempt, follow, asked))
        try:
            await asyncio.wait({limit, proof}, return_when=asyncio.FIRST_COMPLETED)
            if not proof.done() or isinstance(proof.exception(), OwnedElsewhere):
                result = "unconfirmed"
            elif proof.exception() is not None:
                logger.warning("the stop of run %s is not confirmed: %s", run_id, proof.exception())
                result = "unconfirmed"
        finally:
            limit.cancel()
            proof.cancel()
            with self._batch():
                self.stopping.set(False)
            if attempt is not None:
                self._settle(attempt, "aborted")
            late.settle(result)

    async def _proof(
        self, run_id: str, attempt: Attempt | None, follow: Followed | None, asked: Awaitable[Any] | None
    ) -> None:
        if asked is not None:
            await asked
        if follow is not None:
            await follow.over.wait()
        elif attempt is not None and attempt.task is not None:
            await asyncio.wait({attempt.task})

    # retry, regenerate

    def retry(self) -> Operation:
        """See `Agent.retry`: goes on from the failed run's last committed exchange, so no tool effect is repeated."""
        self._enter("retry")
        if self._attempt is not None or not self._captured:
            return self._nothing()
        self._book.check_open("retry")
        error = self.error.get()
        if error is not None and error.kind == "interrupted" and error.recovery != "retry":
            ways = ("check_status()", "recover", "abandon")
            raise RecoveryRequired("retry", "nobody knows what the run did", ways)
        last = self._controller.last_reply
        if error is None and last is not None and last.outcome is not None and not _retried(last.outcome):
            return self._nothing()
        return self._begin(
            random_id(),
            lambda name: self._controller.retry(id=name, extras=self._extras()),
            None,
            "",
            anew=True,
        )

    def _extras(self) -> RunExtras:
        return RunExtras(client_tools=self.client_tools.catalog)

    def regenerate(self, target: int | str, /) -> Operation:
        """See `Agent.regenerate`. The old branch stays in the thread's tree."""
        self._enter("regenerate")
        self._book.check_open("regenerate")
        if self._attempt is not None:
            raise AgentBusy("regenerate", f"run {self._attempt.run_id} is running")
        at, user = target_of(self.messages.get(), target)
        found, asked = self.messages.get()[at], self.messages.get()[user]
        whole = any(message.id == found.id for message in self._controller.messages)

        async def send(name: str) -> Reply:
            if whole:
                return await self._controller.regenerate(found.id, id=name, extras=self._extras())
            runs = self._controller.runs
            head = await runs.thread_head(self.thread_id)
            path = [] if head is None else await runs.history(head)
            owner = next((entry.run_id for entry in path if entry.message.id == asked.id), head)
            if owner is None:
                raise InvalidTarget(f"cannot regenerate {found.id!r}: no run made it")
            extras = RunExtras(parent=Parent(owner, asked.id), client_tools=self.client_tools.catalog)
            return await self._controller.send(None, id=name, extras=extras)

        return self._begin(random_id(), send, None, "", anew=True, cut=user + 1)

    # check_status

    def check_status(self) -> Later[None]:
        """See `Agent.check_status`: answered by the journal; never takes a run over."""
        self._enter("check the status")
        if self._attempt is not None:
            raise AgentBusy("check the status", f"run {self._attempt.run_id} is running")
        if self._checking:
            raise AgentBusy("check the status", "another check is open")
        error = self.error.get()
        if error is None or error.kind != "interrupted" or error.run_id is None:
            return self._later(None)
        late: Later[None] = Later(asyncio.get_running_loop())
        with self._batch():
            self._checking = True
        self._spawn(self._check(error, late), "check")
        return late

    async def _check(self, error: AgentError, late: Later[None]) -> None:
        assert error.run_id is not None
        try:
            view = await self._asked(error.run_id)
            with self._batch():
                self._checking = False
            if self.error.get() is error and self._attempt is None and not self._closed:
                await self._conclude_check(error, view)
        except PilothouseError as why:
            logger.warning("nobody could say what became of run %s: %s", error.run_id, why)
        finally:
            with self._batch():
                self._checking = False
            late.settle(None)

    async def _asked(self, run_id: str) -> RunView:
        runs = self._controller.runs
        view = await runs.inspect(run_id)
        askable = view.status == "unknown" and view.outcome is None
        if askable and view.unknown is not None and "check_status" in view.unknown.ways:
            await runs.check_status(run_id)
            view = await runs.inspect(run_id)
        return view

    async def _conclude_check(self, error: AgentError, view: RunView) -> None:
        """What an answer changes (AG-117)."""
        outcome = view.outcome
        if outcome is None and view.status == "unknown":
            logger.warning("run %s is still unknown", view.run_id)
            return
        runs = self._controller.runs
        path = told_history(await runs.history(view.run_id))
        if self.error.get() is not error or self._attempt is not None or self._closed:
            return
        with self._batch():
            self._display.snapshot(path, reasoning=True)
            if isinstance(outcome, Failed):
                self.error.set(self._failed(view.run_id, outcome))
                return
            self.error.set(None)
            self.status.set("idle")
        if outcome is None:
            self._join(view.run_id)


def checked_parts(message: str | Sequence[InputPart] | None) -> tuple[InputPart, ...] | None:
    """The parts of a message; None for none.

    Raises:
        UsageError: an empty message. TypeError: no message.
    """
    if message is None:
        return None
    if isinstance(message, str):
        if not message:
            raise UsageError('cannot submit "": give no message at all to go on')
        return (Text(message),)
    parts = tuple(message)
    if not parts:
        raise UsageError("cannot submit a message without parts: give no message at all to go on")
    for part in parts:
        if not isinstance(part, (Text, *MEDIA)):
            raise TypeError(f"a message holds Text, Image, Audio, Video and File, got {type(part).__name__}")
    return parts


def target_of(messages: Sequence[Any], target: int | str) -> tuple[int, int]:
    """Places of the assistant message and of the user message that it answers (AG-110 … AG-112).

    Raises:
        InvalidTarget: there is no such message.
    """
    at = (
        target if isinstance(target, int) else next((n for n, m in enumerate(messages) if m.id == target), -1)
    )
    if isinstance(target, bool) or not 0 <= at < len(messages):
        raise InvalidTarget(f"cannot regenerate {target!r}: there is no such message")
    if messages[at].role != "assistant":
        raise InvalidTarget(f"cannot regenerate {target!r}: it is a {messages[at].role} message")
    for user in range(at - 1, -1, -1):
        if messages[user].role == "user":
            return at, user
    raise InvalidTarget(f"cannot regenerate {target!r}: no user message stands before it")


def _retried(outcome: object) -> bool:
    return str(outcome.__struct_config__.tag) in _RETRIED if hasattr(outcome, "__struct_config__") else True


def _seen(task: asyncio.Future[Any]) -> None:
    """Its exception was looked at, or does not matter."""
    if not task.cancelled():
        task.exception()


__all__ = ["LocalAgent", "checked_parts", "target_of"]

"""`LocalAgent`: the `Agent` contract over one of our conversations (agent-contract §3.14).

A façade with no life of its own: `AgentController`'s send, retry, regenerate, abort and the commands of its runs are
the only ways in, and facts and deltas are the only way out. Whatever run the thread has, whoever started it, is
followed by one `Followed`, and told by one `Telling`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, Self, final

from msgspec.structs import replace

from ..agent_errors import RecoveryRequired, UnsupportedOption
from ..clock import SystemClock
from ..contracts import CancelToken, Clock
from ..conversation.controller import AgentController
from ..conversation.extras import RunExtras
from ..conversation.reply import Reply
from ..core.display import Display
from ..errors import (
    AgentBusy,
    InvalidTarget,
    NotOpened,
    PilothouseError,
    RunConflict,
    RunNotFound,
)
from ..messages import JSON, UNSET, InputPart
from ..projection import EMPTY, WhenBusy
from ..records import UNFINISHED, Parent
from ..runs.controller import random_id
from .checking import Checking
from .given import check_policy, checked_parts, checked_state, target_of
from .operation import Operation
from .telling import Telling, told_history, told_message

logger = logging.getLogger("pilothouse.agents")


_REMEMBERED: Final = 1_000


@final
class LocalAgent(Checking):
    """An `Agent` over an `AgentController`; an async context manager that opens the thread.

    Args:
        controller: its thread, its sends. Other callers may go on using it.
        stop_grace: seconds that `stop()` waits for the proof that the run has stopped.
        publish_interval: seconds between two publications of streaming text; 0 publishes each piece.
        cancel_on_close: `aclose()` stops a live run instead of leaving it.
        watch_interval: seconds between two looks for runs that others started on the thread.

    Attributes:
        history: the thread's tree as checkpoints, newest first: one a run, with its parent and siblings.
        checkpoints: by message id, the newest checkpoint in which that message is the last answer.
    """

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
        super().__init__(
            controller, name, stop_grace=stop_grace, publish_interval=publish_interval, clock=clock
        )
        self._cancel_on_close = cancel_on_close
        self._watch_interval = watch_interval
        self._thread_id = controller.thread_id
        self._loaded: str | None = None  # the thread's head when it was read last
        self._keys: dict[str, tuple[object, Operation]] = {}
        self._leave = (controller.subscribe(self), controller.watch_shared_state(self._state_changed))
        self._show_conversation()

    # Opening and closing

    async def open(self) -> Self:
        """Opens the thread: shows what the journal has, follows what lives, restores what waits. Idempotent."""
        self._enter("open")
        await self._controller.open()
        await self._load()
        await self._show_history()
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
        for leave in self._leave:
            leave()
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

    def _state_changed(self, value: Mapping[str, JSON]) -> None:
        if not self._closed:
            with self._batch():
                self._shared = value

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
        elif controller.reply is None and not self._working and self._replaced():
            self._show_conversation()
        reply = controller.reply
        if reply is None or not reply.committed:
            return
        if (waiting := self._commits.get(reply.id)) is not None:
            if not waiting.done():
                waiting.set_result(None)
        elif (self._follow is None or self._follow.run_id != reply.id) and self._loop is not None:
            self._join(reply.id)

    @property
    def _working(self) -> bool:
        """Whether something of this agent is on its way, be it that its turn has not come or was not noticed yet."""
        return self.in_flight or bool(self._queued) or bool(self._commits)

    def _replaced(self) -> bool:
        """Whether the controller shows messages that no run of this thread told."""
        return any(self._display.get(message.id) is None for message in self._controller.messages)

    def _switch(self) -> None:
        """Another thread: what belonged to the old one is left, and its late events change nothing."""
        self._thread_id = self._controller.thread_id
        self._loaded = None
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
            self._children.clear()
            self.status.set("idle")
            self.error.set(None)
            self.history.set(())
            self.checkpoints.set(EMPTY)
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
        self._loaded = head
        view = await runs.inspect(head)
        path = told_history(await runs.history(head))
        if self._attempt is not None or self._closed:
            return
        with self._batch():
            self._display.restore(path)
        self._captured = view.status in UNFINISHED
        if view.outcome is None and view.status != "unknown":
            if (joined := self._join(head)) is not None:
                # A run that waits for an answer asks again before anything else.
                await joined.caught_up.wait()
        elif view.status == "unknown" and view.outcome is None:
            cause = view.unknown.cause if view.unknown else ""
            error = self._unknown(head, cause, uncertain=await self._uncertain(head))
            with self._batch():
                self.status.set("error")
                self.error.set(error)

    async def _uncertain(self, run_id: str) -> bool:
        """Whether a lost run began a call of which nobody knows the result."""
        telling = Telling(Display(self._clock.monotonic), run_id)
        for record in await self._controller.runs.events(run_id):
            telling.take(record)
        return telling.uncertain

    async def _watch(self) -> None:
        """Looks for runs that others start on the thread (AG-44)."""
        while True:
            await self._clock.sleep(self._watch_interval)
            if self._working:
                continue
            try:
                head = await self._controller.runs.thread_head(self.thread_id)
            except PilothouseError as error:
                logger.debug("could not look for runs of thread %s: %s", self.thread_id, error)
                continue
            if head is None or self.in_flight or self._controller.reply is not None:
                continue
            try:
                if head != self._loaded and (self._follow is None or head != self._follow.run_id):
                    await self._controller.open()
                    await self._load()
                    await self._show_history()
                else:
                    await self._look_again()
            except PilothouseError as error:
                logger.debug("could not look at run %s of thread %s: %s", head, self.thread_id, error)

    async def _look_again(self) -> None:
        """A run of which nobody knew the end may have been taken up since, here or elsewhere."""
        error = self.error.get()
        if error is None or error.kind != "interrupted" or error.run_id is None or self._checking:
            return
        view = await self._controller.runs.inspect(error.run_id)
        if view.status != "unknown" and self.error.get() is error and self._attempt is None:
            await self._conclude_check(error, view)

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
        patch = checked_state(state)
        check_policy(when_busy)
        content = (parts, patch, None if resume is UNSET else repr(resume))
        if key is not None and (known := self._keys.get(key)) is not None:
            if known[0] != content:
                raise RunConflict(key)
            return known[1]
        if resume is not UNSET:
            if parts is not None or patch:
                raise UnsupportedOption(
                    "a message or state beside resume", self.name, "answer first, then send"
                )
            op = self._resume(resume, interrupt_generation, cancel)
        else:
            op = self._send(parts, patch, key or random_id(), when_busy, cancel)
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
        patch: Mapping[str, JSON] | None,
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
            if parts is None or patch:
                raise AgentBusy("continue", f"run {busy.run_id} is running")
            return self._steer(parts, message_id, run_id)
        policy = "queue" if busy is not None and when_busy == "queue" else "raise"
        if busy is not None or self._book.phase != "none":
            policy = policy if policy == "queue" else "supersede"
        self._captured = parts is not None
        rolled = busy.run_id if when_busy == "rollback" and busy is not None else None

        async def send(name: str) -> Reply:
            extras = RunExtras(
                message_id=message_id or None, client_tools=self.client_tools.catalog, state=patch
            )
            if rolled is not None:
                extras = await self._in_place_of(rolled, extras)
            return await self._controller.send(parts, id=name, extras=extras, when_busy=policy)  # type: ignore[arg-type]

        return self._begin(
            run_id,
            send,
            parts,
            message_id,
            policy=policy,
            cancel=cancel,
            anew=rolled is not None,
            patch=patch,
        )

    async def _in_place_of(self, run_id: str, extras: RunExtras) -> RunExtras:
        """The new run hangs where the one hangs that is rolled back; in place of a thread's first it is a root."""
        try:
            spec = await self._controller.runs.registered(run_id)
        except RunNotFound:  # it was left before it was one
            return extras
        if spec.parent is None:
            return replace(extras, base=spec.base)
        return replace(extras, parent=spec.parent)

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


def _retried(outcome: object) -> bool:
    return str(outcome.__struct_config__.tag) in UNFINISHED if hasattr(outcome, "__struct_config__") else True


__all__ = ["LocalAgent"]

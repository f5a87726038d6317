"""`LocalAgent`: the `Agent` contract over one of our conversations (agent-contract §3.14).

A façade with no life of its own: `AgentController`'s send, retry, regenerate, abort and the commands of its runs are
the only ways in, and facts and deltas are the only way out. Each of its parts has one job: a `Sender` hands sends to the
conversation, a `Follower` shows whatever run the thread has, whoever started it, an `Answerer` and a `Steerer` give commands
to that run, a `Stopper` stops it, the `Thread` asks the journal, and an `Observer` notices what others do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Self, final

from msgspec.structs import replace

from ..agent_errors import RecoveryRequired, UnsupportedOption
from ..clock import SystemClock
from ..contracts import CancelToken, Clock
from ..conversation.controller import AgentController
from ..conversation.extras import RunExtras
from ..conversation.reply import Reply
from ..errors import AgentBusy, ConfigError, InvalidTarget, RunNotFound
from ..events import Cancelled, Failed, Unknown
from ..messages import JSON, UNSET, InputPart
from ..projection import StopResult, WhenBusy
from ..records import Parent
from ..runs.controller import random_id
from .answering import Answerer
from .following import Follower
from .given import Submission, Submissions, checked_parts, checked_policy, checked_state, target_of
from .history import History
from .localtools import LocalTools
from .observing import Observer
from .operation import Later, Operation
from .sending import Sender
from .source import LocalSource
from .steering import Steerer
from .stopping import Stopper
from .surface import Published, Surface
from .thread import Thread

_REPEATED: Final = (Cancelled, Failed, Unknown)
"""What `retry` goes on from: anything else has nothing left to do."""


@final
class LocalAgent(Published):
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
        if not isinstance(controller, AgentController):
            raise ConfigError(f"LocalAgent holds an AgentController, got {type(controller).__name__}")
        clock = clock or SystemClock()
        source = LocalSource(clock.monotonic, controller.shared_state)
        surface = Surface(name, clock, source, publish_interval=publish_interval)
        super().__init__(surface)
        history = History(controller.runs, surface)
        self.history, self.checkpoints = history.history, history.checkpoints
        tools = self.client_tools = LocalTools(
            surface, lambda results, terminate: self._answerer.hand_over(results, terminate=terminate)
        )
        follower = Follower(controller, surface, source, tools, history)
        answerer = Answerer(controller, surface, follower)
        thread = Thread(controller, surface, follower, history)
        sender = Sender(controller, surface, source, tools, follower, answerer, thread)
        stopper = Stopper(controller, surface, source, follower, sender, grace=stop_grace)
        self._controller = controller
        self._follower = follower
        self._answerer = answerer
        self._thread = thread
        self._sender = sender
        self._steerer = Steerer(controller, surface, tools, follower, sender)
        self._stopper = stopper
        self._observer = Observer(controller, surface, source, follower, sender, thread, history)
        self._submissions = Submissions(stopper.cancel)
        self._cancel_on_close = cancel_on_close
        self._watch_interval = watch_interval
        self._watching = False

    @property
    def thread_id(self) -> str:
        """The thread's id."""
        return self._controller.thread_id

    @property
    def controller(self) -> AgentController:
        """What is underneath."""
        return self._controller

    # Opening and closing

    async def open(self) -> Self:
        """Opens the thread: shows what the journal has, follows what lives, restores what waits. Idempotent."""
        self._surface.tasks.enter("open")
        await self._thread.open()
        if self._watch_interval and not self._watching:
            self._watching = True
            self._surface.tasks.spawn(self._observer.watch(self._watch_interval), "watch")
        return self

    async def __aenter__(self) -> Self:
        """Opens."""
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        """Closes."""
        await self.aclose()

    async def aclose(self) -> None:
        """Lets go of the conversation: values stay, actions raise, what runs goes on. Idempotent."""
        surface = self._surface
        if surface.tasks.closed:
            return
        surface.tasks.closed = True
        self._observer.close()
        attempt, waiting = surface.attempt, self._sender.queued
        if self._cancel_on_close and (attempt is not None or self._follower.waiting):
            self._controller.abort()
        await surface.tasks.aclose()
        if attempt is not None:
            surface.attempt = attempt
            surface.end(attempt, "interrupted", reason="closed")
            attempt.op.settle("interrupted")
        for op in waiting:
            op.settle("interrupted")

    # Actions

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
        self._surface.tasks.enter("submit")
        given = Submission(
            parts=checked_parts(message),
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

    def _resume(self, given: Submission) -> Operation:
        if given.parts is not None or given.patch:
            raise UnsupportedOption("a message or state beside resume", self.name, "answer first, then send")
        return self._answerer.resume(given)

    def _send(self, given: Submission) -> Operation:
        surface, when_busy, parts = self._surface, given.when_busy, given.parts
        if when_busy not in ("supersede", "rollback"):
            surface.book.check_open("submit")
        busy = surface.attempt
        if when_busy == "raise":
            surface.check_free("submit")
        if busy is not None and when_busy == "drop":
            return Operation.settled("nothing")
        if given.cancelled:
            return Operation.settled("aborted")
        run_id = given.key or random_id()
        if busy is not None and when_busy == "steer":
            if parts is None or given.patch:
                raise AgentBusy("continue", f"run {busy.run_id} is running")
            return self._steerer.steer(parts, run_id)
        policy = "raise"
        if busy is not None or surface.book.phase != "none":
            policy = "queue" if busy is not None and when_busy == "queue" else "supersede"
        self._follower.captured = parts is not None
        rolled = busy.run_id if when_busy == "rollback" and busy is not None else None
        message_id = random_id() if parts is not None else ""

        async def send(name: str) -> Reply:
            extras = replace(self._extras(), message_id=message_id or None, state=given.patch)
            if rolled is not None:
                extras = await self._in_place_of(rolled, extras)
            return await self._controller.send(parts, id=name, extras=extras, when_busy=policy)  # type: ignore[arg-type]

        return self._sender.begin(
            run_id,
            send,
            parts,
            message_id,
            policy=policy,
            anew=rolled is not None,
            patch=given.patch,
        )

    def _extras(self) -> RunExtras:
        return RunExtras(client_tools=self.client_tools.catalog)

    async def _in_place_of(self, run_id: str, extras: RunExtras) -> RunExtras:
        """The new run hangs where the one hangs that is rolled back; in place of a thread's first it is a root."""
        try:
            spec = await self._controller.runs.registered(run_id)
        except RunNotFound:  # it was left before it was one
            return extras
        if spec.parent is None:
            return replace(extras, base=spec.base)
        return replace(extras, parent=spec.parent)

    def stop(self, *, grace: float | None = None) -> Later[StopResult]:
        """See `Agent.stop`. A run that waits for answers is cancelled too: its requests close with a result each."""
        self._surface.tasks.enter("stop")
        return self._stopper.stop(grace)

    def check_status(self) -> Later[None]:
        """See `Agent.check_status`: answered by the journal; never takes a run over."""
        return self._thread.check_status()

    def retry(self) -> Operation:
        """See `Agent.retry`: goes on from the failed run's last committed exchange, so no tool effect is repeated."""
        self._surface.tasks.enter("retry")
        if self.in_flight or not self._follower.captured:
            return Operation.settled("nothing")
        self._surface.book.check_open("retry")
        error = self.error.get()
        if error is not None and error.kind == "interrupted" and error.recovery != "retry":
            ways = ("check_status()", "recover", "abandon")
            raise RecoveryRequired("retry", "nobody knows what the run did", ways)
        last = self._controller.last_reply
        whole = last is not None and last.outcome is not None and not isinstance(last.outcome, _REPEATED)
        if error is None and whole:
            return Operation.settled("nothing")
        return self._sender.begin(
            random_id(), lambda name: self._controller.retry(id=name, extras=self._extras()), anew=True
        )

    def regenerate(self, target: int | str, /) -> Operation:
        """See `Agent.regenerate`. The old branch stays in the thread's tree."""
        self._surface.tasks.enter("regenerate")
        self._surface.book.check_open("regenerate")
        self._surface.check_free("regenerate")
        messages = self.messages.get()
        at, user = target_of(messages, target)
        found, asked = messages[at], messages[user]
        whole = any(message.id == found.id for message in self._controller.messages)

        async def send(name: str) -> Reply:
            if whole:
                return await self._controller.regenerate(found.id, id=name, extras=self._extras())
            parent = await self._parent_of(asked.id)
            if parent is None:
                raise InvalidTarget(f"cannot regenerate {found.id!r}: no run made it")
            return await self._controller.send(None, id=name, extras=replace(self._extras(), parent=parent))

        return self._sender.begin(random_id(), send, anew=True, cut=user + 1)

    async def _parent_of(self, message_id: str) -> Parent | None:
        """Where a run hangs that goes on behind a message which no whole answer follows."""
        runs = self._controller.runs
        head = await runs.thread_head(self.thread_id)
        path = [] if head is None else await runs.history(head)
        owner = next((entry.run_id for entry in path if entry.message.id == message_id), head)
        return None if owner is None else Parent(owner, message_id)


__all__ = ["LocalAgent"]

"""A run of the thread, followed from its first fact to its end, whoever started it (AG-180 … AG-183)."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ..agent_contracts import Signal, Subagent
from ..agent_errors import AgentError
from ..commands import ExternalResult
from ..contracts import Clock
from ..conversation.controller import AgentController
from ..core.classify import of_kind
from ..core.delivery import case_of_wait, reason_of, words
from ..core.display import Display
from ..core.interrupts import Step
from ..core.run import Phase
from ..errors import PilothouseError
from ..events import Failed, InputReturned, Outcome, RequestResolved
from ..messages import JSON, InputPart
from ..projection import EMPTY, AgentOutcome, Checkpoint
from ..records import Record
from .answers import interrupt_of
from .children import Children
from .history import History
from .localtools import LocalTools
from .operation import Operation
from .signals import Cell
from .subagents import Subagents
from .surface import Attempt, Surface
from .telling import Telling, told_history, told_message

logger = logging.getLogger("pilothouse.agents")


class Followed:
    """A run of the thread that is followed.

    Attributes:
        attempt: whose outcome it decides now; None while it waits for answers, and after a stop.
        over: nothing more of it will be told.
        left: another run has taken its place: what becomes of it is not shown.
    """

    def __init__(self, run_id: str, telling: Telling) -> None:
        self.run_id = run_id
        self.telling = telling
        self.attempt: Attempt | None = None
        self.over = asyncio.Event()
        self.steers: dict[str, tuple[Attempt, tuple[InputPart, ...]]] = {}  # command id -> who waits for it
        self.stopped = False
        self.left = False


class Following(Surface, ABC):
    """The layer that tells runs: what is shown of them, how they pause and end."""

    def __init__(
        self,
        controller: AgentController,
        name: str,
        *,
        stop_grace: float,
        publish_interval: float,
        clock: Clock,
    ) -> None:
        super().__init__(name, clock, Display(clock.monotonic), publish_interval)
        self._controller = controller
        self._grace = stop_grace
        self._follow: Followed | None = None
        self._queued: dict[Attempt, asyncio.Task[Any]] = {}
        self._left: set[Attempt] = set()  # that gave way to others and have not come to their end
        self._commits: dict[str, asyncio.Future[None]] = {}
        self._captured = False
        self._stale = False  # a stopped run may have recorded more than is shown
        self._shared: Mapping[str, JSON] = controller.shared_state
        self._shown_state: Mapping[str, JSON] | None = None
        self._patch: Mapping[str, JSON] = EMPTY  # of the state: shown before it is a fact
        self.client_tools = LocalTools(self._hub, self._display, self, batch=self._batch)
        self._children = Children(clock.monotonic)
        self._child_views = Subagents(self._hub)
        self.subagents: Signal[Mapping[str, Subagent]] = self._child_views.signal
        self.history: Cell[tuple[Checkpoint, ...]] = Cell(self._hub, (), "history")
        self.checkpoints: Cell[Mapping[str, Checkpoint]] = Cell(self._hub, EMPTY, "checkpoints")
        self._tree = History(controller.runs, controller.thread_id)

    def _begin_display(self, attempt: Attempt, *, continues: bool) -> None:
        self._children.clear()
        super()._begin_display(attempt, continues=continues)

    def _publish_more(self) -> None:
        self._child_views.publish(self._children.found)
        if self._patch:
            self._shown_state = None
            self.state.set(MappingProxyType({**self._shared, **self._patch}))
        elif self._shared is not self._shown_state:
            self._shown_state = self._shared
            self.state.set(MappingProxyType(dict(self._shared)) if self._shared else EMPTY)

    @abstractmethod
    def answer_external(self, outcomes: Mapping[str, ExternalResult], *, terminate: bool) -> Operation:
        """Gives results of client tools to the run that waits for them."""

    def _returned(self, follow: Followed, fact: InputReturned) -> None:
        """Steering came back."""

    def _free_steers(self, follow: Followed, outcome: Outcome | None) -> None:
        """The run is over: steering that it took settles with it."""

    async def _load(self) -> None:
        """Shows the thread as the journal has it."""

    async def _show_history(self) -> None:
        """The thread's tree as the journal has it; one that is away leaves what is shown."""
        if self._tree.thread_id != self.thread_id:
            self._tree = History(self._controller.runs, self.thread_id)
        tree = self._tree
        try:
            found = await tree.read()
        except PilothouseError as error:
            logger.warning("the history of thread %s could not be read: %s", tree.thread_id, error)
            return
        if tree is self._tree and tree.thread_id == self.thread_id and not self._closed:
            with self._batch():
                self.history.set(found.history)
                self.checkpoints.set(found.by_message)

    @property
    def thread_id(self) -> str:
        """The thread's id."""
        return self._controller.thread_id

    @property
    def controller(self) -> AgentController:
        """What is underneath."""
        return self._controller

    def _join(self, run_id: str) -> Attempt | None:
        """Follows a run that somebody else started."""
        if self._closed or self._loop is None:
            return None
        attempt = Attempt(run_id, Operation(self._loop, run_id), self._generation(run_id))
        with self._batch():
            self._leave_run("join")
            self._admit(attempt, continues=True)
        attempt.task = self._spawn(self._follow_run(run_id, attempt, anew=True), f"join-{run_id[:8]}")
        attempt.task.add_done_callback(lambda _: attempt.caught_up.set())
        return attempt

    def _leave_run(self, policy: str) -> None:
        """The run that was shown gives way to another one; its end is not waited for here."""
        follow, before = self._follow, self._attempt
        if follow is not None:
            follow.telling.current = False
            follow.left = True
        if before is not None:
            before.live = False
            self._display.end("interrupted", "superseded")
            self._attempt = None
            if follow is not None:
                follow.stopped = True
            if before.task is not None and not before.task.done():
                self._left.add(before)
                before.task.add_done_callback(lambda _: self._left.discard(before))
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

    async def _follow_run(self, run_id: str, attempt: Attempt, *, anew: bool) -> None:
        """Tells a run from its first fact to its end. `anew`: it does not hang on what is shown."""
        runs = self._controller.runs
        follow = Followed(run_id, Telling(self._display, run_id, self._children))
        follow.attempt = attempt
        follow.telling.current = attempt.live
        follow.stopped = not attempt.live  # stopped while it was being registered
        self._stale = self._stale or follow.stopped
        if attempt.live or self._attempt is None:
            self._follow = follow
        try:
            if attempt.live and (anew or self._stale):
                self._stale = False
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
                        attempt.caught_up.set()
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
            attempt.caught_up.set()

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

    async def _refresh(self, follow: Followed) -> None:
        """A stopped run may have recorded more than was seen of it: its record is what is shown from now on."""
        path = told_history(await self._controller.runs.history(follow.run_id))
        if follow is self._follow and self._attempt is None and not self._closed:
            self._stale = False
            with self._batch():
                self._display.snapshot(path, reasoning=True)

    def _after(self, follow: Followed, item: object) -> None:
        """What a fact means besides its text."""
        telling = follow.telling
        for event in telling.events:
            self.events.emit(event)
        telling.events.clear()
        fact = item.fact if isinstance(item, Record) else None
        if isinstance(fact, InputReturned):
            self._returned(follow, fact)
        if follow is not self._follow or follow.stopped or follow.left:
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
        if follow is self._follow:
            with self._batch():
                self._children.end()
        if follow.stopped and follow is self._follow and self._attempt is None:
            await self._refresh(follow)
        follow.over.set()
        if follow is self._follow and not follow.stopped:
            with self._batch():
                self._end_book(state.outcome)
                self.client_tools.asked = ()
                if attempt is not None:
                    self._conclude(attempt, follow, state.outcome)
        self._free_steers(follow, state.outcome)
        await self._show_history()
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
            last = self._controller.last_reply
            if last is not None and last.id == follow.run_id:
                error_shown.__cause__ = last.error
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

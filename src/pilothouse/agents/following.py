"""A run of the thread, followed from its first fact to its end, whoever started it (AG-180 … AG-183)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple, final

from ..agent_errors import AgentError
from ..conversation.controller import AgentController
from ..core.delivery import case_of_wait, reason_of, words
from ..core.interrupts import Step
from ..core.run import Phase
from ..events import Failed, InputReturned, Outcome, RequestResolved
from ..projection import AgentOutcome
from ..records import Record
from .answers import interrupt_of
from .failures import failed, unknown, unreadable
from .history import History
from .localtools import LocalTools
from .source import LocalSource
from .surface import Attempt, Surface
from .telling import Telling, told_history, told_message

logger = logging.getLogger("pilothouse.agents")


class Steer(NamedTuple):
    """What becomes of a message that was given to a run; one of the two is called.

    Attributes:
        taken: the run took it, and is over; with how it ended.
        returned: the run had its end before it could take it.
    """

    taken: Callable[[AgentOutcome], None]
    returned: Callable[[], None]


class Followed:
    """A run of the thread that is followed.

    Attributes:
        attempt: whose outcome it decides now; None while it waits for answers, and after a stop.
        over: nothing more of it will be told.
        left: another run has taken its place: what becomes of it is not shown.
        stopped: a stop was ordered: its end is known to whoever ordered it.
        steers: by command id.
    """

    def __init__(self, run_id: str, telling: Telling, attempt: Attempt) -> None:
        self.run_id = run_id
        self.telling = telling
        self.attempt: Attempt | None = attempt
        self.over = asyncio.Event()
        self.steers: dict[str, Steer] = {}
        self.stopped = self.left = False
        if not attempt.live:  # stopped while it was being registered
            self.stop()

    def stop(self) -> None:
        """Of what it tells from here on only results are shown."""
        self.telling.current = False
        self.stopped = True

    @property
    def shown(self) -> bool:
        """Whether its end is this agent's to show."""
        return not self.stopped and not self.left


@final
class Follower:
    """Follows the runs of a thread, one at a time, and shows what they tell: how they pause, go on and end.

    Attributes:
        shown: the run that was followed last; None before the first, and on another thread.
        left: attempts that gave way to others and have not come to their end.
        captured: there is a submission that `retry` repeats (AG-80).
    """

    def __init__(
        self,
        controller: AgentController,
        surface: Surface,
        source: LocalSource,
        client_tools: LocalTools,
        history: History,
    ) -> None:
        self.shown: Followed | None = None
        self.left: set[Attempt] = set()
        self.captured = False
        self._controller = controller
        self._runs = controller.runs
        self._surface = surface
        self._source = source
        self._display = source.display
        self._tools = client_tools
        self._history = history
        self._stale = False  # a stopped run may have recorded more than is shown

    # Whose run is shown

    def shows(self, run_id: str) -> bool:
        """Whether that run was followed last."""
        return self.shown is not None and self.shown.run_id == run_id

    @property
    def waiting(self) -> bool:
        """Whether the run that is shown has not come to its end, and nobody stopped it."""
        return self.shown is not None and not self.shown.over.is_set() and not self.shown.stopped

    def join(self, run_id: str) -> asyncio.Event | None:
        """Follows a run that somebody else started; the event: what is known of it so far is shown."""
        if self._surface.tasks.closed:
            return None
        attempt, caught_up = Attempt(run_id), asyncio.Event()
        with self._surface.batch():
            self.give_way()
            self._surface.admit(attempt, continues=True)
        following = self.follow(attempt, anew=True, caught_up=caught_up)
        attempt.task = self._surface.tasks.spawn(following, f"join-{run_id[:8]}")
        attempt.task.add_done_callback(lambda _: caught_up.set())
        return caught_up

    def give_way(self) -> None:
        """Another run takes the place of the one that is shown; its end is not waited for here."""
        follow, before = self.shown, self._surface.attempt
        if follow is not None:
            follow.telling.current = False
            follow.left = True
        if before is None:
            return
        self._surface.leave("interrupted", "superseded")
        if follow is not None:
            follow.stop()
        if before.task is not None and not before.task.done():
            self.left.add(before)
            before.task.add_done_callback(lambda _: self.left.discard(before))
        before.op.settle("interrupted")

    def stop(self, attempt: Attempt | None) -> Followed | None:
        """What is shown is stopped; the run, where one is followed for this attempt (None: one that waits)."""
        follow = self.shown
        if follow is None or follow.attempt is not attempt:
            return None
        follow.stop()
        self._stale = True
        return follow

    def switch(self) -> None:
        """Another thread: what the old one's run tells changes nothing any more."""
        if self.shown is not None:
            self.shown.stop()
            self.shown = None
        self.captured = False

    def forget(self) -> None:
        """What was shown of a run that is over is to be read again."""
        if self.shown is not None and self.shown.over.is_set():
            self.shown = None

    def void(self) -> None:
        """Nobody waits for answers any more."""
        book = self._surface.book
        if not book.step_if(Step.CLOSED) and book.phase != "none":
            book.restore((), "")
        self._tools.drop()

    # Following

    async def follow(self, attempt: Attempt, *, anew: bool, caught_up: asyncio.Event | None = None) -> None:
        """Tells the run of an attempt from its first fact to its end. `anew`: it does not hang on what is shown."""
        surface, run_id = self._surface, attempt.run_id
        follow = Followed(run_id, Telling(self._display, run_id, self._source.subagents), attempt)
        self._stale = self._stale or follow.stopped
        if attempt.live or surface.attempt is None:
            self.shown = follow
        try:
            if attempt.live and (anew or self._stale):
                self._stale = False
                await self._rebuild(attempt)
            async with self._runs.stream(run_id, recent=True) as items:
                async for item in items:
                    with surface.batch():
                        follow.telling.take(item)
                        while (more := items.delta_nowait()) is not None:
                            follow.telling.take(more)
                        self._after(follow, item)
                    if items.idle:
                        self._at_rest(follow)
                        if caught_up is not None:
                            caught_up.set()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            logger.exception("following run %s failed", run_id)
            if surface.current(attempt):
                surface.end(attempt, "interrupted", error=unreadable(run_id, error))
                attempt.op.settle("interrupted")
        else:
            await self._over(follow)
        finally:
            follow.over.set()

    async def _rebuild(self, attempt: Attempt) -> None:
        """Shows what stands in front of a run, and its input."""
        run_id = attempt.run_id
        front = told_history(await self._runs.front(run_id))
        given = [told_message(message, run_id) for message in await self._runs.initial_input(run_id)]
        if attempt.live:
            with self._surface.batch():
                self._display.streaming_attempt = False
                self._display.snapshot([*front, *given], reasoning=True)
                self._display.streaming_attempt = True

    async def _refresh(self, follow: Followed) -> None:
        """A stopped run may have recorded more than was seen of it: its record is what is shown from now on."""
        path = told_history(await self._runs.history(follow.run_id))
        surface = self._surface
        if follow is self.shown and surface.attempt is None and not surface.tasks.closed:
            self._stale = False
            with surface.batch():
                self._display.snapshot(path, reasoning=True)

    def _after(self, follow: Followed, item: object) -> None:
        """What a fact means besides its text."""
        telling = follow.telling
        for event in telling.events:
            self._surface.events.emit(event)
        telling.events.clear()
        fact = item.fact if isinstance(item, Record) else None
        if isinstance(fact, InputReturned) and fact.reason == "run_ended":
            steer = follow.steers.pop(fact.command_id, None)
            if steer is not None:
                steer.returned()
        if follow is not self.shown or not follow.shown:
            return
        if isinstance(fact, RequestResolved):
            self._surface.book.step_if(Step.STARTED)
        if follow.attempt is None and not telling.pausing and telling.state.phase is Phase.RUNNING:
            self._goes_on(follow)

    def _goes_on(self, follow: Followed) -> None:
        """Somebody else answered: the run works again."""
        follow.attempt = Attempt(follow.run_id)
        self._surface.book.step_if(Step.CLOSED)
        self._tools.asked = ()
        self._surface.admit(follow.attempt, continues=True)

    async def end_of(self, follow: Followed) -> None:
        """Waits until a run has its end, here and for the conversation."""
        await follow.over.wait()
        reply = self._controller.reply
        if reply is not None and reply.id == follow.run_id:
            await reply.wait()

    # Pauses and ends

    def _at_rest(self, follow: Followed) -> None:
        """Nothing more is known at present: a run that only waits for answers pauses here (AG-42)."""
        attempt, telling = follow.attempt, follow.telling
        current = attempt is not None and self._surface.current(attempt)
        if attempt is None or not current or follow is not self.shown or not telling.pausing:
            return
        requests = tuple(telling.state.requests.values())
        asked = [interrupt_of(request) for request in requests if request.kind != "external"]
        book = self._surface.book
        follow.attempt = None
        with self._surface.batch():
            if asked:
                book.step_if(Step.STARTED)
                if book.phase in ("none", "acknowledged"):
                    book.see(asked, follow.run_id, native=True)
                    book.step(Step.BOUNDARY)
            else:
                book.step_if(Step.DONE)
            self._tools.asked = tuple([item for item in requests if item.kind == "external"])
            logger.debug("run %s waits: %s", follow.run_id, case_of_wait(requests).value)
            self._surface.end(attempt, "paused", usage=telling.usage)
        attempt.op.settle("paused")

    async def _over(self, follow: Followed) -> None:
        """The run has its end, or nobody knows it."""
        outcome, attempt = follow.telling.state.outcome, follow.attempt
        word: AgentOutcome = "interrupted" if outcome is None else (words(outcome).delivery or "nothing")
        if follow is self.shown:
            with self._surface.batch():
                self._source.subagents.end()
            if follow.stopped and self._surface.attempt is None:
                await self._refresh(follow)
        follow.over.set()
        if follow is self.shown and not follow.stopped:
            with self._surface.batch():
                self._end_book()
                if attempt is not None:
                    self._conclude(attempt, follow, outcome)
        for steer in follow.steers.values():
            steer.taken(word)
        follow.steers.clear()
        await self._history.show(self._controller.thread_id)
        if attempt is not None and not follow.stopped:
            attempt.op.settle(word)
        if self._controller.reply is None and not self._surface.tasks.closed:
            await self._controller.open()  # a run that another controller drove moved the thread's head

    def _end_book(self) -> None:
        book = self._surface.book
        book.step_if(Step.STARTED)
        if not book.step_if(Step.DONE):
            book.step_if(Step.CLOSED)
        self._tools.asked = ()

    def _conclude(self, attempt: Attempt, follow: Followed, outcome: Outcome | None) -> None:
        """By the one table of endings (RC-86)."""
        usage = follow.telling.usage
        if outcome is None:
            loss = follow.telling.state.loss
            error = self.lost(follow.telling, "" if loss is None else loss.cause)
            self._display.settle_calls("error", "nobody knows whether the call took effect", "unknown")
            self._surface.end(attempt, "interrupted", error=error, usage=usage)
            return
        found = words(outcome)
        error_shown = None
        if found.agent == "error":
            assert isinstance(outcome, Failed)
            error_shown = failed(follow.run_id, outcome)
            last = self._controller.last_reply
            if last is not None and last.id == follow.run_id:
                error_shown.__cause__ = last.error
        assert found.delivery is not None
        self._surface.end(attempt, found.delivery, error=error_shown, reason=reason_of(outcome), usage=usage)

    def lost(self, telling: Telling, cause: str) -> AgentError:
        """What can be done about a run of which nobody knows the end (AG-64)."""
        ours = self._runs.descriptor.descriptor.recovery == "journal"
        return unknown(telling.state.run_id, cause, repeatable=ours and not telling.uncertain)


__all__ = ["Followed", "Follower", "Steer"]

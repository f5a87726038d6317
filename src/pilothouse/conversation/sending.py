"""The phases of a send: guards, turn, commit, hand-over, stop (AC §3.3, §3.7).

One `Sender` a conversation. It owns what the journal knows the conversation by (thread, head, base) and the sends that
live or wait. Every continuation carries its reply: what comes from a dead send is dropped (AC-120).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from contextvars import Context
from math import inf
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, ref

from ..cancel import check_on
from ..clock import within
from ..errors import (
    AgentBusy,
    AgentClosed,
    JournalError,
    NothingToDo,
    ReplyTimeout,
    RunConflict,
    SendAbandoned,
    UsageError,
)
from ..events import Cancelled
from ..messages import JSON, Message
from ..runs.handle import Run
from .applying import Reading
from .deadline import Deadline
from .extras import Refused, RunExtras
from .guards import check_order
from .options import BusyPolicy
from .order import Order
from .past import retold
from .reply import Reply, ReplyPhase
from .setup import Setup
from .stage import Stage
from .thread import Thread
from .watch import Watched

if TYPE_CHECKING:
    from .aims import Regenerate, Retry
    from .around import Around

    Aim = Retry | Regenerate

logger = logging.getLogger("pilothouse.conversation")


class Sender:
    """Sends, stops, and the thread that they belong to."""

    __slots__ = (
        "__weakref__",
        "_jobs",
        "_previous",
        "_queue",
        "_replies",
        "around",
        "carried",
        "clock",
        "closed",
        "loop",
        "said",
        "setup",
        "stage",
        "thread",
    )

    def __init__(self, stage: Stage, setup: Setup, thread_id: str | None) -> None:
        self.stage = stage
        self.setup = setup
        self.clock = setup.clock
        self.closed = False
        self.thread = Thread(setup, thread_id)
        self._previous: Reply | None = None  # its run may still be ending (AC-43)
        self.around: Around | None = None  # the hooks that were called last, while they are not over
        self.loop: asyncio.AbstractEventLoop | None = None
        self.carried: Mapping[str, JSON] | None = None  # shared state of a snapshot, for the first run
        self.said: dict[str, tuple[Message, Message]] | None = None  # steering that the interceptor replaced
        setup.route.sender = ref(self)
        self._queue: list[tuple[Reply, asyncio.Future[None]]] = []
        # Made at first use: together 0.7 kB, and most conversations in memory are at rest.
        self._replies: WeakValueDictionary[str, Reply] | None = None
        self._jobs: set[asyncio.Task[None]] | None = None

    @property
    def options(self) -> Any:
        """The options as they are now."""
        return self.setup.options

    @property
    def close_timeout(self) -> float:
        """Seconds that closing may take."""
        return float(self.options["close_timeout"])

    @property
    def queued(self) -> tuple[Reply, ...]:
        """Sends that wait their turn."""
        return tuple([reply for reply, _ in self._queue])

    @property
    def busy(self) -> bool:
        """Whether a send lives, or one waits for the way that is just becoming free."""
        return self.stage.busy or bool(self._queue)

    # Phase 1: guards

    async def check_open(self, action: str) -> None:
        """Refuses after the close, and a thread that has runs which were not loaded; one that has gone on is loaded."""
        if self.closed:
            raise AgentClosed(action)
        if not self.thread.opened:
            await self.thread.check_open(action)
        elif self.thread.unended is not None and not self.busy:
            await self.thread.load(self, self.stage)

    def check_free(self, action: str) -> None:
        """Refuses after the close, and while a send lives or waits."""
        if self.closed:
            raise AgentClosed(action)
        if self.busy or self.inside():
            raise self.busy_error(action)

    def _refusal_inside(self, policy: BusyPolicy) -> UsageError:
        from .reentrance import would_wait

        return self.busy_error("send") if policy == "raise" else would_wait()

    def inside(self) -> bool:
        """Whether this is called by a hook or tool of a send that is not over."""
        if self.around is None and not self.stage.busy:
            return False
        from .reentrance import is_inside

        return is_inside(self)

    def busy_error(self, action: str) -> AgentBusy:
        """The error that says what is in the way."""
        live = self.stage.reply
        return AgentBusy(action, self.stage.state.value, None if live is None else live.id)

    async def known(self, reply_id: str | None, fingerprint: object) -> Reply | None:
        """The reply of an id that was used already, given when the first call gives it (AC-41)."""
        known = None if reply_id is None or self._replies is None else self._replies.get(reply_id)
        if known is None:
            return None
        if known.fingerprint != fingerprint:
            raise RunConflict(known.id)
        return await self._handed_over(known)

    def live(self, reply_id: str) -> Reply | None:
        """The reply of that id, if somebody holds it."""
        return None if self._replies is None else self._replies.get(reply_id)

    def uses(self, reply_id: str | None) -> bool:
        """Whether an id stands for a send of this conversation."""
        return reply_id is not None and self._replies is not None and reply_id in self._replies

    def guard(self, order: Order) -> None:
        """The limits, and that there is something to answer."""
        check_order(order, self.options, self.stage.messages, self.setup.composition)

    async def _check(self, reply_id: str | None, order: Order) -> None:
        """As `guard`; a send that the journal knows is past its limits, it asks for nothing new (AC-30, AC-41)."""
        try:
            self.guard(order)
        except UsageError:
            if reply_id is None or self.thread.fresh or not await self.setup.runs.has_run(reply_id):
                raise

    # Whose turn it is (TC-90)

    async def submit(self, order: Order, reply_id: str | None, policy: BusyPolicy) -> Reply:
        """Guards passed or not, the send goes, waits, replaces the live one, or is dropped."""
        if self.closed:  # while the thread was looked at
            raise AgentClosed("send")
        if self.inside():
            if policy == "drop":
                return self._dropped(self.make(reply_id, order))
            raise self._refusal_inside(policy)
        if not self.busy:
            await self._check(reply_id, order)
            return await self.go(self.make(reply_id, order), order)
        match policy:
            case "drop":
                return self._dropped(self.make(reply_id, order))
            case "supersede":
                self.guard(order)
                return await self._supersede(self.make(reply_id, order), order)
            case "queue":
                if len(self._queue) >= self.options["queue_limit"]:
                    raise self.busy_error("send")
                self.guard(order)
                return await self._wait_turn(self.make(reply_id, order), order)
            case _:
                raise self.busy_error("send")

    def _dropped(self, reply: Reply) -> Reply:
        logger.info("a send was dropped while %s", self.stage.state.value)
        busy = self.busy_error("send")
        self.forget(reply)
        reply.end(Refused(busy), busy)
        reply.finish()
        return reply

    async def _supersede(self, reply: Reply, order: Order) -> Reply:
        while (live := self.stage.reply) is not None and not self._halt(live, "superseded"):
            await live.wait()  # its end is decided, and about to be shown (AC-82); another may have come then
        if self.closed:
            self.forget(reply)
            raise AgentClosed("send")
        self.stage.tell()
        return await self.go(reply, order)

    async def _wait_turn(self, reply: Reply, order: Order) -> Reply:
        """Waits in the queue; the `Reply` stands there under its id (AC-122)."""
        reply.phase = ReplyPhase.QUEUED
        entry = (reply, asyncio.get_running_loop().create_future())
        self._queue.append(entry)
        try:
            await entry[1]
        except asyncio.CancelledError:
            self.leave(reply)
            raise
        finally:
            if entry in self._queue:
                self._queue.remove(entry)
        if reply.outcome is not None:
            if isinstance(reply.outcome, Refused):
                raise reply.outcome.error
            return reply
        try:
            self.guard(order)
        except Exception as error:
            self.refuse(reply, error)
            raise
        return await self.go(reply, order)

    def _next(self) -> None:
        if self._queue and not self.stage.busy:
            turn = self._queue[0][1]
            if not turn.done():
                turn.set_result(None)

    # Phases 2 to 7

    def make(self, reply_id: str | None, order: Order) -> Reply:
        """A fresh reply."""
        reply = Reply(self, reply_id or self.setup.new_id(), self.thread.id)
        reply.given = reply_id is not None
        reply.fingerprint = order.fingerprint
        if self._replies is None:
            self._replies = WeakValueDictionary()
        self._replies[reply.id] = reply
        return reply

    async def go(self, reply: Reply, order: Order) -> Reply:
        """Phases 2 to 7: registers the run, shows its message, and waits for the hand-over."""
        try:
            self._begin(reply, order)
            if reply.around is not None:
                self.spawn(reply.around.admit(), reply.around.caller.context)
            elif self.setup.runs.journal.immediate and (self._previous is None or self._previous.over):
                await self.commit(reply, order)
            else:  # what was handed to a journal is not undone by a caller who leaves (RC-14)
                await self._committed(reply, order)
        except BaseException as error:
            if not isinstance(error, Exception):  # also out of a callback, which then left as well (AC-66)
                self.leave(reply)
            raise
        await self._handed_over(reply, first=True)
        if reply.around is not None and isinstance(reply.outcome, Refused):
            raise reply.outcome.error
        return reply

    async def _committed(self, reply: Reply, order: Order) -> None:
        """Phase 5 in a task of its own; closing gives that up, and cancels nobody who waits for it."""
        commit = self.spawn(self.commit(reply, order))
        try:
            await asyncio.shield(commit)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not (self.closed and commit.cancelled()) or (task is not None and task.cancelling()):
                raise

    def _begin(self, reply: Reply, order: Order) -> None:
        """Phase 2: everything that this send goes by is fixed now."""
        reply.thread_id = self.thread.id
        reply.phase = ReplyPhase.PREPARING
        reply.options = self.options
        reply.call = self.setup.route.freeze(reply.id, reply.signal)
        reply.foreign = isinstance(self.setup.route.runtime, Watched)
        if order.parts is not None:
            message_id = order.extras.message_id or self.setup.new_id()
            reply.user_message = Message(message_id, "user", order.parts)
            reply.drafted = True
        else:
            kept = self.stage.messages if order.keep is None else order.keep
            reply.user_message = next((item for item in reversed(kept) if item.role == "user"), None)
        if reply.options["reply_timeout"] != inf:
            limit = reply.options["reply_timeout"]
            reply.deadline = Deadline(self.clock, limit, lambda: self._expired(reply))
        if order.state or self.carried:
            reply.patch = {**(self.carried or {}), **(order.state or {})}
        self.loop = asyncio.get_running_loop()
        if self.setup.plugged:
            from .around import Around

            reply.around = Around(self, reply, order)
        self.stage.begin(reply)

    def _expired(self, reply: Reply) -> None:
        reply.expired = True
        if not reply.committed and reply.around is not None and reply.alive():
            reply.around.expire(ReplyTimeout(reply.id, reply.options["reply_timeout"]))
        if reply.committed and reply.alive():
            self.setup.runs.cancel_nowait(reply.id, "reply_timeout", source="deadline")

    async def _handed_over(self, reply: Reply, *, first: bool = False) -> Reply:
        reply.awaited += not first
        try:
            await reply.wait_handed_over()
        except asyncio.CancelledError:
            self.leave(reply)
            raise
        if not first:
            reply.awaited -= 1
            if isinstance(reply.outcome, Refused):
                raise reply.outcome.error
        return reply

    def leave(self, reply: Reply) -> None:
        """A call of `send()` was cancelled: the last one takes the send with it (AC-51)."""
        reply.awaited -= 1
        if reply.awaited <= 0 and not reply.handed_over:
            self.abort(reply)

    async def repeats(self, reply: Reply, order: Order) -> bool:
        """Whether the journal knows this id, for the same content (AC-41, TC-25)."""
        return reply.given and not self.thread.fresh and await self.thread.knows(reply, order)

    async def commit(self, reply: Reply, order: Order) -> None:
        """Phase 5: the run is durable, then the message is shown."""
        try:
            await self._previous_over()
        except JournalError as error:
            if reply.around is not None or self.refuse(
                reply, error
            ):  # with hooks, who calls tells them first
                raise
            return
        if reply.dead:
            reply.finish()
            return
        before, self._previous = self._previous, reply
        reply.registering = True
        was_fresh, self.thread.fresh = self.thread.fresh, False
        release = self.setup.route.hold(reply.id) if self.thread.leftover else None
        shared: Mapping[str, JSON] | None = None
        try:
            if reply.around is None and not was_fresh and await self.repeats(reply, order):
                found = None
            else:
                if reply.around is not None or reply.patch is not None:
                    from .entering import extensions

                    order.extensions = await extensions(self, reply, order)
                if reply.around is None and order.moves and self.setup.shared.value:
                    from .states import shared_at

                    shared = await shared_at(self.setup.runs, order.parent or order.extras.parent)
                found = await self.thread.register(reply, order, self.stage.messages)
        except BaseException as error:
            self._previous = before
            self.thread.fresh = was_fresh and reply.thread_id == self.thread.id
            if reply.around is not None:  # who tells the hooks first
                raise
            if self.refuse(reply, error):
                raise
            return
        finally:
            reply.registering = False
        if found is None or found[0].reopened:
            self._previous = before
            await self.reopen(reply)
            if reply.around is not None:
                reply.around.ended(Cancelled("known already"), None, lambda: None, None)
            return
        if reply.around is not None:
            reply.around.moved()
        elif shared is not None:
            self.setup.shared.replace(shared)
        self._registered(reply, *found)
        if release is not None:
            try:
                await self.thread.give_again(reply, order, self.stage.messages)
            finally:
                release()

    async def again(self, aim: Aim, reply_id: str | None, extras: RunExtras) -> Reply:
        """A retry or a regeneration: no new user message, another place in the tree."""
        if reply_id is not None and not self.thread.fresh and await self.setup.runs.has_run(reply_id):
            order = Order(None, extras, aim=aim.fingerprint)
        else:
            self.check_free(aim.action)
            await self._previous_over()
            reply_id = reply_id or self.setup.new_id()
            order, thread_id = Order(None, extras, aim=aim.fingerprint), self.thread.id
            order.parent, order.keep = await aim.place(reply_id)
            if self.thread.id != thread_id:
                raise NothingToDo(f"cannot {aim.action}: another conversation began meanwhile")
            self.guard(order)
        self.check_free(aim.action)
        return await self.go(self.make(reply_id, order), order)

    async def _previous_over(self) -> None:
        while (previous := self._previous) is not None and not previous.over:
            if (
                previous.outcome is not None
            ):  # its end may wait for a journal that is away: nobody waits for that (AC-43)
                await self.setup.runs.reach_journal(previous.id)
            await previous.wait_over()

    def _registered(self, reply: Reply, run: Run, shown: tuple[Message, ...]) -> None:
        """The run is durable: the conversation goes on from it."""
        runs = self.setup.runs
        reading = Reading(self, reply)
        here = reply.thread_id == self.thread.id
        self.carried = None
        if here:
            self.thread.head, self.thread.unended = reply.id, None
        reply.commit(run)
        reply.unobserve = runs.observe(reply.id, reading.take)
        if reply.alive():
            self.stage.committed(reply, reading, shown)
            if reply.expired:
                runs.cancel_nowait(reply.id, "reply_timeout", source="deadline")
            return
        # Stopped while its registration was being written: that is not undone (AC-80).
        if here and shown != self.stage.messages:
            self.stage.messages = shown
            self.stage.tell_messages()
            self.stage.tell()
        runs.cancel_nowait(reply.id, reply.signal.reason)

    def refuse(self, reply: Reply, error: BaseException) -> bool:
        """A failure before the commit (AC-42): the id is free again. True if it is to be raised."""
        self.forget(reply)
        live = reply.alive()
        if live:
            error.reply = reply  # type: ignore[attr-defined]
            if reply is self.stage.reply:
                self.stage.refused(reply)
            reply.end(Refused(error), error)
        else:
            logger.debug("the registration of stopped reply %s failed: %s", reply.id, type(error).__name__)
        reply.finish()
        self._next()
        self.stage.tell()
        return live or isinstance(error, asyncio.CancelledError)

    def forget(self, reply: Reply) -> None:
        """Its id is free again."""
        if self._replies is not None and self._replies.get(reply.id) is reply:
            del self._replies[reply.id]
        self.setup.route.forget(reply.id)

    async def reopen(self, reply: Reply) -> None:
        """The id is known to the journal: a reply over the earlier run, nothing is sent (AC-41)."""
        self.setup.route.forget(reply.id)
        if reply.alive():
            self.stage.reopened(reply)
        self._next()
        self.stage.tell()
        reply.commit(self.setup.runs.run(reply.id))
        view = await self.setup.runs.inspect(reply.id)
        if view.outcome is None and view.status != "unknown":  # it goes on, or waits for a person
            self.forget(reply)  # if it is taken up here it gets a reply with its hooks
            reply.hand_over()
            self.spawn(retold(self.setup.runs, reply))
        else:
            await retold(self.setup.runs, reply)

    # The end

    def settled(self, reading: Reading) -> None:
        """A send came to its end: the next one's turn."""
        if reading.reply.id == self.thread.head:
            self.thread.leftover = reading.leftover()
        self._next()

    def settle_ending(self) -> None:
        """A send whose outcome is fixed is shown now, without waiting for its hooks (AC-82)."""
        live = self.stage.reply
        if live is not None and live.around is not None and live.around.ending:
            live.around.settle()

    def settled_way(self) -> None:
        """The way is free for who waits."""
        self._next()

    def abandoned(self) -> None:
        """Nobody can reach the conversation any more."""
        if self.stage.reply is not None:
            self.abort(self.stage.reply, "collected")
        if self.setup.made is not None and not self.setup.given:
            self.spawn(self.setup.made.aclose(timeout=5.0))

    def run_over(self, reply: Reply) -> None:
        """The run has its end on the record; its task is about to die."""
        reply.run_over()
        if reply.unobserve is not None:  # an ended run stays in memory for a while; its reply need not
            asyncio.get_running_loop().call_soon(reply.unobserve)
            reply.unobserve = None

    async def join(self, reply: Reply) -> None:
        """Waits until no task of its run is alive here."""
        if reply.committed:
            await self.setup.runs.join(reply.id)

    def spawn(self, work: Coroutine[Any, Any, None], context: Context | None = None) -> asyncio.Task[None]:
        """A task of the conversation; a failure is told to whoever awaits it."""
        job = asyncio.get_running_loop().create_task(work, context=context)
        if self._jobs is None:
            self._jobs = set()
        self._jobs.add(job)
        job.add_done_callback(self._done)
        return job

    def _done(self, job: asyncio.Task[None]) -> None:
        if self._jobs is not None:
            self._jobs.discard(job)
        if not job.cancelled():
            job.exception()

    # Stops

    def check_loop(self, action: str) -> None:
        """Refuses a caller on another thread, whose act would meet the loop's in the middle."""
        if self.loop is not None and not self.loop.is_closed():
            check_on(self.loop, action)

    def abort(self, reply: Reply, reason: str = "aborted") -> bool:
        """Stops one send; a queued one is withdrawn. False if it is over."""
        if self._withdraw(reply, Cancelled(reason)):
            return True
        if reply is not self.stage.reply:
            return self._stop_found(reply, reason)
        if not self._halt(reply, reason):
            return False
        self._next()
        self.stage.tell()
        return True

    def _withdraw(self, reply: Reply, outcome: Cancelled | Refused) -> bool:
        for queued, turn in self._queue:
            if queued is reply and reply.outcome is None:
                self.forget(reply)
                reply.stop()
                reply.end(outcome, outcome.error if isinstance(outcome, Refused) else None)
                reply.finish()
                if turn.done():  # it was its turn: the next one's, once it has left the queue
                    self._queue.remove((queued, turn))
                    self._next()
                else:
                    turn.set_result(None)
                return True
        return False

    def _halt(self, reply: Reply, reason: str) -> bool:
        """Stops the live send, unless its end is decided (AC-82); nothing is told yet."""
        runs, around = self.setup.runs, reply.around
        if around is not None and around.ending:
            # Its outcome is fixed; it is shown without waiting for hooks.
            around.settle()
            return False
        if reply.changes is not None and reply.changes.sealed:
            return False
        if reply.dead or (reply.committed and not (runs.stoppable(reply.id) or runs.at_rest(reply.id))):
            return False
        self.stop(reply, reason)
        return True

    def stop(self, reply: Reply, reason: str) -> None:
        """The one way in which a live send is stopped (AC-83): state first, then the run; the caller tells."""
        self.stage.stopped(reply)
        reply.signal.set(reason)
        runs = self.setup.runs
        if reply.committed and not runs.cancel_nowait(reply.id, reason) and runs.at_rest(reply.id):
            # Nobody drives it: it is taken up again in order to be ended.
            self.spawn(self._cancel(reply, reason))
        reply.end(Cancelled(reason), None)
        if reply.around is not None:
            reply.around.stop()
        if not reply.committed:
            self.forget(reply)
            if not reply.registering:
                reply.finish()

    def _abandon(self, reply: Reply) -> None:
        """Closed while it waited for a verdict: nothing had happened (TC-39)."""
        error = SendAbandoned(reply)
        self.stage.refused(reply)
        self.forget(reply)
        reply.end(Refused(error), error)
        assert reply.around is not None
        reply.around.stop()
        reply.finish()
        self.stage.tell()

    def _stop_found(self, reply: Reply, reason: str) -> bool:
        """Stops a run that an earlier process began: its reply is not the live send, and ends when the run does."""
        if not reply.committed or reply.dead:
            return False
        if not self.setup.runs.cancel_nowait(reply.id, reason):
            self.spawn(self._cancel(reply, reason))
        return True

    async def _cancel(self, reply: Reply, reason: str) -> None:
        try:
            await self.setup.runs.cancel(reply.id, reason)
        except (UsageError, JournalError) as error:
            logger.warning("reply %s was not stopped: %s", reply.id, error)

    async def aclose(self, limit: float) -> None:
        """Withdraws what waits, stops what lives, and waits for it, bounded."""
        self.closed = True
        until = self.clock.monotonic() + limit
        for queued, _ in list(self._queue):
            self._withdraw(queued, Refused(SendAbandoned(queued)))
        live = self.stage.reply
        if live is not None and live.around is not None and live.around.postponed:
            self._abandon(live)
        elif live is not None:
            self.abort(live, "closed")
        around = self.around
        if around is not None:
            try:
                await within(self.clock, limit, around.wait_over())
            except TimeoutError:
                logger.warning("hooks of reply %s did not end within close_timeout", around.reply.id)
        limit = inf if limit == inf else max(until - self.clock.monotonic(), 0.0)
        previous = self._previous
        if previous is not None and previous.over and not self.setup.given:
            previous = None  # closing the run controller, which comes next, waits for its task
        if previous is not None and not await previous.wait_closed(None if limit == inf else limit):
            logger.warning("reply %s did not end within close_timeout", previous.id)
        jobs = self._jobs or ()
        for job in jobs:
            job.cancel()
        if jobs:
            await asyncio.wait(jobs)

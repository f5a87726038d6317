"""The phases of a send: guards, turn, commit, hand-over, stop (AC §3.3, §3.7).

One `Sender` a conversation. It owns what the journal knows the conversation by (thread, head, base) and the sends that
live or wait. Every continuation carries its reply: what comes from a dead send is dropped (AC-120).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from ..contracts import Clock
from ..core.transcript import wants_answer
from ..errors import (
    AgentBusy,
    AgentClosed,
    AttachmentTooLarge,
    ConversationFull,
    MessageTooLong,
    NothingToDo,
    NotOpened,
    RunConflict,
)
from ..events import Cancelled
from ..messages import MEDIA, InputPart, Media, Message, Text
from ..records import Parent, RunSpec
from ..runs.controller import RunController
from .applying import Reading
from .extras import Refused, RunExtras
from .options import BusyPolicy
from .reply import Reply, ReplyPhase
from .specs import run_options
from .stage import Stage
from .switchboard import Line

logger = logging.getLogger("pilothouse.conversation")

QUEUE_LIMIT = 16


class Sender:
    """Sends, stops, and the thread that they belong to."""

    def __init__(
        self,
        stage: Stage,
        line: Line,
        *,
        options: Callable[[], dict[str, Any]],
        runs: Callable[[], RunController],
        clock: Clock,
        new_id: Callable[[], str],
        thread_id: str | None,
    ) -> None:
        self.stage = stage
        self.clock = clock
        self.closed = False
        self.thread_id = thread_id or new_id()
        self.fresh = thread_id is None  # nothing of this thread can be in the journal
        self.opened = thread_id is None
        self.head: str | None = None
        self.base: tuple[Message, ...] = ()
        self._line = line
        self._options = options
        self._runs = runs
        self._new_id = new_id
        self._previous: Reply | None = None  # its run may still be ending (AC-43)
        self._queue: list[tuple[Reply, asyncio.Future[None]]] = []
        self._replies: dict[str, Reply] = {}
        self._jobs: set[asyncio.Task[None]] = set()

    @property
    def close_timeout(self) -> float:
        """Seconds that closing may take."""
        return float(self._options()["close_timeout"])

    @property
    def queued(self) -> tuple[Reply, ...]:
        """Sends that wait their turn."""
        return tuple([reply for reply, _ in self._queue])

    # Phase 1: guards

    async def check_open(self, action: str) -> None:
        """Refuses after the close, and a thread that has runs which were not loaded."""
        if self.closed:
            raise AgentClosed(action)
        if not self.opened:
            if await self._runs().thread_head(self.thread_id) is not None:
                raise NotOpened(action, self.thread_id)
            self.opened = True

    async def check_free(self, action: str, reply_id: str | None) -> None:
        """As `check_open`; also refuses while a send lives or waits."""
        await self.check_open(action)
        if self.stage.busy or self._queue:
            raise self.busy(action)
        if reply_id is not None and reply_id in self._replies:
            raise RunConflict(reply_id)

    def busy(self, action: str) -> AgentBusy:
        """The error that says what is in the way."""
        live = self.stage.reply
        return AgentBusy(action, self.stage.state.value, None if live is None else live.id)

    async def known(self, reply_id: str | None, fingerprint: object) -> Reply | None:
        """The reply of an id that was used already, given when the first call gives it (AC-41)."""
        known = None if reply_id is None else self._replies.get(reply_id)
        if known is None:
            return None
        if known.fingerprint != fingerprint:
            raise RunConflict(known.id)
        await known.wait_handed_over()
        return known

    def guard(self, parts: tuple[InputPart, ...] | None) -> None:
        """The limits (AC-46 … AC-48), and that there is something to answer."""
        options, messages = self._options(), self.stage.messages
        length = sum(len(part.text) for part in parts or () if isinstance(part, Text))
        if length > options["max_message_length"]:
            raise MessageTooLong(length, options["max_message_length"])
        count = len(messages) + (1 if parts is None else 2)
        if count > options["max_messages"]:
            raise ConversationFull(count, options["max_messages"])
        size = sum(len(part.data or b"") for part in parts or () if isinstance(part, MEDIA))
        if size > options["max_attachment_bytes"]:
            raise AttachmentTooLarge(size, options["max_attachment_bytes"])
        if parts is None and not (messages and wants_answer(messages[-1])):
            raise NothingToDo("cannot continue: no message of the conversation wants an answer")

    async def turn(self, reply_id: str | None, policy: BusyPolicy | None) -> Reply | None:
        """What `when_busy` says (TC-90). None: the way is free now; else a reply that is over already."""
        live = self.stage.reply
        if not self.stage.busy and not self._queue:
            return None
        match policy or self._options()["when_busy"]:
            case "drop":
                logger.info("a send was dropped while %s", self.stage.state.value)
                reply, busy = self.make(reply_id, None), self.busy("send")
                reply.end(Refused(busy), busy)
                reply.close()
                return reply
            case "supersede":
                if live is not None:
                    self.stop(live, "superseded")
                return None
            case "queue":
                return await self._wait_turn(reply_id)
            case _:
                raise self.busy("send")

    async def _wait_turn(self, reply_id: str | None) -> Reply | None:
        if len(self._queue) >= QUEUE_LIMIT:
            raise self.busy("send")
        reply = self.make(reply_id, None)
        reply.phase = ReplyPhase.QUEUED
        entry = (reply, asyncio.get_running_loop().create_future())
        self._queue.append(entry)
        try:
            await entry[1]
        finally:
            if entry in self._queue:
                self._queue.remove(entry)
        return reply if reply.outcome is not None else None

    def _next(self) -> None:
        if self._queue and not self.stage.busy:
            turn = self._queue[0][1]
            if not turn.done():
                turn.set_result(None)

    # Phases 2 to 7

    def make(self, reply_id: str | None, fingerprint: object) -> Reply:
        """A fresh reply."""
        reply = Reply(self, reply_id or self._new_id(), self.thread_id)
        reply.fingerprint = fingerprint
        return reply

    async def send(
        self,
        reply: Reply,
        message: Message | None,
        parent: Parent | None,
        extras: RunExtras,
        keep: tuple[Message, ...],
    ) -> Reply:
        """Registers the run of a send, shows `keep` and the message, and waits for the hand-over."""
        options = dict(self._options())  # frozen for this send
        self._replies[reply.id] = reply
        reply.user_message = message if message is not None else _last_user(keep)
        self._line.freeze(reply.id)
        self.stage.begin(reply)
        try:
            await self._commit(reply, message, parent, extras, keep, options)
            await reply.wait_handed_over()
        except asyncio.CancelledError:
            self.abort(reply)
            raise
        return reply

    async def _commit(
        self,
        reply: Reply,
        message: Message | None,
        parent: Parent | None,
        extras: RunExtras,
        keep: tuple[Message, ...],
        options: dict[str, Any],
    ) -> None:
        """Phase 5: the run is durable, then the message is shown."""
        runs = self._runs()
        try:
            if self._previous is not None:
                await self._previous.wait_closed()
            if reply.dead:
                return
            spec = RunSpec(
                reply.id,
                self.thread_id,
                () if message is None else (message,),
                extras.tenant,
                parent,
                self.base if parent is None else (),
                run_options(options, extras),
                self._deadline(options, extras),
                config_digest=str(getattr(self._line.runtime, "config_digest", "")),
                extensions=dict(extras.extensions),
            )
            expect = self.head if extras.parent is None else await runs.thread_head(self.thread_id)
            run = await runs.start(spec, until="accepted", expect_head=expect)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._refuse(reply, error)
            raise
        if run.reopened:
            await self._reopen(reply)
            return
        self.head, self._previous, self.fresh = reply.id, reply, False
        reading = Reading(self, reply)
        reply.commit(run)
        runs.observe(reply.id, reading)
        shown = keep if message is None else (*keep, message)
        if reply.alive():
            self.stage.committed(reply, reading, shown)
            return
        # Stopped while its registration was being written: that is not undone (AC-80).
        if self.thread_id == reply.thread_id and shown != self.stage.messages:
            self.stage.messages = shown
            self.stage.tell_messages()
            self.stage.tell()
        runs.cancel_nowait(reply.id, reply.signal.reason)

    def _deadline(self, options: dict[str, Any], extras: RunExtras) -> int | None:
        limit = min(options["reply_timeout"], inf if extras.deadline is None else extras.deadline)
        return None if limit == inf else self.clock.time_ms() + int(limit * 1000)

    def _refuse(self, reply: Reply, error: BaseException) -> None:
        """A failure before the commit (AC-42): the id is free again."""
        self._replies.pop(reply.id, None)
        if reply.alive():
            self.stage.refused(reply)
        reply.end(Refused(error), error)
        reply.close()
        self._next()
        self.stage.tell()

    async def _reopen(self, reply: Reply) -> None:
        """The id is known to the journal: a reply over the earlier run, nothing is sent (AC-41)."""
        runs = self._runs()
        result = await runs.wait_for_terminal(reply.id)
        reply.commit(runs.run(reply.id))
        for entry in await runs.own_messages(reply.id):
            if entry.complete and entry.message.role != "user":
                reply.messages += (entry.message,)
                if entry.message.role == "assistant":
                    reply.add_piece(entry.message.text)
        if reply.alive():
            self.stage.refused(reply)
        reply.end(result.outcome, None)
        reply.close()
        self._next()
        self.stage.tell()

    # The end

    def settled(self) -> None:
        """A send came to its end: the next one's turn."""
        self._next()

    def run_over(self, reply: Reply) -> None:
        """The run has its end on the record; its task is about to die."""
        job = asyncio.get_running_loop().create_task(self._close(reply))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def _close(self, reply: Reply) -> None:
        await self._runs().join(reply.id)
        reply.close()

    def raised(self, reply: Reply) -> Exception | None:
        """The original exception of a text form, where there is one."""
        form = self._line.form
        return None if form is None else form.raised.pop(reply.thread_id, None)

    # Stops

    def abort(self, reply: Reply) -> bool:
        """Stops one send; a queued one is withdrawn. False if it is over."""
        for queued, turn in self._queue:
            if queued is reply:
                self._end_unsent(reply, "aborted")
                if not turn.done():
                    turn.set_result(None)
                return True
        if reply is not self.stage.reply or reply.dead:
            return False
        if reply.committed and not self._runs().stoppable(reply.id):
            return False  # the first durable end has won (AC-82)
        self.stop(reply, "aborted")
        return True

    def _end_unsent(self, reply: Reply, reason: str) -> None:
        reply.stop()
        reply.end(Cancelled(reason), None)
        reply.close()

    def stop(self, reply: Reply, reason: str) -> None:
        """The one way in which a live send is stopped (AC-83): state first, then the run, then the callbacks."""
        self.stage.stopped(reply)
        reply.signal.set(reason)
        if reply.committed:
            self._runs().cancel_nowait(reply.id, reason)
            reply.end(Cancelled(reason), None)
        else:
            self._replies.pop(reply.id, None)
            self._end_unsent(reply, reason)
        self._next()
        self.stage.tell()

    def begin_thread(self, base: tuple[Message, ...]) -> bool:
        """Another conversation begins; True if it needs, and has got, a new thread."""
        self.base, self.head = base, None
        if self.fresh:
            return False
        self.thread_id = self._new_id()
        self.fresh = self.opened = True
        return True

    async def aclose(self) -> None:
        """Withdraws what waits, stops what lives, and waits for it, bounded."""
        self.closed = True
        for queued, _ in list(self._queue):
            self.abort(queued)
        if self.stage.reply is not None:
            self.abort(self.stage.reply)
        if self._previous is not None and not await self._previous.wait_closed(self.close_timeout):
            logger.warning("reply %s did not end within close_timeout", self._previous.id)
        for job in self._jobs:
            job.cancel()
        if self._jobs:
            await asyncio.wait(self._jobs)


def parts_of(content: object, attachments: Sequence[Media]) -> tuple[InputPart, ...] | None:
    """The parts of a user message; None to continue without one.

    Raises:
        TypeError: naming what came, and where.
    """
    for index, item in enumerate(attachments):
        if not isinstance(item, MEDIA):
            raise TypeError(f"attachments[{index}] must be a media part, got {type(item).__name__}")
    if content is None:
        if attachments:
            raise TypeError("attachments need a message: content must not be None")
        return None
    if isinstance(content, str):
        return (Text(content), *attachments)
    if isinstance(content, bytes) or not isinstance(content, Sequence):
        raise TypeError(f"content must be str, parts or None, got {type(content).__name__}")
    for index, part in enumerate(content):
        if not isinstance(part, (Text, *MEDIA)):
            raise TypeError(f"content[{index}] must be Text or a media part, got {type(part).__name__}")
    return (*content, *attachments)


def _last_user(messages: tuple[Message, ...]) -> Message | None:
    return next((message for message in reversed(messages) if message.role == "user"), None)

"""The handle of one send: what it says so far, how it ended, and how to stop it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, TypeVar, final
from weakref import ref

from msgspec import Struct

from ..cancel import Token
from ..clock import within
from ..errors import DeadReply, OutcomeError, ReplyCancelled, ReplyFailed, ReplyIncomplete, UsageError
from ..events import Cancelled, Completed, Failed, Incomplete, Noted, Outcome, OutputAdded, Truncated, Unknown
from ..loop.context import current
from ..messages import JSON, Message, Usage
from ..runs.handle import Run
from .controllers import ResponseMetadata, ending_of
from .deadline import Deadline
from .extras import Refused
from .forms import Call
from .shared_state import update

if TYPE_CHECKING:
    from .around import Around
    from .controllers import Ending, HookFailure
    from .sealing import Changes
    from .sending import Sender


T = TypeVar("T")

_Moment: TypeAlias = Literal["piece", "commit", "handed", "end", "over"]
"""What somebody can wait for."""

_patching: Final = threading.Lock()
"""One for all: it is held for an assignment, and most sends change no state."""


class ReplyPhase(StrEnum):
    """Where a send is (AC-28)."""

    QUEUED = "queued"  # waits for the live send
    PREPARING = "preparing"  # hooks run, the run is being registered
    WAITING = "waiting"  # the provider was called, nothing handed over yet
    READING = "reading"  # a stream is read
    WORKING = "working"  # tools run
    ASKING = "asking"  # a request blocks the run
    ENDING = "ending"  # the outcome is fixed, end hooks run
    ENDED = "ended"


class PartialResponse(Struct, frozen=True):
    """What arrived of a response that did not finish; why is the outcome of its reply.

    Attributes:
        text: all that was applied of the unfinished response.
        unapplied: arrived while paused and was never shown.
    """

    reply_id: str
    response_id: str | None
    text: str
    unapplied: str = ""


@final
class Reply:
    """One send and everything that it causes. An async context manager; leaving it aborts what has not ended.

    Attributes:
        id: also the run id.
        run: after the commit: steer, follow_up, answer, approve, …
        user_message: the message being answered.
        committed: whether the user message is part of the conversation.
        response_id: of the model response read last, the provider's own where it tells one.
        metadata: of the last model response, as far as known.
        messages: finished messages that this send added after the user message.
        outcome: None while it runs; `Refused` where it ended before its commit.
        hook_errors: of hooks that ran once the outcome was fixed: it stands.
    """

    __slots__ = (
        "__weakref__",
        "_found",
        "_held",
        "_pieces",
        "_stopped",
        "_text",
        "_waiters",
        "around",
        "awaited",
        "call",
        "changes",
        "closed",
        "committed",
        "dead",
        "deadline",
        "drafted",
        "error",
        "expired",
        "fingerprint",
        "finish_reason",
        "foreign",
        "given",
        "handed_over",
        "hook_errors",
        "id",
        "messages",
        "metadata",
        "model",
        "notes",
        "options",
        "outcome",
        "over",
        "partial",
        "patch",
        "patch_taken",
        "phase",
        "registering",
        "response_id",
        "resumed",
        "run",
        "signal",
        "thread_id",
        "unobserve",
        "usage",
        "user_message",
    )

    def __init__(self, sender: Sender, reply_id: str, thread_id: str) -> None:
        self._held: Sender | None = sender  # until nothing more will be recorded of it
        self._found = ref(sender)
        self.id = reply_id
        self.thread_id = thread_id
        self.run: Run | None = None
        self.user_message: Message | None = None
        self.phase = ReplyPhase.PREPARING
        self.committed = False
        self.response_id: str | None = None
        self.messages: tuple[Message, ...] = ()
        self.partial: PartialResponse | None = None
        self.metadata: Mapping[str, JSON] = {}
        self.outcome: Outcome | Refused | None = None
        self.error: BaseException | None = None
        self.signal = Token()
        self.call: Call | None = None  # of a text form
        self.foreign = False  # its runtime is not our loop
        self.given = False  # its id was chosen by the caller
        self.options: Mapping[str, Any] = {}  # as they were when the send began
        self.deadline: Deadline | None = None
        self.unobserve: Callable[[], None] | None = None
        self.expired = False  # its deadline is over
        self.registering = False  # its registration is being written: that is not undone
        self.awaited = 1  # calls of `send()` that wait for it
        self.over = False  # nothing more will be recorded of it
        self._stopped = False
        self.dead = False  # stopped, replaced or ended: late events of it change nothing (AC-120)
        self.fingerprint: Any = None
        self._pieces: list[str] | None = []  # None once the text is whole
        self._text: str | None = ""
        self._waiters: dict[_Moment, list[asyncio.Future[None]]] = {}
        self.handed_over = False
        self.closed = False
        # Most sends have none of these.
        self.hook_errors: tuple[HookFailure, ...] = ()
        self.around: Around | None = None  # what a host plugged in around it
        self.changes: Changes | None = None  # what its tools have staged
        self.patch: Mapping[str, JSON] | None = None  # of the shared state, until the first append takes it
        self.patch_taken = False
        self.notes: tuple[Noted, ...] = ()  # remarks of AI controllers, until the first append takes them
        self.drafted = False  # its user message is a new one
        self.resumed = False  # its run was begun by an earlier process
        self.usage: Usage | None = None  # of the model response read last
        self.model: str | None = None
        self.finish_reason: str | None = None

    def __repr__(self) -> str:
        """Names the reply and where it is."""
        return f"Reply({self.id!r}, {self.phase.value})"

    def wanted(self) -> bool:
        """Whether notifications of it are still delivered: not after a stop (AC-65)."""
        return not self._stopped

    def alive(self) -> bool:
        """Whether what happens to it still counts."""
        return not self.dead

    @property
    def text(self) -> str:
        """All text of this send that was applied so far."""
        if self._text is None:
            self._text = "".join(self._pieces or ())
        return self._text

    @property
    def pieces(self) -> int:
        """How many pieces it consists of so far."""
        return len(self._pieces or ())

    def text_from(self, piece: int) -> str:
        """The text from that piece on, while it runs."""
        return "".join((self._pieces or ())[piece:])

    @property
    def ending(self) -> Ending | None:
        """How it ended, in one word; None while it runs."""
        return None if self.outcome is None else ending_of(self.outcome)

    @property
    def response_metadata(self) -> ResponseMetadata | None:
        """Of the model response read last; None if none was."""
        if self.usage is None and self.finish_reason is None and self.model is None:
            return None
        return ResponseMetadata(self.finish_reason, self.usage, self.model)

    @property
    def ended(self) -> bool:
        """Whether the outcome is known."""
        return self.outcome is not None

    def add_patch(self, patch: Mapping[str, JSON]) -> bool:
        """Changes the shared state with the first append of the run; False if that was made."""
        with _patching:
            if self.patch_taken:
                return False
            self.patch = {**(self.patch or {}), **patch}
            return True

    def add_note(self, name: str, data: JSON) -> None:
        """A remark of an AI controller, from its `on_request`: it stands in the first append of the run."""
        self.notes = (*self.notes, Noted(name, data))

    def take_patch(self) -> Mapping[str, JSON] | None:
        """What the first append of the run changes; nothing can be added from here on."""
        with _patching:
            self.patch_taken = True
            return self.patch

    # What the conversation tells it

    def add_piece(self, piece: str) -> None:
        """A piece of text was applied."""
        self._pieces.append(piece)  # type: ignore[union-attr]
        self._text = None
        if "piece" in self._waiters:
            self._wake("piece")

    def commit(self, run: Run) -> None:
        """The run is registered."""
        self.run, self.committed = run, True
        if not self.dead:
            self.phase = ReplyPhase.WAITING
        self._wake("commit")

    def hand_over(self) -> None:
        """A stream was handed over, or never will be."""
        self.handed_over = True
        self._wake("handed")

    def end(self, outcome: Outcome | Refused, error: BaseException | None) -> None:
        """The outcome is fixed: everybody who waits for it is woken."""
        self.outcome, self.error, self.dead = outcome, error, True
        self.phase = ReplyPhase.ENDED
        self._text, self._pieces = self.text, None  # one text instead of its pieces
        if self.deadline is not None:
            self.deadline.stop()
        self.handed_over = True
        self._wake("handed", "commit", "piece", "end")
        self._let_go()

    def stop(self) -> None:
        """It was stopped: nothing of it is told any more."""
        self._stopped = self.dead = True

    def silence(self) -> None:
        """What is still to be told of its end is not told (AC-65)."""
        self._stopped = True

    def run_over(self) -> None:
        """Its run has an end on the record: the next one may be registered."""
        self.over = True
        self._wake("over")
        self._let_go()

    def _let_go(self) -> None:
        """The conversation remembers its last reply, which does not keep the conversation: no cycle is left."""
        if self.over and self.outcome is not None:
            self._held = None

    @property
    def _sender(self) -> Sender | None:
        """Its conversation; None once the send is over and the conversation gone."""
        return self._held or self._found()

    def _wake(self, *moments: _Moment) -> None:
        if not self._waiters:
            return
        for moment in moments:
            for waiter in self._waiters.pop(moment, ()):
                if not waiter.done():
                    waiter.set_result(None)

    async def _wait(self, moment: _Moment) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(moment, []).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            waiting = self._waiters.get(moment, [])
            if waiter in waiting:
                waiting.remove(waiter)
            raise

    def finish(self) -> None:
        """There is no run of it, or none that works here."""
        self.closed = True
        self.run_over()

    async def wait_over(self) -> None:
        """Waits until nothing more will be recorded of it."""
        if not self.over:
            await self._wait("over")

    # For callers

    def abort(self) -> bool:
        """Stops this send only; False when it is over.

        Raises:
            UsageError: called from another thread than that of the conversation (AC-121).
        """
        sender = self._sender
        if sender is None or self.outcome is not None:
            return False
        sender.check_loop("abort")
        return sender.abort(self)

    def update_state(self, patch: Mapping[str, JSON]) -> None:
        """Changes the shared state of the thread: each key of the patch replaces a whole branch.

        For hooks, tools and the host; from any thread, never waits. Before the commit it belongs to the send, inside a
        tool call it becomes durable with the end of the call, else at once.

        Raises:
            UsageError: the patch is no JSON object, is too large, or changes a key that belongs to an AI controller.
            DeadReply: the send is over.
            OwnedElsewhere: another process drives it: its tools change the state there, the host with the next send.
        """
        sender = self._sender
        if sender is None:
            raise DeadReply(self.id)
        update(sender, self, patch)

    async def __aiter__(self) -> AsyncIterator[str]:
        """All text from its start, at any time and any number of times; a slow reader gets pieces joined (AC-102).

        Raises:
            ReplyFailed: after the text, if the send failed or its end is unknown.
        """
        read = characters = 0
        while (pieces := self._pieces) is not None:
            if read < len(pieces):
                fresh = pieces[read] if read == len(pieces) - 1 else "".join(pieces[read:])
                read, characters = len(pieces), characters + len(fresh)
                yield fresh
            else:
                await self._wait("piece")
        if rest := self.text[characters:]:
            yield rest
        if isinstance(self.outcome, Refused):
            raise self.outcome.error
        if isinstance(self.outcome, Failed | Unknown):
            raise self._failure()

    async def wait_handed_over(self) -> None:
        """Waits until a stream is handed over or the send ends without one."""
        if not self.handed_over:
            await self._wait("handed")

    async def wait_committed(self) -> Run:
        """Waits until the run is registered, and returns it.

        Raises:
            ReplyCancelled: it was stopped before it had one. Otherwise what `send()` raised.
        """
        while self.run is None and self.outcome is None:
            await self._wait("commit")
        if self.run is not None:
            return self.run
        if isinstance(self.outcome, Refused):
            raise self.outcome.error
        raise ReplyCancelled(Cancelled("stopped before it was committed"), self.id)

    async def wait(self) -> Outcome | Refused:
        """Waits for the outcome; never raises for it.

        Raises:
            UsageError: called in a tool of this very send, which would wait for itself.
        """
        if self.outcome is None:
            self._check_outside()
        while self.outcome is None:
            await self._wait("end")
        return self.outcome

    def _check_outside(self) -> None:
        """Not in a tool of this send: its end is behind that of the tool. A task of its own is no part of the tool."""
        call, task = current.get(), asyncio.current_task()
        if call is None or call.run_id != self.id or task is None:
            return
        from ..loop.running import is_call

        if is_call(task):
            raise UsageError("cannot wait for a reply inside a tool of it because it would wait for itself")

    async def result(self) -> Message:
        """The last assistant message of a completed or truncated send.

        Raises:
            ReplyIncomplete, ReplyFailed, ReplyCancelled: every other outcome. Otherwise the pre-commit error.
        """
        outcome = await self.wait()
        match outcome:
            case Refused(error):
                raise error
            case Completed() | Truncated():
                for message in reversed(self.messages):
                    if message.role == "assistant":
                        return message
                raise ReplyIncomplete(Incomplete("empty"), self.id, f"reply {self.id} has no answer")
            case Incomplete(reason=reason, limit=limit):
                what = f"{reason} {limit}" if limit else reason
                if limit == "output_retries":
                    what += ": no answer was of the wanted type; the last one is reply.messages[-1]"
                raise ReplyIncomplete(outcome, self.id, f"reply {self.id} is incomplete: {what}")
            case Cancelled():
                count = len(self.text)
                raise ReplyCancelled(
                    outcome, self.id, f"reply {self.id} was cancelled after {count} characters"
                )
            case _:
                raise self._failure()

    async def output(self, kind: type[T]) -> T:
        """The value of a send whose agent answers with one (`AgentLoop(output_type=…)`), read as that type.

        Raises:
            UsageError: the agent gives no values, or this one is no `kind`. Otherwise what `result()` raises.
        """
        await self.result()
        assert self.run is not None
        given = [record.fact for record in await self.run.events() if isinstance(record.fact, OutputAdded)]
        if not given:
            raise UsageError(f"reply {self.id} has no output: its agent needs AgentLoop(…, output_type=…)")
        from ..loop.output import output_of
        from ..loop.schema import InvalidArguments

        try:
            value: T = output_of(kind).read(given[-1].content)
        except InvalidArguments as problem:
            raise UsageError(f"the output of reply {self.id} is no {kind.__name__}: {problem}") from None
        return value

    def _failure(self) -> OutcomeError:
        outcome = self.outcome
        assert isinstance(outcome, Failed | Unknown)
        error = ReplyFailed(outcome, self.id, f"reply {self.id} failed: {self.error or outcome}")
        error.__cause__ = self.error
        return error

    async def wait_closed(self, timeout: float | None = None) -> bool:
        """True once its tasks are dead, its stream closed, its end fact durable; False after `timeout` seconds."""
        if self.closed:
            return True
        if timeout is None:
            self._check_outside()
            await self._until_closed()
            return True
        sender = self._sender
        if sender is None:
            return True
        try:
            await within(sender.clock, timeout, self._until_closed())
        except TimeoutError:
            return False
        return True

    async def _until_closed(self) -> None:
        await self.wait_over()
        if (sender := self._sender) is not None:
            await sender.join(self)
        if self.around is not None:
            await self.around.wait_over()
        self.closed = True

    async def aclose(self) -> None:
        """Aborts it if it has not ended, and waits for it, bounded by `close_timeout`."""
        self.abort()
        sender = self._sender
        await self.wait_closed(None if sender is None else sender.close_timeout)

    async def __aenter__(self) -> Self:
        """Returns itself."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Closes."""
        await self.aclose()

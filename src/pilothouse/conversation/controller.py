"""A conversation: its messages, and one send after another through six states (agent-controller page, seed 000).

A façade: what is shown is `stage`, how a send goes is `sending`, what a run tells is `applying`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self, Unpack, final

import msgspec

from ..clock import SystemClock
from ..contracts import Clock, Host, Journal, Provider, Runtime
from ..core.lifecycle import AgentState, Input
from ..core.transcript import last_exchange
from ..errors import InvalidTarget, NothingToDo, RunUnknown, UsageError
from ..loop.agent import AgentLoop
from ..loop.config import LoopConfig, RetryPolicy
from ..messages import InputPart, Media, Message
from ..records import Parent
from ..runs.controller import RunController, random_id
from .extras import RunExtras
from .forms import TextProvider, kind_of
from .options import DEFAULTS, AgentOptions, BusyPolicy, merged
from .reply import PartialResponse, Reply
from .sending import Sender, parts_of
from .stage import Stage
from .switchboard import Line, Switchboard

logger = logging.getLogger("pilothouse.conversation")

_EMPTY = RunExtras()


@final
class AgentController:
    """A conversation with a model or agent. `async with` it, or call `aclose()`.

    Args:
        provider: a `Provider`, a `Runtime`, or one of the text forms (see `conversation.forms`).
        host: told by `request_update()` after each visible change.
        tools: for a `Provider` only.
        config: of the agent loop, for a `Provider` only.
        journal: where runs are kept; None keeps them in memory. It is not closed by the conversation.
        thread_id: an existing thread must be opened before it is sent to.
    """

    def __init__(
        self,
        provider: object,
        *,
        host: Host | None = None,
        tools: Sequence[Any] = (),
        config: LoopConfig | None = None,
        journal: Journal | None = None,
        thread_id: str | None = None,
        clock: Clock | None = None,
        new_id: Callable[[], str] | None = None,
        **options: Unpack[AgentOptions],
    ) -> None:
        self._options = merged(DEFAULTS, options)
        self._tools = tuple(tools)
        self._config = config
        self._journal = journal
        self._clock = clock or SystemClock()
        self._new_id = new_id or random_id
        self._provider = provider
        self._line = self._line_for(provider)
        self._runs: RunController | None = None
        self._own_runs = True
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stage = Stage(
            lambda: self._options, host, lambda run_id, points: self.runs.gate(run_id, shut=points)
        )
        self._sender = Sender(
            self._stage,
            self._line,
            options=lambda: self._options,
            runs=lambda: self.runs,
            clock=self._clock,
            new_id=self._new_id,
            thread_id=thread_id,
        )

    def _line_for(self, provider: object) -> Line:
        """What drives sends over this provider.

        Raises:
            TypeError: no accepted form.
            UsageError: tools with something that cannot call them.
        """
        kind = kind_of(provider)
        if kind == "runtime":
            if self._tools:
                raise UsageError("tools belong to a Provider: a Runtime brings its own")
            assert isinstance(provider, Runtime)
            return Line(provider)
        if kind == "provider":
            assert isinstance(provider, Provider)
            return Line(AgentLoop(provider, tools=self._tools, config=self._config, clock=self._clock))
        if self._tools:
            raise UsageError("a text-only provider cannot call tools: use a Provider")
        config = LoopConfig(retry=RetryPolicy(attempts=1), max_empty_retries=0)
        form = TextProvider(provider, kind)
        return Line(AgentLoop(form, config=config, clock=self._clock), form)

    # Reading

    @property
    def state(self) -> AgentState:
        """What the conversation is doing."""
        return self._stage.state

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages, finished ones only; a new tuple at every change."""
        return self._stage.messages

    @property
    def current_response_text(self) -> str:
        """Text of the response that streams, or of the last one that did; emptied at hand-over (AC-88)."""
        return self._stage.live_text

    @property
    def is_streaming(self) -> bool:
        """Streaming or paused."""
        return self._stage.is_in(AgentState.STREAMING, AgentState.PAUSED)

    @property
    def is_busy(self) -> bool:
        """Sending, streaming or paused."""
        return self._stage.busy

    @property
    def pause_requested(self) -> bool:
        """A pause that waits for the hand-over."""
        return self._stage.pause_requested

    @property
    def reply(self) -> Reply | None:
        """The live send."""
        return self._stage.reply

    @property
    def queued(self) -> tuple[Reply, ...]:
        """Sends that wait their turn."""
        return self._sender.queued

    @property
    def last_reply(self) -> Reply | None:
        """The send that ended last."""
        return self._stage.last_reply

    @property
    def partial(self) -> PartialResponse | None:
        """What arrived of the last send's unfinished response."""
        return None if self.last_reply is None else self.last_reply.partial

    @property
    def error(self) -> BaseException | None:
        """Set exactly while the state is ERROR."""
        return self._stage.error

    @property
    def thread_id(self) -> str:
        """The conversation's name in the journal."""
        return self._sender.thread_id

    @property
    def provider(self) -> object:
        """As it was passed in."""
        return self._provider

    @property
    def options(self) -> Mapping[str, object]:
        """A sanitized copy; a disabled timeout reads `math.inf`."""
        return MappingProxyType(dict(self._options))

    @property
    def journal(self) -> Journal | None:
        """The store that was given; None where runs are kept in memory."""
        return self._journal

    @property
    def runs(self) -> RunController:
        """The run controller underneath, made at first use."""
        if self._runs is None:
            line = self._line
            self._runs = RunController(
                Switchboard(lambda: line.runtime),
                journal=self._journal,
                clock=self._clock,
                new_id=self._new_id,
            )
            self._connect()
        return self._runs

    @property
    def runtime(self) -> Runtime:
        """What drives sends that begin now."""
        return self._line.runtime

    def _connect(self) -> None:
        """Tells the shared run controller which runtime serves this thread."""
        if self._runs is not None and isinstance(self._runs.runtime, Switchboard):
            self._runs.runtime.connect(self.thread_id, self._line)

    # Sending

    async def send(
        self,
        content: str | Sequence[InputPart] | None,
        attachments: Sequence[Media] = (),
        *,
        id: str | None = None,
        when_busy: BusyPolicy | None = None,
        extras: RunExtras | None = None,
    ) -> Reply:
        """Appends a user message and starts the answer; returns at hand-over of the response stream.

        `content=None` continues from the conversation as it stands. The same `id` with the same content is the same
        send. What fails before the commit is raised; after it the state becomes `error`, `on_error` is told, and the
        returned reply says how it ended. Cancelling the awaiting task before hand-over stops the send.

        Raises:
            AgentBusy, MessageTooLong, ConversationFull, AttachmentTooLarge, AgentClosed, NotOpened, NothingToDo,
            RunConflict, TypeError: nothing was changed. ThreadConflict, JournalError: no run was made.
        """
        self._bind("send")
        extras = extras or _EMPTY
        sender = self._sender
        await sender.check_open("send")
        parts = parts_of(content, attachments)
        fingerprint = msgspec.json.encode((parts, extras.parent))
        if (known := await sender.known(id, fingerprint)) is not None:
            return known
        if (over := await sender.turn(id, when_busy)) is not None:
            return over
        sender.guard(parts)
        message = None if parts is None else Message(extras.message_id or self._new_id(), "user", parts)
        parent = extras.parent or (None if sender.head is None else Parent(sender.head))
        keep = self.messages if extras.parent is None else await self._path(extras.parent)
        return await sender.send(sender.make(id, fingerprint), message, parent, extras, keep)

    async def _path(self, parent: Parent) -> tuple[Message, ...]:
        """The messages up to a parent that is not the head (an edit, a branch)."""
        path = await self.runs.history(parent.run_id)
        found: list[Message] = []
        for entry in path:
            if entry.complete:
                found.append(entry.message)
            if entry.message.id == parent.keep_through:
                break
        return tuple(found)

    async def retry(self, *, id: str | None = None, extras: RunExtras | None = None) -> Reply:
        """Goes on from the last committed exchange of the last send, if that did not complete (AC-50).

        Finished results stay and no effect is repeated. A run that is unknown is first abandoned on the record.

        Raises:
            NothingToDo: the last send completed, or there is none.
        """
        self._bind("retry")
        sender, runs = self._sender, self.runs
        await sender.check_free("retry", id)
        head = sender.head
        if head is None:
            raise NothingToDo("cannot retry: there is no send to retry")
        view = await runs.inspect(head)
        lost = view.status == "unknown" and view.outcome is None
        if view.status in ("completed", "truncated") or (view.outcome is None and not lost):
            raise NothingToDo(f"cannot retry: the last send is {view.status}")
        path = await runs.history(head)
        keep_through = last_exchange(path)
        if keep_through is None:
            raise NothingToDo("cannot retry: no message wants an answer")
        reply = sender.make(id, b"retry")
        if lost:
            await runs.abandon(head, f"retried as {reply.id}")
        parent = Parent(head, keep_through)
        return await sender.send(reply, None, parent, extras or _EMPTY, await self._path(parent))

    async def regenerate(
        self, message_id: str, *, id: str | None = None, extras: RunExtras | None = None
    ) -> Reply:
        """Answers again the nearest user message before that assistant message; tools may run anew.

        The old branch stays in the tree.

        Raises:
            InvalidTarget: no such assistant message, or no user message before it.
        """
        self._bind("regenerate")
        sender = self._sender
        await sender.check_free("regenerate", id)
        at = next((n for n, message in enumerate(self.messages) if message.id == message_id), -1)
        if at < 0 or self.messages[at].role != "assistant" or sender.head is None:
            raise InvalidTarget(f"cannot regenerate {message_id!r}: no assistant message that a run made")
        while at >= 0 and self.messages[at].role != "user":
            at -= 1
        if at < 0:
            raise InvalidTarget(f"cannot regenerate {message_id!r}: no user message stands before it")
        user = self.messages[at]
        owner = sender.head
        for entry in await self.runs.history(sender.head):
            if entry.message.id == user.id and entry.seq:
                owner = entry.run_id
        reply = sender.make(id, message_id.encode())
        keep = self.messages[: at + 1]
        return await sender.send(reply, None, Parent(owner, user.id), extras or _EMPTY, keep)

    # Pause, resume, abort, reset, replace

    def pause(self) -> None:
        """Suspends applying; what arrives is buffered, no tool starts. Remembered while sending (AC-53)."""
        self._check_thread("pause")
        if not self._sender.closed:
            self._stage.pause()

    def resume(self) -> None:
        """Goes on: what was buffered is applied in order before this returns."""
        self._check_thread("resume")
        self._stage.resume()

    def abort(self) -> bool:
        """Stops the live send: on return the state is idle and the model's connection is being closed.

        True if it stopped a send. In `error` it only returns to idle.
        """
        self._check_thread("abort")
        stage = self._stage
        if stage.reply is not None:
            return self._sender.abort(stage.reply)
        if stage.change(Input.ABORT):
            stage.error = None
            stage.tell_state()
            stage.tell()
        return False

    def reset(self) -> None:
        """Aborts, clears the messages, and returns to idle; nothing is deleted from a journal."""
        self._check_thread("reset")
        stage = self._stage
        if stage.reply is not None:
            self._sender.stop(stage.reply, "reset")
        elif stage.change(Input.RESET):
            stage.tell_state()
        self._replace(())
        stage.forget_text()
        stage.error = None
        stage.tell()

    def set_messages(self, messages: Iterable[Message | Mapping[str, Any]]) -> None:
        """Replaces the conversation: these messages become the base of a new thread.

        Raises:
            AgentBusy: a send is in progress.
            TypeError, ValueError: an item is no message; the conversation stays.
        """
        self._check_thread("set_messages")
        if self.is_busy:
            raise self._sender.busy("set messages")
        found = tuple([_message(index, item) for index, item in enumerate(messages)])
        if len({message.id for message in found}) != len(found):
            raise ValueError("message ids must be unique")
        if len(found) > self._options["max_messages"]:
            logger.warning("%d messages exceed max_messages", len(found))
        self._replace(found)
        self._stage.tell()

    def _replace(self, messages: tuple[Message, ...]) -> None:
        self._stage.clear(messages)
        self._stage.tell_messages()
        if self._sender.begin_thread(messages):
            self._connect()

    def set_provider(self, provider: object) -> None:
        """Swaps the provider for sends that begin from now on; a live send is aborted, with a warning.

        Raises:
            TypeError, UsageError: it is not acceptable; nothing was changed.
        """
        self._check_thread("set_provider")
        fresh = self._line_for(provider)
        if not self._stage.is_in(AgentState.IDLE, AgentState.COMPLETE):
            logger.warning("set_provider while %s: aborting", self.state.value)
            self.abort()
        self._provider = provider
        self._line.runtime, self._line.form = fresh.runtime, fresh.form

    def update_options(self, **changes: Unpack[AgentOptions]) -> None:
        """Merges options, all or nothing; callbacks serve at once, the rest from the next send.

        Raises:
            ConfigError: naming the option and the value.
        """
        self._check_thread("update_options")
        self._options = merged(self._options, changes)

    def subscribe(self, observer: object) -> Callable[[], None]:
        """Adds an object with some of the six `on_*` methods; the returned function removes it.

        Raises:
            TypeError: it has none of them.
        """
        return self._stage.notifier.subscribe(observer)

    # Threads, opening, closing

    def sibling(self, thread_id: str | None = None) -> AgentController:
        """A controller for another thread with the same configuration and the same `runs` (AC-131)."""
        options: dict[str, Any] = {
            name: value for name, value in self._options.items() if not name.startswith("on_")
        }
        twin = AgentController(
            self._provider,
            tools=self._tools,
            config=self._config,
            journal=self._journal,
            thread_id=thread_id,
            clock=self._clock,
            new_id=self._new_id,
            **options,
        )
        twin._line.runtime, twin._line.form = self._line.runtime, self._line.form
        twin._runs, twin._own_runs = self.runs, False
        twin._connect()
        return twin

    def adopt(self, runs: RunController, thread_id: str) -> None:
        """Joins a shared run controller, before first use only.

        Raises:
            UsageError: the conversation has been used.
        """
        if self._runs is not None or self.messages:
            raise UsageError("cannot adopt a run controller after first use")
        self._runs, self._own_runs = runs, False
        sender = self._sender
        sender.thread_id, sender.fresh, sender.opened = thread_id, False, False
        self._connect()

    def joined(self, runs: RunController, thread_id: str | None = None) -> AgentController:
        """As `sibling`, over a run controller that a surface made for all its threads."""
        if self._runs is None:
            self._runs, self._own_runs = runs, False
        return self.sibling(thread_id)

    async def open(self) -> Self:
        """Loads an existing thread: `messages` is the path to its head. Idempotent.

        The state is then `idle`, or `error` where nobody knows how the last run ended.
        """
        self._bind("open")
        sender, stage = self._sender, self._stage
        if sender.opened:
            return self
        head = await self.runs.thread_head(self.thread_id)
        if head is not None:
            path = await self.runs.history(head)
            view = await self.runs.inspect(head)
            stage.messages = tuple([entry.message for entry in path if entry.complete])
            sender.head, sender.fresh = head, False
            if view.status == "unknown" and view.outcome is None:
                stage.state = AgentState.ERROR
                stage.error = RunUnknown(head, view.unknown.cause if view.unknown else "")
        sender.opened = True
        stage.tell()
        return self

    async def __aenter__(self) -> Self:
        """Opens."""
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        """Closes."""
        await self.aclose()

    async def aclose(self) -> None:
        """Aborts, refuses further sends, and waits up to `close_timeout` for what it started. Idempotent.

        It closes what it made, never a given provider, journal or host.
        """
        await self._sender.aclose()
        await self._stage.notifier.join()
        if self._runs is not None and self._own_runs:
            await self._runs.aclose(timeout=min(self._sender.close_timeout, 10.0))

    def _bind(self, action: str) -> None:
        """One event loop owns a conversation, the first that uses it (AC-121)."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise UsageError(f"cannot {action} on another event loop: use asyncio.run_coroutine_threadsafe")

    def _check_thread(self, action: str) -> None:
        if self._loop is None:
            return
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self._loop:
            raise UsageError(f"cannot {action} from another thread: use loop.call_soon_threadsafe")


def _message(index: int, item: object) -> Message:
    if isinstance(item, Message):
        return item
    if not isinstance(item, Mapping):
        raise TypeError(f"messages[{index}] must be a Message or its JSON form, got {type(item).__name__}")
    try:
        return msgspec.convert(item, Message)
    except msgspec.ValidationError as error:
        raise ValueError(f"messages[{index}]: {error}") from error

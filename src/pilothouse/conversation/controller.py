"""A conversation: its messages, and one send after another through six states (agent-controller page, seed 000).

A façade: what is shown is `stage`, how a send goes is `sending`, what a run tells is `applying`.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, Unpack, cast, final

import msgspec

from ..cancel import bound, check_on
from ..clock import SystemClock, within
from ..contracts import Clock, Host, Journal, Provider, Runtime
from ..core.lifecycle import AgentState, Input
from ..errors import ConfigError, UsageError
from ..loop.agent import AgentLoop
from ..loop.config import LoopConfig, RetryPolicy
from ..messages import JSON, InputPart, Media, Message
from ..runs.controller import RunController, random_id
from .aims import Regenerate, Retry
from .attachments import parts_of
from .extras import RunExtras
from .forms import NO_TOOLS, TextProvider, TextRuntime, kind_of
from .options import DEFAULTS, AgentOptions, BusyPolicy, busy_policy, merged
from .order import Order
from .parts import check_list, check_parts
from .plugged import Plugged
from .reply import Reply
from .router import Route
from .sending import Sender
from .setup import Setup
from .shown import Shown
from .stage import Stage
from .view import ConversationView, partial_view, without_bytes
from .watch import Watched

if TYPE_CHECKING:
    from ..loop.tools import ToolLike
    from .composition import ControllerLike
    from .interceptor import Interceptor
    from .snapshots import Snapshot

logger = logging.getLogger("pilothouse.conversation")

_EMPTY: Final = RunExtras()

_ONE_ATTEMPT: Final = LoopConfig(retry=RetryPolicy(attempts=1), max_empty_retries=0)
"""Of a text form nothing is asked again: neither a failure nor an empty answer (AC-100)."""


@final
class AgentController(Shown, Plugged):
    """A conversation with a model or agent. `async with` it, or call `aclose()`.

    Args:
        provider: a `Provider`, a `Runtime`, or one of the text forms (see `conversation.forms`).
        host: told by `request_update()` after each visible change.
        tools: for a `Provider` only.
        controllers: AI controllers, in the order in which their hooks are called, or callables that make one each:
            those are called for every conversation, so that a configuration can serve several threads.
        interceptor: sees every message before it has any effect, and may replace, refuse or postpone it.
        config: of the agent loop, for a `Provider` only.
        journal: where runs are kept; None keeps them in memory. It is not closed by the conversation.
        thread_id: an existing thread must be opened before it is sent to.
    """

    __slots__ = (
        "__weakref__",
        "_closing",
        "_config",
        "_loop",
        "_provider",
        "_sender",
        "_setup",
        "_stage",
        "_tools",
    )

    def __init__(
        self,
        provider: object,
        *,
        host: Host | None = None,
        tools: Sequence[ToolLike] = (),
        controllers: Sequence[ControllerLike] = (),
        interceptor: Interceptor | None = None,
        config: LoopConfig | None = None,
        journal: Journal | None = None,
        thread_id: str | None = None,
        clock: Clock | None = None,
        new_id: Callable[[], str] | None = None,
        **options: Unpack[AgentOptions],
    ) -> None:
        check_list("tools", tools)
        check_list("controllers", controllers)
        self._tools = tuple(tools)
        self._config = config
        self._provider = provider
        if interceptor is not None and not callable(interceptor):
            raise ConfigError(f"interceptor must be callable, got {type(interceptor).__name__}")
        check_parts(config=config, thread_id=thread_id, journal=journal, host=host, clock=clock)
        clock = clock or SystemClock()
        sanitized = merged(DEFAULTS, options)
        base = self._runtime_of(provider, clock)
        setup = self._setup = Setup(
            sanitized, Route(base), journal=journal, clock=clock, new_id=new_id or random_id
        )
        setup.interceptor = interceptor
        if controllers:
            from .composition import Composition

            setup.composition = Composition(controllers, self)
            self._register(base)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Future[bool] | None = None
        self._stage = Stage(setup, host)
        self._sender = Sender(self._stage, setup, thread_id)

    def _register(self, base: Runtime) -> None:
        """The controllers' tools are checked together with all others; a failure gives the controllers up (TC-67)."""
        from .entering import own_names, with_offer

        setup, composition = self._setup, self._setup.composition
        assert composition is not None
        try:
            offer = composition.offer(own_names(base))
            setup.route.runtime = with_offer(base, offer, composition)
        except BaseException:
            if composition.registered is None:
                composition.release()
            raise
        setup.route.base, composition.registered = base, offer

    def _runtime_of(self, provider: object, clock: Clock) -> Runtime:
        """What drives sends over this provider.

        Raises:
            TypeError: no accepted form.
            UsageError: tools with something that cannot call them.
        """
        kind = kind_of(provider)
        if kind == "provider":
            return AgentLoop(cast("Provider", provider), tools=self._tools, config=self._config, clock=clock)
        if self._config is not None:
            raise UsageError(
                "config belongs to a Provider: "
                + (
                    "a Runtime brings its own"
                    if kind == "runtime"
                    else "a text-only one has no loop to configure"
                )
            )
        if kind == "runtime":
            if self._tools:
                raise UsageError("tools belong to a Provider: a Runtime brings its own")
            if isinstance(provider, AgentLoop):  # it keeps the limits itself, as it reads
                return provider
            return Watched(cast("Runtime", provider), clock)
        if self._tools:
            raise UsageError(NO_TOOLS)
        return TextRuntime(AgentLoop(TextProvider(provider, kind), config=_ONE_ATTEMPT, clock=clock))

    def __reduce__(self) -> str:
        raise TypeError(
            "a conversation cannot be pickled: take a snapshot() and make another with from_snapshot()"
        )

    def __del__(self) -> None:
        """A conversation that nobody can reach any more stops, and says so (AC-87)."""
        stage = getattr(self, "_stage", None)
        if stage is None or stage.reply is None or self._loop is None or self._loop.is_closed():
            return
        made = self._setup.made
        if made is not None and made.closed:  # its surface handed all runs over: nothing lives here
            return
        warnings.warn(
            f"conversation {self.thread_id} was collected with a live send: use `async with`",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )
        self._loop.call_soon_threadsafe(self._sender.abandoned)

    # Reading: see also `Shown` and `Plugged`

    @property
    def provider(self) -> object:
        """As it was passed in."""
        return self._provider

    @property
    def runs(self) -> RunController:
        """The run controller underneath, made at first use."""
        if self._setup.made is None:
            self._setup.connect(self.thread_id)
        return self._setup.runs

    @property
    def runtime(self) -> Runtime:
        """What drives sends that begin now."""
        return self._setup.route.runtime

    def view(self) -> ConversationView:
        """Everything that an interface draws, at one moment."""
        stage, live = self._stage, self._stage.reply
        error = stage.error
        return ConversationView(
            stage.state,
            self.thread_id,
            without_bytes(stage.messages),
            stage.live_text,
            stage.pause_requested,
            None if live is None else live.id,
            None if live is None else live.phase,
            None if error is None else f"{type(error).__name__}: {error}",
            partial_view(self.partial),
            self.undelivered,
            sum(int(getattr(self.runtime, name, 0)) for name in ("abandoned", "orphans")),
        )

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
            RunConflict, ConfigError, TypeError: nothing was changed. ThreadConflict, ThreadBusy, JournalError: no run was
            made.
        """
        self._bind("send")
        sender = self._sender
        extras = _EMPTY if extras is None else _checked(extras)
        policy = self._setup.options["when_busy"] if when_busy is None else busy_policy(when_busy)
        await sender.check_open("send")
        if sender.uses(id):
            given = Order(parts_of(content, attachments), extras)
            if (known := await sender.known(id, given.fingerprint)) is not None:
                return known
        if sender.busy and (policy == "raise" or content is None):
            raise sender.busy_error("send")
        order = Order(parts_of(content, attachments), extras, extras.parent)
        if extras.base is not None:
            order.keep = tuple(extras.base)
        elif extras.parent is not None and order.parts is None:
            order.keep = await sender.thread.path_to(extras.parent)
        self._connect()
        return await sender.submit(order, id, policy)

    async def retry(self, *, id: str | None = None, extras: RunExtras | None = None) -> Reply:
        """Goes on from the last committed exchange of the last send, if that did not complete (AC-50).

        Finished results stay and no effect is repeated. A run that is unknown is first abandoned on the record.

        Raises:
            NothingToDo: the last send completed, or there is none.
        """
        self._bind("retry")
        return await self._again(Retry(self._sender), id, extras)

    async def regenerate(
        self, message_id: str, *, id: str | None = None, extras: RunExtras | None = None
    ) -> Reply:
        """Answers again the nearest user message before that assistant message; tools may run anew.

        The old branch stays in the tree.

        Raises:
            InvalidTarget: no such assistant message, or no user message before it.
        """
        self._bind("regenerate")
        return await self._again(Regenerate(self._sender, message_id), id, extras)

    async def _again(self, aim: Retry | Regenerate, reply_id: str | None, extras: RunExtras | None) -> Reply:
        sender, extras = self._sender, _EMPTY if extras is None else _checked(extras)
        await sender.check_open(aim.action)
        if (known := await sender.known(reply_id, aim.fingerprint)) is not None:
            return known
        self._connect()
        return await sender.again(aim, reply_id, extras)

    def _connect(self) -> None:
        if self._setup.connected != self.thread_id:
            self._setup.connect(self.thread_id)

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
        return self._abort("aborted")

    def _abort(self, reason: str) -> bool:
        stage = self._stage
        if stage.reply is not None:
            return self._sender.abort(stage.reply, reason)
        if stage.change(Input.ABORT):
            stage.error = None
            stage.silence_last()
            stage.tell_state()
            stage.tell()
        return False

    def reset(self) -> None:
        """Aborts, clears the messages, and returns to idle; nothing is deleted from a journal."""
        self._check_thread("reset")
        stage = self._stage
        stage.silence_last()
        self._sender.settle_ending()
        if stage.reply is not None:
            self._sender.stop(stage.reply, "reset")
        elif stage.change(Input.RESET):
            stage.tell_state()
        stage.forget_text()
        stage.error = None
        self._replace(())
        self._sender.settled_way()
        stage.tell()

    def set_messages(self, messages: Iterable[Message | Mapping[str, Any]]) -> None:
        """Replaces the conversation: these messages become the base of a new thread.

        Raises:
            AgentBusy: a send is in progress.
            TypeError, ValueError: an item is no message; the conversation stays.
        """
        self._check_thread("set_messages")
        if self.is_busy:
            raise self._sender.busy_error("set messages")
        found = tuple([_message(index, item) for index, item in enumerate(messages)])
        if len({message.id for message in found}) != len(found):
            raise ValueError("message ids must be unique")
        if len(found) > self._setup.options["max_messages"]:
            logger.warning("%d messages exceed max_messages", len(found))
        self._replace(found)
        self._stage.tell()

    def _replace(self, messages: tuple[Message, ...]) -> None:
        self._stage.clear(messages)
        self._stage.tell_messages()
        self._setup.shared.replace({})
        if self._sender.thread.begin(messages) and self._setup.made is not None:
            self._setup.connect(self.thread_id)

    def set_provider(self, provider: object) -> None:
        """Swaps the provider for sends that begin from now on; a live send is aborted, with a warning.

        Raises:
            TypeError, UsageError: it is not acceptable; nothing was changed.
        """
        self._check_thread("set_provider")
        runtime = self._runtime_of(provider, self._setup.clock)
        if self._setup.composition is not None:
            self._register(runtime)
        if not self._stage.is_in(AgentState.IDLE, AgentState.COMPLETE):
            logger.warning("set_provider while %s: aborting", self.state.value)
            self._abort("set_provider")
        if self._setup.composition is None:
            self._setup.route.runtime = self._setup.route.base = runtime
        self._provider = provider

    def update_options(self, **changes: Unpack[AgentOptions]) -> None:
        """Merges options, all or nothing; callbacks serve at once, the rest from the next send.

        Raises:
            ConfigError: naming the option and the value.
        """
        self._check_thread("update_options")
        self._setup.options = merged(self._setup.options, changes)

    def subscribe(self, observer: object) -> Callable[[], None]:
        """Adds an object with some of the six `on_*` methods; the returned function removes it.

        Raises:
            TypeError: it has none of them.
        """
        self._check_thread("subscribe")
        return self._stage.notifier.subscribe(observer)

    # Threads, opening, closing

    def sibling(self, thread_id: str | None = None) -> AgentController:
        """A controller for another thread with the same configuration and the same `runs` (AC-131)."""
        return self._twin(self.runs, thread_id)

    def _twin(self, runs: RunController, thread_id: str | None) -> AgentController:
        setup = self._setup
        options: dict[str, Any] = {
            name: value for name, value in setup.options.items() if not name.startswith("on_")
        }
        composition = setup.composition
        if composition is not None and not composition.factories:
            names = [member.key for member in composition.members if member.given]
            raise ConfigError(
                f"cannot make a sibling because AI controller {names[0]!r} serves one conversation: give a callable "
                f"that makes it"
            )
        twin = AgentController(
            self._provider,
            tools=self._tools,
            controllers=() if composition is None else composition.given,
            interceptor=setup.interceptor,
            config=self._config,
            journal=setup.journal,
            thread_id=thread_id,
            clock=setup.clock,
            new_id=setup.new_id,
            **options,
        )
        if composition is None:
            twin._setup.route.runtime = twin._setup.route.base = setup.route.runtime
        twin._setup.share(runs)
        twin._setup.connect(twin.thread_id)
        return twin

    def adopt(self, runs: RunController, thread_id: str) -> None:
        """Joins a shared run controller, before first use only.

        Raises:
            UsageError: the conversation has been used.
        """
        sender = self._sender
        if self._setup.made is not None or self.messages or self._loop is not None or sender.closed:
            raise UsageError("cannot adopt a run controller after first use")
        sender.thread.id, sender.thread.fresh, sender.thread.opened = thread_id, False, False
        self._setup.share(runs)
        self._setup.connect(thread_id)

    def joined(self, runs: RunController, thread_id: str | None = None) -> AgentController:
        """As `sibling`, over a run controller that a surface made for all its threads; this one is left as it is."""
        return self._twin(runs, thread_id)

    @classmethod
    async def from_snapshot(
        cls, snapshot: Snapshot | Mapping[str, JSON], provider: object, **options: Any
    ) -> AgentController:
        """A new conversation that begins with what a snapshot holds, in a thread of its own.

        Args:
            snapshot: as `snapshot()` gave it, or its JSON form.
            provider: as for the constructor.
            options: as for the constructor: tools and AI controllers are no part of a snapshot.

        Raises:
            ValueError: it is of a newer version or damaged, which names the place; nothing was restored.
        """
        from .snapshots import checked, restore

        found = checked(snapshot)
        agent = cls(provider, **options)
        try:
            agent._bind("open")
            await restore(found, agent._setup, agent._sender, agent.set_messages)
        except BaseException:
            await agent.aclose()
            raise
        return agent

    @classmethod
    async def reconnect(
        cls, provider: object, *, journal: Journal, thread_id: str, **options: Any
    ) -> AgentController:
        """A conversation over an existing thread of a journal: constructed and opened in one call."""
        agent = cls(provider, journal=journal, thread_id=thread_id, **options)
        try:
            return await agent.open()
        except BaseException:
            await agent.aclose()
            raise

    async def open(self) -> Self:
        """Loads an existing thread: `messages` is the path to its head. Idempotent.

        The state is then `idle`, or `error` where nobody knows how the last run ended.
        """
        self._bind("open")
        sender = self._sender
        if not sender.closed and not sender.thread.fresh and not self.is_busy:
            self._connect()
            await sender.thread.load(sender, self._stage)
        sender.thread.opened = True
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

        Raises:
            UsageError: the conversation lives on another event loop, which still runs.
        """
        if self._loop is not None and not self._loop.is_closed():
            self._bind("close")
        while self._closing is not None:
            if await asyncio.shield(self._closing):
                return
        closing = self._closing = asyncio.get_running_loop().create_future()
        closed = False
        try:
            await self._close(self._sender.close_timeout)
            closed = True
        finally:
            if not closed:  # cancelled, or it failed: the next caller closes
                self._closing = None
            closing.set_result(closed)

    async def _close(self, limit: float) -> None:
        setup, notifier = self._setup, self._stage.notifier
        until = setup.clock.monotonic() + limit
        await self._sender.aclose(limit)
        if notifier.waiting:
            try:
                await within(setup.clock, until - setup.clock.monotonic(), notifier.join())
            except TimeoutError:
                logger.warning("async callbacks did not end within close_timeout")
                notifier.cancel()
        if setup.composition is not None:
            await setup.composition.aclose(max(until - setup.clock.monotonic(), 0.1), setup.clock)
        if setup.made is not None and not setup.given:
            await setup.made.aclose(timeout=min(max(until - setup.clock.monotonic(), 0.1), 10.0))

    def _bind(self, action: str) -> None:
        """One event loop owns a conversation, the first that uses it (AC-121)."""
        self._loop = bound(self._loop, action, "a conversation")

    def _check_thread(self, action: str) -> None:
        if self._loop is not None and not (self._sender.closed and self._loop.is_closed()):
            check_on(self._loop, action)


def _message(index: int, item: object) -> Message:
    """A checked copy: structs do not look at what they are built from."""
    if not isinstance(item, Message | Mapping):
        raise TypeError(f"messages[{index}] must be a Message or its JSON form, got {type(item).__name__}")
    try:
        form = msgspec.to_builtins(item, builtin_types=(bytes,)) if isinstance(item, Message) else item
        return msgspec.convert(form, Message)
    except (msgspec.ValidationError, TypeError) as error:
        raise ValueError(f"messages[{index}]: {error}") from error


def _checked(extras: object) -> RunExtras:
    if not isinstance(extras, RunExtras):
        raise TypeError(f"extras must be RunExtras(…), got {type(extras).__name__}")
    return extras

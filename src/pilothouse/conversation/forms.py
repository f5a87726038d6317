"""What is accepted as a provider, and how the text-only forms become one (AC-104 … AC-113).

A text form is driven by the agent loop like any provider. What a run of it needs beyond a `ModelRequest` (its id, its
options as they were given, the signal of its send) is the `Call` that `TextRuntime` sets around the run.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from copy import copy, deepcopy
from typing import Any, Final, Literal

from msgspec import Struct

from ..cancel import Token
from ..contracts import RunPort
from ..core.canonical import NotJSON, check, scrub
from ..errors import ProviderContractError
from ..loop.agent import AgentLoop
from ..messages import JSON, Message, Model
from ..records import Descriptor, Start
from ..responses import (
    STATUS_KINDS,
    ErrorInfo,
    ErrorKind,
    ModelRequest,
    ProviderEvent,
    ResponseStarted,
    StreamEnd,
    TextDelta,
)

FORMS: Final = (
    "a Provider (tag, default_model, stream, aclose), an object with async send(messages, options), "
    "an async generator function of str, a coroutine function, or a Runtime (describe, run)"
)


class SendOptions(Struct, frozen=True):
    """What a text form is given beside the messages; unset is None."""

    signal: Token
    model: str | None
    params: dict[str, JSON] | None
    system_prompt: str | None
    reply_id: str
    thread_id: str


NO_TOOLS: Final = (
    "a text-only provider cannot call tools: use a Provider, as pilothouse.provider(MODEL) makes for a real model and "
    "pilothouse.testing.ScriptedProvider is for a test"
)

Kind = Literal["provider", "runtime", "object", "generator", "coroutine"]

# Looked at by hand: a runtime-checkable protocol costs 20 µs a look.
_PROVIDER: Final = ("tag", "default_model", "stream", "aclose")
_RUNTIME: Final = ("describe", "run")


def _has(item: object, names: tuple[str, ...]) -> bool:
    return all(getattr(item, name, None) is not None for name in names)


def kind_of(provider: object) -> Kind:
    """Which of the accepted forms an object is.

    Raises:
        TypeError: none of them; names what came and lists the forms.
    """
    if not isinstance(provider, type):
        if _has(provider, _PROVIDER):
            return "provider"
        if inspect.iscoroutinefunction(getattr(provider, "send", None)):
            return "object"
        if inspect.isasyncgenfunction(provider):
            return "generator"
        if inspect.iscoroutinefunction(provider):
            return "coroutine"
        if _has(provider, _RUNTIME):
            return "runtime"
    way = f"; for a model by its name: pilothouse.provider({provider!r})" if isinstance(provider, str) else ""
    raise TypeError(f"a provider is {FORMS}; got {_shown(provider)}{way}")


def _shown(provider: object) -> str:
    if isinstance(provider, type):
        return f"the class {provider.__name__}: make an instance of it"
    if inspect.isgeneratorfunction(provider):
        return "a sync generator function, which would block the event loop: write `async def`"
    if inspect.isroutine(provider):
        return "a sync function, which would block the event loop: write `async def`"
    kind = type(provider)
    if kind.__module__.partition(".")[0] in _OURS or isinstance(provider, dict | list):
        return kind.__name__
    return (
        f"{kind.__name__} of {kind.__module__}; another library's agent goes into an async generator of its text "
        "(docs/cookbook.md, Another framework's agent)"
    )


_OURS: Final = frozenset({"builtins", "pilothouse"})


def _takes_options(function: Callable[..., Any]) -> bool:
    parameters = list(inspect.signature(function).parameters.values())
    positional = [
        item for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)
    ]
    return len(positional) > 1 or any(item.kind is item.VAR_POSITIONAL for item in parameters)


class Call:
    """What is known of one run's call of a text form, beyond what the run itself tells.

    Attributes:
        signal: the one stop of the send (AC-83).
        raised: the original exception, for `on_error`.
        metadata: the response's own, read when it ended (AC-111).
    """

    __slots__ = ("metadata", "raised", "signal")

    def __init__(self, signal: Token | None = None) -> None:
        self.signal = signal or Token()
        self.raised: Exception | None = None
        self.metadata: dict[str, JSON] = {}


_current: ContextVar[tuple[Start, Call]] = ContextVar("pilothouse_text_call")


class TextRuntime:
    """The loop over a text form, as a runtime: one attempt a response, and no tools."""

    def __init__(self, loop: AgentLoop) -> None:
        self._loop = loop
        self.config_digest = loop.config_digest
        self._calls: dict[str, Call] = {}

    def offering(self, instructions: str, *, digest: str = "") -> TextRuntime:
        """The same with more to say behind the system prompt: a text form takes no tools."""
        twin = copy(self)
        loop = self._loop.offering((), instructions, digest=digest)
        vars(twin).update(_loop=loop, config_digest=loop.config_digest)
        return twin

    def expect(self, run_id: str, signal: Token) -> Call:
        """A send begins: its signal is the one that the form is given."""
        call = self._calls[run_id] = Call(signal)
        return call

    def describe(self) -> Descriptor:
        """The loop's contract."""
        return self._loop.describe()

    @property
    def abandoned(self) -> int:
        """Calls that still run although they were stopped."""
        return self._loop.abandoned

    async def run(self, start: Start, port: RunPort, /) -> None:
        """Works."""
        self._enter(start, port)
        await self._loop.run(start, port)

    async def resume(self, start: Start, port: RunPort, /) -> None:
        """Goes on from the facts."""
        self._enter(start, port)
        await self._loop.resume(start, port)

    def _enter(self, start: Start, port: RunPort) -> None:
        """The run has a task, and so a context, of its own: nothing has to be taken back."""
        call = self._calls.pop(start.spec.run_id, None) or Call()
        port.scope.on_cancel(lambda: call.signal.set(port.scope.reason))
        _current.set((start, call))


class TextProvider:
    """A text form as a `Provider`: normal exhaustion is the declared end, raising is failure (AC-100)."""

    tag = "text"

    def __init__(self, form: object, kind: Kind) -> None:
        self._kind = kind
        self.default_model = Model(str(getattr(form, "name", getattr(form, "__name__", "text"))), "text")
        self._function: Callable[..., Any] = getattr(form, "send") if kind == "object" else form  # type: ignore[assignment]  # noqa: B009
        self._two = _takes_options(self._function)

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
        """One call of the form."""
        start, call = _current.get()
        opened = _Opened()
        try:
            yield await self._open(request, start, call, opened)
            async for piece in opened.pieces():
                yield TextDelta(0, piece)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if call.signal.is_set() or opened.stopped(task):
                raise
            # Nobody stopped it: a provider that raises this has failed (AC-101).
            call.raised = ProviderContractError("the provider cancelled its own response")
            call.raised.__cause__ = error
            yield StreamEnd("error", error=ErrorInfo("provider_cancelled", str(call.raised)))
        except Exception as error:  # noqa: BLE001 - failure is an event (PV-1)
            call.raised = error
            yield StreamEnd("error", error=classify(error))
        else:
            yield StreamEnd("complete")
        finally:
            call.metadata = opened.metadata()
            await opened.aclose()

    async def _open(
        self, request: ModelRequest, start: Start, call: Call, opened: _Opened
    ) -> ResponseStarted:
        """Calls the form; returns once it has handed over a stream that can be read (AC-109)."""
        messages: tuple[Message, ...] = tuple(request.messages)
        options = _send_options(start, call, request.system_prompt) if self._two else None
        arguments = (messages, options) if self._two else (messages,)
        made = self._function(*arguments)
        if self._kind == "generator":
            opened.source = made
            await opened.read_first()
            return ResponseStarted()
        answer = await made
        if self._kind == "coroutine" and isinstance(answer, str):
            opened.whole = answer
            return ResponseStarted()
        opened.source = answer
        stream = getattr(answer, "stream", answer)
        if not isinstance(stream, AsyncIterable):
            raise ProviderContractError(
                f"the provider must return an async iterable of str (or an object whose `stream` is one), "
                f"got {type(stream).__name__}"
            )
        if call.signal.is_set():  # it came too late: never read, always closed (AC-81)
            raise asyncio.CancelledError(call.signal.reason)
        response_id = getattr(answer, "id", None)
        return ResponseStarted(response_id if isinstance(response_id, str) and response_id else None)

    async def aclose(self) -> None:
        """Nothing was opened."""


class _Opened:
    """What a form handed over, while it is read."""

    __slots__ = ("_cancels", "_ended", "_first", "source", "whole")

    def __init__(self) -> None:
        self.source: Any = None
        self.whole: str | None = None  # an answer that came in one piece
        self._first: tuple[object, ...] = ()
        self._ended = False
        task = asyncio.current_task()
        self._cancels = 0 if task is None else task.cancelling()

    def stopped(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether the reading task was cancelled meanwhile."""
        return task is not None and task.cancelling() != self._cancels

    async def read_first(self) -> None:
        """The first item of a generator, if there is one: hand-over is when it is there (AC-106)."""
        try:
            self._first = (await anext(self.source),)
        except StopAsyncIteration:
            self._ended = True

    async def pieces(self) -> AsyncIterator[str]:
        """The pieces as they come; a half character waits for its other half (AC-110). Empty ones are given too."""
        half = ""
        async for piece in self._raw():
            if piece is None or piece == "":
                yield ""
                continue
            if not isinstance(piece, str):
                raise ProviderContractError(f"the stream must yield str, got {type(piece).__name__}")
            text = half + piece
            half = ""
            if "\ud800" <= text[-1] <= "\udbff":
                text, half = text[:-1], text[-1]
            yield scrub(text) if text else ""
        if half:
            yield scrub(half)

    async def _raw(self) -> AsyncIterator[object]:
        if self.whole is not None:
            yield self.whole
            return
        for item in self._first:
            yield item
        if not self._ended:
            async for item in getattr(self.source, "stream", self.source):
                yield item

    def metadata(self) -> dict[str, JSON]:
        """What the response says of itself, with an id that could not serve as one."""
        found: dict[str, JSON] = {}
        given = getattr(self.source, "metadata", None)
        if isinstance(given, Mapping):
            found = {str(name): _json(value) for name, value in given.items()}
        given_id = getattr(self.source, "id", None)
        if given_id is not None and self.whole is None and not callable(given_id):
            found.setdefault("provider_id", _json(given_id))
        return found

    async def aclose(self) -> None:
        """Closes the stream, and the response object if it can be closed."""
        source, self.source = self.source, None
        stream = getattr(source, "stream", None)
        try:
            if stream is not None:
                await _close(stream)
        finally:
            await _close(source)


def _json(value: object) -> JSON:
    try:
        check(value)
    except NotJSON:
        return repr(value)
    return deepcopy(value)


def _send_options(start: Start, call: Call, system_prompt: str | None) -> SendOptions:
    """The options as the host gave them: what the specification splits is joined again (AC-52)."""
    options = start.spec.options
    settings = options.get("loop.settings")
    params: dict[str, JSON] | None = None
    if isinstance(settings, dict):
        params = deepcopy({name: value for name, value in settings.items() if name != "extra"})
        params.update(deepcopy(settings.get("extra", {})))
    return SendOptions(
        call.signal,
        options.get("loop.model"),
        params,
        system_prompt,
        start.spec.run_id,
        start.spec.thread_id,
    )


async def _close(source: object) -> None:
    close = getattr(source, "aclose", None) or getattr(source, "close", None)
    if callable(close):
        closing = close()
        if inspect.isawaitable(closing):
            await closing


LONGEST_MESSAGE: Final = 10_000
"""Characters of an exception's text in the record: it may hold a whole page, and facts are small."""


def classify(error: Exception) -> ErrorInfo:
    """What a text form's exception means: by its structured fields, else a failure that a person may retry."""
    text = str(error)[:LONGEST_MESSAGE]
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, ProviderContractError):
        return ErrorInfo("provider_contract", str(error))
    status = getattr(error, "status_code", None) or getattr(error, "status", None)
    if isinstance(status, int) and not isinstance(status, bool):
        otherwise: ErrorKind = "server_error" if status >= 500 else "invalid_request"
        return ErrorInfo(STATUS_KINDS.get(status, otherwise), message, status=status)
    return ErrorInfo("provider", message)

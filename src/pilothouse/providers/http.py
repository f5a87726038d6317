"""A provider over HTTP: one request, one stream of provider events, one end. All dialects share this code.

A dialect says where to send what, and which decoder reads the answer. Failure of any kind is a `StreamEnd`; nothing
but `CancelledError` is raised. Nothing is asked again here: the loop is the only retry owner (LP-18).
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeAlias

from ..core.pairing import ANY_ID, WireRules
from ..errors import UsageError
from ..messages import JSON, Message, Model, Usage
from ..responses import (
    ErrorInfo,
    ErrorKind,
    ModelRequest,
    Notice,
    ProviderEvent,
    ResponseStarted,
    StreamEnd,
    UsageUpdate,
)
from ..transport import Answer, BrokenBody, NoAnswer, Transport
from .content import CannotCarry, encode_body
from .decoder import Decoder
from .errors import refused
from .models import with_known_sizes

if TYPE_CHECKING:
    import httpx2

ApiKey: TypeAlias = str | Callable[[], Awaitable[str]] | None
"""A key, or a function that is asked for one before each request."""


_OPEN_HEADERS: Final = {"content-type", "accept", "accept-encoding", "user-agent", "anthropic-version"}
"""What may be seen of a request's head; any other header may hold a secret."""


class Tap:
    """What came over the wire, for a recording: status, headers, the reads, and how the connection ended.

    `secrets` are the values that were sent to prove who asks; they belong in no recording.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.chunks: list[bytes] = []
        self.broken = False
        self.silent = False
        self.secrets: list[str] = []


class HTTPProvider(ABC):
    """Base of the dialects; implements `contracts.Provider`. `async with` closes it.

    `model` is an id, or a `Model` with its sizes. `headers` are sent with each request and win over the dialect's.
    """

    default_base_url: ClassVar[str]
    dialect: ClassVar[str]
    wire_rules: WireRules = ANY_ID
    """What the repair of a payload must know of this dialect (LP-40)."""
    linger_s: float = 5.0
    """How long figures may take to come after the reason was seen [020]."""

    def __init__(
        self,
        model: str | Model,
        *,
        base_url: str | None = None,
        api_key: ApiKey = None,
        client: httpx2.AsyncClient | None = None,
        headers: Mapping[str, str] | None = None,
        tag: str | None = None,
    ) -> None:
        self.tag = tag or self.dialect
        known = with_known_sizes(Model(model) if isinstance(model, str) else model)
        self.default_model = known if known.provider else _provided_by(known, self.tag)
        self.base_url = (base_url or self.default_base_url).rstrip("/")
        self._api_key = api_key
        self._headers = dict(headers or {})
        self._transport = Transport(client)
        self.tap: Tap | None = None

    # What a dialect gives

    @abstractmethod
    def url(self, request: ModelRequest) -> str:
        """Where the request goes."""

    @abstractmethod
    def body(self, request: ModelRequest) -> dict[str, JSON]:
        """The request in the dialect's words; pure.

        Raises:
            ConfigError: a setting that the dialect cannot keep, such as stop sequences.
            CannotCarry: a message holds what the dialect cannot send.
            ToolDefinitionError: a tool's schema cannot be written in the dialect.
        """

    def left_out(self, request: ModelRequest) -> Sequence[str]:
        """Settings of this request that the dialect has no field for and whose absence changes little: a notice each."""
        return ()

    @abstractmethod
    def auth_headers(self, key: str) -> dict[str, str]:
        """How the key is sent."""

    @abstractmethod
    def decoder(self, request: ModelRequest) -> Decoder[Any]:
        """Reads one response."""

    @abstractmethod
    def to_wire(self, messages: Sequence[Message]) -> list[dict[str, JSON]]:
        """The conversation part of a request: messages, already paired, as the dialect writes them (PV-13).

        Raises:
            CannotCarry: a message holds what the dialect cannot send.
        """

    @abstractmethod
    def from_wire(self, stored: Sequence[Mapping[str, Any]]) -> list[Message]:
        """Messages of a stored conversation part, whatever state it is in."""

    # The one code path

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
        """One request, one response: events, then exactly one `StreamEnd`.

        Closing the iterator, or cancelling the task that waits for it, closes the connection at once, also while no
        byte has come.
        """
        try:
            content = encode_body(self.body(request))
        except RecursionError as error:
            message = f"the request is nested too deep: {error}"
            yield StreamEnd("error", None, ErrorInfo("config", message, "unwritable_request"))
            return
        except UsageError as error:
            kind: ErrorKind = "unsupported_attachment" if isinstance(error, CannotCarry) else "config"
            yield StreamEnd("error", None, ErrorInfo(kind, str(error), error.code))
            return
        try:
            headers = await self._head()
        except Exception as error:  # noqa: BLE001 - a user's function for keys may raise anything
            yield StreamEnd("error", None, ErrorInfo("auth", f"cannot get an API key: {error}"))
            return
        if self.tap is not None:
            self.tap.secrets = [value for name, value in headers.items() if name.lower() not in _OPEN_HEADERS]
        timeouts = request.settings.timeouts
        try:
            async with self._transport.post(
                self.url(request), headers=headers, content=content, timeouts=timeouts
            ) as answer:
                if self.tap is not None:
                    self.tap.status, self.tap.headers = answer.status, answer.headers
                if not 200 <= answer.status < 300:
                    body = await answer.read_error(timeouts.error_body)
                    if self.tap is not None:
                        self.tap.chunks.append(body)
                    yield refused(answer.status, answer.headers, body, time.time_ns() // 1_000_000)
                    return
                yield ResponseStarted(answer.headers.get("x-request-id") or answer.headers.get("request-id"))
                for name in self.left_out(request):
                    yield Notice("setting_left_out", name)
                decoder = self.decoder(request)
                figures = _Figures(request.model)
                while not decoder.ended:
                    for event in await _next_events(answer, decoder, self.linger_s, self.tap):
                        yield figures.check(event)
        except NoAnswer as error:
            yield StreamEnd("error", None, ErrorInfo("transport", str(error)))

    async def _head(self) -> dict[str, str]:
        key = self._api_key if isinstance(self._api_key, str | None) else await self._api_key()
        key = key.strip() if key else key
        if key and not (key.isascii() and key.isprintable()):  # the HTTP library would quote it in its error
            raise ValueError("it has characters that no key has")
        return {
            "content-type": "application/json",
            "accept": "text/event-stream",
            "accept-encoding": "identity",  # a compressed stream is a buffered one
            "user-agent": "pilothouse",
            **(self.auth_headers(key) if key else {}),
            **self._headers,
        }

    async def aclose(self) -> None:
        """Closes its connections; a client that was given stays open. Idempotent."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.default_model.id!r}, base_url={self.base_url!r})"


async def _next_events(
    answer: Answer, decoder: Decoder[Any], linger_s: float, tap: Tap | None
) -> list[ProviderEvent]:
    """What the next bytes say, or their end. Where only figures can follow, they are not waited for long."""
    try:
        if decoder.lingering:
            async with asyncio.timeout(linger_s):
                chunk = await answer.read()
        else:
            chunk = await answer.read()
    except BrokenBody:
        if tap is not None:
            tap.broken = True
        return decoder.finish("reset")
    except TimeoutError:
        if tap is not None:
            tap.silent = True
        return decoder.finish("eof")
    if not chunk:
        return decoder.finish("eof")
    if tap is not None:
        tap.chunks.append(chunk)
    events = decoder.feed(chunk)
    if decoder.ended:
        await answer.drain()
    return events


class _Figures:
    """What a response used: its cost where the model has prices and the provider tells none, and a silent overflow.

    Some servers cut a prompt that fills the window and answer with nothing: that is an overflow (PV-9).
    """

    def __init__(self, model: Model) -> None:
        self.window = model.context_window
        self.prices = model.prices
        self.usage = Usage()

    def check(self, event: ProviderEvent) -> ProviderEvent:
        """The event, with its cost, or the end that it really means."""
        if isinstance(event, UsageUpdate):
            return self._count(event)
        if isinstance(event, StreamEnd) and event.reason == "length" and self.window:
            asked = self.usage.input or 0
            if self.usage.output == 0 and asked >= 0.99 * self.window:
                message = f"the prompt of {asked} tokens fills the window of {self.window}"
                return StreamEnd("error", event.raw_reason, ErrorInfo("context_overflow", message))
        return event

    def _count(self, event: UsageUpdate) -> UsageUpdate:
        told, old = event.usage, self.usage
        self.usage = Usage(
            input=old.input if told.input is None else told.input,
            cache_read=old.cache_read if told.cache_read is None else told.cache_read,
            cache_write=old.cache_write if told.cache_write is None else told.cache_write,
            output=old.output if told.output is None else told.output,
        )
        if told.cost is not None:
            self.prices = None  # the provider knows better
        if self.prices is None:
            return event
        from msgspec.structs import replace

        from ..core.prices import cost_text

        return UsageUpdate(replace(told, cost=cost_text(self.prices, self.usage)))


def _provided_by(model: Model, tag: str) -> Model:
    from msgspec.structs import replace

    return replace(model, provider=tag)


__all__ = ["ApiKey", "HTTPProvider", "Tap"]

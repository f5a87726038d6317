"""What is accepted as a provider, and how the text-only forms become one (AC-104 … AC-113)."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..cancel import Token
from ..contracts import Provider, Runtime
from ..errors import ProviderContractError
from ..messages import JSON, Model
from ..responses import ErrorInfo, ModelRequest, ProviderEvent, ResponseStarted, StreamEnd, TextDelta

FORMS = (
    "a Provider (tag, default_model, stream, aclose), an object with async send(messages, options), "
    "an async generator function of str, a coroutine function, or a Runtime (describe, run)"
)


@dataclass(frozen=True, slots=True)
class SendOptions:
    """What a text form is given beside the messages; unset is None."""

    signal: Token
    model: str | None
    params: dict[str, JSON] | None
    system_prompt: str | None
    reply_id: str
    thread_id: str


Kind = Literal["provider", "runtime", "object", "generator", "coroutine"]


def kind_of(provider: object) -> Kind:
    """Which of the accepted forms an object is.

    Raises:
        TypeError: none of them; names what came and lists the forms.
    """
    if not isinstance(provider, type):
        if isinstance(provider, Provider):
            return "provider"
        if inspect.isasyncgenfunction(provider):
            return "generator"
        if inspect.iscoroutinefunction(provider):
            return "coroutine"
        if inspect.iscoroutinefunction(getattr(provider, "send", None)):
            return "object"
        if isinstance(provider, Runtime):
            return "runtime"
    shown = f"the class {provider.__name__}" if isinstance(provider, type) else type(provider).__name__
    raise TypeError(f"a provider is {FORMS}; got {shown}")


def _takes_options(function: Callable[..., Any]) -> bool:
    parameters = list(inspect.signature(function).parameters.values())
    positional = [
        item for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)
    ]
    return len(positional) > 1 or any(item.kind is item.VAR_POSITIONAL for item in parameters)


class TextProvider:
    """A text form as a `Provider`: normal exhaustion is the declared end, raising is failure (AC-100).

    `raised` keeps the original exception of a thread's last response, for `on_error`.
    """

    tag = "text"

    def __init__(self, form: object, kind: Kind) -> None:
        self._kind = kind
        self.default_model = Model(str(getattr(form, "name", getattr(form, "__name__", "text"))), "text")
        self.raised: dict[str, Exception] = {}
        self._function: Callable[..., Any] = getattr(form, "send") if kind == "object" else form  # type: ignore[assignment]  # noqa: B009
        self._two = _takes_options(self._function)

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
        """One call of the form."""
        signal = Token()
        self.raised.pop(request.thread_id, None)
        source: Any = None
        try:
            source, started = await self._open(request, signal)
            yield started
            pieces = getattr(source, "stream", source)
            if isinstance(pieces, str):
                if pieces:
                    yield TextDelta(0, pieces)
            else:
                async for piece in pieces:
                    yield TextDelta(0, _text(piece))
            yield StreamEnd("complete")
        except Exception as error:  # noqa: BLE001 - failure is an event (PV-1)
            self.raised[request.thread_id] = error
            yield StreamEnd("error", error=classify(error))
        finally:
            signal.set("closed")
            await _close(getattr(source, "stream", source))

    async def _open(self, request: ModelRequest, signal: Token) -> tuple[Any, ResponseStarted]:
        messages = tuple(request.messages)
        options = SendOptions(
            signal,
            request.model.id,
            dict(request.settings.extra) or None,
            request.system_prompt,
            request.thread_id,
            request.thread_id,
        )
        made = self._function(messages, options) if self._two else self._function(messages)
        if self._kind == "generator":
            return _Started(made, [item async for item in _first(made)]), ResponseStarted()
        answer = await made
        if self._kind == "coroutine" and isinstance(answer, str):
            return answer, ResponseStarted()
        pieces = getattr(answer, "stream", answer)
        if not isinstance(pieces, AsyncIterable):
            raise ProviderContractError(
                f"the provider must return an async iterable of str (or an object whose `stream` is one), "
                f"got {type(pieces).__name__}"
            )
        response_id = getattr(answer, "id", None)
        return answer, ResponseStarted(response_id if isinstance(response_id, str) else None)

    async def aclose(self) -> None:
        """Nothing was opened."""


async def _first(made: AsyncIterator[str]) -> AsyncIterator[str]:
    """The first item, if there is one: hand-over is when it is there (AC-106)."""
    try:
        yield await anext(made)
    except StopAsyncIteration:
        return


class _Started:
    """An async generator whose first item has been read."""

    def __init__(self, rest: AsyncIterator[str], first: Sequence[str]) -> None:
        self._rest = rest
        self._first = first

    async def __aiter__(self) -> AsyncIterator[str]:
        for item in self._first:
            yield item
        async for item in self._rest:
            yield item

    async def aclose(self) -> None:
        await _close(self._rest)


async def _close(source: object) -> None:
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()


def _text(piece: object) -> str:
    if piece is None:
        return ""
    if not isinstance(piece, str):
        raise ProviderContractError(f"the stream must yield str, got {type(piece).__name__}")
    return piece


def classify(error: Exception) -> ErrorInfo:
    """What a text form's exception means: by its structured fields, else a failure that a person may retry."""
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, ProviderContractError):
        return ErrorInfo("provider_contract", str(error))
    status = getattr(error, "status_code", None) or getattr(error, "status", None)
    if isinstance(status, int) and not isinstance(status, bool):
        known = {401: "auth", 403: "auth", 402: "quota", 413: "context_overflow", 429: "rate_limit"}
        known |= {503: "overloaded", 529: "overloaded"}
        kind = known.get(status, "server_error" if status >= 500 else "invalid_request")
        return ErrorInfo(kind, message, status=status)  # type: ignore[arg-type]
    return ErrorInfo("provider", message)

"""Any Pydantic AI model as a provider: the bridge for the long tail (Bedrock, Vertex, Cohere, …).

What it can promise is what those models tell: retries inside their SDKs are theirs to switch off, and a stream that
ends without a finish reason is *unknown* unless the model never speaks over a network.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ...errors import ConfigError, UsageError
from ...messages import JSON, Model, StopReason, Usage
from ...responses import (
    BlockEnded,
    ErrorInfo,
    ErrorKind,
    ModelRequest,
    ModelSettings,
    Notice,
    ProviderEvent,
    ReasoningDelta,
    ResponseStarted,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
    UsageUpdate,
)
from ..content import CannotCarry
from ..errors import classify
from ..frames import mapping, plain
from ..models import with_known_sizes

if TYPE_CHECKING:
    from pydantic_ai.models import Model as TheirModel
    from pydantic_ai.models import StreamedResponse

_REASONS: Final[dict[str, StopReason]] = {
    "stop": "complete",
    "tool_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}
_LOCAL: Final = ("function", "test")
"""Their models that run in this process: being exhausted is their normal end."""

_KINDS: Final[tuple[tuple[str, ErrorKind], ...]] = (
    ("ModelAuthenticationError", "auth"),
    ("ModelQuotaExceededError", "quota"),
    ("ModelRateLimitError", "rate_limit"),
    ("ModelOverloadedError", "overloaded"),
    ("ModelContextWindowExceededError", "context_overflow"),
    ("ModelConnectionError", "transport"),
    ("ModelServerError", "server_error"),
    ("ModelUnavailableError", "overloaded"),
    ("ModelRequestRejectedError", "invalid_request"),
    ("IncompleteToolCall", "malformed_tool_call"),
    ("UnexpectedModelBehavior", "protocol"),
    ("UserError", "config"),
)
"""By the names of their exceptions' classes: they are grouped differently from version to version."""


class PydanticAIProvider:
    """A Pydantic AI `Model`, or a name that Pydantic AI knows (`bedrock:…`). Needs `pilothouse[pydantic-ai]`.

    The model stays the caller's: closing the provider closes nothing.
    """

    def __init__(self, model: TheirModel | str, *, sizes: Model | None = None) -> None:
        try:
            from pydantic_ai.models import infer_model
        except ImportError as error:
            raise ConfigError(
                "Pydantic AI is not installed: pip install 'pilothouse[pydantic-ai]'"
            ) from error
        try:
            self._model = infer_model(model)
        except Exception as error:
            raise ConfigError(f"Pydantic AI cannot use {model!r}: {error}") from error
        self.tag = f"pydantic-ai/{self._model.system}"
        self.default_model = sizes or with_known_sizes(Model(self._model.model_name, self.tag))

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
        """One request, one response; leaving it leaves the model's own stream."""
        from pydantic_ai.direct import model_request_stream

        from .wire import to_theirs

        try:
            messages = to_theirs(request.messages, request.system_prompt, self.tag)
        except UsageError as error:
            kind: ErrorKind = "unsupported_attachment" if isinstance(error, CannotCarry) else "config"
            yield StreamEnd("error", None, ErrorInfo(kind, str(error), error.code))
            return
        reading = _Reading(local=self._model.system in _LOCAL)
        try:
            async with model_request_stream(
                self._model,
                messages,
                model_settings=_settings(request.settings),
                model_request_parameters=_parameters(request),
            ) as response:
                yield ResponseStarted(None, response.model_name or None)
                async for event in response:
                    for told in reading.take(event):
                        yield told
                yield UsageUpdate(_usage(response.usage))
                for told in reading.end(response):
                    yield told
        except Exception as error:  # noqa: BLE001 - whatever a model or its SDK raises is how the response ended
            yield _failure(error)

    async def aclose(self) -> None:
        """Nothing to close: the model is its owner's."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class _Reading:
    """Their events to ours."""

    def __init__(self, *, local: bool) -> None:
        self._local = local
        self._blocks: dict[int, int] = {}  # their index to our number
        self._count = 0
        self._calls: dict[int, tuple[str, str | None]] = {}
        self._ids: set[str] = set()

    def take(self, event: Any) -> list[ProviderEvent]:
        match event.event_kind:
            case "part_start":
                self._blocks[event.index] = self._count
                self._count += 1
                return self._start(self._blocks[event.index], event.part)
            case "part_delta":
                return self._delta(self._blocks.get(event.index, 0), event.delta)
            case "part_end":
                return self._finish(self._blocks.get(event.index, 0), event.part)
            case _:
                return []

    def _start(self, number: int, part: Any) -> list[ProviderEvent]:
        match part.part_kind:
            case "text":
                return [TextDelta(number, part.content)] if part.content else []
            case "thinking":
                return [ReasoningDelta(number, part.content or "")]
            case "tool-call":
                call_id, count = part.tool_call_id, 1
                while call_id in self._ids:
                    count += 1
                    call_id = f"{part.tool_call_id}_{count}"
                self._ids.add(call_id)
                self._calls[number] = (call_id, part.tool_call_id)
                args = part.args if isinstance(part.args, str | dict) else ""
                return [ToolCallDelta(number, call_id, part.tool_name, args, part.tool_call_id)]
            case kind:
                return [Notice("unread_part", kind)]

    def _delta(self, number: int, delta: Any) -> list[ProviderEvent]:
        match delta.part_delta_kind:
            case "text":
                return [TextDelta(number, delta.content_delta)] if delta.content_delta else []
            case "thinking":
                return [ReasoningDelta(number, delta.content_delta)] if delta.content_delta else []
            case "tool_call":
                call_id, wire_id = self._calls.get(number, ("", None))
                args = delta.args_delta if isinstance(delta.args_delta, str | dict) else ""
                return [ToolCallDelta(number, call_id, delta.tool_name_delta or "", args, wire_id)]
            case kind:
                return [Notice("unknown_delta", kind)]

    def _finish(self, number: int, part: Any) -> list[ProviderEvent]:
        from .wire import kept_of

        kept = plain(kept_of(part))
        if part.part_kind == "thinking":
            return [BlockEnded(number, raw=kept)]
        return [BlockEnded(number, kept if part.part_kind == "tool-call" else None)]

    def end(self, response: StreamedResponse) -> list[ProviderEvent]:
        """The end. Their models fill a missing reason in; what a server really said is in the details only."""
        said = mapping(response.provider_details).get("finish_reason")
        raw = response.finish_reason
        if response.state == "suspended":
            return [StreamEnd("pause_turn", raw)]
        if raw == "error":
            return [
                StreamEnd(
                    "error", raw, ErrorInfo("server_error", "the response ended with the reason 'error'")
                )
            ]
        if response.state == "interrupted" or (said is None and not self._local):
            return [StreamEnd("unknown", cause="eof")]
        reason = _REASONS.get(raw or "stop", "complete")
        if reason in ("complete", "tool_calls"):
            if self._calls:
                return [StreamEnd("tool_calls", raw)]
            if reason == "tool_calls":
                return [
                    StreamEnd(
                        "error", raw, ErrorInfo("protocol", "tool use was announced, but there is no call")
                    )
                ]
        return [StreamEnd(reason, raw)]


def _settings(settings: ModelSettings) -> Any:
    """Their settings: a dictionary of what is set."""
    out: dict[str, JSON] = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_tokens": settings.max_output_tokens,
        "stop_sequences": list(settings.stop) or None,
        "seed": settings.seed,
        "parallel_tool_calls": settings.parallel_tool_calls,
        "thinking": settings.reasoning_effort,
        "tool_choice": settings.tool_choice,
    }
    return {name: value for name, value in {**out, **settings.extra}.items() if value is not None}


def _parameters(request: ModelRequest) -> Any:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    tools = [
        ToolDefinition(
            name=tool.name, description=tool.description, parameters_json_schema=dict(tool.parameters)
        )
        for tool in request.tools
    ]
    return ModelRequestParameters(function_tools=tools)


def _usage(usage: Any) -> Usage:
    """Their figures: cached tokens are part of the input there too; 0 may mean not told."""
    details: Mapping[str, int] = usage.details or {}
    return Usage(
        input=usage.input_tokens or None,
        cache_read=usage.cache_read_tokens or None,
        cache_write=usage.cache_write_tokens or None,
        output=usage.output_tokens or None,
        reasoning=details.get("reasoning_tokens"),
        native=dict(details) or None,
    )


def _failure(error: Exception) -> StreamEnd:
    """How a response failed, by the exception's own words and classes."""
    names = [kind.__name__ for kind in type(error).__mro__]
    if "ContentFilterError" in names:
        return StreamEnd("content_filter", "content_filter")
    status, body = getattr(error, "status_code", None), getattr(error, "body", None)
    found = next((kind for name, kind in _KINDS if name in names), None)
    if status is not None and isinstance(body, dict | list | str):
        info = classify(body, status=status, headers=getattr(error, "headers", None) or {})
        return StreamEnd("error", None, info)
    kind: ErrorKind = found or ("transport" if isinstance(error, OSError) else "provider")
    return StreamEnd("error", None, ErrorInfo(kind, str(error) or type(error).__name__, None, status))


__all__ = ["PydanticAIProvider"]

"""Runs as OpenTelemetry spans, by the GenAI conventions (SV-260); nothing happens where the package is not installed.

A span is made from facts, with their times: `invoke_agent` for a segment of a run (to its end, or to where it waits for a
person), in it `chat` for each request to a model and `execute_tool` for each call. Whatever goes wrong here is logged and
changes nothing (SV-262).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from .._version import __version__
from ..core.delivery import words
from ..events import (
    CallFinished,
    CallStarted,
    ContinuityLost,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    RequestOpened,
    RunAbandoned,
    RunEnded,
)
from ..records import Record
from ..runs.controller import RunController
from .watching import RunWatcher

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

logger = logging.getLogger("pilothouse.server")

MS: Final = 1_000_000
"""Nanoseconds of a millisecond."""


def tracer() -> Tracer | None:
    """Where spans go, as the process has set OpenTelemetry up; None without the package."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer("pilothouse", __version__)


async def trace_run(
    tracer: Tracer, runs: RunController, key: str, agent: str, *, since: int = 0, content: bool = False
) -> None:
    """Traces a run from fact `since` on. `content`: messages stand in the spans, too."""
    thread = (await runs.registered(key)).thread_id
    await Tracing(tracer, agent, thread, since, content=content).follow(runs, key)


class Tracing(RunWatcher):
    """One run, as it is traced."""

    def __init__(self, tracer: Tracer, agent: str, thread: str, since: int, *, content: bool) -> None:
        super().__init__(since)
        self._tracer = tracer
        self._agent = agent
        self._thread = thread
        self._content = content
        self._segment: Span | None = None
        self._earlier: Span | None = None
        self._chat: Span | None = None
        self._calls: dict[str, Span] = {}

    def fact(self, record: Record) -> None:
        """Opens and closes spans; a fault of the telemetry is its own."""
        try:
            self._fact(record)
        except Exception:
            logger.exception("a run could not be traced")

    def _fact(self, record: Record) -> None:
        fact, at = record.fact, record.at_ms * MS
        match fact:
            case ModelRequested(provider=provider, model=model):
                self._chat = self._span(
                    f"chat {model}",
                    at,
                    "chat",
                    {"gen_ai.provider.name": provider, "gen_ai.request.model": model},
                )
            case ModelAttemptEnded():
                self._answered(fact, at)
            case MessageAdded(message=message) if self._content and self._segment is not None:
                self._segment.add_event(
                    f"gen_ai.{message.role}.message", {"content": message.text}, timestamp=at
                )
            case CallStarted(call_id=call_id, tool=tool):
                named = {"gen_ai.tool.name": tool, "gen_ai.tool.call.id": call_id}
                self._calls[call_id] = self._span(f"execute_tool {tool}", at, "execute_tool", named)
            case CallFinished(call_id=call_id, outcome=outcome):
                _close(self._calls.pop(call_id, None), at, "" if outcome == "succeeded" else outcome)
            case RequestOpened(request=request) if request.blocking:
                self._close_segment(at, "")
            case RunEnded(outcome=outcome):
                status = str(words(outcome).status)
                self._close_segment(at, "" if status in ("completed", "truncated", "cancelled") else status)
            case RunAbandoned() | ContinuityLost():
                self._close_segment(at, "unknown")
            case _:
                pass

    def _span(self, name: str, at: int, operation: str, more: dict[str, str]) -> Span:
        from opentelemetry import trace

        kind = trace.SpanKind.CLIENT if operation == "chat" else trace.SpanKind.INTERNAL
        parent = trace.set_span_in_context(self._segment or self._open_segment(at))
        attributes: dict[str, Any] = {"gen_ai.operation.name": operation, **more}
        return self._tracer.start_span(name, parent, kind, attributes, start_time=at)

    def _open_segment(self, at: int) -> Span:
        from opentelemetry import trace

        links = [] if self._earlier is None else [trace.Link(self._earlier.get_span_context())]
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": self._agent,
            "gen_ai.conversation.id": self._thread,
        }
        self._segment = self._tracer.start_span(
            f"invoke_agent {self._agent}", attributes=attributes, links=links, start_time=at
        )
        return self._segment

    def _answered(self, ended: ModelAttemptEnded, at: int) -> None:
        chat, self._chat = self._chat, None
        if chat is None:
            return
        usage = ended.usage
        if usage is not None:
            figures = {
                "gen_ai.usage.input_tokens": usage.input,
                "gen_ai.usage.output_tokens": usage.output,
                "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
            }
            chat.set_attributes({name: value for name, value in figures.items() if value is not None})
        if ended.why and ended.end == "answered":
            chat.set_attribute("gen_ai.response.finish_reasons", [ended.why])
        _close(chat, at, ended.error.kind if ended.error else "" if ended.end == "answered" else ended.end)

    def _close_segment(self, at: int, error: str) -> None:
        """Ends the segment and all in it that nobody ended."""
        for span in (*self._calls.values(), self._chat):
            _close(span, at, error)
        self._calls.clear()
        self._chat = None
        self._earlier, self._segment = self._segment or self._earlier, None
        _close(self._earlier if self._earlier and self._earlier.is_recording() else None, at, error)


def _close(span: Span | None, at: int, error: str) -> None:
    if span is None:
        return
    if error:
        from opentelemetry.trace import Status, StatusCode

        span.set_attribute("error.type", error)
        span.set_status(Status(StatusCode.ERROR, error))
    span.end(end_time=at)


__all__ = ["Tracing", "trace_run", "tracer"]

"""Runs as OpenTelemetry spans, by the GenAI conventions (SV-260); nothing happens where the package is not installed.

A span is made from facts, with their times: `invoke_agent` for a segment of a run (to its end, or to where it waits for a
person), in it `chat` for each request to a model and `execute_tool` for each call. The first segment stands in the span of
the request that began it; the run keeps who it is, so that a later one, in another process too, links to it. Whatever goes
wrong here is logged and changes nothing (SV-262).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from .._version import __version__
from ..contracts import Clock
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
from ..messages import JSON
from ..records import Record
from ..runs.controller import RunController
from .watching import RunWatcher

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, SpanContext, Tracer

logger = logging.getLogger("pilothouse.server")

EXTENSION: Final = "server/trace"
"""Where a run's specification keeps the trace that it was begun in."""

_TRACEPARENT: Final = re.compile("[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")

MS: Final = 1_000_000
"""Nanoseconds of a millisecond."""


def tracer() -> Tracer | None:
    """Where spans go, as the process has set OpenTelemetry up; None without the package."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer("pilothouse", __version__)


class Traces:
    """The spans of one server. `content`: messages stand in the spans, too."""

    def __init__(self, clock: Clock, *, content: bool) -> None:
        self._clock = clock
        self._content = content
        self._tracer = tracer()
        self._begun: dict[str, Span] = {}  # first segments of runs that are not watched yet

    @property
    def on(self) -> bool:
        """Whether there is anybody to tell."""
        return self._tracer is not None

    def request(self, method: str, template: str, headers: Mapping[str, str]) -> RequestSpan | None:
        """Opens the span of a request, in the trace that its `traceparent` names or the host has begun."""
        if self._tracer is None:
            return None
        try:
            return RequestSpan(self._tracer, method, template, headers)
        except Exception:
            logger.exception("a request could not be traced")
            return None

    def keeping(self, key: str, agent: str, thread: str, traceparent: str) -> dict[str, JSON]:
        """What the specification of a run keeps: the trace that it was asked for in, and its first segment, opened here."""
        kept: dict[str, JSON] = {}
        if _TRACEPARENT.fullmatch(traceparent):
            kept["traceparent"] = traceparent
        if self._tracer is not None:
            try:
                span = open_segment(self._tracer, agent, thread, self._clock.time_ms() * MS)
                self._begun[key] = span
                kept["segment"] = _written(span)
            except Exception:
                logger.exception("a run could not be traced")
        return {EXTENSION: kept} if kept else {}

    def refused(self, key: str) -> None:
        """There will be no such run: its span is not told."""
        self._begun.pop(key, None)

    async def watch(self, runs: RunController, key: str, agent: str, *, since: int = 0) -> None:
        """Traces a run from fact `since` on."""
        if self._tracer is None:
            return
        spec = await runs.registered(key)
        kept = spec.extensions.get(EXTENSION)
        segment = str(kept.get("segment", "")) if isinstance(kept, dict) else ""
        tracing = Tracing(
            self._tracer,
            agent,
            spec.thread_id,
            since,
            content=self._content,
            first=self._begun.pop(key, None),
            earlier=segment,
        )
        await tracing.follow(runs, key)


class RequestSpan:
    """The span of one request; a context manager, in which what is begun belongs to it."""

    def __init__(self, tracer: Tracer, method: str, template: str, headers: Mapping[str, str]) -> None:
        from opentelemetry import context, propagate, trace

        hosted = trace.get_current_span().get_span_context().is_valid  # the host traces its requests itself
        around = context.get_current() if hosted else propagate.extract(dict(headers))
        self._span = tracer.start_span(
            f"{method} {template}",
            around,
            trace.SpanKind.INTERNAL if hosted else trace.SpanKind.SERVER,
            {"http.request.method": method, "http.route": template},
        )
        self._token = context.attach(trace.set_span_in_context(self._span, around))

    def close(self, status: int) -> None:
        """Ends it: the answer is sent, or broke off (then with no status, or the one that it had)."""
        try:
            from opentelemetry import context
            from opentelemetry.trace import Status, StatusCode

            context.detach(self._token)
            if status:
                self._span.set_attribute("http.response.status_code", status)
            if not status or status >= 500:
                self._span.set_attribute("error.type", str(status or "cut"))
                self._span.set_status(Status(StatusCode.ERROR))
            self._span.end()
        except Exception:
            logger.exception("a request could not be traced")


def open_segment(tracer: Tracer, agent: str, thread: str, at: int, *, links: Sequence[Link] = ()) -> Span:
    """`invoke_agent`, in the span around it, if there is one."""
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": agent,
        "gen_ai.conversation.id": thread,
    }
    return tracer.start_span(f"invoke_agent {agent}", attributes=attributes, links=links, start_time=at)


def _written(span: Span) -> str:
    """Who a span is, as W3C Trace Context writes it."""
    found = span.get_span_context()
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{int(found.trace_flags):02x}"


def _read(written: str) -> SpanContext | None:
    from opentelemetry.trace import SpanContext, TraceFlags

    found = _TRACEPARENT.fullmatch(written)
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))


class Tracing(RunWatcher):
    """One run, as it is traced. `first` is its open first segment, `earlier` who that was in another process."""

    def __init__(
        self,
        tracer: Tracer,
        agent: str,
        thread: str,
        since: int,
        *,
        content: bool,
        first: Span | None = None,
        earlier: str = "",
    ) -> None:
        super().__init__(since)
        self._tracer = tracer
        self._agent = agent
        self._thread = thread
        self._content = content
        self._segment: Span | None = first
        self._earlier: SpanContext | None = None if first is not None else _read(earlier)
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
        from opentelemetry import context, trace

        links = [] if self._earlier is None else [trace.Link(self._earlier)]
        # An observer is called wherever a fact is written: what is around there is not what asked for this.
        token = context.attach(context.Context())
        try:
            self._segment = open_segment(self._tracer, self._agent, self._thread, at, links=links)
        finally:
            context.detach(token)
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
        for span in (*self._calls.values(), self._chat, self._segment):
            _close(span, at, error)
        self._calls.clear()
        self._chat = None
        if self._segment is not None:
            self._earlier, self._segment = self._segment.get_span_context(), None


def _close(span: Span | None, at: int, error: str) -> None:
    if span is None:
        return
    if error:
        from opentelemetry.trace import Status, StatusCode

        span.set_attribute("error.type", error)
        span.set_status(Status(StatusCode.ERROR, error))
    span.end(end_time=at)


__all__ = ["EXTENSION", "RequestSpan", "Traces", "Tracing", "tracer"]

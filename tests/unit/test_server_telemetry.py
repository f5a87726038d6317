"""Runs as OpenTelemetry spans (SV-260), through the SDK that a host would set up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from asgikit import ask, run_input, served
from pilothouse.loop.tools import tool
from pilothouse.messages import Usage
from pilothouse.testing.scripted import ScriptedProvider, call, failure


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """The process has one tracer provider; a host sets it once."""
    exporter = InMemorySpanExporter()
    if not isinstance(provider := trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


@pytest.fixture(autouse=True)
def empty(exporter: InMemorySpanExporter) -> Iterator[None]:
    exporter.clear()
    yield
    exporter.clear()


@tool(approval=True)
async def book(day: str) -> str:
    """Books.

    Args:
        day: which one
    """
    return f"booked {day}"


@tool
async def broken(day: str) -> str:
    """Breaks.

    Args:
        day: which one
    """
    raise RuntimeError(day)


async def ended(exporter: InMemorySpanExporter, thread: str, count: int = 1) -> dict[str, list[ReadableSpan]]:
    """The spans of a thread by name, once so many segments have ended."""
    async with asyncio.timeout(10):
        while True:
            spans = exporter.get_finished_spans()
            roots = [span for span in spans if span.attributes.get("gen_ai.conversation.id") == thread]
            if len(roots) >= count:
                break
            await asyncio.sleep(0)
    traces = {root.context.trace_id for root in roots}
    found: dict[str, list[ReadableSpan]] = {}
    for span in spans:
        if span.context.trace_id in traces:
            found.setdefault(span.name, []).append(span)
    return found


async def test_a_run_is_a_segment_with_its_requests_and_calls_in_it(exporter: InMemorySpanExporter) -> None:
    """SV-260: names, nesting, kinds, figures; what was said stands nowhere."""
    provider = ScriptedProvider(
        [call("broken", {"day": "secret day"}), Usage(50, output=5)], ["said secret", Usage(70, output=9)]
    )
    app = served(provider, tools=[broken])
    async with app.lifespan():
        await ask(app, "POST", "/agui/default", run_input("t-spans", "r1", "secret"))
        found = await ended(exporter, "t-spans")
    (root,) = found["invoke_agent default"]
    assert root.attributes["gen_ai.agent.name"] == "default"
    assert root.parent is None
    chats = found["chat scripted-1"]
    (entered,) = found["execute_tool broken"]
    for span in (*chats, entered):
        assert span.parent.span_id == root.context.span_id
        assert root.start_time <= span.start_time <= span.end_time <= root.end_time
    assert {span.kind for span in chats} == {trace.SpanKind.CLIENT}
    figures = [
        (span.attributes["gen_ai.usage.input_tokens"], span.attributes["gen_ai.usage.output_tokens"])
        for span in chats
    ]
    assert figures == [(50, 5), (70, 9)]
    assert entered.attributes["gen_ai.tool.name"] == "broken"
    assert entered.attributes["error.type"] == "failed"
    assert "error.type" not in root.attributes
    assert not any("secret" in span.to_json() for spans in found.values() for span in spans)


async def test_a_failed_request_says_of_what_kind_it_was(exporter: InMemorySpanExporter) -> None:
    """SV-260: `error.type` at the request and at the segment."""
    app = served(ScriptedProvider(failure("auth", "secret words")))
    async with app.lifespan():
        await ask(app, "POST", "/agui/default", run_input("t-failed", "r1", "hi"))
        found = await ended(exporter, "t-failed")
    assert found["chat scripted-1"][0].attributes["error.type"] == "auth"
    assert found["invoke_agent default"][0].attributes["error.type"] == "failed"


async def test_a_run_that_waits_for_a_person_ends_its_segment_and_the_next_links_to_it(
    exporter: InMemorySpanExporter,
) -> None:
    """SV-260: nobody's span is open for as long as somebody thinks."""
    provider = ScriptedProvider([call("book", {"day": "Monday"})], "Booked.")
    app = served(provider, tools=[book])
    async with app.lifespan():
        await ask(app, "POST", "/agui/default", run_input("t-waits", "r1", "book"))
        found = await ended(exporter, "t-waits")
        assert "execute_tool book" not in found
        view = (await ask(app, "GET", "/v1/runs/r1")).json()
        (request,) = view["requests"]
        allow = {"kind": "answer", "request_id": request["id"], "resolution": {"kind": "allow"}}
        told = await ask(app, "POST", "/v1/runs/r1/commands", allow)
        assert told.status == 200, told.body
        found = await ended(exporter, "t-waits", 2)
    first, second = found["invoke_agent default"]
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert found["execute_tool book"][0].parent.span_id == second.context.span_id


async def test_what_was_said_is_traced_only_where_that_is_asked_for(exporter: InMemorySpanExporter) -> None:
    """SV-260: `capture_content=True`."""
    app = served(ScriptedProvider("said aloud"), capture_content=True)
    async with app.lifespan():
        await ask(app, "POST", "/agui/default", run_input("t-content", "r1", "hi"))
        found = await ended(exporter, "t-content")
    (root,) = found["invoke_agent default"]
    assert [event.attributes["content"] for event in root.events] == ["said aloud"]


async def test_a_broken_exporter_changes_nothing(exporter: InMemorySpanExporter) -> None:
    """SV-262."""

    class Broken(SimpleSpanProcessor):
        def on_start(self, span, parent_context=None) -> None:
            raise RuntimeError("telemetry")

    provider = trace.get_tracer_provider()
    broken_one = Broken(exporter)
    provider.add_span_processor(broken_one)
    try:
        app = served(ScriptedProvider("fine"))
        async with app.lifespan():
            answer = await ask(app, "POST", "/agui/default", run_input("t-broken", "r1", "hi"))
            assert "fine" in answer.body.decode()
            assert (await ask(app, "GET", "/v1/runs/r1")).json()["status"] == "completed"
    finally:
        several = provider._active_span_processor
        several._span_processors = tuple(
            [each for each in several._span_processors if each is not broken_one]
        )

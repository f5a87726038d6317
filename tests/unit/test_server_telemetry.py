"""Runs as OpenTelemetry spans (SV-260), through the SDK that a host would set up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from asgikit import Connection, ask, run_input, served
from pilothouse.journal.memory import MemoryJournal
from pilothouse.loop.tools import tool
from pilothouse.messages import Usage
from pilothouse.testing.scripted import Hold, ScriptedProvider, call, failure


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
    (request,) = found["POST /agui/{agent}"]
    assert request.kind is trace.SpanKind.SERVER
    assert request.parent is None
    assert request.attributes["http.response.status_code"] == 200
    assert root.parent.span_id == request.context.span_id
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


TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


async def requests(exporter: InMemorySpanExporter, name: str, count: int = 1) -> list[ReadableSpan]:
    """The ended spans of a name, once there are so many."""
    async with asyncio.timeout(10):
        while len(found := [span for span in exporter.get_finished_spans() if span.name == name]) < count:
            await asyncio.sleep(0)
    return found


async def test_a_run_stands_in_the_trace_of_who_asked_for_it_and_keeps_it(
    exporter: InMemorySpanExporter,
) -> None:
    """SV-260: `traceparent` is honoured and stored; a malformed one is nobody's."""
    journal = MemoryJournal()
    app = served(ScriptedProvider("a", "b"), journal=journal)
    given = f"00-{TRACE}-{PARENT}-01"
    async with app.lifespan():
        for number, headers in enumerate(({"traceparent": given}, {"traceparent": "00-zz\r\nx: y"})):
            body = run_input(f"t-asked{number}", f"r-asked{number}", "hi")
            await ask(app, "POST", "/agui/default", body, headers=headers)
        first, second = await requests(exporter, "POST /agui/{agent}", 2)
        found = await ended(exporter, "t-asked0")
    assert f"{first.context.trace_id:032x}" == TRACE
    assert f"{first.parent.span_id:016x}" == PARENT
    assert second.parent is None
    (root,) = found["invoke_agent default"]
    assert root.parent.span_id == first.context.span_id
    kept = (await journal.head("r-asked0")).registration.spec.extensions["server/trace"]
    assert kept["traceparent"] == given
    assert kept["segment"] == f"00-{TRACE}-{root.context.span_id:016x}-{int(root.context.trace_flags):02x}"
    assert "traceparent" not in (await journal.head("r-asked1")).registration.spec.extensions["server/trace"]


async def test_a_request_says_its_route_and_how_it_ended(exporter: InMemorySpanExporter) -> None:
    """SV-260: the template, never an id; health is no request; what was refused says with what."""
    app = served(ScriptedProvider("a"))
    async with app.lifespan():
        await ask(app, "GET", "/healthz")
        await ask(app, "GET", "/v1/runs/secret-name")
        (asked,) = await requests(exporter, "GET /v1/runs/{run}")
    assert asked.attributes["http.response.status_code"] == 404
    assert asked.attributes["http.route"] == "/v1/runs/{run}"
    assert "error.type" not in asked.attributes
    assert not any("secret-name" in span.to_json() for span in exporter.get_finished_spans())
    assert len(exporter.get_finished_spans()) == 1


async def test_a_request_that_the_host_traces_stands_in_its_span(exporter: InMemorySpanExporter) -> None:
    """SV-260: the host's span is the request's; ours is in it."""
    app = served(ScriptedProvider("a"))
    async with app.lifespan():
        with trace.get_tracer("host").start_as_current_span("host request") as host:
            await ask(app, "GET", "/v1/agents", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
        (asked,) = await requests(exporter, "GET /v1/agents")
    assert asked.kind is trace.SpanKind.INTERNAL
    assert asked.parent.span_id == host.get_span_context().span_id


async def test_a_refused_run_leaves_no_segment(exporter: InMemorySpanExporter) -> None:
    """SV-260: what never was is not told."""
    hold = Hold()
    app = served(ScriptedProvider(["half ", hold]), when_busy="raise")
    async with app.lifespan():
        async with Connection(
            app, "POST", "/agui/default", json_body=run_input("t-busy", "r1", "go")
        ) as live:
            await live.seen("half ")
            refused = await ask(app, "POST", "/agui/default", run_input("t-busy", "r2", "go"))
            assert refused.status == 409
            await ask(app, "POST", "/v1/runs/r1/cancel")
            await live.ended()
        found = await ended(exporter, "t-busy")
        assert len(found["invoke_agent default"]) == 1
        assert not app._served.traces._begun


async def test_a_run_that_another_process_takes_up_links_to_where_it_was(
    exporter: InMemorySpanExporter,
) -> None:
    """SV-260: a recovered segment links to the one before the restart, in whichever process that was."""
    journal, hold = MemoryJournal(), Hold()
    first = served(ScriptedProvider(["half ", hold]), journal=journal)
    async with (
        first.lifespan(),
        Connection(first, "POST", "/agui/default", json_body=run_input("t-over", "r1", "go")) as live,
    ):
        await live.seen("half ")
        assert (await first.drain(0.0)).handed_over == ("r1",)
    second = served(ScriptedProvider("whole"), journal=journal)
    async with second.lifespan():
        found = await ended(exporter, "t-over", 2)
    before, after = found["invoke_agent default"]
    assert before.attributes["error.type"] == "unknown"
    assert [link.context.span_id for link in after.links] == [before.context.span_id]
    assert after.parent is None

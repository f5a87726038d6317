"""The application around the faces: construction, mounting, health, the page (SV-1 … SV-4, SV-220)."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Mount

from asgikit import Connection, ask, run_input, served
from pilothouse.conversation.controller import AgentController
from pilothouse.errors import ConfigError, JournalUnavailable
from pilothouse.journal.memory import MemoryJournal
from pilothouse.server import run as running
from pilothouse.server.app import Server
from pilothouse.server.page import Page
from pilothouse.server.problems import Problem
from pilothouse.server.routes import Routes, raw_path
from pilothouse.testing.scripted import Hold, ScriptedProvider

POST = ("POST", "/agui/default")


def test_a_server_needs_an_agent_and_known_faces() -> None:
    with pytest.raises(ConfigError, match="at least one agent"):
        Server({}, journal=MemoryJournal())
    with pytest.raises(ConfigError, match="no face 'soap'"):
        served(ScriptedProvider(), faces=("soap",))


def test_without_a_journal_it_warns(caplog: pytest.LogCaptureFixture) -> None:
    """§2: memory, with a warning; the definition's own journal is taken without one."""
    Server({"default": AgentController(ScriptedProvider())})
    assert "kept in memory" in caplog.text
    caplog.clear()
    journal = MemoryJournal()
    app = Server({"default": AgentController(ScriptedProvider(), journal=journal)})
    assert caplog.text == ""
    assert app._served.journal is journal


async def test_a_definition_is_a_template() -> None:
    """SV-1: its own conversation is never served."""
    template = AgentController(ScriptedProvider("a"))
    app = Server({"default": template}, journal=MemoryJournal(), drain_timeout=0.0)
    async with app.lifespan():
        await ask(app, *POST, run_input("t1", "r1", "hi"))
        assert template.messages == ()


async def test_a_factory_makes_a_conversation_for_each_thread() -> None:
    """SV-1, SV-14: given for whom and for what."""
    seen = []

    def make(context) -> AgentController:
        seen.append((context.principal.id, context.thread_id, context.run_id, dict(context.forwarded_props)))
        return AgentController(ScriptedProvider(f"for {context.thread_id}"))

    app = Server({"default": make}, journal=MemoryJournal(), drain_timeout=0.0)
    async with app.lifespan():
        answer = await ask(app, *POST, run_input("t1", "r1", "hi", forwardedProps={"theme": "dark"}))
        assert answer.text == "for t1"
        assert seen[-1] == ("local", "t1", "r1", {"theme": "dark"})


async def test_two_agents_share_a_journal_and_keep_apart() -> None:
    """The name is the binding: each run is shown with its own agent."""
    app = Server(
        {
            "one": AgentController(ScriptedProvider("from one")),
            "two": AgentController(ScriptedProvider("from two")),
        },
        journal=MemoryJournal(),
        drain_timeout=0.0,
    )
    async with app.lifespan():
        for name in ("one", "two"):
            answer = await ask(app, "POST", f"/agui/{name}", run_input(f"t-{name}", f"r-{name}", "hi"))
            assert answer.text == f"from {name}"
            assert (await ask(app, "GET", f"/v1/runs/r-{name}")).json()["agent"] == name
        assert {item["agent"] for item in (await ask(app, "GET", "/v1/runs")).json()["items"]} == {
            "one",
            "two",
        }
        only = (await ask(app, "GET", "/v1/runs?agent=two")).json()["items"]
        assert [item["run_id"] for item in only] == ["r-two"]
        assert [item["name"] for item in (await ask(app, "GET", "/v1/agents")).json()["items"]] == [
            "one",
            "two",
        ]


async def test_mounted_under_a_prefix_its_addresses_honour_it() -> None:
    """SV-2: in a Starlette app, with a lifespan of the host's."""
    inner = served(ScriptedProvider("a", "b"))
    outer = Starlette(routes=[Mount("/pilot", app=inner)], lifespan=lambda _: inner.lifespan())
    async with outer.router.lifespan_context(outer):
        made = await ask(outer, "POST", "/pilot/v1/runs", {"run_id": "r1", "input": "hi"})
        assert made.headers["location"] == "/pilot/v1/runs/r1"
        answer = await ask(outer, "POST", "/pilot/agui/default", run_input("t2", "r2", "hi"))
        assert answer.text in ("a", "b")
        assert (await ask(outer, "GET", "/pilot/")).status == 200
        assert (await ask(outer, "GET", "/pilot/healthz")).body == b"ok"


async def test_without_its_lifespan_it_starts_on_the_first_request(caplog: pytest.LogCaptureFixture) -> None:
    """SV-2: and says once that it cannot drain."""
    app = served(ScriptedProvider("a"))
    for _ in range(2):
        assert (await ask(app, "GET", "/healthz")).status == 200
    assert caplog.text.count("cannot drain") == 1
    await app.drain()


async def test_inside_a_hosts_gzip_a_stream_is_not_compressed() -> None:
    """SV-40."""
    inner = served(ScriptedProvider("a" * 5000))
    outer = Starlette(routes=[Mount("/", app=inner)], middleware=[Middleware(GZipMiddleware)])
    async with inner.lifespan():
        answer = await ask(outer, *POST, run_input("t1", "r1", "hi"), headers={"accept-encoding": "gzip"})
        assert "content-encoding" not in answer.headers
        assert answer.text == "a" * 5000


@pytest.mark.parametrize("cut", ["drop", "error"])
async def test_base_http_middleware_turns_a_cut_into_a_clean_close(cut: str) -> None:
    """SV-58: pinned, with both settings: only `cut="error"` tells such a host's clients that it was none."""
    from pilothouse.server.settings import StreamOptions

    class Passing(BaseHTTPMiddleware):
        async def dispatch(self, request, call_next):
            return await call_next(request)

    inner = served(ScriptedProvider(["a", Hold()]), streams=StreamOptions(cut=cut))
    outer = Starlette(routes=[Mount("/", app=inner)], middleware=[Middleware(Passing)])
    await inner.start()
    async with Connection(outer, *POST, json_body=run_input("t1", "r1", "hi")) as stream:
        await stream.seen("a")
        await inner.drain(0.0)
        await stream.ended()
        if cut == "error":
            assert stream.events[-1]["code"] == "stream_cut"
        else:
            assert stream.events[-1]["name"] == "pilothouse.cut"


async def test_readiness_asks_the_journal() -> None:
    """SV-220: 503 while it does not answer; names, versions and counts stay out of it."""

    class Away(MemoryJournal):
        async def head(self, run_id):
            raise JournalUnavailable("the disk of host db-7 is gone")

    app = served(ScriptedProvider(), journal=Away())
    await app.start()
    answer = await ask(app, "GET", "/readyz")
    assert answer.status == 503
    assert b"db-7" not in answer.body
    assert (await ask(app, "GET", "/healthz")).body == b"ok"


async def test_the_page_that_was_not_built_says_how(tmp_path: Path) -> None:
    page = Page(tmp_path)

    async def app(scope, receive, send):
        await page(scope, receive, send, scope["path"])

    answer = await ask(app, "GET", "/")
    assert answer.status == 200
    assert b"./dev page" in answer.body
    (tmp_path / "index.html").write_text("<!doctype html><title>built</title>")
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "a-1234.js").write_text("1")
    page = Page(tmp_path)
    answer = await ask(app, "GET", "/")
    assert b"built" in answer.body
    assert answer.headers["cache-control"] == "no-cache"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    answer = await ask(app, "GET", "/assets/a-1234.js")
    assert "immutable" in answer.headers["cache-control"]
    async with Connection(app, "GET", "/assets/../../secret") as missing:
        await missing.ended()
        assert isinstance(missing.error, Problem)


async def test_requests_are_logged_without_what_they_say(caplog: pytest.LogCaptureFixture) -> None:
    """SV-263: method, template, status, duration, run; no query, no token, no body, and one line for each request."""
    caplog.set_level(logging.INFO, "pilothouse.access")
    app = served(ScriptedProvider("a"))
    async with app.lifespan():
        await ask(app, "GET", "/v1/runs/my-run?secret=1", headers={"authorization": "Bearer secret"})
        await ask(app, "GET", "/v1/runs/a%0a200%20forged")
        await ask(app, "POST", "/agui/default", run_input("t1", "r1", "secret"))
        await ask(app, "GET", "/v1/agents")
    lines = [record.getMessage() for record in caplog.records if record.name == "pilothouse.access"]
    assert [re.sub(r"\d+ ms", "# ms", line) for line in lines] == [
        "GET /v1/runs/{run} 404 # ms my-run",
        "GET /v1/runs/{run} 404 # ms -",
        "POST /agui/{agent} 200 # ms r1",
        "GET /v1/agents 200 # ms -",
    ]


async def test_two_servers_in_one_process_do_not_see_each_other() -> None:
    """SV-3: no module state, no threads of our own: runs, streams, threads and figures are each one's."""
    hold = Hold()
    threads = threading.active_count()
    template = AgentController(ScriptedProvider(["half ", hold], "other"))
    one, two = (Server({"default": template}, journal=MemoryJournal(), drain_timeout=0.0) for _ in range(2))
    async with one.lifespan(), two.lifespan():
        async with Connection(one, "POST", "/agui/default", json_body=run_input("t1", "r1", "go")) as live:
            await live.seen("half ")
            assert (len(one.registry), len(two.registry)) == (1, 0)
            assert (await ask(two, "GET", "/v1/runs/r1")).status == 404
            mine = await ask(two, "POST", "/agui/default", run_input("t1", "r1", "go"))
            assert mine.text == "other"
            assert b'runs_live{agent="default"} 1.0' in (await ask(one, "GET", "/metrics")).body
            assert b'runs_live{agent="default"} 0.0' in (await ask(two, "GET", "/metrics")).body
            await two.drain(0.0)
            assert (await ask(one, "GET", "/readyz")).status == 200
            hold.release()
            await live.ended()
        assert threading.active_count() == threads


async def test_what_becomes_of_a_run_that_nobody_follows_can_differ_by_face() -> None:
    """SV-60: a mapping sets it for each face; the others go on."""
    app = served(
        ScriptedProvider(["half ", Hold()], repeat=True),
        on_disconnect={"agui": "cancel", "control": "continue"},
    )
    async with app.lifespan():
        for path, run in (("/agui/default", "r1"), ("/copilotkit/agent/default/run", "r2")):
            async with Connection(app, "POST", path, json_body=run_input(run, run, "go")) as live:
                await live.seen("half ")
        events = {"accept": "text/event-stream"}
        async with Connection(app, "GET", "/v1/runs/r2/events", headers=events) as raw:
            await raw.until(lambda: raw.frames)
        assert (await ask(app, "GET", "/v1/runs/r1?wait=10")).json()["status"] == "cancelled"
        assert (await ask(app, "GET", "/v1/runs/r2")).json()["status"] == "running"
    with pytest.raises(ConfigError, match="no face 'agiu'"):
        served(ScriptedProvider(), on_disconnect={"agiu": "cancel"})


def test_routes_decode_segments_after_the_split() -> None:
    """SV-13: an id may hold a slash."""

    async def handler(call):
        raise AssertionError

    routes = Routes()
    routes.add("GET", "/v1/runs/{run}/events", handler)
    assert routes.find("GET", "/v1/runs/a%2Fb%20c/events").params == {"run": "a/b c"}
    assert routes.find("HEAD", "/v1/runs/x/events") is not None
    assert routes.find("GET", "/v1/runs//events") is None
    with pytest.raises(Problem) as caught:
        routes.find("POST", "/v1/runs/x/events")
    assert caught.value.headers["Allow"] == "GET"
    assert raw_path({"path": "/p/v1/é", "root_path": "/p"}) == "/v1/%C3%A9"


async def test_other_addresses_need_an_authenticator() -> None:
    """SV-17: `serve` refuses to open to others by accident; an occupied port is one line."""
    app = served(ScriptedProvider())
    with pytest.raises(ConfigError, match="open to other machines"):
        await running.serve_forever(app, "0.0.0.0", 0)
    with running.listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="choose another with --port"):
            await running.serve_forever(app, "127.0.0.1", port)
    with pytest.raises(ConfigError, match="no port"):
        running.listen("127.0.0.1", 99999)


async def test_a_queued_send_that_is_refused_ends_its_stream_with_the_code() -> None:
    """SV-116: the stream was opened already."""
    hold = Hold()
    app = served(ScriptedProvider(["a", hold]))
    await app.start()
    async with Connection(app, *POST, json_body=run_input("t1", "r1", "one")) as first:
        await first.seen("a")
        body = run_input("t1", "r2", "two", forwardedProps={"pilothouse": {"when_busy": "queue"}})
        async with Connection(app, *POST, json_body=body) as second:
            await second.started()
            hold.release()
            await first.ended()
            await second.ended()
            assert second.events[-1]["type"] == "RUN_ERROR"
    await app.drain()
    await asyncio.sleep(0)

"""Charts in a conversation, and the child process that draws them (CH, proof 19)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any

import altair as alt
import psutil
import pytest

from datakit import sqlite_place
from pilothouse import AgentController, SQLiteJournal
from pilothouse.controllers import ChartController, ChartState
from pilothouse.controllers.chart.data import value_of
from pilothouse.controllers.chart.renderer import Renderer, RenderFailed
from pilothouse.errors import ConfigError, ToolError, UsageError
from pilothouse.testing.scripted import ScriptedProvider, call

SALES = """
CREATE TABLE sales (region TEXT, day DATE, amount DECIMAL(10, 2), empty INTEGER);
INSERT INTO sales VALUES ('CANARY-north', '2026-01-01', 10.5, NULL), ('south', '2026-02-01', 20, NULL);
"""
QUERY = "SELECT region, SUM(amount) AS total FROM sales GROUP BY region ORDER BY region"
SPEC = {
    "mark": "bar",
    "encoding": {
        "x": {"field": "region", "type": "nominal"},
        "y": {"field": "total", "type": "quantitative"},
    },
}


@pytest.fixture
async def chart(tmp_path: Path) -> AsyncIterator[ChartController]:
    async with ChartController(sqlite_place(tmp_path, SALES).source) as made:
        yield made


def results(provider: ScriptedProvider) -> list[str]:
    return [message.text for message in provider.requests[-1].messages if message.role == "tool"]


async def test_data_and_spec_make_a_chart_that_the_model_does_not_see(
    chart: ChartController, tmp_path: Path
) -> None:
    """CH-1, CH-5, SQ-16: staged in two calls, committed at the end, drawn by the host, back after a restart."""
    journal = SQLiteJournal(tmp_path / "chat.db")
    provider = ScriptedProvider(
        [call("chart__spec", {"spec": SPEC})],
        [call("chart__data", {"query": QUERY})],
        [call("chart__spec", {"spec": SPEC})],
        [call("chart__state")],
        "Here it is.",
    )
    async with AgentController(provider, controllers=[chart], journal=journal, thread_id="t") as agent:
        await (await agent.send("draw sales by region")).result()
        assert chart.spec == SPEC
        assert chart.rows == ({"region": "CANARY-north", "total": 10.5}, {"region": "south", "total": 20})
        early, data, drawn, state = results(provider)
        assert "no data yet" in early
        assert json.loads(data)["rows"] == 2
        assert json.loads(drawn)["drawn"] is True
        assert "pending" in state
        for request in provider.requests:
            assert "CANARY" not in "".join(message.text for message in request.messages)
        assert agent.shared_state["chart"]["spec"] == SPEC
    png = await chart.render("png", scale=2)
    assert png.startswith(b"\x89PNG")
    svg = (await chart.render("svg")).decode()
    assert "CANARY-north" in svg
    assert (await chart.render("pdf")).startswith(b"%PDF")
    assert (await chart.exports["svg"]({})).data.decode() == svg
    assert json.loads((await chart.exports["spec"]({})).data)["data"]["values"][1]["region"] == "south"
    for bad in ({"scale": "0"}, {"scale": "nan"}, {"scale": "x"}, {"scale": "1000"}, {"width": "3"}):
        with pytest.raises(ValueError):
            await chart.exports["png"](bad)
    async with ChartController(str(tmp_path / "data.db")) as again:
        async with AgentController(ScriptedProvider(), controllers=[again], journal=journal, thread_id="t"):
            assert again.spec == SPEC
            assert len(again.rows) == 2
    await journal.aclose()


BAD: list[tuple[Any, str]] = [
    ({"mark": "barr", "encoding": SPEC["encoding"]}, "mark: "),
    ({**SPEC, "encoding": {"xx": {"field": "region"}}}, "encoding: Additional properties"),
    ({**SPEC, "encoding": {"x": {"field": "region", "type": "nominall"}}}, "encoding.x.type: "),
    (
        {**SPEC, "encoding": {"x": {"field": "nosuch", "type": "nominal"}}},
        "encoding.x.field: there is no field",
    ),
    ({**SPEC, "data": {"url": "http://127.0.0.1/x"}}, "data: the data comes from the query"),
    ({**SPEC, "transform": [{"calculate": "datum.a +", "as": "c"}]}, "does not compile"),
    ({"encoding": SPEC["encoding"]}, "spec: "),
    ("nonsense", "no JSON object"),
]


async def test_a_bad_spec_is_told_with_its_place_and_changes_nothing(chart: ChartController) -> None:
    """CH-2: each check in its order; the model can mend it in the same send."""
    await chart.set(ChartState(QUERY, SPEC))
    before = chart.state
    provider = ScriptedProvider(*[[call("chart__spec", {"spec": spec})] for spec, _ in BAD], "Sorry.")
    async with AgentController(provider, controllers=[chart]) as agent:
        await (await agent.send("x")).result()
    for (spec, words), told in zip(BAD, results(provider), strict=True):
        assert words in told, spec
        assert len(told.splitlines()) <= 5
    assert chart.state is before


async def test_data_under_a_spec_that_no_longer_fits(chart: ChartController) -> None:
    """CH-5: said by the tool; if the send ends so, the commit fails and the last chart stands."""
    await chart.set(ChartState(QUERY, SPEC))
    provider = ScriptedProvider([call("chart__data", {"query": "SELECT region, empty FROM sales"})], "Done.")
    async with AgentController(provider, controllers=[chart]) as agent:
        reply = await agent.send("x")
        await reply.wait()
        assert reply.outcome is not None
        assert (reply.outcome.kind, reply.outcome.code) == ("commit", "chart")  # type: ignore[union-attr]
    assert "there is no field 'total'" in results(provider)[0]
    assert chart.spec == SPEC
    assert len(chart.rows) == 2


async def test_rows_names_and_nulls(tmp_path: Path) -> None:
    """CH-4, CH-6, CH-12: too many rows, names that are paths, a measure without values, no rows."""
    place = sqlite_place(tmp_path, SALES)
    async with ChartController(place.source, row_limit=1) as chart:
        provider = ScriptedProvider(
            [
                call("chart__data", {"query": QUERY}),
                call("chart__data", {"query": 'SELECT COUNT(*) AS "a.b" FROM sales'}),
            ],
            "ok",
        )
        async with AgentController(provider, controllers=[chart]) as agent:
            await (await agent.send("x")).result()
        assert "has 2 rows, a chart has at most 1" in results(provider)[0]
        assert "'a.b'" in results(provider)[1]
    async with ChartController(place.source) as chart:
        spec = {
            "mark": "bar",
            "encoding": {"x": {"field": "region"}, "y": {"field": "empty", "type": "quantitative"}},
        }
        provider = ScriptedProvider(
            [call("chart__data", {"query": "SELECT region, empty FROM sales"})],
            [call("chart__spec", {"spec": spec})],
            "ok",
            [call("chart__data", {"query": "SELECT region, empty FROM sales WHERE region = 'x'"})],
            "ok",
        )
        async with AgentController(provider, controllers=[chart]) as agent:
            await (await agent.send("x")).result()
            assert "null in every row" in results(provider)[-1]
            await (await agent.send("y")).result()
        assert chart.rows == ()
        assert b"<svg" in await chart.render("svg")


async def drawn_in(zone: str, *days: str) -> str:
    """A chart of days as a reader in that time zone draws it."""
    spec = {
        "mark": "point",
        "encoding": {"x": {"timeUnit": "yearmonthdate", "field": "d", "type": "ordinal"}},
        "data": {"values": [{"d": day} for day in days]},
    }
    question = {"do": "render", "spec": spec, "format": "svg", "scale": 1, "max_area": 1e9}
    data = json.dumps(question).encode()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pilothouse.controllers.chart.worker",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env={**os.environ, "TZ": zone},
    )  # fmt: skip
    told, _ = await process.communicate(struct.pack(">I", len(data)) + data)
    return base64.b64decode(json.loads(told[4:])["data"]).decode()


async def test_dates_are_drawn_on_their_day_in_every_zone() -> None:
    """CH-7: a date without a zone is the same day for each reader; a bare one is drawn a day early in the west."""
    day = value_of(date(2026, 1, 1))
    zones = ("UTC", "America/Los_Angeles", "Asia/Tokyo", "Pacific/Kiritimati")
    *drawn, bare = await asyncio.gather(
        *[drawn_in(zone, str(day)) for zone in zones], drawn_in("America/Los_Angeles", "2026-01-01")
    )
    for svg, zone in zip(drawn, zones, strict=True):
        assert "Jan 01" in svg, zone
        assert "Dec 31" not in svg, zone
    assert "Dec 31" in bare, "the observation that the rule rests on no longer holds"


async def test_a_page_of_a_chart_loads_nothing_and_runs_no_text_of_the_data(tmp_path: Path) -> None:
    """CH-11: values are text, never HTML; the scripts are in the page."""
    script = (
        "CREATE TABLE t (a TEXT, b INTEGER); INSERT INTO t VALUES ('</script><script>alert(1)</script>', 1)"
    )
    async with ChartController(sqlite_place(tmp_path, script).source) as chart:
        await chart.set(ChartState("SELECT a, b FROM t", {"mark": "bar", "encoding": {"x": {"field": "a"}}}))
        page = (await chart.render("html")).decode()
    assert "</script><script>alert" not in page
    assert "<script src=" not in page


async def test_a_chart_of_altair_may_be_given(chart: ChartController) -> None:
    """CH-10: its own data is left out."""
    with pytest.raises(UsageError, match="no query yet"):
        await chart.set(alt.Chart().mark_bar())
    await chart.set(ChartState(QUERY))
    assert chart.spec is None
    with pytest.raises(UsageError, match="no chart yet"):
        chart.full_spec()
    await chart.set(alt.Chart().mark_line().encode(x="region:N", y="total:Q"))
    assert chart.spec is not None
    assert chart.spec["mark"] == {"type": "line"}
    with pytest.raises(ToolError, match="no field 'nosuch'"):
        await chart.set(alt.Chart().mark_line().encode(x="nosuch:N"))
    with pytest.raises(TypeError, match="ChartState"):
        await chart.set(3)


# The child


def slow_spec(bars: int) -> dict[str, Any]:
    values = [{"a": f"n{at}", "b": at} for at in range(bars)]
    return {
        **SPEC,
        "data": {"values": values},
        "encoding": {"x": {"field": "a", "type": "nominal"}, "y": {"field": "b", "type": "quantitative"}},
    }


async def test_a_slow_chart_is_killed_at_its_limit_and_the_loop_goes_on() -> None:
    """CH-8, proof 19: the event loop lags < 100 ms (tenfold slack) meanwhile; the next chart works."""
    renderer = Renderer(timeout=30)
    await renderer.check(slow_spec(1))
    renderer._timeout = 1.0
    lags: list[float] = []

    async def watch() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            lags.append(time.monotonic() - began - 0.01)

    watching = asyncio.create_task(watch())
    began = time.monotonic()
    with pytest.raises(RenderFailed, match="longer than 1 s"):
        await renderer.render(slow_spec(20_000), "svg", scale=1, max_area=1e12, theme=None)
    assert time.monotonic() - began < 10
    watching.cancel()
    assert max(lags) < 1.0
    renderer._timeout = 30
    assert b"<svg" in await renderer.render(slow_spec(3), "svg", scale=1, max_area=1e12, theme=None)
    with pytest.raises(ValueError, match="smaller scale"):
        await renderer.render(slow_spec(3), "png", scale=100, max_area=1e6, theme=None)
    await renderer.aclose()


@pytest.mark.parametrize(
    ("transform", "seconds"),
    [
        ([{"calculate": "sequence(0, 100000000)", "as": "z"}, {"flatten": ["z"]}], 2.0),
        ([{"density": "b", "steps": 1e9}], 1.0),
    ],
    ids=["flatten", "density"],
)
async def test_a_spec_that_asks_for_more_than_there_is_ends_at_a_limit(
    transform: list[Any], seconds: float
) -> None:
    """CH-8, issue 7: rows out of nothing; by time or memory, the next chart works."""
    renderer = Renderer(timeout=30)
    assert await renderer.check(slow_spec(1)) == []
    renderer._timeout = seconds
    pid = renderer.pid
    assert pid is not None
    asked = asyncio.create_task(renderer.check({**slow_spec(3), "transform": transform}))
    most = 0
    while not asked.done():
        with contextlib.suppress(psutil.NoSuchProcess):
            most = max(most, psutil.Process(pid).memory_info().rss)
        await asyncio.sleep(0.02)
    with pytest.raises(RenderFailed):
        await asked
    assert most < 3 * 1024**3
    renderer._timeout = 30
    assert await renderer.check(slow_spec(1)) == []
    await renderer.aclose()


async def test_the_child_can_be_killed_and_closed_at_any_time() -> None:
    """CH-8: killed in a chart, cancelled, closed in a chart; no process is left."""
    renderer = Renderer(timeout=60)
    await renderer.check(slow_spec(1))
    asked = asyncio.create_task(renderer.check(slow_spec(20_000)))
    pid = renderer.pid
    assert pid is not None
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RenderFailed, match="the renderer ended"):
        await asked
    assert await renderer.check(slow_spec(1)) == []
    asked = asyncio.create_task(renderer.check(slow_spec(20_000)))
    await asyncio.sleep(0)
    second = renderer.pid
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert await renderer.check(slow_spec(1)) == []
    third = renderer.pid
    asked = asyncio.create_task(renderer.check(slow_spec(20_000)))
    await asyncio.sleep(0)
    await renderer.aclose()
    with pytest.raises(RenderFailed):
        await asked
    await renderer.aclose()
    with pytest.raises(UsageError, match="closed"):
        await renderer.check(slow_spec(1))
    assert not any(found is not None and psutil.pid_exists(found) for found in (pid, second, third))


async def test_no_connection_is_opened() -> None:
    """CH-8: a listening socket that a spec with an address would reach hears nothing; the child has no key."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/x.json"
        renderer = Renderer(timeout=60)
        with pytest.raises(RenderFailed, match="cannot be drawn"):
            await renderer.render({**SPEC, "data": {"url": url}}, "svg", scale=1, max_area=1e9, theme=None)
        pictures = {
            "mark": {"type": "image"},
            "data": {"values": [{"u": url}]},
            "encoding": {"url": {"field": "u"}},
        }
        await renderer.render(pictures, "svg", scale=1, max_area=1e9, theme=None)
        with pytest.raises(BlockingIOError):
            listening.accept()
        await renderer.aclose()


def test_options_that_cannot_be(tmp_path: Path) -> None:
    """Bad input at construction."""
    source = sqlite_place(tmp_path, SALES).source
    for options in (
        {"row_limit": 0},
        {"render_timeout": -1},
        {"max_spec": 0},
        {"query_timeout": 0},
        {"tables": "sales"},
    ):
        with pytest.raises(ConfigError):
            ChartController(source, **options)  # type: ignore[arg-type]

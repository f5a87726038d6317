"""The SQL grid in a conversation: what the model sees, what the grid shows, what is kept (SQ, proof 12, 15, 17, 18)."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
import sqlalchemy

from datakit import KINDS, PLACES, Place, files, sqlite_place
from pilothouse import AgentController, MemoryJournal, SQLiteJournal
from pilothouse.controllers import ExportLimit, QueryFailed, QueryRefused, SQLGridController
from pilothouse.controllers.sql.cells import as_csv, as_json, described
from pilothouse.errors import ConfigError, UsageError
from pilothouse.testing.scripted import ScriptedProvider, call

CANARIES = """
CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, pay DECIMAL(12, 2));
INSERT INTO people VALUES (1, 'CANARY-Ada', 100.5), (2, 'CANARY-Bo', 200), (3, 'CANARY-Cy', 300);
"""


@pytest.fixture
def place(kind: str, tmp_path: Path) -> Iterator[Place]:
    made = PLACES[kind](tmp_path)
    yield made
    made.remove()


def results(provider: ScriptedProvider) -> list[Any]:
    """Texts of the tool results in the last request."""
    return [message.text for message in provider.requests[-1].messages if message.role == "tool"]


def asked(query: str, **more: Any) -> list[Any]:
    return [call("grid__query", {"query": query, **more})]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_model_chooses_and_the_grid_shows(place: Place) -> None:
    """SQ-16, SQ-18: the query is staged by the tool and shown when the send is complete; pages, totals, order."""
    async with SQLGridController(place.source, page_size=1) as grid:
        provider = ScriptedProvider(
            [call("grid__schema")],
            asked(
                "SELECT o.id, c.name, o.amount FROM orders o JOIN customers c ON c.id = o.customer ORDER BY o.id",
                title="Orders",
            ),
            "Done.",
        )
        async with AgentController(provider, controllers=[grid]) as agent:
            reply = await agent.send("show orders")
            await reply.result()
        schema, told = results(provider)
        assert "orders" in schema
        found = json.loads(told)
        assert found["rows"] == 2
        assert [column["name"] for column in found["columns"]] == ["id", "name", "amount"]
        assert "first rows" not in found
        view = grid.view
        assert view is not None
        assert (view.title, view.total, view.complete, len(view.rows)) == ("Orders", 2, True, 1)
        assert [(c.title, c.align) for c in view.columns] == [
            ("Id", "right"),
            ("Name", "left"),
            ("Amount", "right"),
        ]
        second = await grid.page(1)
        assert [row[1] for row in second.rows] == ["Bo"]
        assert not second.more
        backwards = await grid.page(0, limit=5, order_by=["-id"])
        assert [row[0] for row in backwards.rows] == [2, 1]
        with pytest.raises(ValueError, match="no column 'x'"):
            await grid.page(0, order_by=["x"])


async def test_no_value_of_any_row_reaches_the_model(tmp_path: Path) -> None:
    """TC-101, SQ-14, SQ-16, SQ-17, proof 17: results, errors, state and schema of a table whose every cell is a canary."""
    place = sqlite_place(tmp_path, CANARIES)
    async with SQLGridController(place.source) as grid:
        provider = ScriptedProvider(
            [
                call("grid__schema"),
                *asked("SELECT * FROM people"),
                *asked("SELECT name, name FROM people"),
                *asked("SELECT abs(name) AS a, nosuch FROM people"),
                *asked("SELECT json_extract(name, '$.x') AS j FROM people"),
                *asked(
                    "SELECT name AS n, date(name) AS d FROM people WHERE name LIKE 'CANARY%' GROUP BY pay"
                ),
            ],
            [call("grid__state")],
            "Done.",
        )
        async with AgentController(provider, controllers=[grid]) as agent:
            await (await agent.send("show people")).result()
            assert grid.view is not None
        for request in provider.requests:
            sent = msgspec.json.encode([[message.text for message in request.messages]]).decode()
            assert "CANARY-" not in sent
            assert "100.5" not in sent
        texts = results(provider)
        assert any("two columns are called 'name'" in text for text in texts)
        assert any("no such column: nosuch" in text for text in texts)
        assert any("the database refused the query (reference" in text for text in texts)


async def test_shared_rows_are_those_that_were_asked_for(tmp_path: Path) -> None:
    """SQ-16: `share_rows` of each result, cells cut at 200 characters."""
    place = sqlite_place(
        tmp_path, CANARIES + "UPDATE people SET name = printf('%.*c', 500, 'y') WHERE id = 1;"
    )
    async with SQLGridController(place.source, share_rows=2) as grid:
        provider = ScriptedProvider(asked("SELECT id, name FROM people ORDER BY id"), "Done.")
        async with AgentController(provider, controllers=[grid]) as agent:
            await (await agent.send("x")).result()
        found = json.loads(results(provider)[0])
        assert [row[0] for row in found["first rows"]] == [1, 2]
        assert len(found["first rows"][0][1]) == 200
        assert "CANARY-Cy" not in results(provider)[0]


async def test_a_failed_send_leaves_the_grid_as_it_was(tmp_path: Path) -> None:
    """TC-74 for the grid: staged, then the model's side fails."""
    from pilothouse.testing.scripted import failure

    place = sqlite_place(tmp_path)
    async with SQLGridController(place.source) as grid:
        provider = ScriptedProvider(
            asked("SELECT id FROM orders"), "ok", asked("SELECT name FROM customers"), failure("auth", "no")
        )
        async with AgentController(provider, controllers=[grid]) as agent:
            await (await agent.send("one")).result()
            before = grid.view
            await (await agent.send("two")).wait()
            assert grid.view is before
            assert agent.shared_state["grid"]["query"] == 'SELECT id FROM "orders"'


async def test_after_a_restart_the_query_is_run_again(tmp_path: Path) -> None:
    """SQ-18: rows are never persisted; a query that no longer works is kept without a view (TC-113)."""
    place = sqlite_place(tmp_path)
    journal = SQLiteJournal(tmp_path / "chat.db")
    async with SQLGridController(place.source) as grid:
        provider = ScriptedProvider(asked("SELECT id, note FROM orders ORDER BY id", title="T"), "ok")
        async with AgentController(provider, controllers=[grid], journal=journal, thread_id="t") as agent:
            await (await agent.send("one")).result()
    async with SQLGridController(place.source) as grid:
        async with AgentController(ScriptedProvider(), controllers=[grid], journal=journal, thread_id="t"):
            assert grid.view is not None
            assert [row[0] for row in grid.view.rows] == [1, 2]
            assert grid.view.title == "T"
    connection = apsw.Connection(place.source)
    connection.execute("ALTER TABLE orders DROP COLUMN note")
    connection.close()
    async with SQLGridController(place.source) as grid:
        async with AgentController(
            ScriptedProvider(), controllers=[grid], journal=journal, thread_id="t"
        ) as agent:
            assert grid.view is None
            assert grid.state is not None
            assert isinstance(agent.restore_errors["grid"], QueryRefused)
    await journal.aclose()


async def test_the_journals_file_is_refused_in_every_way_and_keeps_its_locks(tmp_path: Path) -> None:
    """SQ-1, proof 15: by path, link, URL and Engine; a grid beside a writing journal leaves it alone."""
    journal = SQLiteJournal(tmp_path / "chat.db")
    async with AgentController(ScriptedProvider("ok", "ok"), journal=journal) as agent:
        await (await agent.send("one")).result()
        link = tmp_path / "link.db"
        link.symlink_to(tmp_path / "chat.db")
        path = str(tmp_path / "chat.db")
        for source in (
            path,
            Path(path),
            link,
            f"sqlite:///{path}",
            sqlalchemy.create_engine(f"sqlite:///{path}"),
        ):
            with pytest.raises(ConfigError, match="journal of Pilothouse"):
                SQLGridController(source)
        writer = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
        writer.execute("BEGIN IMMEDIATE; ROLLBACK")
        writer.close()
        await (await agent.send("two")).result()
    await journal.aclose()


async def test_what_cannot_be_opened_is_said_at_construction(tmp_path: Path) -> None:
    """SQ-1, SQ-5: nothing is created."""
    (tmp_path / "text.db").write_text(
        "no database at all, but a text that is long enough to be looked at" * 20
    )
    with pytest.raises(ConfigError, match="there is no file"):
        SQLGridController(tmp_path / "missing.db")
    for source in (":memory:", "sqlite://", "sqlite:///:memory:", sqlalchemy.create_engine("sqlite://")):
        with pytest.raises(ConfigError, match="file"):
            SQLGridController(source)
    with pytest.raises(ConfigError, match="SQLite database"):
        SQLGridController(tmp_path / "text.db")
    with pytest.raises(ConfigError, match="read-only transactions"):
        SQLGridController(Unconnected("mssql"))
    with pytest.raises(ConfigError, match="give a path"):
        SQLGridController(7)  # type: ignore[arg-type]
    place = sqlite_place(tmp_path)
    with pytest.raises(ConfigError, match="there is no 'nosuch'"):
        SQLGridController(place.source, tables=["nosuch"])
    with pytest.raises(ConfigError, match="page_size"):
        SQLGridController(place.source, page_size=0)
    assert not (tmp_path / "missing.db").exists()


class Unconnected(sqlalchemy.Engine):
    """An Engine that is never connected, for a dialect whose driver is not here."""

    def __init__(self, name: str) -> None:
        self.dialect = sqlalchemy.dialects.registry.load(name)()
        self.url = sqlalchemy.make_url(f"{name}://host/db")


async def test_odd_file_names_and_read_only_folders(tmp_path: Path) -> None:
    """SQ-2: `%`, `?`, blanks; file and folder are byte-equal afterwards."""
    place = sqlite_place(tmp_path, name="a %20b?x#y.db")
    before = files(tmp_path)
    async with SQLGridController(place.source) as grid:
        await grid.set_query("SELECT COUNT(*) AS n FROM orders")
        assert grid.view is not None
        assert grid.view.rows == ((2,),)
    assert files(tmp_path) == before


@pytest.mark.parametrize("kind", KINDS)
async def test_pages_put_together_are_the_whole(place: Place, tmp_path: Path) -> None:
    """SQ-12, SQ-13, proof 18: order kept, duplicates, a trailing semicolon, comments, UNION, LIMIT inside; exports."""
    queries = [
        "SELECT a.id AS x, b.id AS y FROM orders a, orders b, customers c ORDER BY a.id DESC, b.id -- all\n;",
        "SELECT id FROM orders UNION ALL SELECT id FROM customers UNION ALL SELECT id FROM orders ORDER BY 1",
        "(SELECT id FROM orders ORDER BY id DESC LIMIT 1)"
        if place.kind != "sqlite"
        else "SELECT id FROM orders ORDER BY id DESC LIMIT 1",
        "WITH a AS (SELECT id FROM orders) SELECT a.id AS i, o.note FROM a JOIN orders o ON o.id = a.id ORDER BY i",
        "SELECT DISTINCT note FROM orders ORDER BY note",
        "SELECT id FROM orders WHERE id > 99",
    ]
    async with SQLGridController(place.source, page_size=2) as grid:
        for query in queries:
            await grid.set_query(query)
            view = grid.view
            assert view is not None
            whole = (await grid.page(0, limit=20)).rows
            pages: list[tuple[Any, ...]] = []
            while True:
                page = await grid.page(len(pages), limit=2)
                pages += page.rows
                if not page.more:
                    break
            assert tuple(pages) == whole, query
            assert view.total == len(whole), query
            await grid.to_csv(tmp_path / "out.csv")
            with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
                written = list(csv.reader(file))
            assert written[0] == [column.name for column in view.columns]
            assert written[1:] == [[as_csv(cell, escape_formulas=True) for cell in row] for row in whole], (
                query
            )
            frame = await grid.to_pandas()
            assert list(frame.columns) == written[0]
            assert len(frame) == len(await grid.to_polars()) == len(whole)


async def test_limits_of_rows_cells_columns_and_bytes(tmp_path: Path) -> None:
    """SQ-12, SQ-20: what is beyond is said, never silently left out."""
    rows = ", ".join(f"({at}, '{'x' * 300}')" for at in range(50))
    place = sqlite_place(tmp_path, f"CREATE TABLE t (id INTEGER, note TEXT); INSERT INTO t VALUES {rows}")
    async with SQLGridController(
        place.source, row_limit=20, page_size=10, max_cell=100, max_columns=3
    ) as grid:
        await grid.set_query("SELECT id, note FROM t ORDER BY id")
        view = grid.view
        assert view is not None
        assert (view.total, view.complete, len(view.rows)) == (50, False, 10)
        assert view.rows[0][1] == "x" * 100 + "…"
        assert view.cut[0] == (0, 1)
        last = await grid.page(15)
        assert (len(last.rows), last.more) == (5, False)
        assert (await grid.page(20)).rows == ()
        with pytest.raises(ExportLimit, match="more than 20 rows"):
            await grid.to_csv(tmp_path / "out.csv")
        assert not (tmp_path / "out.csv").exists()
        await grid.to_csv(tmp_path / "out.csv", limit=None)
        assert (tmp_path / "out.csv").read_text().count("\n") == 51
        with pytest.raises(Exception, match="4 columns, at most 3"):
            await grid.set_query("SELECT 1 AS a, 2 AS b, 3 AS c, 4 AS d")
        assert grid.view is view
    async with SQLGridController(place.source, max_bytes=1_000) as grid:
        await grid.set_query("SELECT id, note FROM t ORDER BY id")
        assert grid.view is not None
        assert 1 < len(grid.view.rows) < 10
        assert grid.view.total == 50


async def test_exports_by_name(tmp_path: Path) -> None:
    """TC-124: rows as a JSON page, csv; a bad parameter is a `ValueError`."""
    place = sqlite_place(tmp_path)
    async with SQLGridController(place.source) as grid:
        with pytest.raises(ValueError, match="shows nothing yet"):
            await grid.exports["rows"]({})
        await grid.set_query("SELECT id, amount, day FROM orders ORDER BY id")
        page = json.loads((await grid.exports["rows"]({"offset": "1", "limit": "5", "order_by": "-id"})).data)
        assert page["rows"] == [[1, 10.5, "2026-01-02"]]
        assert (page["total"], page["more"], page["complete"]) == (2, False, True)
        made = await grid.exports["csv"]({})
        assert made.media_type.startswith("text/csv")
        assert list(csv.reader(io.StringIO(made.data.decode())))[1] == ["1", "10.5", "2026-01-02"]
        for bad in ({"offset": "-1"}, {"limit": "0"}, {"limit": "x"}, {"order_by": "nosuch"}, {"what": "1"}):
            with pytest.raises(ValueError):
                await grid.exports["rows"](bad)


def test_cells_for_people_and_for_spreadsheets() -> None:
    """SQ-15, SQ-20: nothing that JavaScript reads as another number, nothing that a spreadsheet runs."""
    from datetime import date, datetime, time

    assert as_json(2**53 - 1) == 2**53 - 1
    assert as_json(2**53) == "9007199254740992"
    assert as_json(Decimal("1.10")) == "1.10"
    assert as_json(float("nan")) is None
    assert as_json(date(2026, 1, 2)) == "2026-01-02"
    assert as_json(b"abc") == {"type": "bytes", "size": 3}
    for text in ("=1+1", "+1", "-1", "@x", "\t=1", "\rx"):
        assert as_csv(text, escape_formulas=True) == f"'{text}"
        assert as_csv(text, escape_formulas=False) == text
    assert as_csv(-1.5, escape_formulas=True) == "-1.5"
    columns = described(
        [("total_pay", ""), ("Group.Name", ""), ("d", "TIMESTAMP")], [(1, "x", None), (2.5, None, None)]
    )
    assert [(c.title, c.type, c.align, c.group) for c in columns] == [
        ("Total pay", "float", "right", None),
        ("Name", "text", "left", "Group"),
        ("D", "datetime", "left", None),
    ]
    assert described([("a", "")], [(1,), ("x",)])[0].type == "mixed"
    assert described([("a", "")], [(datetime(2026, 1, 1),)])[0].type == "datetime"  # noqa: DTZ001
    assert described([("a", "")], [(time(1),)])[0].type == "time"


async def test_closing_stops_what_runs(tmp_path: Path) -> None:
    """TC-68: bounded, idempotent; afterwards nothing can be asked."""
    place = sqlite_place(tmp_path)
    grid = SQLGridController(place.source, query_timeout=60)
    running = asyncio.create_task(
        grid.set_query(
            "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT COUNT(*) AS n FROM r"
        )
    )
    while grid._reader._schema is None or not grid._reader.source._hands._busy:  # type: ignore[attr-defined]
        await asyncio.sleep(0)
    await grid.aclose()
    with pytest.raises(QueryFailed):
        await running
    await grid.aclose()
    with pytest.raises(UsageError, match="closed"):
        await grid.set_query("SELECT 1 AS a")


async def test_two_grids_of_one_agent_keep_their_names_apart(tmp_path: Path) -> None:
    """TC-105: two targets are two controllers."""
    place = sqlite_place(tmp_path)
    async with (
        SQLGridController(place.source, namespace="left") as left,
        SQLGridController(place.source, namespace="right") as right,
    ):
        provider = ScriptedProvider(
            [
                call("left__query", {"query": "SELECT id FROM orders"}),
                call("right__query", {"query": "SELECT name FROM customers"}),
            ],
            "ok",
        )
        async with AgentController(provider, controllers=[left, right], journal=MemoryJournal()) as agent:
            await (await agent.send("both")).result()
            assert left.view is not None
            assert right.view is not None
            assert left.view.columns[0].name == "id"
            assert right.view.columns[0].name == "name"
            assert set(agent.shared_state) == {"left", "right"}

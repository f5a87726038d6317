"""What a chart's spec may hold, and whether its fields exist (CH-2 to CH-4, proof 19)."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from pilothouse.controllers.chart.data import records, value_of
from pilothouse.controllers.chart.spec import bad_names, crowded, forbidden, parsed, refuse, unknown_fields
from pilothouse.errors import ToolError

COLUMNS = ["region", "day", "amount"]


def bar(**encoding: Any) -> dict[str, Any]:
    return {"mark": "bar", "encoding": encoding}


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"mark": "bar", "data": {"url": "x"}}, "data"),
        ({"layer": [{"mark": "bar", "data": {"values": []}}]}, "layer[0].data"),
        ({"mark": "bar", "datasets": {}}, "datasets"),
        ({"mark": {"type": "image"}}, "mark.type"),
        ({"mark": "geoshape"}, "mark"),
        (bar(href={"field": "region"}), "encoding.href"),
        (bar(url={"value": "x"}), "encoding.url"),
        ({"mark": "bar", "usermeta": {}}, "usermeta"),
        ({"mark": "bar", "$schema": "https://vega.github.io/schema/vega-lite/v5.json"}, "$schema"),
        (
            {"mark": "bar", "transform": [{"lookup": "region", "from": {"data": {"url": "x"}}}]},
            "transform[0].from.data",
        ),
        ({"mark": "bar", "width": 2001}, "width"),
        ({"mark": "bar", "height": -1}, "height"),
        ({"mark": "bar", "width": {"step": 201}}, "width.step"),
        ({"hconcat": [{"mark": "bar", "height": {"step": 0}}]}, "hconcat[0].height.step"),
        ({"mark": "bar", "transform": [{"calculate": "x" * 501, "as": "c"}]}, "transform[0].calculate"),
    ],
)
def test_forbidden_at_any_level_with_its_path(spec: dict[str, Any], path: str) -> None:
    """CH-2b, CH-9."""
    assert path in [found.path for found in forbidden(spec, (2000, 2000))]


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (bar(x={"field": "regoin"}), "encoding.x.field"),
        (bar(x={"field": "region", "sort": {"field": "nosuch"}}), "encoding.x.sort.field"),
        (bar(tooltip=[{"field": "region"}, {"field": "nosuch"}]), "encoding.tooltip[1].field"),
        (
            bar(color={"condition": {"param": "p", "field": "nosuch"}, "value": "red"}),
            "encoding.color.condition.field",
        ),
        (bar(y={"aggregate": {"argmax": "nosuch"}, "field": "amount"}), "encoding.y.aggregate.argmax"),
        ({"facet": {"row": {"field": "nosuch"}}, "spec": bar(x={"field": "region"})}, "facet.row.field"),
        ({"facet": {"field": "region"}, "spec": bar(x={"field": "nosuch"})}, "spec.encoding.x.field"),
        ({"repeat": ["amount", "nosuch"], "spec": bar(x={"field": {"repeat": "repeat"}})}, "repeat[1]"),
        ({"repeat": {"row": ["nosuch"]}, "spec": bar()}, "repeat.row[0]"),
        ({"layer": [bar(x={"field": "region"}), bar(x={"field": "nosuch"})]}, "layer[1].encoding.x.field"),
        ({"hconcat": [bar(x={"field": "nosuch"})]}, "hconcat[0].encoding.x.field"),
        ({"transform": [{"fold": ["amount", "nosuch"]}], **bar()}, "transform[0].fold[1]"),
        ({"transform": [{"filter": {"field": "nosuch", "equal": 1}}], **bar()}, "transform[0].filter.field"),
        (
            {"transform": [{"filter": {"and": [{"field": "nosuch", "gt": 1}]}}], **bar()},
            "transform[0].filter.and[0].field",
        ),
        (
            {
                "transform": [
                    {"aggregate": [{"op": "sum", "field": "nosuch", "as": "s"}], "groupby": ["region"]}
                ],
                **bar(),
            },
            "transform[0].aggregate[0].field",
        ),
        (
            {
                "transform": [
                    {"aggregate": [{"op": "sum", "field": "amount", "as": "s"}], "groupby": ["region"]}
                ],
                **bar(x={"field": "day"}),
            },
            "encoding.x.field",
        ),
        ({"transform": [{"pivot": "nosuch", "value": "amount"}], **bar()}, "transform[0].pivot"),
        (
            {"transform": [{"window": [{"op": "rank", "as": "r"}], "sort": [{"field": "nosuch"}]}], **bar()},
            "transform[0].sort[0].field",
        ),
        (
            {
                "layer": [
                    {"transform": [{"calculate": "1", "as": "c"}], **bar(x={"field": "c"})},
                    bar(y={"field": "c"}),
                ]
            },
            "layer[1].encoding.y.field",
        ),
    ],
)
def test_a_field_that_does_not_exist_is_found(spec: dict[str, Any], path: str) -> None:
    """CH-2d, CH-3: layered, faceted, repeated and concatenated; transforms make fields for what is below them."""
    assert [found.path for found in unknown_fields(spec, COLUMNS)] == [path]


@pytest.mark.parametrize(
    "spec",
    [
        bar(
            x={"field": "region", "sort": "-y"},
            y={"aggregate": "sum", "field": "amount"},
            color={"value": "red"},
        ),
        bar(x={"timeUnit": "month", "field": "day"}, y={"aggregate": "count"}),
        {"transform": [{"calculate": "datum.amount * 2", "as": "double"}], **bar(y={"field": "double"})},
        {"transform": [{"fold": ["amount"]}], **bar(x={"field": "key"}, y={"field": "value"})},
        {"transform": [{"density": "amount"}], **bar(x={"field": "value"}, y={"field": "density"})},
        {
            "transform": [{"regression": "amount", "on": "day"}],
            **bar(x={"field": "day"}, y={"field": "amount"}),
        },
        {"transform": [{"pivot": "region", "value": "amount"}], **bar(y={"field": "north"})},
        {
            "transform": [{"bin": True, "field": "amount", "as": ["lo", "hi"]}],
            **bar(x={"field": "lo"}, x2={"field": "hi"}),
        },
        {
            "transform": [{"joinaggregate": [{"op": "mean", "field": "amount", "as": "m"}]}],
            **bar(y={"field": "m"}, x={"field": "day"}),
        },
        {"transform": [{"stack": "amount", "groupby": ["day"], "as": ["a", "b"]}], **bar(y={"field": "a"})},
        {
            "transform": [{"window": [{"op": "rank", "as": "r"}], "sort": [{"field": "amount"}]}],
            **bar(y={"field": "r"}),
        },
        {"repeat": {"layer": ["amount"]}, "spec": bar(y={"field": {"repeat": "layer"}})},
        {"transform": [{"calculate": "1", "as": "c"}], "layer": [bar(x={"field": "c"})]},
    ],
)
def test_fields_that_exist_or_are_made_pass(spec: dict[str, Any]) -> None:
    """CH-2d."""
    assert unknown_fields(spec, COLUMNS) == []


def test_a_facet_of_many_values_is_too_many_views() -> None:
    """CH-9: thousands of views would hold up whoever opens the page."""
    rows: list[Any] = [{"region": f"r{at}", "kind": at % 3} for at in range(101)]
    for spec, path in (
        (bar(row={"field": "region"}), "encoding.row"),
        (bar(facet={"field": "region", "columns": 3}), "encoding.facet"),
        ({"facet": {"field": "region"}, "spec": bar()}, "facet"),
        ({"facet": {"column": {"field": "region"}}, "spec": bar()}, "facet.column"),
    ):
        assert [found.path for found in crowded(spec, rows)] == [path]
        assert crowded(spec, rows[1:]) == []
    assert crowded(bar(row={"field": "kind"}), rows) == []


def test_a_spec_is_one_object_of_bounded_size() -> None:
    """CH-2a: a text that holds one is parsed; three findings at most are told."""
    assert parsed('{"mark": "bar"}', 100) == {"mark": "bar"}
    assert parsed({"mark": "bar", "$schema": "https://vega.github.io/schema/vega-lite/v6.json"}, 100) == {
        "mark": "bar"
    }
    deep: Any = "x"
    for _ in range(41):
        deep = [deep]
    for bad in (
        "[1]",
        "{",
        "nonsense",
        [1],
        {"mark": "x" * 100},
        {"a": deep},
        {"a": float("nan")},
        "[" * 10_000,
    ):
        with pytest.raises(ToolError):
            parsed(bad, 100)
    with pytest.raises(ToolError) as told:
        refuse(forbidden({"url": 1, "data": 1, "href": 1, "usermeta": 1}, (1, 1)))
    assert str(told.value).count("\n- ") == 3


def test_column_names_that_would_be_paths() -> None:
    """CH-4."""
    assert bad_names(["a", "a b", "a.b", "a[0]", 'a"', "a\\b", ""]) == ["a.b", "a[0]", 'a"', "a\\b", ""]


def test_dates_without_a_zone_are_written_so_that_every_reader_sees_the_same_day() -> None:
    """CH-7."""
    zone = timezone(timedelta(hours=-5))
    assert value_of(date(2026, 1, 2)) == "2026-01-02T00:00:00"
    assert value_of(datetime(2026, 1, 2, 3, 4, 5)) == "2026-01-02T03:04:05"  # noqa: DTZ001
    assert value_of(datetime(2026, 1, 2, 3, tzinfo=zone)) == "2026-01-02T03:00:00-05:00"
    assert value_of(datetime(2026, 1, 2, tzinfo=UTC)) == "2026-01-02T00:00:00+00:00"
    assert value_of(Decimal("1.5")) == 1.5
    assert records(["a", "b"], [(1, None)]) == ({"a": 1, "b": None},)

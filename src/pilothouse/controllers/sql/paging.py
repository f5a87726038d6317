"""Pages, orders and counts of a query, made on its tree: text that is wrapped breaks on `;`, comments and order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .gate import Gate

if TYPE_CHECKING:
    from sqlglot import exp


def page_sql(
    gate: Gate,
    tree: exp.Query,
    *,
    offset: int,
    limit: int,
    order_by: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> str:
    """The query for one page of another query's result.

    LIMIT goes onto the query itself where it has none, so that its ORDER BY stays outermost; else around it.

    Args:
        gate: of the dialect.
        tree: what was checked; it is copied.
        offset: rows to leave out.
        limit: rows of the page.
        order_by: column names, `-name` for descending.
        columns: all column names of the result.

    Raises:
        ValueError: an order that names no column.
    """
    from sqlglot import exp

    copied: Any = tree.copy()
    if order_by:
        copied = _without_order(copied)
        copied = _around(copied)
        terms = []
        for given in order_by:
            descending = given.startswith("-") and given not in columns
            name = given[1:] if descending else given
            if name not in columns:
                raise ValueError(f"order_by: there is no column {name!r}")
            terms.append(exp.Ordered(this=exp.column(exp.to_identifier(name, quoted=True)), desc=descending))
        copied.set("order", exp.Order(expressions=terms))
    elif any(copied.args.get(key) for key in ("limit", "offset", "fetch")):
        copied = _around(copied)
    copied = copied.limit(limit, copy=False)
    if offset:
        copied = copied.offset(offset, copy=False)
    return gate.sql_of(copied)


def count_sql(gate: Gate, tree: exp.Query) -> str:
    """The query for the number of rows of another query."""
    from sqlglot import exp

    inner: Any = _without_order(tree.copy())
    counted: Any = exp.select(exp.alias_(exp.Count(this=exp.Star()), "n")).from_(_aliased(inner))
    return gate.sql_of(counted)


def _without_order(query: Any) -> Any:
    """Without an ORDER BY that only orders: one beside a LIMIT says which rows there are."""
    if not any(query.args.get(key) for key in ("limit", "offset", "fetch", "distinct")):
        query.set("order", None)
    return query


def _around(query: Any) -> Any:
    from sqlglot import exp

    return exp.select(exp.Star()).from_(_aliased(query))


def _aliased(query: Any) -> Any:
    from sqlglot import exp

    return exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier("q")))

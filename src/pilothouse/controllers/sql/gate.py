"""Judges a model's query before anything of it reaches a database.

The query is parsed into a tree, every node of the tree must be on a list of what reads and computes, every table must be
an exposed one, and what runs is text made from that tree, not the text that was given. Lists of what is allowed are
safer than lists of what is not: what nobody thought of is refused.

A database has guards of its own behind this one (read-only connections, an authorizer, limits); each must hold alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from ..errors import MissingExtra, QueryRefused
from .functions import ALLOWED, NODES, SIZED, TYPES, names_of
from .schema import Schema, TableInfo, fold

if TYPE_CHECKING:
    from sqlglot import exp

MAX_DEPTH: Final = 120
"""Levels of a tree; SQLite's own limit is 1,000, and the parser's stack ends before that."""

_FORMATS: Final = frozenset({"format", "printf"})
_WIDE: Final = re.compile(r"\*|\{[^}]*\{|\d{4}")
"""A width that comes from a value, or one of four digits."""

_STARTS: Final = frozenset({"SELECT", "WITH", "FROM", "L_PAREN"})

_WHY: Final = {
    "Lock": "a query may not lock rows",
    "Into": "a query may not write its result into a table",
    "Placeholder": "a query has no parameters; write the value",
    "Parameter": "a query has no parameters; write the value",
    "SessionParameter": "a query may not read settings",
    "Hint": "a query may not have hints",
    "ObjectIdentifier": "a value may not be cast to an object of the database",
    "Dot": "a function or table may not be reached through a dot like this",
    "TableSample": "a query may not sample",
    "Pivot": "pivoting is not supported; use CASE in aggregates",
}
_WRITES: Final = frozenset(
    {"Insert", "Update", "Delete", "Merge", "Create", "Drop", "Alter", "TruncateTable", "Copy", "LoadData"}
)


@final
@dataclass(frozen=True, slots=True)
class Checked:
    """A query that was let through.

    Attributes:
        tree: what was checked; treat it as frozen.
        sql: the text made from it, which is what runs.
        tables: the exposed tables that it reads.
    """

    tree: exp.Query
    sql: str
    tables: tuple[str, ...]


@final
class Gate:
    """The rules for one dialect.

    Args:
        dialect: sqlglot's name of it.
        functions: names of functions that are allowed in addition.
        max_query: characters of a query.
        max_value: how long a value may be that a function makes out of nothing.
    """

    def __init__(
        self,
        dialect: str,
        *,
        functions: Collection[str] = (),
        max_query: int = 20_000,
        max_value: int = 65_536,
    ) -> None:
        require_sqlglot()
        self.dialect = dialect
        self.names = names_of(dialect) | {name.lower() for name in functions}
        self._extra = frozenset(name.lower() for name in functions)
        self._max_query = max_query
        self._max_value = max_value

    def check(self, sql: str, schema: Schema) -> Checked:
        """Lets a query through, or says which rule it breaks and where.

        Raises:
            QueryRefused: nothing of it may reach the database.
        """
        try:
            tree = self._parsed(sql)
            tables = self._judged(tree, schema)
            text = self.sql_of(tree)
            # A generator that does not write what was read would be a way around everything above.
            if self.sql_of(self._parsed(text)) != text:
                raise QueryRefused(
                    "parse", "the query cannot be written back as it was read; write it simpler"
                )
        except RecursionError:
            raise QueryRefused("depth", "the query is nested too deeply") from None
        except (AttributeError, TypeError, ValueError, KeyError, IndexError):
            # A parser that stumbles over its own input has not understood it.
            raise QueryRefused("parse", "the query cannot be parsed") from None
        return Checked(tree, text, tables)

    def sql_of(self, tree: exp.Query) -> str:
        """The text that runs: made from the tree, without comments and hints."""
        from sqlglot import ErrorLevel
        from sqlglot.errors import UnsupportedError

        try:
            return tree.sql(
                self.dialect, comments=False, normalize_functions=False, unsupported_level=ErrorLevel.RAISE
            )
        except UnsupportedError as error:
            raise QueryRefused("parse", f"{self.dialect} cannot say this: {str(error)[:200]}") from None

    # Reading

    def _parsed(self, sql: str) -> exp.Query:
        from sqlglot import ErrorLevel, exp
        from sqlglot.dialects.dialect import Dialect
        from sqlglot.errors import SqlglotError

        if not sql.strip():
            raise QueryRefused("empty", "there is no query")
        if len(sql) > self._max_query:
            raise QueryRefused(
                "length", f"the query has {len(sql)} characters; {self._max_query} are allowed"
            )
        if "\0" in sql or any(0xD800 <= ord(mark) <= 0xDFFF for mark in sql):
            raise QueryRefused("parse", "the query has a NUL or half of a character in it")
        dialect = Dialect.get_or_raise(self.dialect)
        try:
            tokens = dialect.tokenize(sql)
            if not tokens or tokens[0].token_type.name not in _STARTS:
                place = tokens[0].text[:40] if tokens else ""
                raise QueryRefused("statement", "only a query that reads is allowed: SELECT …", place)
            ends = [at for at, token in enumerate(tokens) if token.token_type.name == "SEMICOLON"]
            if ends and any(token.token_type.name != "SEMICOLON" for token in tokens[ends[0] :]):
                raise QueryRefused("statement", "one query at a time", tokens[ends[0] + 1].text[:40])
            trees = dialect.parser(error_level=ErrorLevel.IMMEDIATE).parse(tokens, sql)
        except SqlglotError as error:
            raise QueryRefused("parse", _parse_error(error)) from None
        # A comment after the last semicolon parses as one more, empty statement.
        whole = [tree for tree in trees if tree is not None and not isinstance(tree, exp.Semicolon)]
        if len(whole) != 1:
            raise QueryRefused("statement", f"one query at a time, not {len(whole)}")
        root: Any = whole[0]
        while isinstance(root, exp.Subquery) and not any(
            value for key, value in root.args.items() if key != "this"
        ):
            root = root.this  # parentheses around the whole
        if not isinstance(root, exp.Select | exp.SetOperation):
            raise QueryRefused(
                "statement", "only a query that reads is allowed: SELECT …", type(root).__name__
            )
        return root

    # Judging

    def _judged(self, tree: exp.Query, schema: Schema) -> tuple[str, ...]:
        from sqlglot import exp

        top: Any = tree
        nodes = list(_with_depth(top))
        if max(depth for _, depth in nodes) > MAX_DEPTH:
            raise QueryRefused("depth", f"the query is nested deeper than {MAX_DEPTH} levels")
        for node, _ in nodes:
            self._judge_node(node)
        for node, _ in nodes:
            if isinstance(node, exp.CTE):
                self._judge_cte(node, schema)
        read: dict[int, TableInfo] = {}
        for node, _ in nodes:
            if isinstance(node, exp.Table) and (info := self._judge_table(node, schema)) is not None:
                read[id(node)] = info
        self._judge_columns([node for node, _ in nodes], read)
        for node, _ in nodes:
            if (info_or_none := read.get(id(node))) is not None:
                self._rewrite(node, info_or_none)
        return tuple(dict.fromkeys(info.name for info in read.values()))

    def _judge_node(self, node: exp.Expr) -> None:
        from sqlglot import exp

        kind = type(node).__name__
        if isinstance(node, exp.Anonymous):
            name = node.name
            if name.lower() not in self.names:
                raise QueryRefused("function", "this function is not allowed", name[:80])
        elif isinstance(node, exp.Func):
            if kind in SIZED:
                self._judge_size(node, SIZED[kind])
            elif kind not in ALLOWED and not self._is_extra(node):
                raise QueryRefused("function", "this function is not allowed", self._shown(node))
        elif isinstance(node, exp.DataType):
            if getattr(node.this, "name", str(node.this)) not in TYPES:
                raise QueryRefused("type", "a value may not be cast to this type", self._shown(node))
        elif isinstance(node, exp.Dot):
            self._judge_dot(node)
        elif isinstance(node, exp.Lateral):
            if not isinstance(node.this, exp.Subquery):
                raise QueryRefused("table", "only a query may stand after LATERAL", self._shown(node))
        elif isinstance(node, exp.Select):
            _judge_select(node)
        elif kind in _WRITES:
            raise QueryRefused("write", "a query may not write", self._shown(node))
        elif kind not in NODES:
            raise QueryRefused("syntax", _WHY.get(kind, "this syntax is not allowed"), self._shown(node))
        if isinstance(node, exp.Format) or (
            isinstance(node, exp.Anonymous) and node.name.lower() in _FORMATS
        ):
            self._judge_format(node)
        if isinstance(node, exp.Literal) and node.is_string and self.dialect == "mysql" and "\\" in node.this:
            raise QueryRefused("syntax", "a text may not hold a backslash, which MySQL reads by its settings")

    def _is_extra(self, node: exp.Expr) -> bool:
        names = {name.lower() for name in type(node).sql_names()}  # type: ignore[attr-defined]
        return bool(names & self._extra)

    def _judge_size(self, node: exp.Expr, argument: str) -> None:
        given = node.args.get(argument)
        if given is None or not given.is_int or not 0 <= int(given.name or "-1") <= self._max_value:
            raise QueryRefused(
                "size", f"say how long as a number, at most {self._max_value}", self._shown(node)
            )

    def _judge_format(self, node: exp.Expr) -> None:
        """A width in a format makes a long value; SQLite limits the length of values itself."""
        from sqlglot import exp

        if self.dialect in ("sqlite", "mysql"):
            return
        parts = [part for part in node.iter_expressions() if not isinstance(part, exp.Identifier)]
        if not parts or not isinstance(parts[0], exp.Literal) or _WIDE.search(parts[0].name):
            raise QueryRefused("size", "a format must be a text with short widths", self._shown(node))

    def _judge_dot(self, node: exp.Expr) -> None:
        from sqlglot import exp

        plain = isinstance(node.expression, exp.Identifier) and isinstance(
            node.this, exp.Column | exp.Dot | exp.Bracket
        )
        if self.dialect != "duckdb" or not plain:  # fields of a struct
            raise QueryRefused("syntax", _WHY["Dot"], self._shown(node))

    def _judge_cte(self, node: exp.CTE, schema: Schema) -> None:
        name = node.alias
        # SQLite reports what such a query reads under this name, and a database may resolve it to the object.
        if schema.is_taken(name) or name.lower().startswith(("sqlite_", "pg_", "duckdb_", "pragma_")):
            raise QueryRefused("cte", "a WITH query may not be called like an object of the database", name)

    def _judge_table(self, node: exp.Table, schema: Schema) -> TableInfo | None:
        """The exposed table that is meant; None for a query of a WITH."""
        from sqlglot import exp

        name = node.this
        if not isinstance(name, exp.Identifier):
            raise QueryRefused("table", "a table must be a name, not a function or file", self._shown(node))
        extra = {
            key
            for key, value in node.args.items()
            if value and key not in ("this", "db", "alias", "joins", "laterals")
        }
        if extra:
            raise QueryRefused("table", f"a table may not have {min(extra)}", self._shown(node))
        db = node.args.get("db")
        if db is None and self._is_cte(node, name):
            return None
        info = schema.find(name.this, quoted=bool(name.quoted), schema=db.name if db is not None else None)
        if info is None:
            known = ", ".join(list(schema.tables)[:30])
            raise QueryRefused("table", f"there is no such table (there are {known})", self._shown(node))
        return info

    def _is_cte(self, table: exp.Table, name: exp.Identifier) -> bool:
        """Whether a name means a WITH query that is visible where the name stands."""
        from sqlglot import exp

        wanted = self._cte_key(name)
        inside: exp.Expr | None = table
        above: Any = table.parent
        while above is not None:
            if isinstance(above, exp.With):
                # Inside of it only earlier ones are visible, and itself where it says RECURSIVE.
                at = next(i for i, cte in enumerate(above.expressions) if cte is inside)
                seen = above.expressions[: at + 1] if above.recursive else above.expressions[:at]
                if any(self._cte_key(cte.args["alias"].this) == wanted for cte in seen):
                    return True
                inside, above = above.parent, above.parent.parent if above.parent is not None else None
                continue
            having = above.args.get("with_")
            if having is not None and any(
                self._cte_key(cte.args["alias"].this) == wanted for cte in having.expressions
            ):
                return True
            inside, above = above, above.parent
        return False

    def _cte_key(self, name: exp.Identifier) -> tuple[str, bool]:
        quoted = bool(name.quoted)
        if self.dialect in ("sqlite", "duckdb", "postgres"):
            return fold(name.this, quoted=quoted, dialect=self.dialect), False
        return name.this, quoted  # the same spelling is the same name in any database

    def _judge_columns(self, nodes: list[exp.Expr], read: dict[int, TableInfo]) -> None:
        """Every column must be one of an exposed table, or be named in the query.

        Postgres takes `t.f` for the function `f` of a row where `t` has no column `f`, and SQLite takes an unknown
        `"name"` for a text.
        """
        from sqlglot import exp

        real: dict[str, set[str]] = {}
        columns = {column.name.lower() for info in read.values() for column in info.columns}
        named: set[str] = set()
        for node in nodes:
            if (info := read.get(id(node))) is not None and isinstance(node, exp.Table):
                own = {column.name.lower() for column in info.columns}
                real.setdefault(node.alias_or_name.lower(), set()).update(own)
                if alias := node.args.get("alias"):
                    renamed = {column.name.lower() for column in alias.args.get("columns") or ()}
                    real[node.alias_or_name.lower()] |= renamed
            if isinstance(node, exp.Alias | exp.TableAlias):
                named.add((node.alias if isinstance(node, exp.Alias) else node.name).lower())
                named |= {column.name.lower() for column in node.args.get("columns") or ()}
        named |= set(real)
        if self.dialect == "sqlite":
            columns.add("rowid")
        for node in nodes:
            if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
                continue
            if node.args.get("catalog") is not None or not isinstance(node.this, exp.Identifier):
                raise QueryRefused("column", "write a column as table.column", self._shown(node))
            name, table = node.name.lower(), node.table.lower()
            known = columns | named
            if table in real and name not in real[table] and not (name == "rowid" and "rowid" in columns):
                known = set()
            if self.dialect == "duckdb" and table and table not in real and table in columns:
                continue  # a field of a struct
            if name not in known:
                hint = " (a text is written in single quotes)" if node.this.quoted else ""
                raise QueryRefused("column", f"there is no such column{hint}", self._shown(node))

    def _rewrite(self, node: exp.Expr, info: TableInfo) -> None:
        """Spells a table as the catalog does, with its schema, so that nothing else can be meant by it."""
        from sqlglot import exp

        if not node.args.get("alias") and node.this.this != info.name:
            node.set("alias", exp.TableAlias(this=node.this.copy()))
        node.set("this", exp.to_identifier(info.name, quoted=True))
        node.set("db", exp.to_identifier(info.schema, quoted=True) if info.schema else None)

    def _shown(self, node: exp.Expr) -> str:
        from sqlglot import ErrorLevel

        try:
            text = node.sql(
                self.dialect, comments=False, normalize_functions=False, unsupported_level=ErrorLevel.IGNORE
            )
        except Exception:  # noqa: BLE001 - a generator that cannot write what it refuses must not hide the refusal
            text = type(node).__name__
        return text if len(text) <= 80 else text[:79] + "…"


def _judge_select(node: exp.Select) -> None:
    if not node.expressions:
        raise QueryRefused("syntax", "a query has at least one column")
    if node.args.get("into"):
        raise QueryRefused("write", _WHY["Into"])
    if node.args.get("locks"):
        raise QueryRefused("lock", _WHY["Lock"])
    for key in ("hint", "operation_modifiers", "options", "kind", "settings", "format", "for_"):
        if node.args.get(key):
            raise QueryRefused("syntax", f"a query may not have {key.strip('_').replace('_', ' ')}")


def _with_depth(tree: exp.Expr) -> Iterator[tuple[exp.Expr, int]]:
    """All nodes with their depth, without recursion."""
    stack = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        yield node, depth
        stack += [(child, depth + 1) for child in node.iter_expressions()]


def _parse_error(error: Exception) -> str:
    details = getattr(error, "errors", None)
    if details:
        first = details[0]
        near = f"{first.get('start_context') or ''}{first.get('highlight') or ''}"[-40:].strip()
        return (
            f"the query cannot be parsed at line {first.get('line')}, column {first.get('col')}: "
            f"{first.get('description')} (near {near!r})"
        )
    return f"the query cannot be parsed: {str(error).splitlines()[0][:200]}"


def require_sqlglot() -> None:
    """Raises MissingExtra where sqlglot is not installed."""
    try:
        import sqlglot  # noqa: F401
    except ImportError:
        raise MissingExtra("sql", "sqlglot", "check queries") from None

"""Named SQL: a `.sql` file beside this module holds statements, each under a line `-- name: …`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Final

_MARK: Final = "-- name: "


def sql_text(file: str) -> str:
    """The text of a file."""
    return (files(__package__) / "sql" / file).read_text("utf-8")


def named_statements(file: str) -> Mapping[str, str]:
    """The statements of a file by their names."""
    found: dict[str, str] = {}
    for block in f"\n{sql_text(file)}".split(f"\n{_MARK}")[1:]:
        name, _, statement = block.partition("\n")
        found[name.strip()] = statement.strip()
    return MappingProxyType(found)


__all__ = ["named_statements", "sql_text"]

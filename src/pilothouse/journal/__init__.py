"""The stores of runs and facts. Loaded name by name, at first use: a store's driver is not everybody's."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .jsonl import Exported as Exported
    from .jsonl import Imported as Imported
    from .jsonl import export as export
    from .jsonl import import_ as import_
    from .liveness import this_process as this_process
    from .memory import MemoryJournal as MemoryJournal
    from .postgres import PostgresJournal as PostgresJournal
    from .sqlite import SQLiteJournal as SQLiteJournal

_HOMES = {
    "Exported": "jsonl",
    "Imported": "jsonl",
    "MemoryJournal": "memory",
    "PostgresJournal": "postgres",
    "SQLiteJournal": "sqlite",
    "export": "jsonl",
    "import_": "jsonl",
    "this_process": "liveness",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - a list of str, made from the table


def __getattr__(name: str) -> Any:
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{home}", __name__), name)

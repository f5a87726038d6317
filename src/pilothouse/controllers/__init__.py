"""AI controllers that ship: a SQL grid, a chart, a form, the tools of an MCP server. Each behind an extra.

SQLGridController, RowPage     `pilothouse[sql]`
ChartController                `pilothouse[chart]`
FormController                 `pilothouse[form]`
MCPController                  `pilothouse[mcp]`
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .chart.controller import ChartController as ChartController
    from .chart.controller import ChartState as ChartState
    from .errors import ExportLimit as ExportLimit
    from .errors import MCPUnavailable as MCPUnavailable
    from .errors import MissingExtra as MissingExtra
    from .errors import QueryFailed as QueryFailed
    from .errors import QueryRefused as QueryRefused
    from .form.controller import FormController as FormController
    from .form.fields import FieldPolicy as FieldPolicy
    from .form.options import Option as Option
    from .mcp.controller import MCPController as MCPController
    from .mcp.link import Reconnect as Reconnect
    from .sql.grid import GridView as GridView
    from .sql.grid import RowPage as RowPage
    from .sql.grid import SQLGridController as SQLGridController
    from .sql.rows import QuerySource as QuerySource

_HOMES: Final = {
    "ChartController": "chart.controller",
    "ChartState": "chart.controller",
    "ExportLimit": "errors",
    "FieldPolicy": "form.fields",
    "FormController": "form.controller",
    "GridView": "sql.grid",
    "MCPController": "mcp.controller",
    "MCPUnavailable": "errors",
    "MissingExtra": "errors",
    "Option": "form.options",
    "QueryFailed": "errors",
    "QueryRefused": "errors",
    "QuerySource": "sql.rows",
    "Reconnect": "mcp.link",
    "RowPage": "sql.grid",
    "SQLGridController": "sql.grid",
}

__all__ = [*_HOMES]  # noqa: PLE0604 - strings, from the table


def __getattr__(name: str) -> Any:
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )
    found = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)

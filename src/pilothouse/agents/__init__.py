"""The `Agent` contract at work: signals, our conversations as agents, tools that run at the client.

Names are loaded at first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .clienttools import ClientTool as ClientTool
    from .clienttools import ClientToolRunner as ClientToolRunner
    from .local import LocalAgent as LocalAgent
    from .operation import Operation as Operation
    from .signals import computed as computed
    from .signals import watch as watch
    from .store import MemoryInterruptStore as MemoryInterruptStore

_HOMES = {
    "ClientTool": "clienttools",
    "ClientToolRunner": "clienttools",
    "LocalAgent": "local",
    "MemoryInterruptStore": "store",
    "Operation": "operation",
    "computed": "signals",
    "watch": "signals",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - a list of str, made from the table


def __getattr__(name: str) -> Any:
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{home}", __name__), name)

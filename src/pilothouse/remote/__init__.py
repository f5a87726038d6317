"""Agents and runs behind a wire. Names are loaded at first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agui import AGUIAgent as AGUIAgent
    from .control import RunControlClient as RunControlClient
    from .exchange import AgentLimits as AgentLimits
    from .exchange import Reconnect as Reconnect
    from .function import agent_from as agent_from

_HOMES = {
    "AGUIAgent": "agui",
    "AgentLimits": "exchange",
    "Reconnect": "exchange",
    "RunControlClient": "control",
    "agent_from": "function",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - a list of str, made from the table


def __getattr__(name: str) -> Any:
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{home}", __name__), name)

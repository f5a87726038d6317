"""Runs on HTTP: the AG-UI endpoint, the run control API and the page, as one ASGI application.

Importing this package loads nothing; its names are loaded at first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import Server as Server
    from .auth import BearerTokens as BearerTokens
    from .auth import HostUser as HostUser
    from .auth import LoopbackOnly as LoopbackOnly
    from .auth import Principal as Principal
    from .auth import TrustedHeader as TrustedHeader
    from .context import ContextEntry as ContextEntry
    from .context import RunContext as RunContext
    from .run import serve as serve
    from .run import serve_forever as serve_forever
    from .settings import CORS as CORS
    from .settings import AGUIOptions as AGUIOptions
    from .settings import CancelAfter as CancelAfter
    from .settings import ServerLimits as ServerLimits
    from .settings import StreamOptions as StreamOptions

_HOME = {
    "AGUIOptions": "settings",
    "BearerTokens": "auth",
    "CORS": "settings",
    "CancelAfter": "settings",
    "ContextEntry": "context",
    "HostUser": "auth",
    "LoopbackOnly": "auth",
    "Principal": "auth",
    "RunContext": "context",
    "Server": "app",
    "ServerLimits": "settings",
    "StreamOptions": "settings",
    "TrustedHeader": "auth",
    "serve": "run",
    "serve_forever": "run",
}

__all__ = sorted(_HOME)  # noqa: PLE0605 - names, computed from their homes


def __getattr__(name: str) -> Any:
    if (home := _HOME.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{home}", __name__), name)

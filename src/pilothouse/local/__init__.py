"""A real model without a key: llama.cpp on this machine, with a small model that is fetched at first use.

    server = await asyncio.to_thread(open_model, "local", progress)   # or "local:/path/to.gguf"
    async with server:
        ...  # any client of the OpenAI chat API: server.base_url, server.api_key, server.model

Needs `pilothouse[local]`. The names are loaded at first use, and llama.cpp only in the child process that runs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .errors import LocalModelUnavailable
    from .server import LocalServer, open_model
    from .weights import Progress, cache_dir, find_or_fetch

_HOMES = {
    "LocalModelUnavailable": "errors",
    "LocalServer": "server",
    "Progress": "weights",
    "cache_dir": "weights",
    "find_or_fetch": "weights",
    "open_model": "server",
}


def __getattr__(name: str) -> object:
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{home}", __name__), name)


__all__ = ["LocalModelUnavailable", "LocalServer", "Progress", "cache_dir", "find_or_fetch", "open_model"]

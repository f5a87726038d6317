"""A server for a crowd: the scripted agent of the foreign clients, without limits, over the journal that is named."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path

from pilothouse import SQLiteJournal
from pilothouse.server import Server, ServerLimits, serve_forever

AGENTS = Path(__file__).parents[2] / "foreign/agents.py"


async def main(path: str) -> None:
    spec = importlib.util.spec_from_file_location("agents", AGENTS)
    assert spec is not None
    assert spec.loader is not None
    agents = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(agents)
    limits = ServerLimits(runs_per_tenant=None, streams_per_tenant=None)
    async with SQLiteJournal(path) as journal:
        app = Server({"default": agents.agent}, journal=journal, limits=limits, drain_timeout=0.2)
        await serve_forever(
            app, port=0, ready=lambda url: print(f"the chat is at {url}", file=sys.stderr, flush=True)
        )


asyncio.run(main(sys.argv[1]))

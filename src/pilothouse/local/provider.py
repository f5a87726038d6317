"""The local model as a provider: fetched, loaded and started at its first request, stopped when it is closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Self

from ..messages import Model
from ..providers.openai_chat import OpenAIChatProvider
from ..providers.openai_chat.profile import LLAMA_CPP
from ..providers.openai_chat.wire import rules_of
from ..responses import ErrorInfo, ModelRequest, ProviderEvent, StreamEnd
from .errors import LocalModelUnavailable
from .server import LocalServer
from .weights import Progress


class LocalProvider:
    """Talks to a model on this machine through its own OpenAI-compatible server. An async context manager.

    `spec` is `local` or `local:/path/to.gguf`. `progress` hears of the fetch (about 98 MB, once) and of the loading.
    """

    def __init__(self, spec: str = "local", progress: Progress | None = None) -> None:
        self.tag = LLAMA_CPP.tag
        self.wire_rules = rules_of(LLAMA_CPP)
        self.default_model = Model("local", "local")
        self._spec = spec
        self._progress = progress
        self._server: LocalServer | None = None
        self._provider: OpenAIChatProvider | None = None
        self._starting: asyncio.Task[OpenAIChatProvider] | None = None

    async def start(self) -> OpenAIChatProvider:
        """Fetches, loads and starts what is missing; concurrent calls share it.

        Raises:
            LocalModelUnavailable: one line that says what to do.
        """
        if self._provider is not None and self._server is not None and self._server.running:
            return self._provider
        if self._starting is None or self._starting.done():
            self._starting = asyncio.get_running_loop().create_task(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> OpenAIChatProvider:
        from . import open_model

        await self.aclose_server()
        server = await asyncio.to_thread(open_model, self._spec, self._progress)
        if self._progress is not None:
            self._progress("loading the model", None)
        await server.__aenter__()
        self._server = server
        self.default_model = Model(server.model, "local", context_window=server.context_window)
        self._provider = OpenAIChatProvider(
            self.default_model, base_url=server.base_url, api_key=server.api_key, profile=LLAMA_CPP
        )
        return self._provider

    async def stream(self, request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
        """One request; the first one waits until the model is loaded. What is missing is told as an event (PV-1)."""
        try:
            provider = await self.start()
        except LocalModelUnavailable as error:
            yield StreamEnd("error", error=ErrorInfo("config", str(error), error.code))
            return
        if request.model.id == "local":
            request = _with_model(request, self.default_model)
        events = provider.stream(request)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()  # type: ignore[attr-defined]

    async def aclose_server(self) -> None:
        """Stops the model's process; the next request would start it again."""
        provider, self._provider = self._provider, None
        server, self._server = self._server, None
        if provider is not None:
            await provider.aclose()
        if server is not None:
            await server.aclose()

    async def aclose(self) -> None:
        """Stops everything. Idempotent."""
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self.aclose_server()

    async def __aenter__(self) -> Self:
        """Returns itself; nothing is started yet."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Closes."""
        await self.aclose()


def _with_model(request: ModelRequest, model: Model) -> ModelRequest:
    from msgspec.structs import replace

    return replace(request, model=model)

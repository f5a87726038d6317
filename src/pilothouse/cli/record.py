"""`pilothouse record`: one answer of a real provider, as it came over the wire, without secrets."""

from __future__ import annotations

import json
import os
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import typer

from ..errors import ConfigError
from ..messages import Message, Text, ToolSpec
from ..providers.decode import decode as decode_body
from ..providers.http import HTTPProvider
from ..providers.recording import Recording, capture, save
from ..providers.resolve import VENDORS, provider
from ..responses import ModelRequest, ModelSettings, StreamEnd
from .process import run


def record(
    file: Path, *, model: str, message: str, tools: Path | None, max_output_tokens: int | None, force: bool
) -> None:
    """Asks once, saves what came and prints what Pilothouse makes of it.

    Raises:
        ConfigError: nothing was saved; the text says why.
    """
    if file.exists() and not force:
        raise ConfigError(f"{file} exists: choose another name, or give --force")
    if not file.parent.is_dir():
        raise ConfigError(f"cannot write {file}: there is no folder {file.parent}")
    specs = _tools(tools)
    settings = ModelSettings(max_output_tokens=max_output_tokens)
    recording = run(lambda: _ask(model, message, specs, settings))
    try:
        save(recording, file)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror or error}") from error
    size = sum(len(chunk) for chunk in recording.chunks)
    typer.echo(
        f"{file}: status {recording.status}, {len(recording.chunks)} reads, {size} bytes, "
        f"dialect {recording.dialect}",
        err=True,
    )
    assert recording.dialect is not None
    found = decode_body(
        recording.dialect,
        recording.chunks,
        status=recording.status,
        headers=recording.headers,
        end=recording.end,
    )
    typer.echo(json.dumps(found, ensure_ascii=False, indent=2))


async def _ask(model: str, message: str, tools: list[ToolSpec], settings: ModelSettings) -> Recording:
    async with AsyncExitStack() as stack:
        asked = await _over_http(model, stack)
        request = ModelRequest(
            asked.default_model,
            [Message("recorded-input", "user", (Text(message),))],
            tools=tools,
            settings=settings,
        )
        # Whatever key is set here may be what a gateway or a model quotes.
        keys = [os.environ.get(name, "") for vendor in VENDORS.values() for name in vendor.keys]
        recording, events = await capture(asked, request, secrets=keys)
    end = events[-1]
    assert isinstance(end, StreamEnd)
    if not recording.status:  # no request was sent, or no head came: there is nothing to record
        raise ConfigError(f"{model} did not answer: {end.error.message if end.error else end.reason}")
    return recording


async def _over_http(model: str, stack: AsyncExitStack) -> HTTPProvider:
    """The provider of a model string; the local one is fetched and started."""
    if model.partition(":")[0] == "local":
        from ..local.provider import LocalProvider
        from .progress import Progress

        with Progress() as progress:
            local = await stack.enter_async_context(LocalProvider(model, progress))
            return await local.start()
    made = await stack.enter_async_context(provider(model))
    if not isinstance(made, HTTPProvider):
        raise ConfigError(f"{model} has no wire of its own to record: use a provider that speaks HTTP itself")
    return made


def _tools(file: Path | None) -> list[ToolSpec]:
    if file is None:
        return []
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[ToolSpec])
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror or error}") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{file} is no list of tools, such as "
            f'[{{"name": "f", "description": "", "parameters": {{"type": "object"}}}}]: {error}'
        ) from error


__all__ = ["record"]

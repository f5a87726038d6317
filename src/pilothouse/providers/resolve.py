"""From a model string to a provider: `openai:gpt-5-mini`, `anthropic:…`, `local`, `http://host:port/v1#name`."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

from ..contracts import Provider
from ..errors import ConfigError


class OwnedProvider(Provider, Protocol):
    """A provider that whoever made it closes: an async context manager."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Vendor(NamedTuple):
    """A prefix of model strings: where its key is looked for, and an example of a name."""

    keys: tuple[str, ...]
    example: str


VENDORS: Final[dict[str, Vendor]] = {
    "anthropic": Vendor(("ANTHROPIC_API_KEY",), "anthropic:claude-sonnet-4-5"),
    "openai": Vendor(("OPENAI_API_KEY",), "openai:gpt-5-mini"),
}
"""In the order in which keys are looked for when nothing is configured."""

FORMS: Final = "openai:NAME, anthropic:NAME, local, local:/path/to.gguf, or http://host:port/v1#NAME"


def provider(model: str, *, api_key: str | None = None) -> OwnedProvider:
    """The provider for a model string; `async with` it, or `aclose()` it. Opens no connection.

    Args:
        model: a vendor's prefix and a model's name; `local` for the small model that runs on this machine; or the address
            of an OpenAI-compatible server with the model's name behind `#`.
        api_key: instead of the vendor's environment variable.

    Raises:
        ConfigError: an unknown form or a missing key; the text says what to do.
    """
    if model.startswith(("http://", "https://")):
        return _compatible(model, api_key)
    prefix, _, name = model.partition(":")
    if prefix == "local":
        from ..local.provider import LocalProvider

        return LocalProvider(model)
    vendor = VENDORS.get(prefix)
    if vendor is None or not name:
        raise ConfigError(f"unknown model {model!r}: use {FORMS}")
    return _of_vendor(prefix, name, api_key or _key(model, vendor))


def _key(model: str, vendor: Vendor) -> str:
    for name in vendor.keys:
        if key := os.environ.get(name):
            return key
    raise ConfigError(f"{model} needs a key: set {' or '.join(vendor.keys)}, or use the model 'local'")


def _of_vendor(prefix: str, name: str, key: str) -> OwnedProvider:
    if prefix == "anthropic":
        from .anthropic import AnthropicProvider

        return AnthropicProvider(name, api_key=key)
    from .openai_chat import OpenAIChatProvider

    return OpenAIChatProvider(name, api_key=key)


def _compatible(address: str, api_key: str | None) -> OwnedProvider:
    base_url, _, name = address.partition("#")
    if not name:
        raise ConfigError(f"{address} names no model: write {address}#NAME")
    from .openai_chat import OpenAIChatProvider

    return OpenAIChatProvider(name, base_url=base_url, api_key=api_key)


def configured() -> tuple[str, str] | None:
    """The model string and the environment variable of the first key that is set, or None."""
    for vendor in VENDORS.values():
        for key in vendor.keys:
            if os.environ.get(key):
                return vendor.example, key
    return None

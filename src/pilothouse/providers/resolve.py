"""From a model string to a provider: `openai:gpt-5-mini`, `anthropic:…`, `local`, `http://host:port/v1#name`."""

from __future__ import annotations

import os
from difflib import get_close_matches
from types import TracebackType
from typing import Final, Literal, NamedTuple, Protocol, Self, assert_never

from ..contracts import Provider
from ..errors import ConfigError


class OwnedProvider(Provider, Protocol):
    """A provider that whoever made it closes: an async context manager."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Vendor(NamedTuple):
    """A prefix of model strings: its dialect, where its key and address are looked for, and an example of a name.

    `keys` empty: it needs none. `base_url` None: the dialect's own; `address` is the variable that replaces it.
    """

    dialect: Literal["openai-chat", "openai-responses", "anthropic", "gemini"]
    keys: tuple[str, ...]
    example: str
    base_url: str | None = None
    address: str | None = None


VENDORS: Final[dict[str, Vendor]] = {
    "anthropic": Vendor(
        "anthropic", ("ANTHROPIC_API_KEY",), "anthropic:claude-sonnet-4-5", None, "ANTHROPIC_BASE_URL"
    ),
    "openai": Vendor("openai-chat", ("OPENAI_API_KEY",), "openai:gpt-5-mini", None, "OPENAI_BASE_URL"),
    "openai-chat": Vendor(
        "openai-chat", ("OPENAI_API_KEY",), "openai-chat:gpt-5-mini", None, "OPENAI_BASE_URL"
    ),
    "openai-responses": Vendor(
        "openai-responses", ("OPENAI_API_KEY",), "openai-responses:gpt-5-mini", None, "OPENAI_BASE_URL"
    ),
    "gemini": Vendor(
        "gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY"), "gemini:gemini-2.5-flash", None, "GEMINI_BASE_URL"
    ),
    "openrouter": Vendor(
        "openai-chat", ("OPENROUTER_API_KEY",), "openrouter:openai/gpt-5-mini", "https://openrouter.ai/api/v1"
    ),
    "groq": Vendor(
        "openai-chat", ("GROQ_API_KEY",), "groq:openai/gpt-oss-20b", "https://api.groq.com/openai/v1"
    ),
    "deepseek": Vendor(
        "openai-chat", ("DEEPSEEK_API_KEY",), "deepseek:deepseek-chat", "https://api.deepseek.com/v1"
    ),
    "mistral": Vendor(
        "openai-chat", ("MISTRAL_API_KEY",), "mistral:mistral-large-latest", "https://api.mistral.ai/v1"
    ),
    "xai": Vendor("openai-chat", ("XAI_API_KEY",), "xai:grok-4", "https://api.x.ai/v1"),
    "ollama": Vendor("openai-chat", (), "ollama:llama3.2", "http://127.0.0.1:11434/v1", "OLLAMA_BASE_URL"),
}
"""In the order in which keys are looked for when nothing is configured."""

FORMS: Final = "openai:NAME, anthropic:NAME, gemini:NAME, ollama:NAME, local, local:/path/to.gguf, or http://host:port/v1#NAME"


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
    if prefix == "pydantic-ai" and name:
        from .pydantic_ai import PydanticAIProvider

        return PydanticAIProvider(name)
    vendor = VENDORS.get(prefix)
    if vendor is None or not name:
        raise ConfigError(f"unknown model {model!r}: use {FORMS}{_hint(model)}")
    return _of_vendor(vendor, name, api_key or _key(model, vendor))


def _hint(model: str) -> str:
    """What was probably meant."""
    prefix, colon, _ = model.partition(":")
    if not colon:
        near = next((name for name, sign in _SIGNS if model.lower().startswith(sign)), None)
        return f"; did you mean {near}:{model}?" if near and model else ""
    near = next(iter(get_close_matches(prefix, VENDORS, 1)), None)
    return f"; did you mean {VENDORS[near].example}?" if near else ""


_SIGNS: Final = (
    ("openai", ("gpt-", "o1", "o3", "o4", "chatgpt")),
    ("anthropic", ("claude",)),
    ("gemini", ("gemini",)),
)


def _key(model: str, vendor: Vendor) -> str | None:
    for name in vendor.keys:
        if key := os.environ.get(name):
            return key
    if not vendor.keys:
        return None
    raise ConfigError(f"{model} needs a key: set {' or '.join(vendor.keys)}, or use the model 'local'")


def _of_vendor(vendor: Vendor, name: str, key: str | None) -> OwnedProvider:
    base_url = (os.environ.get(vendor.address) if vendor.address else None) or vendor.base_url
    match vendor.dialect:
        case "anthropic":
            from .anthropic import AnthropicProvider

            return AnthropicProvider(name, base_url=base_url, api_key=key)
        case "gemini":
            from .gemini import GeminiProvider

            return GeminiProvider(name, base_url=base_url, api_key=key)
        case "openai-responses":
            from .openai_responses import OpenAIResponsesProvider

            return OpenAIResponsesProvider(name, base_url=base_url, api_key=key)
        case "openai-chat":
            from .openai_chat import OpenAIChatProvider

            return OpenAIChatProvider(name, base_url=base_url, api_key=key)
        case _:
            assert_never(vendor.dialect)


def _compatible(address: str, api_key: str | None) -> OwnedProvider:
    base_url, _, name = address.partition("#")
    if not name:
        raise ConfigError(f"{address} names no model: write {address.rstrip('#')}#NAME")
    if not base_url.partition("://")[2].partition("/")[0]:
        raise ConfigError(f"{address} names no server: write http://host:port/v1#NAME")
    from .openai_chat import OpenAIChatProvider

    return OpenAIChatProvider(name, base_url=base_url, api_key=api_key)


def configured() -> tuple[str, str] | None:
    """The model string and the environment variable of the first key that is set, or None."""
    for vendor in VENDORS.values():
        for key in vendor.keys:
            if os.environ.get(key):
                return vendor.example, key
    return None

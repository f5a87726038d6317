"""Model strings to providers, and one-line errors that say what to do (issue 4, item 6)."""

from __future__ import annotations

import pytest

from pilothouse.contracts import Provider
from pilothouse.errors import ConfigError
from pilothouse.messages import Model
from pilothouse.providers.models import with_known_sizes
from pilothouse.providers.resolve import VENDORS, configured, provider


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for vendor in VENDORS.values():
        for name in (*vendor.keys, *filter(None, [vendor.address])):
            monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("model", "variable", "kind", "model_id", "base_url"),
    [
        ("openai:gpt-5-mini", "OPENAI_API_KEY", "OpenAIChatProvider", "gpt-5-mini", "https://api.openai.com/v1"),
        ("openai-responses:gpt-5", "OPENAI_API_KEY", "OpenAIResponsesProvider", "gpt-5", "https://api.openai.com/v1"),
        ("anthropic:claude-sonnet-4-5", "ANTHROPIC_API_KEY", "AnthropicProvider", "claude-sonnet-4-5", "https://api.anthropic.com"),
        ("gemini:gemini-2.5-pro", "GEMINI_API_KEY", "GeminiProvider", "gemini-2.5-pro", "https://generativelanguage.googleapis.com/v1beta"),
        ("gemini:gemini-2.5-pro", "GOOGLE_API_KEY", "GeminiProvider", "gemini-2.5-pro", "https://generativelanguage.googleapis.com/v1beta"),
        ("openrouter:a/b:free", "OPENROUTER_API_KEY", "OpenAIChatProvider", "a/b:free", "https://openrouter.ai/api/v1"),
    ],
)  # fmt: skip
def test_a_vendors_name_and_its_key(monkeypatch, model, variable, kind, model_id, base_url) -> None:
    """The prefix names the dialect, the environment has the key; nothing is opened."""
    monkeypatch.setenv(variable, "k")
    made = provider(model)
    assert type(made).__name__ == kind
    assert isinstance(made, Provider)
    assert (made.default_model.id, made.base_url) == (model_id, base_url)


def test_a_server_is_named_by_its_address() -> None:
    """No key is needed; the model stands behind the number sign."""
    made = provider("http://127.0.0.1:8000/v1#qwen:0.5b")
    assert (made.default_model.id, made.base_url) == ("qwen:0.5b", "http://127.0.0.1:8000/v1")
    assert provider("ollama:llama3.2").base_url == "http://127.0.0.1:11434/v1"


async def test_the_local_model_and_any_model_of_pydantic_ai_have_names_too() -> None:
    """Nothing is fetched or started before the first request."""
    for name, kind, tag in (
        ("local", "LocalProvider", "local"),
        ("local:/no/such.gguf", "LocalProvider", "local"),
        ("pydantic-ai:test", "PydanticAIProvider", None),
    ):
        async with provider(name) as made:
            assert type(made).__name__ == kind
            assert isinstance(made, Provider)
            assert tag in (None, made.tag)


def test_an_address_in_the_environment_replaces_the_vendors_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways are configured where the vendors' own libraries look."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://gateway.invalid/v1")
    assert provider("openai:m", api_key="k").base_url == "http://gateway.invalid/v1"


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("gpt-5", "did you mean openai:gpt-5"),
        ("claude-sonnet-4-5", "did you mean anthropic:claude-sonnet-4-5"),
        ("opnai:gpt-5", "did you mean openai:gpt-5-mini"),
        ("nonsense:x", "use openai:NAME"),
        ("", "use openai:NAME"),
        ("openai:", "use openai:NAME"),
        ("openai:gpt-5", "set OPENAI_API_KEY"),
        ("gemini:g", "set GEMINI_API_KEY or GOOGLE_API_KEY"),
        ("http://127.0.0.1:8000/v1", "write http://127.0.0.1:8000/v1#NAME"),
        ("http://#m", "write http://host:port/v1#NAME"),
    ],
)
def test_what_cannot_be_used_says_what_to_do(model: str, says: str) -> None:
    """One line each."""
    with pytest.raises(ConfigError) as caught:
        provider(model)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_first_key_that_is_set_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pilothouse serve` without configuration uses it and says which."""
    assert configured() is None
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    assert configured() == ("gemini:gemini-2.5-flash", "GOOGLE_API_KEY")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    assert configured() == ("anthropic:claude-sonnet-4-5", "ANTHROPIC_API_KEY")


@pytest.mark.parametrize(
    ("name", "window"),
    [("gpt-4o-mini", 128_000), ("openai/gpt-4.1", 1_047_576), ("claude-sonnet-4-5", 200_000), ("o3-mini", 200_000), ("gemini-2.5-pro", 1_048_576), ("mystery", 0)],
)  # fmt: skip
def test_windows_of_known_families_are_known(name: str, window: int) -> None:
    """0 is unknown; what the user gave stays."""
    assert with_known_sizes(Model(name)).context_window == window
    assert with_known_sizes(Model(name, context_window=5)).context_window == 5

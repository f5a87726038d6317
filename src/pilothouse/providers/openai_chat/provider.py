"""Chat Completions over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ...messages import JSON, Message, Model
from ...responses import ModelRequest, ModelSettings
from ..content import is_empty
from ..http import ApiKey, HTTPProvider
from ..tools import chat_choice, named_schema
from .decoder import OpenAIChatDecoder
from .profile import DEEPSEEK, GROQ, MISTRAL, OPENAI, OPENROUTER, CompatProfile
from .wire import alternating, from_wire, rules_of, to_wire

if TYPE_CHECKING:
    import httpx2

_PROFILES: Final = {
    "api.openai.com": OPENAI,
    "openai.azure.com": OPENAI,
    "deepseek.com": DEEPSEEK,
    "mistral.ai": MISTRAL,
    "openrouter.ai": OPENROUTER,
    "groq.com": GROQ,
}


def profile_of(base_url: str) -> CompatProfile:
    """The profile of a server by its host; servers that are not known get the default."""
    host = base_url.partition("://")[2].partition("/")[0].partition(":")[0]
    for name, profile in _PROFILES.items():
        if host == name or host.endswith(f".{name}"):
            return profile
    return CompatProfile()


class OpenAIChatProvider(HTTPProvider):
    """OpenAI, or a server that is compatible with it (llama.cpp, Ollama, vLLM, SGLang, LM Studio, OpenRouter, …).

    `base_url` is the part before `/chat/completions`. `profile` is found by the host unless it is given.
    """

    default_base_url: ClassVar = "https://api.openai.com/v1"
    dialect: ClassVar = "openai-chat"

    def __init__(
        self,
        model: str | Model,
        *,
        base_url: str | None = None,
        api_key: ApiKey = None,
        profile: CompatProfile | None = None,
        client: httpx2.AsyncClient | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.profile = profile or profile_of(base_url or self.default_base_url)
        self.wire_rules = rules_of(self.profile)
        super().__init__(
            model, base_url=base_url, api_key=api_key, client=client, headers=headers, tag=self.profile.tag
        )

    def url(self, request: ModelRequest) -> str:
        """Where the request goes; a query in the base address stays at the end."""
        path, mark, query = self.base_url.partition("?")
        return f"{path.rstrip('/')}/chat/completions{mark}{query}"

    def auth_headers(self, key: str) -> dict[str, str]:
        """A bearer token; Azure reads the key in a header of its own."""
        azure = {"api-key": key} if ".azure.com" in self.base_url else {}
        return {"authorization": f"Bearer {key}", **azure}

    def decoder(self, request: ModelRequest) -> OpenAIChatDecoder:
        """Reads one response."""
        return OpenAIChatDecoder(self.profile)

    def to_wire(self, messages: Sequence[Message]) -> list[dict[str, JSON]]:
        """The conversation part of a request; the messages are paired already."""
        return to_wire(messages, self.profile)

    def from_wire(self, stored: Sequence[Mapping[str, Any]]) -> list[Message]:
        """Messages of a stored conversation part, whatever state it is in."""
        return from_wire(stored, self.profile)

    def body(self, request: ModelRequest) -> dict[str, JSON]:
        """The request in the dialect's words."""
        profile, settings = self.profile, request.settings
        messages = self.to_wire(request.messages)
        if request.system_prompt is not None and not is_empty(request.system_prompt):
            messages.insert(0, {"role": profile.system_role, "content": request.system_prompt})
            if profile.strict_alternation:
                messages = alternating(messages, profile)
        out: dict[str, JSON] = {"model": request.model.id, "messages": messages, "stream": True}
        if profile.usage_in_stream:
            out["stream_options"] = {"include_usage": True}
        if request.tools:
            out["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.parameters,
                    },
                }
                for tool in request.tools
            ]
            if settings.tool_choice is not None:
                out["tool_choice"] = chat_choice(settings.tool_choice)
            if settings.parallel_tool_calls is not None:
                out["parallel_tool_calls"] = settings.parallel_tool_calls
        out.update(_settings(settings, profile))
        out.update(settings.extra)
        return out


def _settings(settings: ModelSettings, profile: CompatProfile) -> dict[str, JSON]:
    figures: dict[str, JSON] = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        profile.output_limit: settings.max_output_tokens,
        "reasoning_effort": settings.reasoning_effort,
        "stop": list(settings.stop) or None,
        "seed": settings.seed,
    }
    if settings.response_schema is not None:
        figures["response_format"] = {
            "type": "json_schema",
            "json_schema": named_schema(settings.response_schema),
        }
    return {name: value for name, value in figures.items() if value is not None}


__all__ = ["OpenAIChatProvider", "profile_of"]

"""OpenAI Responses over HTTP."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ...errors import ConfigError
from ...messages import JSON, Message, Model
from ...responses import ModelRequest, ModelSettings
from ..content import is_empty
from ..http import ApiKey, HTTPProvider
from ..tools import named_schema, responses_choice
from .decoder import OpenAIResponsesDecoder
from .wire import RULES, from_wire, to_wire

if TYPE_CHECKING:
    import httpx2

_NO_REASONING: Final = re.compile(r"(.*/)?(gpt-4|gpt-3|chatgpt-4)")
"""Models that refuse to be asked for encrypted reasoning."""


class OpenAIResponsesProvider(HTTPProvider):
    """OpenAI's Responses API, used without its storage: reasoning comes encrypted and goes back with its follower.

    `store=True` lets the provider keep responses. With `previous_response_id` in a request's `extra`, only what is new
    is sent: the results of the open calls first.
    """

    default_base_url: ClassVar = "https://api.openai.com/v1"
    dialect: ClassVar = "openai-responses"
    wire_rules = RULES

    def __init__(
        self,
        model: str | Model,
        *,
        base_url: str | None = None,
        api_key: ApiKey = None,
        store: bool = False,
        client: httpx2.AsyncClient | None = None,
        headers: Mapping[str, str] | None = None,
        tag: str | None = None,
    ) -> None:
        super().__init__(model, base_url=base_url, api_key=api_key, client=client, headers=headers, tag=tag)
        self.store = store

    def url(self, request: ModelRequest) -> str:
        """Where the request goes; a query in the base address stays at the end."""
        path, mark, query = self.base_url.partition("?")
        return f"{path.rstrip('/')}/responses{mark}{query}"

    def left_out(self, request: ModelRequest) -> Sequence[str]:
        """The dialect has no seed."""
        return () if request.settings.seed is None else ("seed",)

    def auth_headers(self, key: str) -> dict[str, str]:
        """A bearer token; Azure reads the key in a header of its own."""
        azure = {"api-key": key} if ".azure.com" in self.base_url else {}
        return {"authorization": f"Bearer {key}", **azure}

    def decoder(self, request: ModelRequest) -> OpenAIResponsesDecoder:
        """Reads one response."""
        return OpenAIResponsesDecoder()

    def to_wire(self, messages: Sequence[Message]) -> list[dict[str, JSON]]:
        """The conversation part of a request; the messages are paired already."""
        return to_wire(messages, self.tag)

    def from_wire(self, stored: Sequence[Mapping[str, Any]]) -> list[Message]:
        """Messages of a stored conversation part, whatever state it is in."""
        return from_wire(stored)

    def body(self, request: ModelRequest) -> dict[str, JSON]:
        """The request in the dialect's words.

        Raises:
            ConfigError: stop sequences, for which the dialect has no field; a seed is only noted as left out.
        """
        settings = request.settings
        if settings.stop:
            raise ConfigError(
                "settings.stop: the Responses API has no stop sequences; leave them out, or use the chat "
                "completions of the model (openai-chat:NAME)"
            )
        messages = request.messages
        if "previous_response_id" in settings.extra:
            messages = _new_ones(messages)
        out: dict[str, JSON] = {
            "model": request.model.id,
            "input": self.to_wire(messages),
            "stream": True,
            "store": self.store,
        }
        if not _NO_REASONING.match(request.model.id):
            out["include"] = ["reasoning.encrypted_content"]
        if request.system_prompt is not None and not is_empty(request.system_prompt):
            out["instructions"] = request.system_prompt
        if request.tools:
            out["tools"] = [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                    "strict": False,
                }
                for tool in request.tools
            ]
            if settings.tool_choice is not None:
                out["tool_choice"] = responses_choice(settings.tool_choice)
            if settings.parallel_tool_calls is not None:
                out["parallel_tool_calls"] = settings.parallel_tool_calls
        out.update(_settings(settings))
        out.update(settings.extra)
        return out


def _settings(settings: ModelSettings) -> dict[str, JSON]:
    out: dict[str, JSON] = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_output_tokens": settings.max_output_tokens,
    }
    if settings.reasoning_effort is not None:
        out["reasoning"] = {"effort": settings.reasoning_effort, "summary": "auto"}
    if settings.response_schema is not None:
        out["text"] = {"format": {"type": "json_schema", **named_schema(settings.response_schema)}}
    return {name: value for name, value in out.items() if value is not None}


def _new_ones(messages: Sequence[Message]) -> Sequence[Message]:
    """What came after the model's last message: the results of its calls, then new input."""
    for at in range(len(messages) - 1, -1, -1):
        if messages[at].role == "assistant":
            return messages[at + 1 :]
    return messages


__all__ = ["OpenAIResponsesProvider"]

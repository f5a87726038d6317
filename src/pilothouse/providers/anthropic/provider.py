"""Anthropic Messages over HTTP."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ...messages import JSON, Message, Model
from ...responses import ModelRequest, ModelSettings
from ..http import ApiKey, HTTPProvider
from .decoder import AnthropicDecoder
from .wire import RULES, from_wire, system_blocks, to_wire

if TYPE_CHECKING:
    import httpx2

DEFAULT_OUTPUT_TOKENS: Final = 8192
"""The dialect wants a limit; this one is used where neither the settings nor the model has one."""

_ADAPTIVE: Final = re.compile(r"claude-(opus|sonnet|haiku)-(4-[6-9]|[5-9])|claude-(mythos|fable)")
"""Models that choose themselves how long to think; older ones are given a budget of tokens."""

_BUDGETS: Final = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 24576, "max": 32000}
_MARK: Final[dict[str, JSON]] = {"type": "ephemeral"}


class AnthropicProvider(HTTPProvider):
    """Anthropic's Messages API, or a server that is compatible with it.

    `prompt_caching` marks the end of the fixed part and of the conversation, so that the next turn reads them from
    the provider's cache.
    """

    default_base_url: ClassVar = "https://api.anthropic.com"
    dialect: ClassVar = "anthropic"
    wire_rules = RULES

    def __init__(
        self,
        model: str | Model,
        *,
        base_url: str | None = None,
        api_key: ApiKey = None,
        prompt_caching: bool = True,
        client: httpx2.AsyncClient | None = None,
        headers: Mapping[str, str] | None = None,
        tag: str | None = None,
    ) -> None:
        super().__init__(model, base_url=base_url, api_key=api_key, client=client, headers=headers, tag=tag)
        self.prompt_caching = prompt_caching

    def url(self, request: ModelRequest) -> str:
        """Where the request goes."""
        return (
            f"{self.base_url}/messages" if self.base_url.endswith("/v1") else f"{self.base_url}/v1/messages"
        )

    def left_out(self, request: ModelRequest) -> Sequence[str]:
        """The dialect has no seed."""
        return () if request.settings.seed is None else ("seed",)

    def auth_headers(self, key: str) -> dict[str, str]:
        """The key and the version of the API that is spoken."""
        return {"x-api-key": key, "anthropic-version": "2023-06-01"}

    def decoder(self, request: ModelRequest) -> AnthropicDecoder:
        """Reads one response."""
        return AnthropicDecoder()

    def to_wire(self, messages: Sequence[Message]) -> list[dict[str, JSON]]:
        """The conversation part of a request; the messages are paired already."""
        return to_wire(messages, self.tag)

    def from_wire(self, stored: Sequence[Mapping[str, Any]]) -> list[Message]:
        """Messages of a stored conversation part, whatever state it is in."""
        return from_wire(stored)

    def body(self, request: ModelRequest) -> dict[str, JSON]:
        """The request in the dialect's words."""
        settings = request.settings
        limit = settings.max_output_tokens or request.model.max_output_tokens or DEFAULT_OUTPUT_TOKENS
        out: dict[str, JSON] = {
            "model": request.model.id,
            "max_tokens": limit,
            "messages": self.to_wire(request.messages),
            "stream": True,
        }
        if system := system_blocks(request.system_prompt, request.messages):
            out["system"] = system
        if request.tools:
            out["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
                for tool in request.tools
            ]
            if (choice := _choice(settings)) is not None:
                out["tool_choice"] = choice
        if self.prompt_caching:
            _mark(out)
        out.update(_settings(settings, request.model.id, limit))
        out.update(settings.extra)
        return out


def _choice(settings: ModelSettings) -> JSON:
    choice, parallel = settings.tool_choice, settings.parallel_tool_calls
    if isinstance(choice, dict):
        return choice
    if choice is None and parallel is None:
        return None
    kinds = {"auto": "auto", "none": "none", "required": "any", "any": "any"}
    out: dict[str, JSON] = {"type": "auto"} if choice is None else {"type": kinds.get(choice, "tool")}
    if out["type"] == "tool":
        out["name"] = choice
    if parallel is not None and out["type"] != "none":
        out["disable_parallel_tool_use"] = not parallel
    return out


def _mark(body: dict[str, JSON]) -> None:
    """Two marks: after the part that every turn shares, and after the last message."""
    fixed = body.get("system") or body.get("tools")
    if fixed:
        fixed[-1]["cache_control"] = _MARK
    blocks: list[Any] = body["messages"][-1]["content"] if body["messages"] else []
    for block in reversed(blocks):
        if block.get("type") in ("text", "tool_result", "image", "document"):
            block["cache_control"] = _MARK
            return


def _settings(settings: ModelSettings, model: str, limit: int) -> dict[str, JSON]:
    out: dict[str, JSON] = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "stop_sequences": list(settings.stop) or None,
    }
    config: dict[str, JSON] = {}
    if settings.reasoning_effort is not None:
        out.update(_thinking(settings.reasoning_effort, model, limit, config))
    if settings.response_schema is not None:
        config["format"] = {"type": "json_schema", "schema": dict(settings.response_schema)}
    if config:
        out["output_config"] = config
    return {name: value for name, value in out.items() if value is not None}


def _thinking(effort: str, model: str, limit: int, config: dict[str, JSON]) -> dict[str, JSON]:
    if effort in ("none", "off"):
        return {"thinking": {"type": "disabled"}}
    if _ADAPTIVE.search(model):
        config["effort"] = "low" if effort == "minimal" else effort
        return {"thinking": {"type": "adaptive"}}
    budget = _BUDGETS.get(effort, _BUDGETS["medium"])
    return {"thinking": {"type": "enabled", "budget_tokens": budget}, "max_tokens": max(limit, budget + 1024)}


__all__ = ["DEFAULT_OUTPUT_TOKENS", "AnthropicProvider"]

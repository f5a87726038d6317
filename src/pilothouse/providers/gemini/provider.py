"""Gemini over HTTP."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final
from urllib.parse import quote

from ...core.unicode import clean
from ...messages import JSON, Message, ToolSpec
from ...responses import ModelRequest, ModelSettings
from ..content import is_empty, texts_of
from ..http import HTTPProvider
from ..tools import inlined
from .decoder import GeminiDecoder
from .wire import RULES, from_wire, leading_system, to_wire

_BUDGETS: Final = {
    "none": 0,
    "minimal": 512,
    "low": 1024,
    "medium": 8192,
    "high": 24576,
    "xhigh": 24576,
    "max": 24576,
}
_OLD: Final = re.compile(r"gemini-2\.5")
"""Models whose thinking is bounded by a number of tokens; later ones take a level."""


class GeminiProvider(HTTPProvider):
    """Google's Gemini API (`streamGenerateContent` over server-sent events)."""

    default_base_url: ClassVar = "https://generativelanguage.googleapis.com/v1beta"
    dialect: ClassVar = "gemini"
    wire_rules = RULES

    def url(self, request: ModelRequest) -> str:
        """Where the request goes: the model is part of the address."""
        name = request.model.id
        path = name if "/" in name else f"models/{name}"
        return f"{self.base_url}/{quote(path)}:streamGenerateContent?alt=sse"

    def left_out(self, request: ModelRequest) -> Sequence[str]:
        """The dialect cannot forbid several calls at once."""
        alone = bool(request.tools) and request.settings.parallel_tool_calls is False
        return ("parallel_tool_calls",) if alone else ()

    def auth_headers(self, key: str) -> dict[str, str]:
        """The key in a header; in the address it would end in logs."""
        return {"x-goog-api-key": key}

    def decoder(self, request: ModelRequest) -> GeminiDecoder:
        """Reads one response."""
        return GeminiDecoder()

    def to_wire(self, messages: Sequence[Message]) -> list[dict[str, JSON]]:
        """The conversation part of a request; the messages are paired already."""
        return to_wire(messages, self.tag)

    def from_wire(self, stored: Sequence[Mapping[str, Any]]) -> list[Message]:
        """Messages of a stored conversation part, whatever state it is in."""
        return from_wire(stored)

    def body(self, request: ModelRequest) -> dict[str, JSON]:
        """The request in the dialect's words."""
        settings = request.settings
        out: dict[str, JSON] = {"contents": self.to_wire(request.messages)}
        if system := _system(request.system_prompt, request.messages):
            out["systemInstruction"] = {"parts": [{"text": text} for text in system]}
        if request.tools:
            out["tools"] = [{"functionDeclarations": [_declaration(tool) for tool in request.tools]}]
            if settings.tool_choice is not None:
                out["toolConfig"] = {"functionCallingConfig": _choice(settings.tool_choice)}
        if config := _settings(settings, request.model.id):
            out["generationConfig"] = config
        for name, value in settings.extra.items():
            beside = out.get(name)
            out[name] = {**beside, **value} if isinstance(beside, dict) and isinstance(value, dict) else value
        return out


def _system(prompt: str | None, messages: Sequence[Message]) -> list[str]:
    texts = [] if prompt is None or is_empty(prompt) else [clean(prompt)]
    return texts + [text for message in leading_system(messages) for text in texts_of(message.parts)]


def _declaration(tool: ToolSpec) -> dict[str, JSON]:
    """A tool; its schema without references, which the dialect does not follow."""
    out: dict[str, JSON] = {"name": tool.name, "description": tool.description}
    if tool.parameters.get("properties"):
        out["parametersJsonSchema"] = inlined(tool.parameters, tool.name)
    return out


def _choice(choice: str | dict[str, JSON]) -> dict[str, JSON]:
    if isinstance(choice, dict):
        return choice
    modes = {"auto": "AUTO", "none": "NONE", "required": "ANY", "any": "ANY"}
    if choice in modes:
        return {"mode": modes[choice]}
    return {"mode": "ANY", "allowedFunctionNames": [choice]}


def _settings(settings: ModelSettings, model: str) -> dict[str, JSON]:
    out: dict[str, JSON] = {
        "temperature": settings.temperature,
        "topP": settings.top_p,
        "maxOutputTokens": settings.max_output_tokens,
        "stopSequences": list(settings.stop) or None,
        "seed": settings.seed,
    }
    effort = settings.reasoning_effort
    if effort is not None and (_OLD.search(model) or effort == "none"):
        budget = _BUDGETS.get(effort, _BUDGETS["medium"])
        out["thinkingConfig"] = {"thinkingBudget": budget, "includeThoughts": budget > 0}
    elif effort is not None:
        level = "high" if effort in ("xhigh", "max") else effort
        out["thinkingConfig"] = {"thinkingLevel": level, "includeThoughts": True}
    if settings.response_schema is not None:
        out["responseMimeType"] = "application/json"
        out["responseJsonSchema"] = inlined(settings.response_schema, "response")
    return {name: value for name, value in out.items() if value is not None}


__all__ = ["GeminiProvider"]

"""The body of an AG-UI request, and what an answer to interrupts looks like in it (AG-190, AG-210)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET

from ..core.agui.events import PROTOCOL_VERSION
from ..core.canonical import scrub
from ..messages import JSON, ToolSpec
from ..projection import Interrupt, InterruptAnswer

WireProfile: TypeAlias = Literal["auto", "1.0", "legacy"]
InterruptWire: TypeAlias = Literal["auto", "native", "command", "mastra"]


def body_of(
    thread_id: str,
    run_id: str,
    messages: Sequence[JSON],
    tools: Sequence[ToolSpec],
    state: Mapping[str, JSON],
    props: Mapping[str, JSON],
    *,
    resume: Sequence[JSON] | None = None,
    profile: WireProfile = "auto",
    parent_run_id: str | None = None,
) -> bytes:
    """A run input as it goes out; optional means absent, never null."""
    body: dict[str, Any] = {
        "threadId": thread_id,
        "runId": run_id,
        "messages": list(messages),
        "tools": [_tool(spec) for spec in tools],
        "context": [],
        "state": dict(state),
        "forwardedProps": dict(props),
    }
    if parent_run_id is not None:
        body["parentRunId"] = parent_run_id
    if resume is not None:
        body["resume"] = list(resume)
    if profile != "legacy":
        body["protocolVersion"] = PROTOCOL_VERSION
    else:
        body["messages"] = [_legacy(message) for message in body["messages"]]
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return msgspec.json.encode(scrub(body))


def _tool(spec: ToolSpec) -> dict[str, JSON]:
    parameters = dict(spec.parameters) or {"type": "object", "properties": {}}
    return {"name": spec.name, "description": spec.description, "parameters": parameters}


def _legacy(message: dict[str, Any]) -> dict[str, Any]:
    """Media had one form before 1.0."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [_legacy_part(part) for part in content]}


def _legacy_part(part: dict[str, Any]) -> dict[str, Any]:
    source = part.get("source")
    if not isinstance(source, dict):
        return part
    mime_type = source.get("mimeType", "application/octet-stream")
    name = "data" if source["type"] == "data" else "url"
    return {"type": "binary", "mimeType": mime_type, name: source["value"]}


def answered(
    answers: Sequence[InterruptAnswer],
    batch: Sequence[Interrupt],
    wire: InterruptWire,
    *,
    native: bool,
    run_id: str,
) -> tuple[list[JSON] | None, dict[str, JSON]]:
    """The top-level `resume` and the `forwardedProps` of an answer. An explicit setting beats the shape seen."""
    if wire == "native" or (wire == "auto" and native):
        return [_entry(answer) for answer in answers], {}
    payloads = [None if answer.payload is UNSET else answer.payload for answer in answers]
    command: dict[str, JSON] = {"resume": payloads[0] if len(payloads) == 1 else payloads}
    if wire == "mastra":
        asked = next(item for item in batch if item.id == answers[0].id)
        command["interruptEvent"] = {"toolCallId": asked.tool_call_id or asked.id, "runId": run_id}
    return None, {"command": command}


def _entry(answer: InterruptAnswer) -> dict[str, JSON]:
    entry: dict[str, JSON] = {"interruptId": answer.id, "status": answer.status}
    if answer.payload is not UNSET and answer.payload is not None:
        entry["payload"] = answer.payload
    return entry


__all__ = ["InterruptWire", "WireProfile", "answered", "body_of"]

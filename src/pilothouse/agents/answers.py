"""Answers of an interface as resolutions of a run's requests, and requests as interrupts (AG-141, AG-142)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET

from ..agent_errors import ResumeInvalid
from ..commands import Allow, Deny, InputAnswer, Request, Resolution
from ..messages import JSON, MEDIA, Text
from ..projection import EMPTY, Interrupt, InterruptAnswer

_REASONS = {"approval": "tool_call", "input": "input_required"}
_APPROVAL: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "reason": {"type": "string"},
        "editedArgs": {"type": "object"},
    },
    "required": ["approved"],
}


def interrupt_of(request: Request) -> Interrupt:
    """A request of a run as a person is asked it."""
    expires = request.expires_at_ms
    data = request.data if isinstance(request.data, Mapping) else EMPTY
    return Interrupt(
        request.id,
        _REASONS.get(request.kind, f"pilothouse:{request.kind}"),
        request.prompt or None,
        request.data if request.data is not None else request.prompt,
        request.call_id,
        None if request.kind == "approval" else request.schema,
        None if expires is None else datetime.fromtimestamp(expires / 1000, UTC),
        data,
    )


def resolution_of(request: Request, answer: InterruptAnswer) -> Resolution:
    """What an answer means to the run.

    Raises:
        ResumeInvalid: it means nothing for a request of this kind.
    """
    if answer.status == "cancelled":
        return Deny("cancelled")
    payload = None if answer.payload is UNSET else answer.payload
    return _approval(request, payload) if request.kind == "approval" else _input(request, payload)


def _approval(request: Request, payload: JSON) -> Resolution:
    if isinstance(payload, bool):
        return Allow() if payload else Deny()
    if not isinstance(payload, Mapping) or not isinstance(payload.get("approved"), bool):
        raise ResumeInvalid(
            {request.id: "an approval takes True, False, or {approved, reason?, editedArgs?}"}
        )
    unknown = payload.keys() - {"approved", "reason", "editedArgs"}
    edited, reason = payload.get("editedArgs"), payload.get("reason") or ""
    if unknown or not isinstance(reason, str) or not isinstance(edited, Mapping | None):
        raise ResumeInvalid(
            {request.id: "an approval takes True, False, or {approved, reason?, editedArgs?}"}
        )
    if not payload["approved"]:
        return Deny(reason)
    return Allow(arguments=None if edited is None else dict(edited))


def _input(request: Request, payload: JSON) -> Resolution:
    if isinstance(payload, str):
        return InputAnswer(payload)
    if _parts(payload):
        return InputAnswer([msgspec.to_builtins(part) for part in payload])
    if request.schema is not None and payload is not None:
        return InputAnswer(payload)
    raise ResumeInvalid({request.id: "an input takes a text, parts, or a value that fits its schema"})


def _parts(payload: Any) -> bool:
    return (
        isinstance(payload, Sequence)
        and bool(payload)
        and all(isinstance(item, (Text, *MEDIA)) for item in payload)
    )


__all__ = ["interrupt_of", "resolution_of"]

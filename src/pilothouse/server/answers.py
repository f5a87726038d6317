"""What an AG-UI client answers, as answers to the requests that are open (SV-103, SV-104, SV-109)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from ..commands import Ack, Allow, Deny, ExternalResult, InputAnswer, Request, Resolution
from ..core.agui.ends import interrupt
from ..core.agui.input import Resume, RunInput
from ..messages import JSON, Text
from .problems import Problem, invalid

logger = logging.getLogger("pilothouse.server")


def answers_of(asked: RunInput, requests: Sequence[Request]) -> dict[str, Resolution]:
    """What the client answers of what is open; a resume entry wins over a tool message (SV-104)."""
    found: dict[str, Resolution] = {}
    results = {message.call_id: message for message in asked.messages if message.role == "tool"}
    entries = {entry.interrupt_id: entry for entry in asked.resume}
    single = asked.forwarded_props.get("command")
    if isinstance(single, dict) and "resume" in single and not entries and len(requests) == 1:  # SV-109
        entries = {requests[0].id: Resume(requests[0].id, "resolved", single["resume"])}
    for request in requests:
        if (entry := entries.get(request.id)) is not None:
            found[request.id] = _resolution(request, entry)
        elif request.kind == "external" and (result := results.get(request.call_id or "")) is not None:
            content = result.parts or ((Text(result.error),) if result.error else ())
            found[request.id] = ExternalResult(content, bool(result.error))
    for unknown in entries.keys() - {request.id for request in requests}:
        logger.warning("run %s answers %s, which is not open: ignored", asked.run_id, unknown)
    return found


def _resolution(request: Request, entry: Resume) -> Resolution:
    payload = entry.payload
    if entry.status == "cancelled":
        return Deny("cancelled")
    if request.kind == "input":
        return InputAnswer(payload)
    if request.kind == "external":
        text = payload if isinstance(payload, str) else msgspec.json.encode(payload).decode()
        return ExternalResult((Text(text),))
    said = {"approved": payload} if isinstance(payload, bool) else payload
    if not isinstance(said, dict) or not isinstance(said.get("approved"), bool):
        raise invalid((f"resume.{request.id}.payload", "must be an object with approved: true or false"))
    if not said["approved"]:
        return Deny(str(said.get("reason") or ""))
    edited = said.get("editedArgs")
    if edited is not None and not isinstance(edited, dict):
        raise invalid((f"resume.{request.id}.payload.editedArgs", "must be an object"))
    return Allow("once", edited)


_UNFIT: Final = frozenset({"invalid_arguments", "answer_mismatch"})
"""Codes of answers that are no answer to their request, whatever the state of the run."""


def check_taken(ack: Ack, **members: JSON) -> None:
    """Raises if a command was not taken in."""
    if ack.state in ("rejected", "unsupported"):
        status = 422 if ack.state == "unsupported" or ack.code in _UNFIT else 409
        raise Problem(status, ack.code or ack.state, ack.message, **members)


def pending(requests: Sequence[Request]) -> Problem:
    """The refusal that lists what is still open."""
    listed = [msgspec.to_builtins(interrupt(request)) for request in requests]
    return Problem(409, "requests_pending", "the run waits for answers to these requests", requests=listed)


__all__ = ["answers_of", "check_taken", "pending"]

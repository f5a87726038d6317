"""How an answer ended, in one line: what happened, in the provider's words, and what to do."""

from __future__ import annotations

from typing import Final, assert_never

from ..errors import ProviderError
from ..events import Cancelled, Completed, Failed, Incomplete, Outcome, Truncated, Unknown

_HINTS: Final = {
    "auth": "check the key",
    "quota": "the account has no credit left",
    "rate_limit": "wait a moment and /retry",
    "overloaded": "wait a moment and /retry",
    "server_error": "the server failed: /retry, or look at its log",
    "transport": "is the server running, and the network there?",
    "context_overflow": "the conversation is too long for this model: begin a new one",
    "bug": "its traceback is in the log",
    "malformed": "that is no model API: check the address",
    "send_timeout": "the model did not begin to answer: /retry",
    "idle_timeout": "the model fell silent: /retry",
}


def explain(error: BaseException) -> str:
    """One line for a terminal."""
    info = error.info if isinstance(error, ProviderError) else None
    if info is None:
        return " ".join(str(error).split()) or type(error).__name__
    said = " ".join((info.message or str(error)).split())
    body = info.native.get("body") if isinstance(info.native, dict) else None
    if isinstance(body, str) and body not in said:  # not the protocol at all: its beginning says what it is
        said = f"{said}, it begins with {' '.join(body.split())[:200]!r}"
    status = f" ({info.status})" if info.status is not None and str(info.status) not in said else ""
    line = f"{info.kind.replace('_', ' ')}{status}: {said[:300]}"
    hint = _HINTS.get(info.kind)
    return f"{line}. {hint[0].upper()}{hint[1:]}" if hint else line


def ended(outcome: Outcome) -> str:
    """An outcome in words, as one line."""
    match outcome:
        case Completed(empty=empty):
            said = "completed, but the model said nothing" if empty else "completed"
        case Truncated():
            said = "truncated: the answer was cut by an output limit"
        case Incomplete(reason=reason, limit=limit):
            said = f"incomplete: {reason} {limit or ''}"
        case Cancelled(reason=reason, source=source):
            said = f"cancelled ({source})" + (f": {reason}" if reason and reason != "aborted" else "")
        case Failed(kind=kind, message=message):
            said = f"failed: {kind.replace('_', ' ')}: {message}"
        case Unknown(cause=cause, reason=reason, settled=settled):
            said = f"unknown{', abandoned' if settled else ''}: {cause} {reason}"
        case _:
            assert_never(outcome)
    return " ".join(said.split()).rstrip(":")

"""When a failed request is made again (LP-18 … LP-20). Pure."""

from __future__ import annotations

from typing import Final, Literal

from ..responses import ErrorInfo, StreamEnd

Patience = Literal[
    "policy",  # as often as the policy says
    "once",  # one more time
]

RETRIES: Final[dict[str, Patience]] = {
    "rate_limit": "policy",
    "overloaded": "policy",
    "server_error": "policy",
    "transport": "policy",
    "unknown": "policy",  # a response that ended without saying how
    "malformed": "once",
    "protocol": "once",
    "malformed_tool_call": "once",
}
"""Error kinds that may pass by themselves; every other kind is final."""


def kind_of(end: StreamEnd) -> str:
    """The word under which an end stands in the table."""
    return end.error.kind if end.error is not None else end.reason


def may_retry(end: StreamEnd, failures: int, attempts: int) -> bool:
    """Whether a response that ended like this, as the `failures`-th in a row, may be asked for again."""
    patience = RETRIES.get(kind_of(end))
    if patience is None:
        return False
    return failures < (attempts if patience == "policy" else min(attempts, 2))


def hint_of(error: ErrorInfo | None) -> float | None:
    """Seconds that the server asked us to wait."""
    if error is None or error.retry_after_ms is None:
        return None
    return error.retry_after_ms / 1000

"""What interfaces are shown of messages: their delivery. Values only; computed by `core/delivery.py`."""

from __future__ import annotations

from typing import Literal, TypeAlias

from .messages import Value

Delivered: TypeAlias = Literal["success", "paused", "aborted", "error", "interrupted"]
"""How a message, or an awaited action, came out (agent-contract §2)."""


class MessageDelivery(Value):
    """Where a message is on its way to the reader.

    Attributes:
        generation: names one attempt; a row may be keyed by (message id, generation).
        phase: `streaming` while text may still come.
        outcome: exactly one once complete.
        reason: a finer word: `truncated`, `limit`, `superseded`, `abandoned`, …
    """

    generation: str
    phase: Literal["streaming", "complete"]
    outcome: Delivered | None = None
    reason: str | None = None


__all__ = ["Delivered", "MessageDelivery"]

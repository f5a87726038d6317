"""What a tool's function may return besides plain values."""

from __future__ import annotations

from ..messages import JSON, Part, Value


class ToolResult(Value):
    """A result in the tool's own words.

    `terminate` asks to stop asking the model, if every result of the batch says so (LP-6).
    """

    parts: tuple[Part, ...] = ()
    structured: JSON = None
    is_error: bool = False
    terminate: bool = False


class Backgrounded(Value):
    """What a tool returns that handed its work to a job: `ToolContext.detach` makes it."""

    job: str
    name: str
    log: str | None = None


class NotRun(Value):
    """What a tool's `reconcile` says of an attempt that provably did not happen."""

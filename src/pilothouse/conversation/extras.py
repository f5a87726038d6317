"""What a surface adds to one send, and how a send may end before it is a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from ..messages import JSON, Message, ToolSpec
from ..records import Parent


class RunExtras(Struct, frozen=True, kw_only=True):
    """All of it goes into the run's immutable specification.

    Attributes:
        tenant: the isolation key.
        message_id: of the user message; None: minted.
        parent: where the run hangs; None: the head of the thread.
        base: a history that takes the place of the thread's: the run is a root, and this is recorded with it.
        client_tools: tools that run at the client, for this run only.
        state: changes the shared state of the thread: each key replaces a whole branch.
        deadline: seconds from now.
        limits: may lower the loop's limits, never raise them.
    """

    tenant: str = ""
    message_id: str | None = None
    parent: Parent | None = None
    base: Sequence[Message] | None = None
    client_tools: Sequence[ToolSpec] = ()
    state: Mapping[str, JSON] | None = None
    deadline: float | None = None
    limits: Mapping[str, JSON] = field(default_factory=dict)
    extensions: Mapping[str, JSON] = field(default_factory=dict)


class Refused(Struct, frozen=True):
    """A send that ended before its commit: no run exists. Stands on a `Reply` only, never in a journal (AC-28)."""

    error: BaseException

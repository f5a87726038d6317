"""An attempt of a remote agent: one request, and what is known of the run behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from ..agents.surface import Attempt
from ..core.display import Content
from ..core.interrupts import Decision
from ..messages import JSON, InputPart, Text
from ..projection import Delivered
from .exchange import Exchange


@final
class Sending(Attempt):
    """One of them.

    Args:
        patch: of the state, which it sends.
        decision: the answer that it repeats, byte for byte.
        url: where it joins a run that lives; empty for a run of its own.
        ordinary: no answer and no continuation of client tools: what of it nobody saw may be repeated.

    Attributes:
        body: what is sent, byte for byte.
        resuming: it answers the open batch.
        carried: client results that it carries.
        state_before: the state without the patch that it sends; None once that is settled.
        rolled_back: its patch was taken back.
        exchange: its request; None before it was made.
        started: its RUN_STARTED came.
        told: its end was told: `finished` or `failed`.
        seen: any event of it came.
        behind: the message behind which it began; None for the first of a conversation.
    """

    def __init__(
        self,
        run_id: str,
        message_id: str = "",
        *,
        patch: Mapping[str, JSON] | None = None,
        decision: Decision | None = None,
        url: str = "",
        ordinary: bool = True,
        resuming: bool = False,
    ) -> None:
        super().__init__(run_id, message_id)
        self.patch = patch
        self.decision = decision
        self.url = url
        self.ordinary = ordinary
        self.resuming = resuming
        self.body = b"" if decision is None else decision.body.encode()
        self.carried: frozenset[str] = frozenset()
        self.state_before: Mapping[str, JSON] | None = None
        self.rolled_back = self.started = self.seen = False
        self.exchange: Exchange | None = None
        self.told = ""
        self.outcome: Delivered = "interrupted"
        self.behind: str | None = None


def content_of(parts: tuple[InputPart, ...] | None) -> Content:
    """What is shown of the parts of a message: one text as a text."""
    if parts is not None and len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return parts or ""


__all__ = ["Sending", "content_of"]

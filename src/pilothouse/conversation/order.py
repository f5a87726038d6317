"""What a send is asked to do, before it is a run."""

from __future__ import annotations

from dataclasses import dataclass

from ..messages import InputPart, Message
from ..records import Parent
from .extras import RunExtras


@dataclass(slots=True)
class Order:
    """What a send is to do.

    Attributes:
        parts: of the user message; None to go on without one.
        parent: where the run hangs; None: at the head, as it is when the run is registered.
        keep: the messages in front of it; None: those shown then.
        aim: of a retry or a regeneration: what stands for its content.
    """

    parts: tuple[InputPart, ...] | None
    extras: RunExtras
    parent: Parent | None = None
    keep: tuple[Message, ...] | None = None
    aim: object = None

    @property
    def fingerprint(self) -> object:
        """What makes two sends of one id the same (AC-41)."""
        return self.aim if self.aim is not None else (self.parts, self.extras.parent)

"""What a send is asked to do, before it is a run."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ..messages import JSON, Context, InputPart, Message
from ..records import Parent
from .controllers import RequestKind
from .extras import RunExtras

RETRY: Final = "retry"


class Order(Struct):
    """What a send is to do.

    Attributes:
        parts: of the user message; None to go on without one.
        parent: where the run hangs; None: at the head, as it is when the run is registered.
        keep: the messages in front of it; None: those shown then.
        aim: of a retry or a regeneration: what stands for its content.
        state: what it changes of the shared state, checked.
        context: what the application added to the user message.
        extensions: what hooks and states put into the run's specification.
    """

    parts: tuple[InputPart, ...] | None
    extras: RunExtras
    parent: Parent | None = None
    keep: tuple[Message, ...] | None = None
    aim: object = None
    state: dict[str, JSON] | None = None
    context: Context | None = None
    extensions: dict[str, JSON] | None = None

    @property
    def kind(self) -> RequestKind:
        """What hooks are told that it is."""
        if self.parts is not None:
            return "send"
        if self.aim is None:
            return "continue"
        return "retry" if self.aim == RETRY else "regenerate"

    @property
    def moves(self) -> bool:
        """Whether it may hang elsewhere than at the end of what is shown."""
        return self.kind == "regenerate" or self.extras.parent is not None

    @property
    def fingerprint(self) -> object:
        """What makes two sends of one id the same (AC-41)."""
        return self.aim if self.aim is not None else (self.parts, self.extras.parent)

"""What is found out about the messages of a thread, carried from one run of it to the next: each is looked at once."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final, final

import msgspec

from ..core.pairing import Pairing
from ..core.recent import Recent
from ..core.window import Meter
from ..messages import MEDIA, ArtifactRef, Message

_encode: Final = msgspec.json.Encoder(order="sorted").encode


@final
class Trail:
    """A working message list, and how far it was measured, checked and hashed.

    Attributes:
        messages: grows at its end only, so that a part of it can be sent without a copy.
        meter: sizes; its anchor is a run's own.
        pairing: what was found clean, by the rules of a wire; None where nothing was looked at.
        spilled: it has results that were left out (TL-15).
        heavy: it holds the bytes of media, which are loaded for a run only.
    """

    __slots__ = ("_chain", "_chained", "_looked", "heavy", "messages", "meter", "pairing", "spilled")

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.meter = Meter()
        self.pairing: Pairing | None = None
        self.spilled = self.heavy = False
        self._looked = 0
        self._chain = ""
        self._chained = 0
        self.look()

    def look(self) -> None:
        """Looks at the messages that were added."""
        for message in self.messages[self._looked :]:
            for part in message.parts:
                if type(part) is ArtifactRef:
                    self.spilled = self.spilled or message.role == "tool"
                elif isinstance(part, MEDIA) and part.data is not None:
                    self.heavy = True
        self._looked = len(self.messages)

    def chain(self) -> str:
        """Hash chain over the messages: equal prefixes have equal values."""
        value = self._chain
        for message in self.messages[self._chained :]:
            value = link(value, message)
        self._chain, self._chained = value, len(self.messages)
        return value

    def goes_on(self, messages: list[Message]) -> bool:
        """Takes what is new of a list that begins with these messages; False if it does not."""
        known = self.messages
        if known != messages[: len(known)]:
            return False
        known += messages[len(known) :]
        self.meter.anchor = None
        self.look()
        return True


@final
class Trails:
    """The trails of threads whose last run is over."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: Recent[Trail] = Recent()

    def take(self, thread_id: str, messages: list[Message]) -> Trail:
        """The trail of a run that begins with these messages: where its thread has just gone on, that of the run before."""
        trail = self._kept.pop(thread_id)
        return trail if trail is not None and trail.goes_on(messages) else Trail(messages)

    def keep(self, thread_id: str, trail: Trail) -> None:
        """The run is over: the thread may go on."""
        trail.look()
        if trail.heavy:
            return
        self._kept.put(thread_id, trail, len(trail.messages))

    def forget(self, thread_id: str) -> None:
        """The thread will not go on."""
        self._kept.pop(thread_id)


def chain_of(messages: Sequence[Message]) -> str:
    """Hash chain over a payload that is not the context itself."""
    value = ""
    for message in messages:
        value = link(value, message)
    return value


def link(value: str, message: Message) -> str:
    """The next value of the chain."""
    try:
        body = _encode(message)
    except (UnicodeEncodeError, TypeError):  # lone surrogates, or subclasses, in somebody's history
        body = repr(message).encode("utf-8", "surrogatepass")
    return sha256(value.encode() + body).hexdigest()

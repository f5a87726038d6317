"""The interceptor: it sees what a person says before that has any effect, and may replace, refuse or postpone it.

`PromptEvent` holds the verdict; `Postponed` is the handle by which somebody decides later, from any thread. The first
completion wins. Nothing here is durable: until the verdict nothing has happened.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from math import isfinite
from typing import Any, Final, Literal, TypeAlias, final

from ..errors import UsageError
from ..messages import MEDIA, UNSET, Media, Text, Unset
from .options import LONGEST_S

Kind: TypeAlias = Literal["send", "steer", "follow_up"]

EMPTY: Final = "empty after interception"


@final
class PromptEvent:
    """What is about to be said. Changeable until the verdict is used; then every mutator raises.

    Attributes:
        text, attachments: as they are now, after `replace`.
        original_text, original_attachments: as they were given; attachments are let go of with the verdict.
        kind: `steer` and `follow_up` are messages to a send that runs: they cannot be postponed.
    """

    def __init__(
        self,
        text: str,
        attachments: Sequence[Media] = (),
        *,
        kind: Kind = "send",
        thread_id: str = "",
        reply_id: str = "",
    ) -> None:
        self.text = self.original_text = text
        self.attachments: tuple[Media, ...] = tuple(attachments)
        self.original_attachments = self.attachments
        self.kind = kind
        self.thread_id = thread_id
        self.reply_id = reply_id
        self.replaced = False
        self.rejected = False
        self.reason: str | None = None
        self.postponed: Postponed | None = None
        self.closed = False
        self.lock = threading.RLock()

    def _check(self, action: str) -> None:
        if self.closed:
            raise UsageError(f"cannot {action} a message after its verdict")

    def replace(self, *, text: str | Unset = UNSET, attachments: Sequence[Media] | Unset = UNSET) -> None:
        """Puts another text, or other attachments, in the place: nothing behind the interceptor sees the original.

        Raises:
            TypeError: no text, or no attachments.
            UsageError: after the verdict.
        """
        if text is not UNSET and not isinstance(text, str):
            raise TypeError(f"text must be str, got {type(text).__name__}")
        found: tuple[Media, ...] | None = None
        if not isinstance(attachments, Unset):
            found = tuple(attachments)
            for index, item in enumerate(found):
                if not isinstance(item, MEDIA):
                    raise TypeError(f"attachments[{index}] must be an Attachment, got {type(item).__name__}")
        with self.lock:
            self._check("replace")
            self.replaced = True
            if not isinstance(text, Unset):
                self.text = text
            if found is not None:
                self.attachments = found

    def reject(self, reason: str | None = None) -> None:
        """Refuses the message. Final: a later replacement does not undo it. The last reason given counts.

        Raises:
            UsageError: after the verdict.
        """
        with self.lock:
            self._check("reject")
            self.rejected = True
            if reason is not None:
                self.reason = reason

    def postpone(self, *, timeout: float) -> Postponed:
        """Leaves the verdict to the returned handle; the send waits, up to `timeout` seconds.

        Raises:
            ValueError: `timeout` is not positive, not finite, or more than 24.8 days.
            UsageError: it was postponed already, is no send of its own, or the verdict was used.
        """
        if isinstance(timeout, bool) or not isinstance(timeout, int | float):
            raise TypeError(f"timeout must be a number of seconds, got {type(timeout).__name__}")
        if not isfinite(timeout) or timeout <= 0 or timeout > LONGEST_S:
            raise ValueError(f"timeout must be above 0 and at most {LONGEST_S:g} seconds, got {timeout!r}")
        with self.lock:
            self._check("postpone")
            if self.kind != "send":
                raise UsageError(f"cannot postpone a {self.kind} message: only a send can wait")
            if self.postponed is not None:
                raise UsageError("cannot postpone a message twice")
            self.postponed = Postponed(self, float(timeout))
            return self.postponed

    # For the conversation

    def close(self) -> Verdict:
        """The verdict as it stands now; from here on nothing can be changed, and the content is let go of."""
        with self.lock:
            self.closed = True
            verdict = Verdict(self)
            self.attachments = self.original_attachments = ()
            return verdict


class Verdict:
    """What is to become of a message."""

    __slots__ = ("attachments", "original", "reason", "rejected", "replaced", "text")

    def __init__(self, event: PromptEvent) -> None:
        self.text = event.text
        self.attachments = event.attachments
        self.original = event.original_text
        self.replaced = event.replaced
        self.rejected = event.rejected
        self.reason = event.reason
        if not self.rejected and self.original.strip() and not self.text.strip() and not self.attachments:
            self.rejected, self.reason = True, EMPTY

    def parts(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """The parts of the message: those that were given, unless they were replaced."""
        if not self.replaced:
            return given
        text = (Text(self.text),) if self.text or not self.attachments else ()
        return (*text, *self.attachments)


@final
class Postponed:
    """A message whose verdict is still to come. Its methods work from any thread; the first one counts."""

    def __init__(self, event: PromptEvent, timeout: float) -> None:
        self.event = event
        self.timeout = timeout
        self.done = False
        self.verdict: Verdict | None = None
        self.error: BaseException | None = None
        self._wake: Callable[[], object] | None = None

    def proceed(self) -> bool:
        """The verdict is what the event says now. False: too late, nothing happened."""
        return self.complete(None)

    def fail(self, error: BaseException) -> bool:
        """The send fails with this error. False: too late, nothing happened.

        Raises:
            TypeError: it is no exception.
        """
        if not isinstance(error, BaseException):
            raise TypeError(f"error must be an exception, got {type(error).__name__}")
        return self.complete(error)

    # For the conversation

    def complete(self, error: BaseException | None) -> bool:
        """Decides, if nobody did."""
        with self.event.lock:
            if self.done:
                return False
            self.done = True
            self.error = error
            self.verdict = self.event.close()
            wake = self._wake
        if wake is not None:
            wake()
        return True

    def abandon(self) -> bool:
        """Nobody waits for it any more."""
        with self.event.lock:
            if self.done:
                return False
            self.done = True
            self.event.close()
            return True

    def on_done(self, wake: Callable[[], object]) -> None:
        """Calls back once it is decided, from whichever thread; at once if it is."""
        with self.event.lock:
            if not self.done:
                self._wake = wake
                return
        wake()


Interceptor: TypeAlias = Callable[[PromptEvent], Awaitable[None] | None]
"""Called with each message before it has any effect; must return None."""


__all__ = ["EMPTY", "Interceptor", "Postponed", "PromptEvent", "Verdict"]

"""State that a model changes: staged by tools, prepared when the send ends well, swapped in once that is durable.

`StagedController` is what a user subclasses. Who watches the calls, writes the notes and seals is `sealing`; where states
come from when a thread is opened or goes back is `states`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar, cast

import msgspec

from ..cancel import ENDING
from ..core.canonical import encode
from ..errors import ToolError, UsageError
from ..messages import JSON
from .controllers import BaseAIController, Ending

if TYPE_CHECKING:
    from .reply import Reply

logger = logging.getLogger("pilothouse.conversation")

S = TypeVar("S")

ChangeSource: TypeAlias = Literal["model", "user", "history"]


@dataclass(frozen=True, slots=True)
class Change(Generic[S]):
    """A state was replaced by another one.

    Attributes:
        source: `history` where the conversation went back to an earlier message.
        reply_id: of the send that did it, None for a change between sends.
    """

    before: S | None
    after: S | None
    source: ChangeSource
    reply_id: str | None = None


class Staging(Protocol):
    """The staged values of one live send, as its controllers see them."""

    def stage(self, controller: Any, value: Any, data: JSON) -> None:
        """Keeps a value for the call that runs here."""
        ...

    def staged(self, controller: Any) -> Any:
        """What would be committed of a controller if the send ended now, or the call that runs here has staged."""
        ...


class StagedController(BaseAIController, Generic[S]):
    """An AI controller with one state that its tools change, all or nothing with the end of the send.

    A tool validates and calls `stage`; of several the last counts, of a call that fails none. When the send ends in one
    of `commit_on`, every staged state is prepared, then all are committed in the append that ends the run, then applied.

    Attributes:
        state_version: of what `encode` writes; `decode` is given the stored one.
        commit_on: the endings that commit; the others discard.
        follow_history: whether going back in the conversation goes back in the state.
        state: the last committed one: what an interface shows.
    """

    state_version: int = 1
    commit_on: frozenset[Ending] = frozenset({"completed"})
    follow_history: bool = True
    state: S | None = None

    _staging: Staging | None = None
    _listeners: tuple[Callable[[Change[S]], object], ...] = ()

    def bind(self, staging: Staging) -> None:
        """A send has begun: what its tools stage is kept there."""
        self._staging = staging

    @property
    def staged(self) -> S | None:
        """The value that the live send would commit, None if there is none."""
        return None if self._staging is None else self._staging.staged(self)

    def stage(self, value: S) -> None:
        """Replaces the staged value; only inside a running call of one of its own tools. Thread-safe.

        Raises:
            UsageError: no call of its own runs here.
            DeadReply: the send that the call belongs to is over; nothing was staged.
            ToolError: the value cannot be kept: raised through the tool, it tells the model so.
        """
        if self._staging is None:
            raise UsageError("cannot stage outside of a running call of the controller's own tools")
        try:
            data = self.encode(value)
            encode(data)
        except ToolError:
            raise
        except Exception as error:
            logger.exception("a value of %s cannot be kept", type(self).__name__)
            raise ToolError("The value could not be kept.") from error
        self._staging.stage(self, value, data)

    async def prepare(self, value: S, reply: Reply | None) -> object:
        """Does what may fail, before anything is committed: writes nothing that an interface sees.

        What it returns is given to `apply`. `reply` is None for `set` and for a restore.
        """
        return None

    def apply(self, value: S, prepared: object) -> None:
        """Swaps the state in; must not fail."""
        self.state = value

    def encode(self, value: S) -> JSON:
        """The value as JSON, for the journal."""
        return msgspec.to_builtins(value)

    def decode(self, data: JSON, version: int) -> S:
        """The value of what `encode` wrote under `version`.

        Raises:
            Exception: it cannot be read any more; it stays stored until something is committed over it.
        """
        return cast("S", data)

    def public(self, value: S) -> JSON:
        """What the shared state shows of it under the controller's key; None: nothing."""
        return self.encode(value)

    async def restore(self, value: S | None) -> None:
        """Goes to a state of the journal, None for none; tells nobody."""
        if value is None:
            self.state = None
        else:
            self.apply(value, await self.prepare(value, None))

    async def set(self, value: S) -> None:
        """A change by the user or the host: prepared and applied at once, durable from the next send on."""
        prepared = await self.prepare(value, None)
        before = self.state
        self.apply(value, prepared)
        self.changed(Change(before, value, "user"))

    def on_change(self, callback: Callable[[Change[S]], object], /) -> Callable[[], None]:
        """Calls back after each commit, `set`, and step back in the conversation; returns a function that takes it back."""
        self._listeners = (*self._listeners, callback)

        def take_back() -> None:
            self._listeners = tuple([one for one in self._listeners if one is not callback])

        return take_back

    def changed(self, change: Change[S], failed: Callable[[BaseException], object] | None = None) -> None:
        """Tells the callbacks; one that raises is logged, and handed to `failed`."""
        for callback in self._listeners:
            try:
                callback(change)
            except ENDING:
                raise
            except BaseException as error:
                logger.exception("on_change of %s failed", type(self).__name__)
                if failed is not None:
                    failed(error)


__all__ = ["Change", "ChangeSource", "StagedController", "Staging"]

"""The shared state of a thread: a JSON object that interfaces see and may change (TC-120 … TC-123).

It is the fold, along the path, of notes in the journal, so it survives a restart and follows history like everything
else. What it is now is `SharedState.value`; who changes it is a send, through its reply.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..core.canonical import NotJSON, encode
from ..core.jsonpatch import PatchError
from ..core.state_notes import NOTE, escaped, noted
from ..errors import DeadReply, OwnedElsewhere, RecordRefused, UsageError
from ..events import Noted
from ..messages import JSON

if TYPE_CHECKING:
    from .reply import Reply
    from .sending import Sender

logger = logging.getLogger("pilothouse.conversation")

LARGEST: Final = 131_072
"""Bytes of one change."""


class SharedState:
    """The state as the conversation has it now.

    Attributes:
        value: never changed in place.
    """

    __slots__ = ("_watchers", "value")

    def __init__(self) -> None:
        self.value: Mapping[str, JSON] = {}
        self._watchers: tuple[Callable[[Mapping[str, JSON]], object], ...] = ()

    def take(self, note: JSON) -> None:
        """A note of it is durable."""
        try:
            self.replace(noted(self.value, note))
        except PatchError as error:
            logger.warning("a note of the shared state does not apply: %s", error)

    def replace(self, value: Mapping[str, JSON]) -> None:
        """Another state: a note changed it, or the conversation went to another place of its history."""
        if value == self.value:
            return
        self.value = value
        for watcher in self._watchers:
            try:
                watcher(value)
            except Exception:
                logger.exception("a callback of the shared state failed")

    def watch(self, callback: Callable[[Mapping[str, JSON]], object]) -> Callable[[], None]:
        """Calls back after each change; returns a function that takes this back."""
        self._watchers = (*self._watchers, callback)

        def take_back() -> None:
            self._watchers = tuple([one for one in self._watchers if one is not callback])

        return take_back


def checked(patch: object, reserved: Collection[str]) -> dict[str, JSON]:
    """A copy of a patch.

    Raises:
        UsageError: it is no JSON object, too large, or changes what belongs to an AI controller.
    """
    if not isinstance(patch, Mapping) or not all(isinstance(key, str) for key in patch):
        raise UsageError(f"a patch of the state must be a JSON object, got {type(patch).__name__}")
    for key in patch:
        if key in reserved:
            raise UsageError(
                f"cannot change {key!r} of the state: it belongs to the AI controller of that name"
            )
    try:
        body = encode(dict(patch))
    except NotJSON as error:
        raise UsageError(f"a patch of the state must be JSON: {error}") from error
    if len(body) > LARGEST:
        raise UsageError(f"a patch of the state has {len(body)} bytes, the limit is {LARGEST}")
    return msgspec.json.decode(body)  # type: ignore[no-any-return]


class _Gone:
    """In the place of a value: the key is taken out."""


GONE: Final = _Gone()


def note_of(patch: Mapping[str, JSON | _Gone]) -> Noted:
    """The note of a change by top-level keys: each replaces a whole branch."""
    operations: list[JSON] = []
    for key, value in patch.items():
        path = f"/{escaped(key)}"
        if isinstance(value, _Gone):
            operations.append({"op": "remove", "path": path})
        else:
            operations.append({"op": "add", "path": path, "value": value})
    return Noted(NOTE, {"delta": operations})


def update(sender: Sender, reply: Reply, patch: Mapping[str, JSON]) -> None:
    """Changes the shared state for a send (`Reply.update_state`); from any thread, never waits.

    Raises:
        UsageError: the patch cannot be, or the run is over, or goes on in another process.
    """
    composition = sender.setup.composition
    found = checked(patch, () if composition is None else composition.by_key)
    if reply.outcome is not None or reply.over:
        raise DeadReply(reply.id)
    if sender.setup.runs.is_elsewhere(reply.id):
        raise OwnedElsewhere(reply.id, "another process")
    if reply.add_patch(found):  # before the first append of the run
        return
    from ..loop.context import current

    call = current.get()
    changes = reply.changes
    if (
        call is not None
        and call.run_id == reply.id
        and changes is not None
        and changes.patch(call.call_id, found)
    ):
        return
    loop = sender.loop
    assert loop is not None

    def write() -> None:
        sender.spawn(_write(sender, reply, found))

    try:
        running: Any = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is loop:
        write()
    else:
        loop.call_soon_threadsafe(write)


async def _write(sender: Sender, reply: Reply, patch: Mapping[str, JSON]) -> None:
    try:
        await sender.setup.runs.note(reply.id, note_of(patch))
    except RecordRefused as error:
        logger.warning("a change of the shared state by reply %s came too late: %s", reply.id, error.code)
    except OwnedElsewhere as error:
        logger.warning("a change of the shared state was not made, give it with the next send: %s", error)


__all__ = ["GONE", "SharedState", "checked", "note_of", "update"]

"""A conversation as one JSON-able value, and a new conversation from it (TC-110, TC-114)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import field

from ..core.canonical import NotJSON, digest_of, encode
from ..errors import ArtifactNotFound
from ..messages import JSON, MEDIA, Message, Value
from .attachments import stored
from .setup import Setup
from .stage import Stage
from .states import Stored
from .view import without_bytes

if TYPE_CHECKING:
    from .sending import Sender

VERSION: Final = 1


class SnapshotState(Value):
    """A committed state of an AI controller."""

    version: int
    value: JSON = None


class Snapshot(Value):
    """A conversation at one moment.

    Attributes:
        version: of this form.
        messages: the path, finished messages only, with context and attachments; the last one may want an answer.
        states: committed states of AI controllers, by key.
        shared: the shared state.
    """

    thread_id: str
    messages: tuple[Message, ...] = ()
    states: dict[str, SnapshotState] = field(default_factory=dict)
    shared: dict[str, JSON] = field(default_factory=dict)
    version: int = VERSION


def take(setup: Setup, stage: Stage, thread_id: str, *, attachments: bool) -> Snapshot:
    """What a conversation is now."""
    messages = stage.messages if attachments else without_bytes(stage.messages)
    live = stage.reply
    if live is not None and not live.committed and live.user_message is not None and live.drafted:
        messages = (*messages, live.user_message)  # with its bytes: no journal has them yet
    states: dict[str, SnapshotState] = {}
    if setup.composition is not None:
        for key, kept in setup.composition.states.at_head.items():
            if kept.inline:
                states[key] = SnapshotState(kept.version, kept.value)
        for member in setup.composition.staged:
            controller = member.staged
            assert controller is not None
            if controller.state is not None:
                states[member.key] = SnapshotState(
                    controller.state_version, controller.encode(controller.state)
                )
    return Snapshot(thread_id, messages, states, dict(setup.shared.value))


def checked(given: Snapshot | Mapping[str, JSON]) -> Snapshot:
    """A snapshot of its JSON form.

    Raises:
        ValueError: of a newer version, or damaged.
    """
    if isinstance(given, Snapshot):
        found: Any = given
    else:
        version = dict(given).get("version")
        if type(version) is int and version > VERSION:
            raise ValueError(_newer(version))
        try:
            found = msgspec.convert(given, Snapshot)
        except msgspec.ValidationError as error:
            raise ValueError(f"the snapshot is damaged: {error}") from error
    if found.version > VERSION:
        raise ValueError(_newer(found.version))
    if len({message.id for message in found.messages}) != len(found.messages):
        raise ValueError("the snapshot is damaged: $.messages: ids must be unique")
    for key, state in found.states.items():
        try:
            encode(state.value)
        except NotJSON as error:
            raise ValueError(f"the snapshot is damaged: $.states.{key}: {error}") from error
    return found  # type: ignore[no-any-return]


def _newer(version: int) -> str:
    return f"the snapshot has version {version}, this library reads up to {VERSION}"


async def restore(
    snapshot: Snapshot, setup: Setup, sender: Sender, set_messages: Callable[[tuple[Message, ...]], None]
) -> None:
    """Begins a conversation with it.

    Raises:
        ValueError: an attachment is not in the journal; nothing was restored.
    """
    journal = setup.runs.journal
    for index, message in enumerate(snapshot.messages):
        for part in message.parts:
            if isinstance(part, MEDIA) and part.artifact is not None and part.data is None:
                try:
                    await journal.get_blob(part.artifact.digest)
                except ArtifactNotFound:
                    raise ValueError(
                        f"$.messages[{index}]: attachment {part.artifact.digest} is not in the journal: take the "
                        f"snapshot with attachments=True"
                    ) from None
    for message in snapshot.messages:
        await stored(message, journal)
    set_messages(snapshot.messages)
    setup.shared.replace(dict(snapshot.shared))
    own = () if setup.composition is None else setup.composition.by_key
    sender.carried = {key: value for key, value in snapshot.shared.items() if key not in own} or None
    if setup.composition is not None:
        at = {
            key: Stored(state.version, digest_of(state.value), state.value, True)
            for key, state in snapshot.states.items()
        }
        await setup.composition.states.restore_all(journal, at)


__all__ = ["Snapshot", "SnapshotState", "checked", "restore", "take"]

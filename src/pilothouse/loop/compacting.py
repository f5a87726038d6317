"""Putting another list of messages in the place of the context, on the record (RC-82)."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.canonical import misshapen
from ..events import HistoryCompacted
from ..messages import Message
from .work import Work


def all_messages(work: Work, given: Sequence[object]) -> bool:
    """Whether a user's code gave messages only, each of which can be recorded."""
    known = {id(message) for message in work.context}
    return all(id(message) in known or is_message(message) for message in given)


def is_message(given: object) -> bool:
    """Whether that is a message which can be recorded: a class does not look at its fields."""
    return isinstance(given, Message) and not misshapen(given)


def replace_context(work: Work, messages: Sequence[Message], method: str) -> None:
    """Replaces the context and records how: messages that stay stand at its end, new ones before them (RC-82)."""
    known = {message.id: message for message in work.context}
    first = len(messages)
    position = len(work.context)
    order = {message.id: at for at, message in enumerate(work.context)}
    while first > 0:
        before = messages[first - 1]
        if known.get(before.id) is not before or order[before.id] >= position:
            break
        first, position = first - 1, order[before.id]
    kept = tuple([message.id for message in messages[first:]])
    work.recorder.note(HistoryCompacted(kept, tuple(messages[:first]), method))
    work.replace_context(messages)

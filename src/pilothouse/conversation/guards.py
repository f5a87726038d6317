"""What a send must be before anything happens because of it (AC-46 … AC-48, TC-121)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..core.transcript import wants_answer
from ..errors import AttachmentTooLarge, ConversationFull, MessageTooLong, NothingToDo
from ..messages import MEDIA, Message, Text
from .order import Order
from .shared_state import checked

if TYPE_CHECKING:
    from .composition import Composition


def check_order(
    order: Order, options: Mapping[str, Any], shown: tuple[Message, ...], composition: Composition | None
) -> None:
    """The limits, and that there is something to answer; the change of the state is checked and copied.

    Raises:
        MessageTooLong, ConversationFull, AttachmentTooLarge, NothingToDo, UsageError: nothing was changed.
    """
    parts = order.parts
    kept = shown if order.keep is None else order.keep
    length = sum(len(part.text) for part in parts or () if isinstance(part, Text))
    if length > options["max_message_length"]:
        raise MessageTooLong(length, options["max_message_length"])
    count = len(kept) + (1 if parts is None else 2)
    if count > options["max_messages"]:
        raise ConversationFull(count, options["max_messages"])
    size = sum(len(part.data or b"") for part in parts or () if isinstance(part, MEDIA))
    if size > options["max_attachment_bytes"]:
        raise AttachmentTooLarge(size, options["max_attachment_bytes"])
    if order.extras.state is not None:
        order.state = checked(order.extras.state, () if composition is None else composition.by_key)
    if parts is None and not (kept and wants_answer(kept[-1])):
        raise NothingToDo("cannot continue: no message of the conversation wants an answer")

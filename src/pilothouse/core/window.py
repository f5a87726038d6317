"""How large a request will be, and whether it fits (LP-12). Pure.

An estimate starts from what the provider counted last, where that still applies, and adds a quarter token a character
for what came later. Without such an anchor everything counts, system prompt and tool schemas too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from ..messages import (
    ArtifactRef,
    Audio,
    Context,
    File,
    Image,
    Message,
    Model,
    Part,
    Reasoning,
    Structured,
    Text,
    ToolCall,
    ToolSpec,
    Usage,
    Video,
)

CHARACTERS_A_TOKEN: Final = 4
MEDIA_TOKENS: Final = 1_200
"""Tokens of an image or another medium, whatever its size."""
MESSAGE_TOKENS: Final = 4
"""What a message costs besides its content: role and separators."""
MIN_OUTPUT: Final = 1_024
"""Tokens: an output budget is not lowered below this."""

_encode: Final = msgspec.json.Encoder().encode


def _json_size(value: object) -> int:
    try:
        return len(_encode(value))
    except (TypeError, UnicodeEncodeError):
        return len(repr(value))


def _call_size(part: ToolCall) -> int:
    return len(part.tool) + (len(part.raw_arguments) or _json_size(part.arguments))


def _reasoning_size(part: Reasoning) -> int:
    return len(part.text) if part.raw is None else _json_size(part.raw)


def _media_size(_part: Part) -> int:
    return MEDIA_TOKENS * CHARACTERS_A_TOKEN


_SIZES: Final[Mapping[type, Callable[[Any], int]]] = {
    Text: lambda part: len(part.text),
    Context: lambda part: len(part.text),
    ToolCall: _call_size,
    Reasoning: _reasoning_size,
    ArtifactRef: lambda part: len(part.preview),
    Structured: lambda _: 0,  # the text beside it says the same
    Image: _media_size,
    Audio: _media_size,
    Video: _media_size,
    File: _media_size,
}
"""Characters of a part that a request would hold."""


def message_tokens(message: Message) -> int:
    """Estimated tokens of one message."""
    characters = 0
    for part in message.parts:
        characters += _SIZES[type(part)](part)
    return MESSAGE_TOKENS + -(-characters // CHARACTERS_A_TOKEN)


def messages_tokens(messages: Iterable[Message]) -> int:
    """Estimated tokens of messages."""
    return sum([message_tokens(message) for message in messages])


def prefix_tokens(system_prompt: str | None, tools: Sequence[ToolSpec]) -> int:
    """Estimated tokens of what stands before the messages."""
    characters = len(system_prompt or "") + sum(
        [len(spec.name) + len(spec.description) + _json_size(spec.parameters) for spec in tools]
    )
    return -(-characters // CHARACTERS_A_TOKEN)


class Anchor(msgspec.Struct, frozen=True):
    """What a provider counted: `tokens` for the context up to and including the message `message_id`."""

    message_id: str
    model: str
    tokens: int


def anchor_of(message: Message, model: Model, usage: Usage | None) -> Anchor | None:
    """The anchor that an accepted response gives; None if its provider told too little."""
    if usage is None or usage.input is None or usage.estimated:
        return None
    output = usage.output if usage.output is not None else message_tokens(message)
    return Anchor(message.id, model.id, usage.input + output)


class Meter:
    """Estimates the requests of one run; a message is measured once.

    The list that it was told of last is believed to grow at its end only; another list is measured anew.
    """

    __slots__ = ("_list", "_prefix", "_sizes", "anchor")

    def __init__(self) -> None:
        self.anchor: Anchor | None = None
        self._list: Sequence[Message] | None = None
        self._sizes: list[int] = []  # tokens of each of its messages
        self._prefix: tuple[str | None, Sequence[ToolSpec], int] | None = None

    def forget(self) -> None:
        """The context was replaced: what was counted before means nothing any more."""
        self.anchor = self._list = None

    def accept(self, message: Message, model: Model, usage: Usage | None) -> None:
        """Takes the figures of an accepted response."""
        anchor = anchor_of(message, model, usage)
        if anchor is not None:
            self.anchor = anchor

    def estimate(
        self,
        messages: Sequence[Message],
        model: Model,
        system_prompt: str | None,
        tools: Sequence[ToolSpec],
    ) -> int:
        """Estimated tokens of a request."""
        if messages is not self._list or len(self._sizes) > len(messages):
            self._list, self._sizes = messages, []
        sizes = self._sizes
        for at in range(len(sizes), len(messages)):
            sizes.append(message_tokens(messages[at]))
        if self.anchor is not None and self.anchor.model == model.id:
            if start := self._start(messages):
                return self.anchor.tokens + sum(sizes[start:])
            self.anchor = None  # its message is not in this list
        return sum(sizes) + self._before(system_prompt, tools)

    def _before(self, system_prompt: str | None, tools: Sequence[ToolSpec]) -> int:
        """Tokens of prompt and tools; measured once for as long as they are the same objects."""
        known = self._prefix
        if known is None or known[0] is not system_prompt or known[1] is not tools:
            known = self._prefix = (system_prompt, tools, prefix_tokens(system_prompt, tools))
        return known[2]

    def _start(self, messages: Sequence[Message]) -> int:
        assert self.anchor is not None
        for at in range(len(messages) - 1, -1, -1):
            if messages[at].id == self.anchor.message_id:
                return at + 1
        return 0


def window_of(model: Model, cap: int | None) -> int:
    """The window that a request must fit: the owner's cap, else the model's; 0 where nobody knows."""
    return cap if cap is not None else model.context_window


def output_budget(model: Model, wanted: int | None, estimate: int, window: int) -> int | None:
    """The output budget of a request: where the window is shared, lowered to what is left, not below `MIN_OUTPUT`."""
    budget = wanted if wanted is not None else (model.max_output_tokens or None)
    if not model.shared_window or window <= 0 or budget is None:
        return wanted
    left = max(window - estimate, MIN_OUTPUT)
    return min(budget, left) if budget > left else wanted

"""Making a conversation smaller: its older part becomes a summary by a model, its newer part stays as it is.

A `Compactor` is a ready `over_window_relief`; the run option `loop.compact` asks for it before the first request. Only
the context changes, on the record (`history_compacted`); the transcript keeps everything (RC-82).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from hashlib import sha256
from typing import Final, final

from ..clock import SystemClock
from ..contracts import Clock, Provider
from ..core.assembly import Assembly
from ..core.window import message_tokens, messages_tokens
from ..errors import ConfigError
from ..messages import Message, Model, Text, Usage
from ..responses import ModelRequest, ModelSettings
from .hooks import OverWindow, Relief
from .reading import Silence, Stop
from .stream import supervise

PROMPT: Final = (
    "You compress the earlier part of a conversation between a user and an assistant that uses tools, so that the "
    "assistant can go on without it. Write down, in the conversation's own language: what the user wants and has "
    "decided, what was done and found out (names, numbers, paths, identifiers as they are), what failed, and what is "
    "still to be done. Leave out courtesies and everything that no longer matters. Write only the summary."
)
HEADER: Final = "[Summary of the earlier conversation, which was left out to make room]\n"
SHOWN: Final = 4_000
"""Characters of one message that the summary is made from; of a longer one both ends are used."""


class SummaryFailed(Exception):
    """No summary came; the text says why without the provider's words."""


@final
class Compactor:
    """Summarises the older part of a context.

    Args:
        provider: who writes the summary.
        model: which one; the provider's default by default.
        keep: the part of the window that the newer messages may fill, between 0 and 1.
        window: tokens, where neither model knows its own.
        prompt: what the summary is to be.
        max_tokens: output budget of the summary.
        idle: seconds of silence after which the summary is given up.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        model: Model | None = None,
        keep: float = 0.3,
        window: int = 32_768,
        prompt: str = PROMPT,
        max_tokens: int = 2_000,
        idle: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        if not 0 < keep < 1:
            raise ConfigError(f"keep must be between 0 and 1, not {keep!r}")
        self._provider = provider
        self._model = model or provider.default_model
        self._keep = keep
        self._window = window
        self._prompt = prompt
        self._max_tokens = max_tokens
        self._idle = idle
        self._clock: Clock = clock or SystemClock()

    def told_by(self, provider: Provider) -> Compactor:
        """The same compaction in the words of another provider."""
        twin = copy(self)
        vars(twin)["_provider"] = provider
        return twin

    async def __call__(self, over: OverWindow) -> Relief | None:
        """The smaller context; None if nothing can be left out.

        Raises:
            SummaryFailed: the model gave none.
        """
        room = round((over.window or self._window) * self._keep)
        border = safe_border(over.messages, room)
        if border == 0:
            return None
        text, usage = await self._summary(over.messages[:border], over.scope)
        made = sha256("\n".join(message.id for message in over.messages[:border]).encode()).hexdigest()[:16]
        summary = Message(f"summary-{made}", "user", (Text(HEADER + text),))
        return Relief((summary, *over.messages[border:]), "compaction", usage, self._model)

    async def _summary(self, messages: Sequence[Message], scope: Stop) -> tuple[str, Usage | None]:
        """One summary, made in as many steps as the model's window needs."""
        limit = (self._model.context_window or self._window) // 2
        text, total = "", None
        for piece in _pieces(messages, limit):
            told = f"Summary so far:\n{text}\n\nWhat came next:\n{piece}" if text else piece
            text, usage = await self._ask(told, scope)
            total = usage if total is None else total if usage is None else total + usage
        return text, total

    async def _ask(self, told: str, scope: Stop) -> tuple[str, Usage | None]:
        request = ModelRequest(
            self._model,
            (Message("compaction", "user", (Text(told),)),),
            self._prompt,
            settings=ModelSettings(max_output_tokens=self._max_tokens),
        )
        assembly = Assembly("summary", tag=self._provider.tag)
        silence = Silence(self._clock.monotonic() + self._idle, self._idle)
        async with supervise(
            self._provider, request, scope=scope, clock=self._clock, silence=silence
        ) as response:
            end = await response.each(assembly.feed)
        assembly.check_usage()
        text = assembly.message().text.strip()
        if end.reason not in ("complete", "length") or not text:
            kind = end.error.kind if end.error is not None else end.reason
            raise SummaryFailed(f"no summary: {kind}")
        return text, assembly.usage


def safe_border(messages: Sequence[Message], room: int) -> int:
    """Where the newer part may begin: at a user message, as early as its tokens fit `room`; 0 if nowhere.

    A user message follows complete rounds only, so calls stay with their results. The last one is kept whatever its
    size: somebody waits for its answer.
    """
    border, used = 0, 0
    for at in range(len(messages) - 1, 0, -1):
        used += message_tokens(messages[at])
        if messages[at].role == "user":
            if used > room and border:
                break
            border = at
        elif used > room and border:
            break
    return border


def _pieces(messages: Sequence[Message], limit: int) -> list[str]:
    """The messages as texts of at most `limit` tokens each."""
    pieces: list[list[str]] = [[]]
    used = 0
    for message in messages:
        told = _told(message)
        size = len(told) // 4 + 1
        if used + size > limit and pieces[-1]:
            pieces.append([])
            used = 0
        pieces[-1].append(told)
        used += size
    return ["\n\n".join(piece) for piece in pieces]


def _told(message: Message) -> str:
    parts = [_shortened(message.text)] if message.text else []
    parts += [
        f"(calls {call.tool} with {_shortened(call.raw_arguments or str(call.arguments))})"
        for call in message.tool_calls
    ]
    parts += [f"(sends {type(part).__name__.lower()})" for part in message.attachments]
    name = {"user": "User", "assistant": "Assistant", "tool": "Tool result", "system": "System"}[message.role]
    return f"{name}: {' '.join(parts)}"


def _shortened(text: str) -> str:
    if len(text) <= SHOWN:
        return text
    half = SHOWN // 2
    return f"{text[:half]} […] {text[-half:]}"


__all__ = ["HEADER", "Compactor", "SummaryFailed", "messages_tokens", "safe_border"]

"""A thread told again: each run of a path as an AG-UI run of its own, then the last one, followed live (SV-182).

Finished runs are told from their messages, one after the other as they are read, so a long thread costs a connection no
memory. Their frames have no position: who loses the connection connects again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from ..core.agui import events as agui
from ..core.agui.content import plain_text, reasoning_id, result_text, snapshot, visible
from ..core.agui.ends import Names, ending
from ..core.agui.events import Event
from ..core.agui.notes import whole
from ..core.agui.wire import frame
from ..core.transcript import cut_after
from ..events import Unknown
from ..messages import Message, Reasoning
from ..records import HistoryMessage
from .scope import ScopedRun


async def told_again(runs: Sequence[tuple[ScopedRun, str | None]], names: Names) -> AsyncIterator[bytes]:
    """The frames of runs that lie behind others, oldest first, each up to the message that the next one hangs on."""
    for run, through in runs:
        mine = names.of(run.ids.thread, run.ids.run)
        own = await run.own()
        cut = through is not None and through != (own[-1].message.id if own else through)
        view = await run.view()
        events: list[Event] = [
            *opened(run, agui.RunStarted(mine.thread_id, mine.run_id, agui.PROTOCOL_VERSION), mine)
        ]
        given = {message.id for message in run.spec.input}
        kept = cut_after(own, through) if any(entry.message.id == through for entry in own) else own
        for entry in kept:
            if entry.message.id not in given:
                events += _told(entry)
        outcome = view.outcome or Unknown("owner_lost")
        events += (mine.finished(agui.Success(), ()),) if cut else ending(mine, outcome)
        yield b"".join([frame(event, None, "") for event in events])


def opened(run: ScopedRun, started: agui.RunStarted, names: Names) -> list[Event]:
    """RUN_STARTED with what the run was asked; behind that of a first run, what its thread was begun with."""
    said = [HistoryMessage(message, run.key) for message in run.spec.input]
    base = [HistoryMessage(message, run.key) for message in run.spec.base]
    given = {
        "threadId": started.thread_id,
        "runId": started.run_id,
        "messages": msgspec.to_builtins(snapshot(said, profile=names.profile)),
        "tools": [],
        "context": [],
        "state": {},
        "forwardedProps": {},
    }
    out: list[Event] = [replace(started, input=given)]
    if base:
        out.append(agui.MessagesSnapshot(snapshot([*base, *said], profile=names.profile)))
    return out


def _told(entry: HistoryMessage) -> Iterator[Event]:
    message = entry.message
    if message.role == "tool":
        outcome = entry.call_outcome or ("failed" if message.is_error else "succeeded")
        text = result_text(outcome, message.parts)
        yield agui.ToolCallResult(message.id, message.call_id or "", text, "tool")
        return
    if message.role == "assistant":
        yield from _thoughts(message)
    if message.role != "assistant" or plain_text(message.parts) or message.tool_calls:
        yield from whole(message)


def _thoughts(message: Message) -> Iterator[Event]:
    for number, part in enumerate(visible(message)):
        if isinstance(part, Reasoning):
            name = reasoning_id(message.id, number)
            yield agui.ReasoningStart(name)
            yield agui.ReasoningMessageStart(name, "reasoning")
            yield agui.ReasoningMessageContent(name, part.text)
            yield agui.ReasoningMessageEnd(name)
            yield agui.ReasoningEnd(name)


__all__ = ["opened", "told_again"]

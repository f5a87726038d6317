"""What an AG-UI client posts: read leniently, its list of messages understood against ours (server page §6.4).

The client's list is a copy and the thread is the truth, so nothing in it is an error that we can do without: an unknown
part is dropped with a warning, a repeated id counts once. Only what names the run must be right.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import msgspec

from ...messages import (
    JSON,
    Audio,
    Context,
    File,
    Image,
    InputPart,
    Message,
    Part,
    Text,
    ToolCall,
    ToolSpec,
    Video,
)
from ...records import HistoryMessage, Parent
from ..pairing import repair
from ..transcript import wants_answer

Fault = tuple[str, str]
"""Where the input is wrong, and why."""


class ClientMessage(NamedTuple):
    """A message of the client's list. `calls` of an assistant, `call_id` of a tool message."""

    id: str
    role: str
    parts: tuple[InputPart, ...] = ()
    call_id: str = ""
    error: str = ""
    calls: tuple[ToolCall, ...] = ()


class Resume(NamedTuple):
    """An answer to an interrupt."""

    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: JSON


class RunInput(NamedTuple):
    """A request for a run."""

    thread_id: str
    run_id: str
    messages: tuple[ClientMessage, ...]
    tools: tuple[ToolSpec, ...] = ()
    context: tuple[dict[str, JSON], ...] = ()
    state: JSON = None
    forwarded_props: Mapping[str, JSON] = MappingProxyType({})
    resume: tuple[Resume, ...] = ()
    protocol_version: str = ""
    warnings: tuple[str, ...] = ()


class Invalid(ValueError):
    """The input cannot be understood; all faults at once."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(f"{path}: {why}" for path, why in faults))


# Reading


class _Reading:
    def __init__(self, body: Mapping[str, Any]) -> None:
        self.body = body
        self.faults: list[Fault] = []
        self.warnings: list[str] = []

    def text(self, name: str) -> str:
        value = self.body.get(name)
        if not isinstance(value, str) or not value:
            self.faults.append((name, "must be a text that is not empty"))
            return ""
        return value

    def items(self, name: str, *, required: bool = False) -> list[Any]:
        value = self.body.get(name)
        if value is None and not required:
            return []
        if not isinstance(value, list):
            self.faults.append((name, "must be a list"))
            return []
        return value


def read_input(body: Mapping[str, Any]) -> RunInput:
    """Reads a body.

    Raises:
        Invalid: it does not name a thread and a run, or something is of a wrong shape.
    """
    reading = _Reading(body)
    thread_id, run_id = reading.text("threadId"), reading.text("runId")
    messages = _messages(reading)
    tools = [tool for n, item in enumerate(reading.items("tools")) if (tool := _tool(reading, n, item))]
    resume = [entry for n, item in enumerate(reading.items("resume")) if (entry := _resume(reading, n, item))]
    context = [item for item in reading.items("context") if isinstance(item, dict)]
    state = body.get("state")
    if state is not None and not isinstance(state, dict):
        reading.warnings.append("state is no object: ignored")
        state = None
    props = body.get("forwardedProps")
    if reading.faults:
        raise Invalid(reading.faults)
    version = body.get("protocolVersion")
    return RunInput(
        thread_id,
        run_id,
        tuple(messages),
        tuple(tools),
        tuple(context),
        state or {},
        props if isinstance(props, dict) else {},
        tuple(resume),
        version if isinstance(version, str) else "",
        tuple(reading.warnings),
    )


def _messages(reading: _Reading) -> list[ClientMessage]:
    found: dict[str, ClientMessage] = {}
    for number, item in enumerate(reading.items("messages", required=True)):
        path = f"messages[{number}]"
        if not isinstance(item, dict):
            reading.faults.append((path, "must be an object"))
            continue
        message_id, role = item.get("id"), item.get("role")
        if not isinstance(message_id, str) or not message_id:
            reading.faults.append((f"{path}.id", "must be a text that is not empty"))
            continue
        if not isinstance(role, str):
            reading.faults.append((f"{path}.role", "must be a text"))
            continue
        if message_id in found:
            reading.warnings.append(f"{path}: id {message_id} is repeated")
            continue
        parts = _parts(reading, path, item.get("content")) if role in _WITH_CONTENT else ()
        call_id, error = item.get("toolCallId"), item.get("error")
        found[message_id] = ClientMessage(
            message_id,
            role,
            parts,
            call_id if isinstance(call_id, str) else "",
            error if isinstance(error, str) else "",
            _calls(item.get("toolCalls")) if role == "assistant" else (),
        )
    return list(found.values())


_WITH_CONTENT: Final = frozenset({"user", "tool", "assistant", "system", "developer"})


def _calls(value: Any) -> tuple[ToolCall, ...]:
    """The calls of an assistant message; arguments that do not parse are kept as text."""
    found = []
    for item in value if isinstance(value, list) else ():
        function = item.get("function") if isinstance(item, dict) else None
        if not isinstance(function, dict) or not isinstance(item.get("id"), str):
            continue
        raw = function.get("arguments")
        text = raw if isinstance(raw, str) else ""
        arguments, error = _arguments(text)
        found.append(ToolCall(item["id"], str(function.get("name") or ""), arguments, text, error))
    return tuple(found)


def _arguments(text: str) -> tuple[dict[str, JSON], str | None]:
    try:
        value = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, UnicodeEncodeError):
        return {}, "not JSON"
    return (value, None) if isinstance(value, dict) else ({}, "no object")


def _parts(reading: _Reading, path: str, content: Any) -> tuple[InputPart, ...]:
    if isinstance(content, str):
        return (Text(content),) if content else ()
    if content is None:
        return ()
    if not isinstance(content, list):
        reading.faults.append((f"{path}.content", "must be a text or a list of parts"))
        return ()
    out: list[InputPart] = []
    for number, item in enumerate(content):
        part = _part(item) if isinstance(item, dict) else None
        if part is None:
            reading.warnings.append(f"{path}.content[{number}] is of an unknown kind: dropped")
        else:
            out.append(part)
    return tuple(out)


_MEDIA: Final[Mapping[str, Callable[..., InputPart]]] = MappingProxyType(
    {"image": Image, "audio": Audio, "video": Video, "document": File}
)


def _part(item: Mapping[str, Any]) -> InputPart | None:
    kind = item.get("type")
    if kind == "text" and isinstance(item.get("text"), str):
        return Text(item["text"])
    if kind == "binary":
        mime_type = str(item.get("mimeType") or "")
        main = mime_type.partition("/")[0]
        made = _MEDIA.get(main, File)
        return _medium(made, mime_type, item.get("data"), item.get("url"), item.get("filename"))
    source = item.get("source")
    if not isinstance(kind, str) or kind not in _MEDIA or not isinstance(source, dict):
        return None
    value, mime_type = source.get("value"), str(source.get("mimeType") or "")
    data, url = (value, None) if source.get("type") == "data" else (None, value)
    if source.get("type") not in ("data", "url"):
        return None
    return _medium(_MEDIA[kind], mime_type, data, url, None)


def _medium(
    kind: Callable[..., InputPart], mime_type: str, data: object, url: object, name: object
) -> InputPart | None:
    mime_type = mime_type if "/" in mime_type else "application/octet-stream"
    filename = name if isinstance(name, str) else None
    if isinstance(data, str):
        try:
            return kind(mime_type, data=b64decode(data, validate=True), filename=filename)
        except (NotBase64, ValueError):
            return None
    if isinstance(url, str) and url.partition(":")[0] in ("http", "https", "data"):
        return kind(mime_type, url=url, filename=filename)
    return None


def _tool(reading: _Reading, number: int, item: Any) -> ToolSpec | None:
    name = item.get("name") if isinstance(item, dict) else None
    if not isinstance(name, str) or not name:
        reading.faults.append((f"tools[{number}].name", "must be a text that is not empty"))
        return None
    parameters = item.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, dict):
        reading.faults.append((f"tools[{number}].parameters", "must be a JSON Schema of an object"))
        return None
    return ToolSpec(name, str(item.get("description") or ""), parameters)


def _resume(reading: _Reading, number: int, item: Any) -> Resume | None:
    path = f"resume[{number}]"
    if not isinstance(item, dict) or not isinstance(item.get("interruptId"), str):
        reading.faults.append((f"{path}.interruptId", "must be a text"))
        return None
    status = item.get("status")
    if status not in ("resolved", "cancelled"):
        reading.faults.append((f"{path}.status", "must be resolved or cancelled"))
        return None
    return Resume(item["interruptId"], status, item.get("payload"))


# Where the new run hangs


class Plan(NamedTuple):
    """What a request without answers asks for (SV-101).

    Attributes:
        action: `send` with new messages, `continue` without.
        new: the new user messages, oldest first.
        parent: where the run hangs; None for the head.
        target: of `regenerate`: the assistant message that is to be answered again.
        forked: an earlier message was replaced: the old branch stays.
        base: what the client says of a thread that we do not know: its history, in front of the new messages.
    """

    action: Literal["send", "continue", "regenerate", "retry"]
    new: tuple[ClientMessage, ...] = ()
    parent: Parent | None = None
    target: str = ""
    forked: bool = False
    base: tuple[ClientMessage, ...] | None = None


def imported(messages: Sequence[ClientMessage]) -> Plan:
    """The client's list taken as it is: its last user messages are new, all before them is history."""
    end = len(messages)
    while end and messages[end - 1].role == "user":
        end -= 1
    new, base = tuple(messages[end:]), tuple(messages[:end])
    return Plan("send" if new else "continue", new, base=base)


def history_of(messages: Sequence[ClientMessage]) -> list[Message]:
    """A client's messages as ours, each call with one result.

    A system message never takes the place of the agent's prompt: it goes to the model as context of what follows.
    """
    out: list[Message] = []
    context: list[Part] = []
    for message in messages:
        parts: list[Part] = list(message.parts)
        if message.role in ("system", "developer"):
            context += [Context(part.text) for part in parts if isinstance(part, Text)]
        elif message.role == "user":
            out.append(Message(message.id, "user", (*parts, *context)))
            context = []
        elif message.role == "assistant":
            out.append(Message(message.id, "assistant", (*parts, *message.calls)))
        elif message.role == "tool" and message.call_id:
            said = parts or ([Text(message.error)] if message.error else [])
            out.append(
                Message(
                    message.id, "tool", tuple(said), call_id=message.call_id, is_error=bool(message.error)
                )
            )
    return list(repair(out)[0])


def plan(
    messages: Sequence[ClientMessage], path: Sequence[HistoryMessage], *, head: str | None, broken: bool
) -> Plan:
    """Understands the client's list against the path to the head run.

    `broken`: the head run failed, was cancelled, or nobody knows how it ended.
    """
    if not path and any(message.role != "user" for message in messages):
        return imported(messages)
    places = {entry.message.id: number for number, entry in enumerate(path)}
    last = next((n for n in range(len(messages) - 1, -1, -1) if messages[n].id in places), -1)
    new = tuple([message for message in messages[last + 1 :] if message.role == "user"])
    known = messages[last] if last >= 0 else None
    if new:
        return _with_new(new, None if known is None else places[known.id], path, head)
    if known is None:
        return Plan("continue")
    if broken and known.role in ("user", "tool") and _goes_on_in(path, places[known.id], head):
        return Plan("retry")
    if known.role == "user" and (answer := _answer(path, places[known.id])) is not None:
        return Plan("regenerate", target=answer)
    return Plan("continue")


def _with_new(
    new: tuple[ClientMessage, ...], place: int | None, path: Sequence[HistoryMessage], head: str | None
) -> Plan:
    if place is None or place + 1 == len(path):
        return Plan("send", new)
    entry, follows = path[place], path[place + 1]
    if follows.message.role == "user":  # the user edited what follows; the old branch stays
        return Plan("send", new, Parent(entry.run_id, entry.message.id), forked=True)
    # The client missed our answer, or a part of it: it is merged by id.
    run_id = follows.run_id
    whole = [item for item in path if item.run_id == run_id]
    if run_id == head or path[-1].run_id == run_id:
        return Plan("send", new)
    return Plan("send", new, Parent(run_id, whole[-1].message.id), forked=True)


def _goes_on_in(path: Sequence[HistoryMessage], place: int, head: str | None) -> bool:
    """Whether the head run is the one that should have gone on from this message."""
    return all(entry.run_id == head or not entry.complete for entry in path[place + 1 :]) and (
        path[place].run_id == head or place + 1 == len(path) or path[place + 1].run_id == head
    )


def _answer(path: Sequence[HistoryMessage], place: int) -> str | None:
    """The first whole assistant message behind a user message."""
    for entry in path[place + 1 :]:
        if entry.message.role == "user":
            return None
        if entry.message.role == "assistant" and entry.complete:
            return entry.message.id
    return None


def open_end(path: Sequence[HistoryMessage]) -> bool:
    """Whether a path ends with a message that wants an answer."""
    complete = [entry.message for entry in path if entry.complete]
    return bool(complete) and wants_answer(complete[-1])


__all__ = [
    "ClientMessage",
    "Invalid",
    "Plan",
    "Resume",
    "RunInput",
    "history_of",
    "imported",
    "open_end",
    "plan",
    "read_input",
]

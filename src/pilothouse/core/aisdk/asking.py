"""What an AI SDK client posts, in the words of AG-UI: its messages, its answers, and where the new run hangs.

An assistant message of its list is a whole run of ours: text, calls and results of all turns. It is made into the
messages that it stands for, so that everything behind it (merging by id, imports, answers) is the AG-UI face's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from ...messages import JSON, Message
from ...records import HistoryMessage
from ..agui.input import ClientMessage, Fault, Invalid, Plan, plan
from ..canonical import digest_of
from .parts import run_id_of

TRIGGERS: Final = ("submit-message", "regenerate-message")
_OURS: Final = frozenset({"id", "messages", "trigger", "messageId", "tools", "state", "context"})
_ANSWERED: Final = frozenset({"output-available", "output-error"})


class Chat(NamedTuple):
    """A request.

    Attributes:
        body: the same for AG-UI, without a run id.
        answering: id of the assistant message whose parts may answer requests; empty where none may.
        answers: what these parts say.
        has: ids of the calls that the message holds.
        answered: ids of those whose results the client has.
        editing: a user message of this id takes the place of the one that we know.
    """

    body: dict[str, Any]
    trigger: str
    message_id: str
    answering: str
    answers: dict[str, JSON]
    has: frozenset[str]
    answered: frozenset[str]
    editing: str

    def run_id(self, chosen: str | None, fresh: Callable[[], str]) -> str:
        """The id of the AG-UI run that is asked for.

        The protocol has none. What is equal when a client posts again after a lost connection names it: the new message, or
        the answers. To regenerate or to edit may be meant twice.
        """
        if chosen is not None:
            return chosen
        messages = self.body["messages"]
        new = messages[-1]["id"] if messages and messages[-1]["role"] == "user" else ""
        if self.trigger != "submit-message" or self.editing or not (new or self.answering):
            return f"ui-{fresh()}"
        return f"ui-{digest_of([self.body['threadId'], new, self.answering, self.answers])[-40:]}"


def read_chat(body: Mapping[str, Any]) -> Chat:
    """Reads a body.

    Raises:
        Invalid: something is of a wrong shape.
    """
    faults: list[Fault] = []
    trigger = body.get("trigger", "submit-message")
    if trigger not in TRIGGERS:
        faults.append(("trigger", f"must be {' or '.join(TRIGGERS)}"))
    named = body.get("messageId")
    if named is not None and not isinstance(named, str):
        faults.append(("messageId", "must be the id of a message"))
    given = body.get("messages")
    if not isinstance(given, list):
        raise Invalid([*faults, ("messages", "must be a list")])
    for number, item in enumerate(given):
        faults += _faults(f"messages[{number}]", item)
    if faults:
        raise Invalid(faults)
    named = named or ""
    last = given[-1] if given else {"id": "", "role": "", "parts": []}
    answering = next(
        (item for item in reversed(given) if item["role"] == "assistant" and item["id"] == named), None
    )
    if answering is None and last["role"] == "assistant":
        answering = last
    if trigger != "submit-message":
        answering = None
    tools = [] if answering is None else _tools(answering)
    made = {
        "threadId": body.get("id"),
        "messages": [message for item in given for message in _messages(item)],
        "resume": [entry for tool in tools if (entry := _approval(tool)) is not None],
        **{name: body[name] for name in ("tools", "state", "context") if name in body},
        "forwardedProps": {name: value for name, value in body.items() if name not in _OURS},
    }
    return Chat(
        made,
        trigger,
        named,
        "" if answering is None else answering["id"],
        {tool["toolCallId"]: _answer(tool) for tool in tools if _answer(tool) is not None},
        frozenset([tool["toolCallId"] for tool in tools]),
        frozenset([tool["toolCallId"] for tool in tools if tool.get("state") in _ANSWERED]),
        named if last["role"] == "user" and last["id"] == named and trigger == "submit-message" else "",
    )


def _faults(path: str, item: Any) -> list[Fault]:
    if not isinstance(item, dict):
        return [(path, "must be an object")]
    found = [
        (f"{path}.{name}", "must be a text that is not empty")
        for name in ("id", "role")
        if not isinstance(item.get(name), str) or not item[name]
    ]
    if not isinstance(item.get("parts"), list) or not all(isinstance(part, dict) for part in item["parts"]):
        found.append((f"{path}.parts", "must be a list of objects"))
    return found


def _tools(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The parts of a message that are calls."""
    return [
        part
        for part in item["parts"]
        if isinstance(part.get("toolCallId"), str)
        and isinstance(kind := part.get("type"), str)
        and (kind == "dynamic-tool" or kind.startswith("tool-"))
    ]


def _approval(part: Mapping[str, Any]) -> dict[str, JSON] | None:
    approval = part.get("approval")
    if part.get("state") != "approval-responded" or not isinstance(approval, dict):
        return None
    if not isinstance(approval.get("id"), str):
        return None
    payload: dict[str, JSON] = {"approved": approval.get("approved")}
    if isinstance(approval.get("reason"), str):
        payload["reason"] = approval["reason"]
    return {"interruptId": approval["id"], "status": "resolved", "payload": payload}


def _answer(part: Mapping[str, Any]) -> JSON:
    """What a part says of its call; None if it says nothing yet."""
    if (entry := _approval(part)) is not None:
        return entry
    if part.get("state") not in _ANSWERED:
        return None
    return {"output": part.get("output"), "error": part.get("errorText")}


# Messages


def _messages(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    if item["role"] == "assistant":
        return _turns(item)
    content = [made for part in item["parts"] if (made := _content(part)) is not None]
    return [{"id": item["id"], "role": item["role"], "content": content}]


def _content(part: Mapping[str, Any]) -> dict[str, JSON] | None:
    kind = part.get("type")
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    url = part.get("url")
    if kind != "file" or not isinstance(url, str):
        return None
    found = {"type": "binary", "mimeType": part.get("mediaType"), "filename": part.get("filename")}
    head, comma, data = url.partition(",")
    if head.startswith("data:") and head.endswith(";base64") and comma:
        return {**found, "data": data}
    return {**found, "url": url}


def _turns(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """An assistant message, turn by turn: text and calls, then the results. The first has its id."""
    steps: list[list[dict[str, Any]]] = [[]]
    for part in item["parts"]:
        if part.get("type") == "step-start":
            steps.append([])
        else:
            steps[-1].append(part)
    out: list[dict[str, Any]] = []
    for parts in steps:
        tools = _tools({"parts": parts})
        text = "".join([str(part.get("text") or "") for part in parts if part.get("type") == "text"])
        if text or tools:
            name = f"{item['id']}:{len(out)}" if out else item["id"]
            calls = [_call(part) for part in tools]
            out.append({"id": name, "role": "assistant", "content": text, "toolCalls": calls})
            out += [made for part in tools if (made := _result(part, item["id"])) is not None]
    return out or [{"id": item["id"], "role": "assistant", "content": ""}]


def _call(part: Mapping[str, Any]) -> dict[str, Any]:
    kind = part["type"]
    name = part.get("toolName") if kind == "dynamic-tool" else kind.partition("-")[2]
    given = part.get("input")
    text = given if isinstance(given, str) else _text(given if given is not None else {})
    return {
        "id": part["toolCallId"],
        "type": "function",
        "function": {"name": str(name or ""), "arguments": text},
    }


def _result(part: Mapping[str, Any], message: str) -> dict[str, Any] | None:
    call_id, state = part["toolCallId"], part.get("state")
    made = {"id": f"{message}:{call_id}", "role": "tool", "toolCallId": call_id}
    if state == "output-available":
        output = part.get("output")
        return {**made, "content": output if isinstance(output, str) else _text(output)}
    if state == "output-error":
        return {**made, "content": "", "error": str(part.get("errorText") or "the call failed")}
    return {**made, "content": "", "error": "refused"} if state == "output-denied" else None


def _text(value: JSON) -> str:
    return msgspec.json.encode(value).decode()


# Where the new run hangs


def planned(
    messages: Sequence[ClientMessage],
    path: Sequence[HistoryMessage],
    *,
    head: str | None,
    broken: bool,
    chat: Chat,
    key_of: Callable[[str], str],
    fresh: str,
) -> Plan:
    """Understands the client's list against the path (SV-101); `key_of` gives the journal's id of a run.

    `fresh`: the id of a user message that takes the place of one with its id.

    Raises:
        Invalid: what is to be regenerated is not in this conversation.
    """
    known = [_known(message, path, key_of) for message in messages]
    if chat.trigger == "regenerate-message" and chat.message_id:
        return _regenerated(chat.message_id, known, path, head=head, broken=broken, key_of=key_of)
    ours = {entry.message.id: entry.message for entry in path}
    if not chat.editing or not path or _same(ours.get(chat.editing), known[-1]):
        return plan(known, path, head=head, broken=broken)
    known[-1] = known[-1]._replace(id=fresh)
    if not any(message.id in ours for message in known[:-1]):  # the first one: the thread begins anew
        return Plan("send", (known[-1],), forked=True, base=())
    return plan(known, path, head=head, broken=broken)


def _same(known: Message | None, given: ClientMessage) -> bool:
    """Whether a message that is posted again says what it said."""
    return known is not None and known.parts == given.parts


def _known(
    message: ClientMessage, path: Sequence[HistoryMessage], key_of: Callable[[str], str]
) -> ClientMessage:
    """An assistant message that is a run of the path stands for the last message of that run."""
    if message.role != "assistant" or not (own := _of_run(message.id, path, key_of)):
        return message
    return message._replace(id=own[-1].message.id)


def _of_run(name: str, path: Sequence[HistoryMessage], key_of: Callable[[str], str]) -> list[HistoryMessage]:
    run = run_id_of(name)
    key = None if run is None else key_of(run)
    return [entry for entry in path if entry.run_id == key]


def _regenerated(
    name: str,
    messages: Sequence[ClientMessage],
    path: Sequence[HistoryMessage],
    *,
    head: str | None,
    broken: bool,
    key_of: Callable[[str], str],
) -> Plan:
    """The answer that a message is, or has, is given again (SV-205); one that did not come to its end goes on."""
    if own := _of_run(name, path, key_of):
        found = [entry.message.id for entry in own if entry.message.role == "assistant" and entry.complete]
        if found:
            return Plan("regenerate", target=found[0])
        return Plan("retry") if broken and own[0].run_id == head else Plan("continue")
    at = next((number for number, message in enumerate(messages) if message.id == name), -1)
    if at < 0 or not any(entry.message.id == name for entry in path):
        raise Invalid([("messageId", "names no message of this chat")])
    return plan(messages[: at + 1], path, head=head, broken=broken)


__all__ = ["TRIGGERS", "Chat", "planned", "read_chat"]

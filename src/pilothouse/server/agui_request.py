"""What an AG-UI request asks for, read and checked before anything happens (SV-90, SV-108)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..conversation.extras import RunExtras
from ..core.agui.events import Profile
from ..core.agui.input import (
    ClientMessage,
    Invalid,
    Plan,
    RunInput,
    read_input,
)
from ..messages import InputPart, Text
from ..records import Parent
from .call import Call
from .context import ContextEntry
from .names import checked
from .problems import invalid
from .served_agent import Ask
from .settings import AGUIOptions


def input_of(call: Call, body: Mapping[str, Any]) -> RunInput:
    """What the body asks for.

    Raises:
        Problem: 400, with every fault of it.
    """
    limit = call.limits.input_messages
    messages = body.get("messages")
    if limit is not None and isinstance(messages, list) and len(messages) > limit:
        raise invalid(("messages", f"{len(messages)} messages, the limit is {limit}"))
    try:
        found = read_input(body)
    except Invalid as error:
        raise invalid(*error.faults) from None
    checked(found.run_id, "runId")
    checked(found.thread_id, "threadId")
    return found


def profile_of(call: Call, options: AGUIOptions, version: str) -> Profile:
    """How events are written, SV-90: the query and the option win over what the client says of itself."""
    wanted = call.query.get("profile", options.profile)
    if wanted not in ("auto", "1.0", "legacy"):
        raise invalid(("profile", "must be auto, 1.0 or legacy"))
    if wanted == "auto":
        return "1.0" if version.partition(".")[0] == "1" else "legacy"
    return "1.0" if wanted == "1.0" else "legacy"


def ask_of(planned: Plan, asked: RunInput) -> Ask:
    """What the conversation is asked for, with what the client says beside it."""
    context = tuple(
        [ContextEntry(str(item.get("description") or ""), item.get("value")) for item in asked.context]
    )
    content = _content(planned.new) if planned.action == "send" else None
    action = "send" if planned.action == "continue" else planned.action
    state = asked.state if isinstance(asked.state, dict) else {}
    return Ask(action, content, planned.target, asked.forwarded_props, context, state)


async def extras_of(call: Call, props: Mapping[str, Any]) -> RunExtras:
    """What `forwardedProps.pilothouse` wishes for the run: a parent, lower limits, metadata (SV-108)."""
    parent = None
    if (given := props.get("parent")) is not None:
        path = "forwardedProps.pilothouse.parent"
        if not isinstance(given, dict) or not isinstance(given.get("run_id"), str):
            raise invalid((path, "must be {run_id, keep_through?}"))
        through = given.get("keep_through")
        if through is not None and not isinstance(through, str):
            raise invalid((f"{path}.keep_through", "must be the id of a message"))
        parent = Parent((await call.runs.run(given["run_id"])).key, through)
    metadata = props.get("metadata")
    return RunExtras(
        parent=parent,
        limits=props["limits"] if isinstance(props.get("limits"), dict) else {},
        extensions={"server/metadata": metadata} if isinstance(metadata, dict) and metadata else {},
    )


def _content(new: Sequence[ClientMessage]) -> tuple[InputPart, ...]:
    """The new user messages as one; an empty one is sent too (AC-48)."""
    parts: list[InputPart] = []
    for number, message in enumerate(new):
        if number and parts and message.parts:
            parts.append(Text("\n\n"))
        parts += message.parts
    return tuple(parts) or (Text(""),)


def user_message_ids(asked: RunInput) -> list[str]:
    """The client's own messages."""
    return [message.id for message in asked.messages if message.role == "user"]


def own_props(asked: RunInput) -> Mapping[str, Any]:
    """The one key of `forwardedProps` that is ours (SV-108)."""
    found = asked.forwarded_props.get("pilothouse")
    return found if isinstance(found, dict) else {}


__all__ = ["ask_of", "extras_of", "input_of", "own_props", "profile_of", "user_message_ids"]

"""What all dialects share in writing messages down: clean texts, media, argument texts (PV-13)."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from ..core.unicode import clean, clean_json
from ..errors import UsageError
from ..messages import (
    JSON,
    ArtifactRef,
    Context,
    File,
    Image,
    Media,
    Message,
    Part,
    Structured,
    Text,
    ToolCall,
)

NO_OUTPUT: Final = "(no output)"
"""What a silent tool's result says: an empty block is refused (TL-14)."""

RAW_ARGUMENTS_KEY: Final = "raw_arguments"
"""Under this key a call's text goes back that was no JSON object (PV-6)."""

CONTINUED: Final = "(The conversation goes on.)"
"""Said by the user where a dialect wants a user message first and the payload has none."""

_TEXT_TYPES: Final = (
    "text/",
    "application/json",
    "application/xml",
    "application/yaml",
    "application/x-yaml",
)


class CannotCarry(UsageError):
    """The dialect has no way to send a part; nothing is left out silently (AC-116)."""

    code = "unsupported_attachment"


class CannotWrite(UsageError):
    """A request that is no JSON: nested too deep, or with values of other types."""

    code = "unwritable_request"


def encode_body(body: JSON) -> bytes:
    """A request body as JSON; lone surrogates anywhere in it become U+FFFD.

    Raises:
        CannotWrite: it is nested too deep, or holds what is no JSON.
    """
    try:
        try:
            return msgspec.json.encode(body)
        except UnicodeEncodeError:
            return msgspec.json.encode(clean_json(body))
    except (RecursionError, TypeError, ValueError) as error:
        raise CannotWrite(f"cannot write the request as JSON: {error}") from error


def wire_name(name: str, limit: int = 64, more: str = "") -> str:
    """The name of a call as strict dialects take it: models make up any name, and it must not spoil what follows.

    `more` are characters that the dialect allows beside letters, digits, `_` and `-`.
    """
    made = re.sub(rf"[^A-Za-z0-9_{more}-]", "_", name)[:limit]
    return f"_{made}"[:limit] if more and not (made[:1].isalpha() or made[:1] == "_") else made


_END_OF_FRAME: Final = re.compile(r"</(?=context)", re.IGNORECASE)


def is_empty(text: str) -> bool:
    """Whether a text block of it would be refused as empty."""
    return not text or text.isspace()


def framed(text: str) -> str:
    """What the application added to a message, told apart from what the person said: it cannot end its own frame."""
    return f"<context>\n{_END_OF_FRAME.sub('&lt;/', text)}\n</context>"


def texts_of(parts: Iterable[Part]) -> list[str]:
    """The clean, non-empty texts of a message, in order. A structured part speaks only where no text does."""
    texts, data = [], []
    for part in parts:
        match part:
            case Text():
                if not is_empty(part.text):
                    texts.append(clean(part.text))
            case Context():
                if not is_empty(part.text):
                    texts.append(framed(clean(part.text)))
            case ArtifactRef():
                texts.append(
                    clean(f"[artifact {part.digest}, {part.bytes} bytes of {part.media_type}] {part.preview}")
                )
            case Structured():
                data.append(encode_body(part.data).decode())
            case _:
                pass
    return texts or data


def result_text(message: Message) -> str:
    """What a tool's result says."""
    return "\n\n".join(texts_of(message.parts)) or NO_OUTPUT


def argument_text(call: ToolCall) -> str:
    """A call's arguments as the text of a JSON object: the model's own spelling where it is one (PV-6)."""
    raw = call.raw_arguments
    if call.args_error is None and raw[:1] == "{" and "\\u" not in raw:
        return clean(raw)
    return encode_body(argument_object(call)).decode()


def argument_object(call: ToolCall) -> dict[str, JSON]:
    """A call's arguments as an object."""
    if call.args_error is not None:
        return {RAW_ARGUMENTS_KEY: clean(call.raw_arguments)}
    cleaned: dict[str, JSON] = clean_json(call.arguments)
    return cleaned


def inline(part: Media, dialect: str) -> str:
    """A media part's bytes in base64.

    Raises:
        CannotCarry: they are not here.
    """
    if part.data is None:
        raise CannotCarry(f"cannot send {describe(part)} to {dialect} because its bytes are not loaded")
    return base64.b64encode(part.data).decode()


def data_url(part: Media, dialect: str) -> str:
    """Where a media part is: its address, or its bytes as one.

    Raises:
        CannotCarry: it has neither.
    """
    if part.url is not None:
        return part.url
    return f"data:{part.mime_type};base64,{inline(part, dialect)}"


def text_file(part: Media) -> str | None:
    """The content of a file that is text, under its name; None if it is not, or not here."""
    if not isinstance(part, File) or part.data is None or not part.mime_type.startswith(_TEXT_TYPES):
        return None
    return clean(f"[file {part.filename or part.mime_type}]\n{part.data.decode('utf-8', 'replace')}")


def describe(part: Media) -> str:
    """A media part in an error text."""
    return f"a {type(part).__name__.lower()} of type {part.mime_type}" + (
        f" ({part.filename})" if part.filename else ""
    )


def images_of(message: Message) -> list[Image]:
    """The images of a result, for dialects that want them elsewhere."""
    return [part for part in message.parts if isinstance(part, Image)]


def result_groups(messages: Sequence[Message]) -> list[Message | list[Message]]:
    """The messages with each run of neighbouring results as one list."""
    out: list[Message | list[Message]] = []
    for message in messages:
        if message.role != "tool":
            out.append(message)
        elif out and isinstance(out[-1], list):
            out[-1].append(message)
        else:
            out.append([message])
    return out


__all__ = [
    "CONTINUED",
    "NO_OUTPUT",
    "RAW_ARGUMENTS_KEY",
    "CannotCarry",
    "argument_object",
    "argument_text",
    "data_url",
    "describe",
    "encode_body",
    "images_of",
    "inline",
    "is_empty",
    "result_groups",
    "result_text",
    "text_file",
    "texts_of",
]

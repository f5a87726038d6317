"""What a tool returned, as content that a journal keeps and a model reads (TL-13, TL-14)."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import enum
import json
import logging
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args

from msgspec import Struct
from msgspec.structs import replace

from ..core.canonical import MAX_DEPTH as STORED_DEPTH
from ..core.canonical import settled
from ..core.unicode import clean
from ..messages import JSON, MEDIA, Part, Structured, Text, Value
from .tools import Backgrounded, ToolResult

NO_OUTPUT: Final = "(no output)"
MAX_DEPTH: Final = STORED_DEPTH - 10
"""Of a value; what facts put around it, a list of messages in the worst case, needs the rest."""
logger: Final = logging.getLogger("pilothouse.loop")
_PARTS: Final = get_args(Part)


class BadResult(Exception):
    """A value that has no JSON form; the text names its type."""


class Content(Struct, frozen=True):
    """A result as it is recorded."""

    parts: tuple[Part, ...]
    is_error: bool = False
    terminate: bool = False
    backgrounded: bool = False


def content_of(value: object) -> Content:
    """The content of a returned value.

    Text is a text, parts are themselves, anything that JSON can hold is its JSON text with the value beside it.

    Raises:
        BadResult: it cannot be written down.
    """
    try:
        return _content_of(value)
    except BadResult:
        raise
    except Exception as error:  # what a value does while it is written down is anybody's code
        kind = type(value).__name__
        logger.exception("a value of type %s cannot be written down", kind)
        raise BadResult(kind) from error


def _content_of(value: object) -> Content:
    if isinstance(value, str):
        return Content(_texts(value))
    if isinstance(value, ToolResult):
        return _own_words(value)
    if isinstance(value, Backgrounded):
        return _handed_over(value)
    if isinstance(value, _PARTS):
        return Content(_parts((value,)))
    if isinstance(value, list | tuple) and value and all(isinstance(item, _PARTS) for item in value):
        return Content(_parts(value))
    if value is None or (isinstance(value, list | tuple) and not value):
        return Content(_texts(""))
    data = to_json(value)
    return Content((Text(_spell(data)), Structured(data)))


def _handed_over(value: Backgrounded) -> Content:
    log = f" Its output goes to {value.log}." if value.log else ""
    text = f"{value.name} goes on in the background as job {value.job}.{log}"
    data = to_json({"job": value.job, "name": value.name, "log": value.log})
    return Content((Text(clean(text)), Structured(data)), backgrounded=True)


def _own_words(result: ToolResult) -> Content:
    # `bool`, because a return code is a natural `is_error`.
    is_error, terminate = bool(result.is_error), bool(result.terminate)
    if result.structured is None:
        return Content(_parts(result.parts), is_error, terminate)
    data = to_json(result.structured)
    parts = _parts(result.parts) if result.parts else (Text(_spell(data)),)
    return Content((*parts, Structured(data)), is_error, terminate)


def _texts(text: str) -> tuple[Part, ...]:
    return (Text(clean(text) or NO_OUTPUT),)


def _parts(parts: Iterable[Any]) -> tuple[Part, ...]:
    """Parts that a journal takes: texts clean, no empty one among them."""
    kept: list[Part] = []
    for part in parts:
        if isinstance(part, Text):
            if part.text:
                kept.append(Text(clean(part.text), to_json(part.provider_data)))
        elif isinstance(part, Structured):
            kept.append(Structured(to_json(part.data)))
        elif isinstance(part, _PARTS):
            kept.append(_as_stored(part))
        else:
            raise BadResult(f"{type(part).__name__} among its parts")
    return tuple(kept) or _texts("")


def _as_stored(part: Any) -> Part:
    """A part that a journal gives back as it is; its bytes are not written out for that, since they may be many."""
    data = part.data if isinstance(part, MEDIA) else None
    if not isinstance(data, bytes | bytearray | memoryview):
        data = None
    try:
        kept: Part = settled(part if data is None else replace(part, data=None))[0]
        return kept if data is None else replace(kept, data=bytes(data))
    except (TypeError, ValueError) as error:
        raise BadResult(f"{type(part).__name__}: {error}") from error


_encode: Final = json.JSONEncoder(ensure_ascii=False).encode


def _spell(data: JSON) -> str:
    return repr(data) if type(data) is int else _encode(data)


# Any value as JSON


def to_json(value: object, depth: int = 0) -> JSON:
    """A copy that JSON can hold: dates as ISO text, sets as sorted lists, bytes as base64, NaN and infinities null.

    Raises:
        BadResult: for what it cannot hold, naming the type.
    """
    if depth > MAX_DEPTH:
        raise BadResult(f"a value nested deeper than {MAX_DEPTH}")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return to_json(value.value, depth + 1)
    if isinstance(value, str):
        return clean(str(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_key(key): to_json(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item, depth + 1) for item in value]
    return _other(value, depth)


def _key(key: object) -> str:
    return clean(key) if isinstance(key, str) else clean(str(to_json(key)))


def _other(value: object, depth: int) -> JSON:
    if isinstance(value, set | frozenset):
        items = [to_json(item, depth + 1) for item in value]
        return sorted(items, key=lambda item: (type(item).__name__, _spell(item)))
    if isinstance(value, bytes | bytearray | memoryview):
        if depth == 0:
            raise BadResult(f"{type(value).__name__}: return an Image or a File")
        return base64.b64encode(value).decode()
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if callable(dump := getattr(value, "model_dump", None)):
        return to_json(dump(mode="json"), depth + 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return to_json(fields, depth + 1)
    if isinstance(value, Value):
        return to_json({name: getattr(value, name) for name in value.__struct_fields__}, depth + 1)
    if (dumped := _dumped_by_pydantic(value)) is not None:
        return to_json(dumped, depth + 1)
    raise BadResult(type(value).__name__)


def _dumped_by_pydantic(value: object) -> JSON:
    """The JSON of a value whose type pydantic knows (UUID, Decimal, Path, …); None for anything else."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None:  # no tool was made with it, so nothing of it can be here
        return None
    try:
        return pydantic.TypeAdapter(type(value)).dump_python(value, mode="json")
    except Exception:  # noqa: BLE001 - whatever it says, the value has no JSON form
        return None

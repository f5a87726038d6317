"""From the data of a frame to messages of a dialect, whatever compatible servers make of it.

The fast path is one typed decode. What it refuses is read again slowly: several JSON values glued together (PV-12), a
missing blank line between two events, lone surrogates, broken UTF-8, control characters, fields of another type.
Fields that a dialect does not know are ignored, fields that do not fit are dropped: servers add and bend them freely.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from ..core.canonical import NotJSON, check
from ..messages import JSON

M = TypeVar("M", bound=msgspec.Struct)

DONE: Final = "[DONE]"
_SPACE: Final = " \t\r\n\x1e"
_LEAST: Final = 1e-12
"""An amount below this is a mistake, or as good as nothing."""
_decoder: Final = json.JSONDecoder(strict=False)


class Unreadable(ValueError):
    """The data is not JSON. `values` is what could be read before the place where it broke."""

    def __init__(self, values: list[JSON], why: str) -> None:
        self.values = values
        super().__init__(why)


def values_of(data: bytes) -> list[JSON]:
    """All JSON values of a frame's data, in order; the word `[DONE]` is `DONE`.

    Raises:
        Unreadable: something in it is no JSON.
    """
    text = data.decode("utf-8", "replace")
    values: list[JSON] = []
    at, end = 0, len(text)
    while True:
        while at < end and text[at] in _SPACE:
            at += 1
        if at >= end:
            return values
        if text.startswith(DONE, at):
            values.append(DONE)
            at += len(DONE)
            continue
        try:
            value, at = _decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise Unreadable(values, str(error)) from error
        values.append(value)


def fit(value: dict[str, JSON], kind: type[M]) -> M:
    """A struct of what fits; the rest is dropped. All fields of `kind` have defaults."""
    fields = {}
    for wire, name, wanted in _fields(kind):
        if (item := value.get(wire)) is not None and (fitting := _fit(item, wanted)) is not None:
            fields[name] = fitting
    return kind(**fields)


def _fit(value: JSON, wanted: Any) -> Any:
    if wanted is Any:
        return value
    if get_origin(wanted) is list:
        (kind,) = get_args(wanted)
        items = [value] if isinstance(value, dict) else value  # one without its list
        if not isinstance(items, list):
            return None
        return [fit(item, kind) for item in items if isinstance(item, dict)]
    return fit(value, wanted) if isinstance(value, dict) else None


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, str, Any], ...]:
    hints = get_type_hints(kind)
    out = []
    for wire, name in zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True):
        hint = hints[name]
        if type(None) in get_args(hint):
            (hint,) = [item for item in get_args(hint) if item is not type(None)]
        out.append((wire, name, hint))
    return tuple(out)


def plain(value: JSON) -> JSON:
    """A value as it is, or None if it has no canonical form (NaN, deeper than 100): facts must be storable."""
    try:
        check(value)
    except NotJSON:
        return None
    return value


def merged(before: dict[str, JSON], told: dict[str, JSON]) -> dict[str, JSON]:
    """Running figures with those told last; null erases nothing. A new object: the old one was given away."""
    if None in told.values():
        told = {name: value for name, value in told.items() if value is not None}
    return {**before, **told}


def figure(value: object) -> int | None:
    """A token figure, or None for anything that is none."""
    if type(value) is int:
        return value if 0 <= value < 2**53 else None
    if isinstance(value, float) and 0 <= value < 1e15 and value == int(value):
        return int(value)
    return None


def money(value: object) -> str | None:
    """An amount of money as a decimal string, or None for anything that is none."""
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        return None
    from decimal import Decimal, InvalidOperation

    from ..core.prices import money_text

    try:
        amount = Decimal(value if isinstance(value, str) else repr(value))
    except (InvalidOperation, ValueError):
        return None
    if not amount.is_finite() or not 0 <= amount < 10**12 or (amount and amount < _LEAST):
        return None
    return money_text(amount)


def mapping(value: object) -> dict[str, JSON]:
    """The object, or an empty one."""
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[dict[str, JSON]]:
    """The objects of a list, or the one that stands without its list."""
    items = value if isinstance(value, list | tuple) else [value]
    return [item for item in items if isinstance(item, dict)]


def raw_text(value: object) -> str:
    """Arguments as the text that they are or stand for."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def number(value: object) -> int | None:
    """A whole number, also where it is written as a text; None for anything else."""
    if type(value) is int:
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 10 else None


def word(value: object) -> str:
    """The text, or an empty one; numbers are spelled out, since some servers send ids as such."""
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int else ""


__all__ = [
    "DONE",
    "Unreadable",
    "figure",
    "fit",
    "mapping",
    "merged",
    "money",
    "number",
    "objects",
    "plain",
    "raw_text",
    "values_of",
    "word",
]

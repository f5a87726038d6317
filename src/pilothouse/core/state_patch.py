"""JSON Patch (RFC 6902) over a shared state: what a note of it changes (TC-120).

A note is `{"snapshot": object}` or `{"delta": operations}`; a delta is applied whole or not at all, and nothing that was
given is changed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

from ..messages import JSON

NOTE: Final = "pilothouse/state"
"""The name of the notes, and of the extension by which a run's request carries its first one."""


END: Final = "-"
"""The place behind the last element of an array."""


class PatchError(ValueError):
    """An operation cannot be applied; names its place and why."""


def pointer(text: object) -> list[str]:
    """The tokens of a JSON pointer (RFC 6901).

    Raises:
        PatchError: it is none.
    """
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise PatchError(f"{text!r} is no JSON pointer")
    return [token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:]]


def escaped(token: str) -> str:
    """A key as a token of a pointer."""
    return token.replace("~", "~0").replace("/", "~1")


def _index(token: str, length: int, *, end: bool) -> int:
    if end and token == END:
        return length
    if not (token.isascii() and token.isdigit()) or (len(token) > 1 and token[0] == "0"):
        raise PatchError(f"{token!r} is no index")
    if (index := int(token)) > length - (not end):
        raise PatchError(f"index {token} is beyond the end")
    return index


def _step(holder: Any, token: str) -> Any:
    if isinstance(holder, dict):
        if token not in holder:
            raise PatchError(f"there is no {token!r}")
        return holder[token]
    if isinstance(holder, list):
        return holder[_index(token, len(holder), end=False)]
    raise PatchError(f"there is nothing below {token!r}")


def _get(document: Any, tokens: Sequence[str]) -> Any:
    for token in tokens:
        document = _step(document, token)
    return document


def _add(document: Any, tokens: Sequence[str], value: Any) -> Any:
    if not tokens:
        return value
    holder = _get(document, tokens[:-1])
    if isinstance(holder, dict):
        holder[tokens[-1]] = value
    elif isinstance(holder, list):
        holder.insert(_index(tokens[-1], len(holder), end=True), value)
    else:
        raise PatchError(f"nothing can be put below {tokens[-1]!r}")
    return document


def _remove(document: Any, tokens: Sequence[str]) -> Any:
    if not tokens:
        return None
    _get(document, tokens)
    holder = _get(document, tokens[:-1])
    del holder[tokens[-1] if isinstance(holder, dict) else int(tokens[-1])]
    return document


def _replace(document: Any, tokens: Sequence[str], value: Any) -> Any:
    if not tokens:
        return value
    _get(document, tokens)
    holder = _get(document, tokens[:-1])
    holder[tokens[-1] if isinstance(holder, dict) else int(tokens[-1])] = value
    return document


def _move(document: Any, tokens: Sequence[str], source: Sequence[str]) -> Any:
    if list(tokens[: len(source)]) == list(source) and len(tokens) > len(source):
        raise PatchError("a value cannot be moved into itself")
    value = _get(document, source)
    return _add(_remove(document, source), tokens, value)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b) and isinstance(a, str) == isinstance(b, str)


def _test(document: Any, tokens: Sequence[str], value: Any) -> Any:
    if not _same(_get(document, tokens), value):
        raise PatchError("the value is another one")
    return document


_WITH_VALUE: Final[Mapping[str, Callable[[Any, Sequence[str], Any], Any]]] = {
    "add": _add,
    "replace": _replace,
    "test": _test,
}


def _apply_one(document: Any, operation: Mapping[str, Any]) -> Any:
    if not isinstance(operation, Mapping):
        raise PatchError("it is no object")
    name = operation.get("op")
    tokens = pointer(operation.get("path"))
    if isinstance(name, str) and name in _WITH_VALUE:
        if "value" not in operation:
            raise PatchError(f"{name} needs a value")
        return _WITH_VALUE[name](document, tokens, deepcopy(operation["value"]))
    if name == "remove":
        return _remove(document, tokens)
    if name == "move":
        return _move(document, tokens, pointer(operation.get("from")))
    if name == "copy":
        return _add(document, tokens, deepcopy(_get(document, pointer(operation.get("from")))))
    raise PatchError(f"{name!r} is no operation")


def patched(document: Mapping[str, JSON], operations: Sequence[Mapping[str, Any]]) -> dict[str, JSON]:
    """The document with all operations applied.

    Raises:
        PatchError: one cannot be applied, or the result is no object; nothing was changed.
    """
    made: Any = deepcopy(dict(document))
    for at, operation in enumerate(operations):
        try:
            made = _apply_one(made, operation)
        except PatchError as error:
            raise PatchError(f"operation {at}: {error}") from None
    if not isinstance(made, dict):
        raise PatchError("the result is no object")
    return made


def noted(state: Mapping[str, JSON], note: JSON) -> dict[str, JSON]:
    """The state after a note of it.

    Raises:
        PatchError: the note is none, or does not apply.
    """
    if isinstance(note, Mapping):
        if isinstance(snapshot := note.get("snapshot"), Mapping):
            return deepcopy(dict(snapshot))
        if isinstance(delta := note.get("delta"), Sequence) and not isinstance(delta, str):
            return patched(state, delta)
    raise PatchError("a note of the state has a snapshot, which is an object, or a delta")


__all__ = ["NOTE", "PatchError", "escaped", "noted", "patched", "pointer"]

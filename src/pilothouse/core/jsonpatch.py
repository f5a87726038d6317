"""JSON Patch (RFC 6902) over JSON pointers (RFC 6901): all operations or none, and the document is never changed.

A container is copied the first time an operation reaches into it; what no operation touches is shared with the
document that was given. So a small change of a large state is cheap, and whoever holds the old value keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from ..messages import JSON


class PatchError(ValueError):
    """An operation that cannot be applied; nothing was changed."""


def apply_patch(document: JSON, operations: Sequence[Mapping[str, JSON]]) -> JSON:
    """The document with all operations applied.

    Raises:
        PatchError: one of them is malformed or does not apply.
    """
    patch = _Patch(document)
    for place, operation in enumerate(operations):
        try:
            _apply_one(patch, operation)
        except PatchError as error:
            raise PatchError(f"operation {place}: {error}") from None
    return patch.document


def _apply_one(patch: _Patch, operation: Any) -> None:
    if not isinstance(operation, Mapping):
        raise PatchError("it is no object")
    name = operation.get("op")
    rule = _RULES.get(name) if isinstance(name, str) else None
    if rule is None:
        raise PatchError(f"{name!r} is no operation")
    rule(patch, operation)


def equal(a: JSON, b: JSON) -> bool:
    """Equality of JSON values: True is not 1, and 1 is 1.0."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(value, b[key]) for key, value in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


class _Patch:
    def __init__(self, document: JSON) -> None:
        self.document = document
        # Containers that were copied, by identity; holding them keeps the ids valid.
        self._own: dict[int, Any] = {}

    def _mine(self, value: Any) -> Any:
        if not isinstance(value, dict | list):
            return value
        if id(value) not in self._own:
            value = value.copy()
            self._own[id(value)] = value
        return value

    def parent(self, steps: Sequence[str]) -> Any:
        """The container of the last step, made safe to change."""
        self.document = here = self._mine(self.document)
        for step in steps[:-1]:
            key = _key(here, step)
            if isinstance(here, dict | list) and not _has(here, key):
                raise PatchError(f"there is no {step!r}")
            here[key] = here = self._mine(here[key])
        return here

    def get(self, steps: Sequence[str]) -> JSON:
        here = self.document
        for step in steps:
            key = _key(here, step)
            if not _has(here, key):
                raise PatchError(f"there is no {step!r}")
            here = here[key]
        return here

    def add(self, steps: Sequence[str], value: JSON) -> None:
        if not steps:
            self.document = value
            return
        here, step = self.parent(steps), steps[-1]
        if isinstance(here, dict):
            here[step] = value
            return
        index = len(here) if isinstance(here, list) and step == "-" else _key(here, step)
        if index > len(here):
            raise PatchError(f"index {index} is beyond the end of a list of {len(here)}")
        here.insert(index, value)

    def remove(self, steps: Sequence[str]) -> JSON:
        if not steps:
            value, self.document = self.document, None
            return value
        here = self.parent(steps)
        key = _key(here, steps[-1])
        if not _has(here, key):
            raise PatchError(f"there is no {steps[-1]!r}")
        return here.pop(key)


def _steps(operation: Mapping[str, JSON], name: str) -> list[str]:
    pointer = operation.get(name)
    if not isinstance(pointer, str) or (pointer and pointer[0] != "/"):
        raise PatchError(f"{name} {pointer!r} is no JSON pointer")
    for piece in pointer.split("~")[1:]:
        if piece[:1] not in ("0", "1") or not piece:
            raise PatchError(f"{name} {pointer!r} has a ~ that escapes nothing")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _key(here: Any, step: str) -> Any:
    if isinstance(here, dict):
        return step
    if not isinstance(here, list):
        raise PatchError(f"{step!r} reaches into a value that is no object and no list")
    if not (step.isascii() and step.isdigit()) or (step[0] == "0" and step != "0"):
        raise PatchError(f"{step!r} is no index of a list")
    if len(step) > 15:
        raise PatchError(f"{step!r} is beyond the end of a list")
    return int(step)


def _has(here: Any, key: Any) -> bool:
    return key in here if isinstance(here, dict) else key < len(here)


def _value(operation: Mapping[str, JSON]) -> JSON:
    if "value" not in operation:
        raise PatchError(f"{operation.get('op')} has no value")
    return operation["value"]


def _add(patch: _Patch, operation: Mapping[str, JSON]) -> None:
    patch.add(_steps(operation, "path"), _value(operation))


def _remove(patch: _Patch, operation: Mapping[str, JSON]) -> None:
    patch.remove(_steps(operation, "path"))


def _replace(patch: _Patch, operation: Mapping[str, JSON]) -> None:
    steps, value = _steps(operation, "path"), _value(operation)
    patch.get(steps)
    if not steps:
        patch.document = value
        return
    here = patch.parent(steps)
    here[_key(here, steps[-1])] = value


def _move(patch: _Patch, operation: Mapping[str, JSON]) -> None:
    source, target = _steps(operation, "from"), _steps(operation, "path")
    if target[: len(source)] == source and target != source:
        raise PatchError("a value cannot be moved into itself")
    if target == source:
        patch.get(source)
        return
    patch.add(target, patch.remove(source))


def _copy(patch: _Patch, operation: Mapping[str, JSON]) -> None:
    source, target = _steps(operation, "from"), _steps(operation, "path")
    patch.add(target, _deep(patch.get(source)))


def _deep(value: Any) -> Any:
    """A copy that shares nothing: a later operation may change one of the two places."""
    if isinstance(value, dict):
        return {key: _deep(item) for key, item in value.items()}
    return [_deep(item) for item in value] if isinstance(value, list) else value


def _test(patch: _Patch, operation: Mapping[str, JSON]) -> None:
    if not equal(patch.get(_steps(operation, "path")), _value(operation)):
        raise PatchError(f"the value at {operation.get('path')!r} is another one")


_RULES: Final[Mapping[str, Callable[[_Patch, Mapping[str, JSON]], None]]] = MappingProxyType(
    {"add": _add, "remove": _remove, "replace": _replace, "move": _move, "copy": _copy, "test": _test}
)


__all__ = ["PatchError", "apply_patch", "equal"]

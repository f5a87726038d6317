"""A Gemini call whose arguments come in pieces: values at JSON paths, strings also in parts (`partialArgs`)."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any, Final

from ...messages import JSON
from ..frames import objects, word

_STEP: Final = re.compile(
    r"""\.([^.\[\]'"]+)|\[(\d{1,6})\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]"""
)
_VALUES: Final = ("stringValue", "numberValue", "boolValue", "nullValue")


class GrowingCall:
    """One call while its pieces come in.

    Attributes:
        signature: of the part that had one.
        whole: the provider said that nothing more comes, and every piece found its place.
    """

    def __init__(self, number: int, call_id: str, name: str, wire_id: str | None) -> None:
        self.number = number
        self.call_id = call_id
        self.name = name
        self.wire_id = wire_id
        self.signature = ""
        self.whole = False
        self._misplaced = False
        self._root: dict[str, JSON] = {}
        self._open: str | None = None  # the path of a string that goes on
        self._said: list[str] = []  # its parts; joined once, or a long one were copied with each

    def continued_by(self, call: dict[str, JSON]) -> bool:
        """Whether a part belongs to this call."""
        wire_id, name = word(call.get("id")), word(call.get("name"))
        if wire_id and self.wire_id and wire_id != self.wire_id:
            return False
        return not name or (name == self.name and "args" not in call)

    def add(self, call: dict[str, JSON], signature: str) -> None:
        """Takes the pieces of a part."""
        self.signature = signature or self.signature
        if isinstance(args := call.get("args"), dict):
            self._root.update(args)
        for piece in objects(call.get("partialArgs")):
            self._place(piece)
        self.whole = call.get("willContinue") is not True and not self._misplaced

    def arguments(self) -> dict[str, JSON] | str:
        """The object; of a call that is not whole a text that nobody can take for one (PV-6)."""
        self._shut()
        if self.whole and not self._misplaced:
            return self._root
        return json.dumps(self._root, ensure_ascii=False, separators=(",", ":")).removesuffix("}")

    def _place(self, piece: dict[str, JSON]) -> None:
        path = word(piece.get("jsonPath"))
        kind = next((name for name in _VALUES if name in piece), None)
        steps = _steps(path)
        if not steps or kind is None:
            self._misplaced = True
            return
        value = None if kind == "nullValue" else piece[kind]
        if not isinstance(value, str):
            self._shut()
            self._put(steps, value)
            return
        if self._open != path:
            self._shut()
            self._put(steps, "")  # what does not fit is found out now
        self._open = path
        self._said.append(value)
        if piece.get("willContinue") is not True:
            self._shut()

    def _shut(self) -> None:
        """Writes the string that went on to its place."""
        if self._open is not None:
            self._put(_steps(self._open), "".join(self._said))
        self._open, self._said = None, []

    def _put(self, steps: list[str | int], value: JSON) -> None:
        try:
            _put(self._root, steps, value)
        except (TypeError, LookupError):
            self._misplaced = True


def _steps(path: str) -> list[str | int]:
    """The keys and positions of `$.a.b[0]['c d']`; none if it is not of this form."""
    steps: list[str | int] = []
    at = 1
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            return []
        at = found.end()
        name, place, single, double = found.groups()
        if place is not None:
            steps.append(int(place))
        else:
            quoted = single if single is not None else double
            steps.append(name if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
    return steps if path.startswith("$") else []


def _put(root: Any, steps: list[str | int], value: JSON) -> None:
    """Writes a value at its place and makes the objects and lists on the way.

    Raises:
        TypeError, LookupError: the place does not fit what is there.
    """
    holder: Any = root
    for step, following in pairwise(steps):
        fresh: JSON = [] if isinstance(following, int) else {}
        holder = _child(holder, step, fresh)
    last = steps[-1]
    _child(holder, last, value)
    holder[last] = value


def _child(holder: Any, step: str | int, fresh: JSON) -> JSON:
    if isinstance(holder, list):
        if not isinstance(step, int) or step > len(holder):
            raise LookupError("no such position")
        if step == len(holder):
            holder.append(fresh)
        return holder[step]
    if not isinstance(holder, dict) or not isinstance(step, str):
        raise TypeError("the path leads into a value")
    return holder.setdefault(step, fresh)


__all__ = ["GrowingCall"]

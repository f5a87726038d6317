"""Reads the head of a GGUF file: enough to refuse a wrong or cut-off one, and to know what the model can do.

llama.cpp reports a bad file as "failed to init"; the head tells a person what is wrong before anything is loaded. This
module knows the file format only (ggml's docs/gguf.md, versions 2 and 3, little-endian), no model and no engine.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .errors import OTHER_MODELS, LocalModelUnavailable

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32  # bytes, where `general.alignment` is absent

_STRING, _ARRAY = 8, 9
# Value type -> struct format. 7 is bool, stored as one byte.
_SCALARS: Final = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}


@dataclass(frozen=True, slots=True)
class Header:
    """What the head of a GGUF file says.

    Attributes:
        architecture: llama.cpp's name of the architecture, such as `llama`.
        name: The model's own name, or "".
        context_length: Tokens that the model was trained on at most; 0 where it is not said.
        chat_template: The Jinja template, or "" where the file has none (a base model).
    """

    architecture: str
    name: str
    context_length: int
    chat_template: str

    @property
    def calls_tools(self) -> bool:
        """Whether the chat template has a place for tools; without one, offering tools only confuses the model."""
        return "tools" in self.chat_template


class _Cut(Exception):
    """The file ends before its head does."""


class _Cursor:
    """Reads values one after the other; a read beyond the end is `_Cut`."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def skip(self, size: int) -> int:
        start, self.at = self.at, self.at + size
        if self.at > len(self.data):
            raise _Cut
        return start

    def scalar(self, fmt: str) -> Any:
        return struct.unpack_from(fmt, self.data, self.skip(struct.calcsize(fmt)))[0]

    def string(self) -> str:
        size = self.scalar("<Q")
        start = self.skip(size)
        return self.data[start : self.at].decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """Reads a value of this type. Arrays are stepped over: vocabularies are long and nothing here needs them."""
        if (fmt := _SCALARS.get(kind)) is not None:
            return self.scalar(fmt)
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise ValueError(f"it has a value of the unknown type {kind}")
        item, count = self.scalar("<I"), self.scalar("<Q")
        if (fmt := _SCALARS.get(item)) is not None:
            self.skip(struct.calcsize(fmt) * count)
        else:
            for _ in range(count):
                self.skip(self.scalar("<Q")) if item == _STRING else self.value(item)
        return None


def read_header(path: Path) -> Header:
    """Reads the head of the GGUF file at `path`, without reading the weights (some 20 ms for 50,000 tokens).

    Raises:
        LocalModelUnavailable: There is no such file, it is no GGUF file, or it is cut off or damaged.
    """
    try:
        if not path.is_file():
            raise LocalModelUnavailable(f"there is no file {path}", path=path)
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise LocalModelUnavailable(f"{path.name} is not a GGUF file", path=path)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _header(_Cursor(data))
    except OSError as error:
        raise LocalModelUnavailable(
            f"{path} cannot be read ({error.strerror or error})", path=path
        ) from error
    except _Cut:
        raise LocalModelUnavailable(
            f"{path.name} is cut off", f"download it again, or {OTHER_MODELS}", path=path
        ) from None
    except ValueError as error:
        raise LocalModelUnavailable(f"{path.name} cannot be understood ({error})", path=path) from error


def _header(cursor: _Cursor) -> Header:
    cursor.skip(len(MAGIC))
    if (version := cursor.scalar("<I")) not in VERSIONS:
        raise ValueError(f"GGUF version {version}")
    tensors, pairs = cursor.scalar("<Q"), cursor.scalar("<Q")
    values: dict[str, Any] = {}
    for _ in range(pairs):
        key = cursor.string()
        values[key] = cursor.value(cursor.scalar("<I"))
    _check_tensors(cursor, tensors, int(values.get("general.alignment") or DEFAULT_ALIGNMENT))
    architecture = str(values.get("general.architecture") or "")
    return Header(
        architecture=architecture,
        name=str(values.get("general.name") or ""),
        context_length=int(values.get(f"{architecture}.context_length") or 0),
        chat_template=str(values.get("tokenizer.chat_template") or ""),
    )


def _check_tensors(cursor: _Cursor, count: int, alignment: int) -> None:
    """Raises `_Cut` when a tensor begins beyond the end: a download that stopped. llama.cpp checks where each ends."""
    last = -1
    for _ in range(count):
        cursor.string()
        dimensions = cursor.scalar("<I")
        cursor.skip(8 * dimensions + 4)  # the sizes, and the type
        last = max(last, cursor.scalar("<Q"))
    if last >= 0:
        start = -(-cursor.at // alignment) * alignment
        if start + last >= len(cursor.data):
            raise _Cut


__all__ = ["Header", "read_header"]

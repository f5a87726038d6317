"""What a user sends along: media parts from addresses, bytes or files, checked (AC-115, AC-119); content from any form of it.

The parts themselves are `messages.Image`, `Audio`, `Video` and `File`; `Attachment` makes the one that a type names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Final

from msgspec.structs import replace

from ..contracts import Journal
from ..core.canonical import scrub
from ..messages import MEDIA, Audio, File, Image, InputPart, Media, Message, Part, Text, Video

_TYPE: Final = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+(\s*;.*)?", re.ASCII)
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_BARRED: Final = frozenset({"file", "javascript"})
_KINDS: Final[dict[str, type[Media]]] = {"image": Image, "audio": Audio, "video": Video}


class _Maker:
    """Makes media parts and recognises them."""

    def __instancecheck__(self, item: object) -> bool:
        return isinstance(item, MEDIA)

    def __call__(
        self,
        *,
        mime_type: str,
        url: str | None = None,
        data: bytes | bytearray | memoryview | None = None,
        filename: str | None = None,
    ) -> Media:
        """The `Image`, `Audio`, `Video` or `File` that the MIME type names, from an address or from bytes (copied).

        Raises:
            ValueError: naming the field.
        """
        made = _KINDS.get(str(mime_type).partition("/")[0].lower(), File)
        copied = bytes(data) if isinstance(data, bytearray | memoryview) else data
        return checked(made(mime_type, url, copied, filename))

    def from_path(self, path: str | PathLike[str], *, mime_type: str | None = None) -> Media:
        """Reads a file; its type is guessed from its name, else `application/octet-stream`."""
        import mimetypes
        from pathlib import Path

        file = Path(path)
        guessed = mime_type or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        return self(data=file.read_bytes(), mime_type=guessed, filename=file.name)


Attachment: Final = _Maker()
"""`Attachment(url=… or data=…, mime_type=…, filename=…)` and `Attachment.from_path(path)` make a media part; every media
part is an instance of it."""


def checked(part: Media) -> Media:
    """The part as it can be sent: its filename reduced to the last component.

    Raises:
        ValueError: naming the field.
    """
    # Structs do not check what they are built from, so that types are looked at here.
    given: tuple[object, object, object, object] = (part.mime_type, part.url, part.data, part.filename)
    for field, item, kind in zip(
        ("mime_type", "url", "data", "filename"), given, (str, str, bytes, str), strict=True
    ):
        if (item is not None or field == "mime_type") and not isinstance(item, kind):
            raise ValueError(f"{field} must be {kind.__name__}, got {type(item).__name__}")
    if not _TYPE.fullmatch(part.mime_type):
        raise ValueError(f"mime_type must be like type/subtype, got {part.mime_type!r}")
    sources = [source for source in (part.url, part.data, part.artifact) if source is not None]
    if len(sources) != 1:
        raise ValueError("exactly one of url and data must be given")
    if part.data == b"":
        raise ValueError("data must not be empty")
    if part.url is not None:
        _check_url(part.url)
    if part.filename is None:
        return part
    name = _basename(part.filename)
    return part if name == part.filename else replace(part, filename=name)


def _check_url(url: str) -> None:
    if CONTROL.search(url):
        raise ValueError("url must not hold control characters")
    from urllib.parse import urlsplit

    try:
        scheme = urlsplit(url).scheme.lower()
    except ValueError as error:
        raise ValueError(f"url: {error}") from None
    if not scheme or scheme in _BARRED:
        raise ValueError(
            f"url must be absolute, and neither file: nor javascript:, got {scheme or 'no'} scheme"
        )
    if scheme in ("http", "https") and not urlsplit(url).netloc:
        raise ValueError("url must name a host")


def _basename(name: str) -> str | None:
    last = re.split(r"[\\/]", scrub(CONTROL.sub("", name)))[-1].strip()
    return last or None


def parts_of(content: object, attachments: Sequence[Media]) -> tuple[InputPart, ...] | None:
    """The parts of a user message; None to continue without one.

    Raises:
        TypeError, ValueError: naming what came, and where.
    """
    if isinstance(attachments, MEDIA) or not isinstance(attachments, Iterable):
        raise TypeError(
            f"attachments must be a sequence of media parts, got {type(attachments).__name__}: [it]"
        )
    if content is None:
        if attachments:
            raise TypeError("attachments need a message: content must not be None")
        return None
    added = tuple([_media("attachments", index, item) for index, item in enumerate(attachments)])
    if isinstance(content, str):
        return (Text(scrub(str.__str__(content))), *added)  # of a subclass only the text counts
    if isinstance(content, bytes | bytearray) or not isinstance(content, Sequence):
        raise TypeError(f"content must be str, parts or None, got {type(content).__name__}")
    return (*[_part(index, part) for index, part in enumerate(content)], *added)


def _part(index: int, part: object) -> InputPart:
    if isinstance(part, Text):
        text = scrub(part.text)
        return part if text == part.text else replace(part, text=text)
    if isinstance(part, MEDIA):
        return _media("content", index, part)
    raise TypeError(f"content[{index}] must be Text or a media part, got {type(part).__name__}{_way(part)}")


def _way(part: object) -> str:
    """How a part is made of what came."""
    match part:
        case PathLike():
            return ": Attachment.from_path(it)"
        case bytes() | bytearray() | memoryview():
            return ": Attachment(data=it, mime_type=…)"
        case str():
            return ": Text(it), or for media Attachment(url=it, mime_type=…)"
    return ""


def _media(where: str, index: int, part: object) -> Media:
    if not isinstance(part, MEDIA):
        raise TypeError(f"{where}[{index}] must be a media part, got {type(part).__name__}{_way(part)}")
    try:
        return checked(part)
    except ValueError as error:
        raise ValueError(f"{where}[{index}]: {error}") from None


async def stored(message: Message, journal: Journal) -> Message:
    """The message as it is registered: inline bytes are in the journal once, by digest (AC-116)."""
    if not any(isinstance(part, MEDIA) and part.data is not None for part in message.parts):
        return message
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, MEDIA) and part.data is not None:
            kept = await journal.put_blob(part.data, part.mime_type)
            parts.append(replace(part, data=None, artifact=kept))
        else:
            parts.append(part)
    return replace(message, parts=tuple(parts))

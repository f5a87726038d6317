"""What is uploaded, by whom, and what comes of it: the values of the upload controller (AC §3.12)."""

from __future__ import annotations

import math
import mimetypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Final, Literal, Protocol
from urllib.parse import urlsplit
from uuid import uuid4

from ..cancel import Token
from ..errors import PermanentUploadError
from ..messages import JSON
from .attachments import CONTROL
from .options import LONGEST_S


class UploadState(StrEnum):
    """What an upload controller is doing; derived from its items, never set."""

    IDLE = "idle"  # nothing to show
    UPLOADING = "uploading"  # something is under way, queued, or waits to be tried again
    COMPLETE = "complete"  # there is a result, and no error
    ERROR = "error"  # something failed and nothing is under way


UploadStatus = Literal["pending", "uploading", "waiting", "complete", "error", "cancelled"]

LIVE: Final = frozenset[UploadStatus]({"pending", "uploading", "waiting"})
"""Not ended: queued, under way, or waiting for its next attempt."""


@dataclass(frozen=True, slots=True)
class UploadFile:
    """A file to be uploaded. `source` is its bytes or its path, whatever the provider takes; None: it is not here."""

    name: str
    mime_type: str = "application/octet-stream"
    size: int = 0
    source: object = None
    id: str = field(default_factory=lambda: uuid4().hex)

    @classmethod
    def from_path(cls, path: str | PathLike[str], *, id: str | None = None) -> UploadFile:
        """A file on disk, which is not read here; its type is guessed from its name."""
        file = Path(path)
        made = cls(file.name, _guess(file.name), file.stat().st_size, file)
        return made if id is None else replace(made, id=id)

    @classmethod
    def from_bytes(
        cls, data: bytes, name: str, mime_type: str | None = None, *, id: str | None = None
    ) -> UploadFile:
        """A file in memory."""
        made = cls(name, mime_type or _guess(name), len(data), bytes(data))
        return made if id is None else replace(made, id=id)


@dataclass(frozen=True, slots=True)
class UploadOptions:
    """What an attempt is given: its stop, and whom it tells of its progress (0 … 100, from any thread)."""

    signal: Token
    on_progress: Callable[[float], None]


@dataclass(frozen=True, slots=True)
class UploadResult:
    """Where a file is now."""

    url: str
    asset_id: str | None = None
    variants: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UploadItem:
    """A file as an interface shows it; replaced at each change."""

    id: str
    file: UploadFile
    status: UploadStatus = "pending"
    progress: float = 0.0
    attempt: int = 0
    error: Exception | None = None
    url: str | None = None


class UploadProvider(Protocol):
    """Takes files somewhere. May also have `validate(file)`, which returns why a file cannot be taken, or None."""

    async def upload(self, file: UploadFile, options: UploadOptions, /) -> UploadResult:
        """One attempt; raises `PermanentUploadError` where another one cannot help."""
        ...


def _guess(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


def full_type(mime_type: str) -> str:
    """A MIME type in full: short ones such as `pdf` are expanded."""
    return mime_type if "/" in mime_type else _guess(f"file.{mime_type}")


def check_url(result: object) -> UploadResult:
    """The result, if its address can be given to a model.

    Raises:
        PermanentUploadError: it is no https address; trying again gives the same.
    """
    if not isinstance(result, UploadResult):
        raise PermanentUploadError(f"upload() must return an UploadResult, got {type(result).__name__}")
    if not isinstance(result.url, str):
        raise PermanentUploadError(f"the url of an UploadResult must be str, got {type(result.url).__name__}")
    try:
        parts = urlsplit(result.url)
        host = parts.hostname
    except ValueError as error:
        raise PermanentUploadError(f"upload URL cannot be read: {error}") from None
    if parts.scheme != "https":
        raise PermanentUploadError(f"upload URL must use https, got {parts.scheme or 'no scheme'}")
    if not host:
        raise PermanentUploadError("upload URL must name a host")
    if CONTROL.search(result.url):
        raise PermanentUploadError("upload URL must not hold control characters")
    return result


@dataclass(frozen=True, slots=True)
class _Option:
    default: float
    least: float
    whole: bool


OPTIONS: Final = {
    "concurrency": _Option(3, 1, True),
    "max_retries": _Option(2, 0, True),
    "retry_delay": _Option(1.0, 0.0, False),
    "upload_timeout": _Option(300.0, 1.0, False),
}


def sanitized(name: str, value: object) -> float:
    """What an option means (AC-141): nonsense and infinity are the default, too little is the least, never off."""
    option = OPTIONS[name]
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        return option.default
    try:
        number = float(value)
    except OverflowError:
        return LONGEST_S if value > 0 else option.least  # type: ignore[operator]
    except (TypeError, ValueError):
        return option.default
    if not math.isfinite(number):
        return option.default
    number = min(max(number, option.least), LONGEST_S)
    return math.floor(number) if option.whole else number


def progress_of(value: object, before: float) -> float | None:
    """The progress after a call of `on_progress`; None where it says nothing new (AC-147)."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    number = float(value)
    if math.isnan(number):
        return None
    number = min(max(number, 0.0), 100.0)
    return number if number > before else None

"""Recorded response bodies: captured from a real provider, saved, loaded, cut anew.

A recording is what came over the wire, read by read, without secrets: what looks like a key is overwritten in place,
so that the reads keep their sizes. Saved as JSON it is a fixture of kind `wire_chunks`; any other file is a raw body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from ..errors import ConfigError
from ..messages import JSON
from ..responses import ModelRequest, ProviderEvent, ReasoningDelta, TextDelta, ToolCallDelta
from .decode import End
from .http import HTTPProvider, Tap

_SECRETS: Final = re.compile(
    # Keys of providers and tokens of places where code lies; at the beginning of a word, or `task-list` were one.
    rb"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt]))(?:sk-[A-Za-z0-9_-]{12,}|AIza[A-Za-z0-9_-]{20,}|AKIA[A-Z0-9]{12,}"
    rb"|(?:gsk|xai|ghp|gho|pat|hf|sk|pk|r8|fw|nvapi|pplx|csk|tgp)[_-][A-Za-z0-9_-]{16,}"
    rb"|(?:org|proj|user)[_-][A-Za-z0-9]{16,}"
    rb"|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,})"
    rb"|(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{12,}"
)
_KEPT_HEADERS: Final = (
    "content-type",
    "retry-after",
    "retry-after-ms",
    "x-ratelimit-reset",
    "x-ratelimit-reset-after",
)
_ENDS: Final[dict[str, End]] = {"clean_eof": "eof", "reset": "reset", "held_open": "held-open"}
_NAMES: Final = {end: name for name, end in _ENDS.items()}


class Recording(Struct, frozen=True, kw_only=True):
    """One response as it came: its reads, its head as far as it matters, and what the connection did at the end."""

    chunks: Sequence[bytes]
    dialect: str | None = None
    status: int = 200
    headers: Mapping[str, str] = {}
    end: End = "eof"

    @property
    def body(self) -> bytes:
        """All of it."""
        return b"".join(self.chunks)


def load(path: Path) -> Recording:
    """Reads a file: JSON of kind `wire_chunks` in its own chunks, anything else as a body in one.

    Raises:
        ConfigError: the file cannot be read, or is JSON of that kind and broken.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    if path.suffix != ".json":
        return Recording(chunks=[raw])
    try:
        held = json.loads(raw)
        if not isinstance(held, dict) or held.get("kind") != "wire_chunks":
            return Recording(chunks=[raw])  # a JSON body
        return Recording(
            chunks=[bytes.fromhex(chunk) for chunk in held["chunks"]],
            dialect=held.get("dialect"),
            status=held.get("status", 200),
            headers=held.get("headers", {}),
            end=_ENDS[held.get("transport_end", "clean_eof")],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no recording of kind wire_chunks: {error!r}") from error


def save(recording: Recording, path: Path) -> None:
    """Writes a recording: `.json` with its reads, any other suffix as the raw body.

    Raises:
        ConfigError: the file cannot be written.
    """
    held: dict[str, JSON] = {
        "kind": "wire_chunks",
        "dialect": recording.dialect,
        "encoding": "hex",
        "note": "each item is one read() from the socket",
        "status": recording.status,
        "headers": dict(recording.headers),
        "transport_end": _NAMES[recording.end],
        "chunks": [chunk.hex() for chunk in recording.chunks],
    }
    data = json.dumps(held, indent=1).encode() + b"\n" if path.suffix == ".json" else recording.body
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


def rechunked(chunks: Iterable[bytes], size: int) -> list[bytes]:
    """The same bytes in reads of `size`."""
    body = b"".join(chunks)
    return [body[at : at + size] for at in range(0, len(body), size)]


async def capture(
    provider: HTTPProvider, request: ModelRequest, *, secrets: Iterable[str] = ()
) -> tuple[Recording, list[ProviderEvent]]:
    """Asks a provider once and returns what came, without secrets, and what the provider made of it.

    `secrets` are overwritten beside what was sent in the request's head and everything that looks like a key.
    Cancelling closes the connection.

    Raises:
        ConfigError: the answer spells a secret out over several deltas, where it cannot be overwritten.
    """
    tap = Tap()
    before, provider.tap = provider.tap, tap
    try:
        events = [event async for event in provider.stream(request)]
    finally:
        provider.tap = before
    headers = {name: value for name, value in tap.headers.items() if name in _KEPT_HEADERS}
    hidden = _parts_of(secrets, tap.secrets)
    if _spells(events, hidden):
        raise ConfigError("the answer itself spells out a secret piece by piece: nothing was recorded")
    recording = Recording(
        chunks=redacted(tap.chunks, hidden),
        dialect=provider.dialect,
        status=tap.status,
        headers=headers,
        end="reset" if tap.broken else "held-open" if tap.silent else "eof",
    )
    return recording, events


def _parts_of(*groups: Iterable[str]) -> list[str]:
    """Secrets, longest first; of `Bearer KEY` also the key alone. Very short ones would blot out everything."""
    found = {word for group in groups for value in group for word in (value, value.rpartition(" ")[2])}
    return sorted((word for word in found if len(word) >= 4), key=len, reverse=True)


def _spells(events: Iterable[ProviderEvent], secrets: Sequence[str]) -> bool:
    """Whether the joined text, reasoning or arguments hold a secret that no single delta does."""
    pieces: dict[tuple[type, int], list[str]] = {}
    for event in events:
        if isinstance(event, TextDelta | ReasoningDelta):
            pieces.setdefault((type(event), event.block), []).append(event.text)
        elif isinstance(event, ToolCallDelta) and isinstance(event.args, str):
            pieces.setdefault((ToolCallDelta, event.block), []).append(event.args)
    for told in pieces.values():
        alone = [redacted([piece.encode("utf-8", "replace")], secrets)[0] for piece in told]
        whole = b"".join(alone)
        if redacted([whole], secrets)[0] != whole:
            return True
    return False


def redacted(chunks: Sequence[bytes], secrets: Iterable[str] = ()) -> list[bytes]:
    """The same reads with each secret overwritten by as many `x`, also one that lies across two reads."""
    body = b"".join(chunks)
    for secret in secrets:
        if secret:
            body = body.replace(secret.encode(), b"x" * len(secret.encode()))
    body = _SECRETS.sub(lambda found: b"x" * len(found[0]), body)
    out, at = [], 0
    for chunk in chunks:
        out.append(body[at : at + len(chunk)])
        at += len(chunk)
    return out


__all__ = ["Recording", "capture", "load", "rechunked", "redacted", "save"]

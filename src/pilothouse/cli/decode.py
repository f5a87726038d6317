"""`pilothouse decode`: what Pilothouse makes of a recorded response body."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import typer

from ..errors import ConfigError
from ..providers.decode import DECODERS, End, ThinkMode
from ..providers.decode import decode as decode_body


def decode(file: Path, *, dialect: str, chunks: int, think_tags: str | None, status: int, end: str) -> None:
    """Prints one JSON object in the words of the fixtures' README."""
    if dialect not in DECODERS:
        raise ConfigError(f"unknown dialect {dialect!r}: one of {', '.join(DECODERS)}")
    tags: ThinkMode = _one_of("--think-tags", think_tags or "off", get_args(ThinkMode))
    cut: End = _one_of("--end", end, get_args(End))
    found = decode_body(dialect, _pieces(file, chunks), think_tags=tags, status=status, end=cut)
    typer.echo(json.dumps(found, ensure_ascii=False, indent=2))


def _one_of(option: str, value: str, choices: tuple[Any, ...]) -> Any:
    if value not in choices:
        raise ConfigError(f"{option} is one of {', '.join(choices)}, not {value!r}")
    return value


def _pieces(file: Path, size: int) -> list[bytes]:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    if file.suffix == ".json":
        try:
            stored = json.loads(data)
        except ValueError:
            stored = None
        if isinstance(stored, dict) and isinstance(stored.get("chunks"), list):
            recorded = [bytes.fromhex(piece) for piece in stored["chunks"]]
            if not size:
                return recorded
            data = b"".join(recorded)
    if not size:
        return [data]
    return [data[at : at + size] for at in range(0, len(data), size)]

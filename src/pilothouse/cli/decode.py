"""`pilothouse decode`: what Pilothouse makes of a recorded response body."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import typer

from ..errors import ConfigError
from ..providers.decode import DECODERS, End, ThinkMode
from ..providers.decode import decode as decode_body
from ..providers.recording import load, rechunked


def decode(
    file: Path,
    *,
    dialect: str | None,
    chunks: int,
    think_tags: str | None,
    status: int | None,
    end: str | None,
) -> None:
    """Prints one JSON object in the words of the fixtures' README. What is not given is taken from the recording."""
    if dialect is not None:
        _one_of("--dialect", dialect, tuple(DECODERS))
    tags: ThinkMode = _one_of("--think-tags", think_tags or "off", get_args(ThinkMode))
    held = load(file)
    if (spoken := dialect or held.dialect) is None:
        raise ConfigError(f"{file} does not say its dialect: give --dialect {', '.join(DECODERS)}")
    cut: End = held.end if end is None else _one_of("--end", end, get_args(End))
    found = decode_body(
        spoken,
        rechunked(held.chunks, chunks) if chunks else held.chunks,
        think_tags=tags,
        status=held.status if status is None else status,
        headers=held.headers,
        end=cut,
    )
    typer.echo(json.dumps(found, ensure_ascii=False, indent=2))


def _one_of(option: str, value: str, choices: tuple[Any, ...]) -> Any:
    if value not in choices:
        raise ConfigError(f"{option} is one of {', '.join(choices)}, not {value!r}")
    return value


__all__ = ["decode"]

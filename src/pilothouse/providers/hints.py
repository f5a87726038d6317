"""When a provider wants to be asked again (PV-10)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Final

from ..messages import JSON

_EPOCH_S: Final = 1_000_000_000
"""Numbers above it are moments in seconds, above a thousand times it in milliseconds, below it are durations."""

_DURATION: Final = re.compile(
    r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?"
)
_IN_WORDS: Final = re.compile(
    r"(?:try|retry) (?:again )?(?:in|after) (\d+(?:\.\d+)?) ?(ms|milliseconds?|s|seconds?|m|minutes?|h|hours?)\b",
    re.IGNORECASE,
)
_UNIT_MS: Final = (("ms", 1), ("milli", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000))


def retry_after_ms(headers: Mapping[str, str], error: JSON, message: str, now_ms: int) -> int | None:
    """How long to wait, from the first valid hint; 0 is now, None is no hint.

    `headers` have lower-case names; `now_ms` is the wall clock.
    """
    return next((hint for hint in _hints(headers, error, message, now_ms) if hint is not None), None)


def _hints(headers: Mapping[str, str], error: JSON, message: str, now_ms: int) -> Iterator[int | None]:
    yield _number(headers.get("retry-after-ms"), 1)
    after = headers.get("retry-after")
    yield _number(after, 1000)
    yield _date(after, now_ms)
    reset = headers.get("x-ratelimit-reset")
    yield _moment(reset, now_ms)
    yield _duration(reset)
    yield _date(reset, now_ms)
    for name in ("x-ratelimit-reset-after", "reset-after"):
        yield _number(headers.get(name), 1000)
        yield _duration(headers.get(name))
    yield _retry_info(error)
    yield _in_words(message)


def _number(text: str | None, unit_ms: int) -> int | None:
    try:
        value = float(text) if text is not None else -1.0
    except ValueError:
        return None
    return round(value * unit_ms) if isfinite(value) and value >= 0 else None


def _moment(text: str | None, now_ms: int) -> int | None:
    """A moment or a duration: what a reset header means is told by its size only."""
    value = _number(text, 1)
    if value is None:
        return None
    if value >= _EPOCH_S * 1000:
        return max(0, value - now_ms)
    if value >= _EPOCH_S:
        return max(0, value * 1000 - now_ms)
    return _number(text, 1000)


def _date(text: str | None, now_ms: int) -> int | None:
    if text is None:
        return None
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
    try:
        return max(0, round(moment.timestamp() * 1000) - now_ms)
    except (OverflowError, OSError):
        return None


def _duration(text: str | None) -> int | None:
    """`1.5s`, `6m0s`, `20ms`."""
    if not text or not (match := _DURATION.fullmatch(text.strip())) or not any(match.groups()):
        return None
    hours, minutes, seconds, millis = (float(part or 0) for part in match.groups())
    return round(hours * 3_600_000 + minutes * 60_000 + seconds * 1000 + millis)


def _retry_info(error: JSON, depth: int = 0) -> int | None:
    """Google's `RetryInfo` detail."""
    if depth > 8:
        return None
    if isinstance(error, dict):
        if isinstance(delay := error.get("retryDelay"), str) and (wait := _duration(delay)) is not None:
            return wait
        error = list(error.values())
    if isinstance(error, list):
        for value in error:
            if isinstance(value, dict | list) and (wait := _retry_info(value, depth + 1)) is not None:
                return wait
    return None


def _in_words(message: str) -> int | None:
    if not (match := _IN_WORDS.search(message)):
        return None
    unit = match[2].lower()
    factor = next(ms for prefix, ms in _UNIT_MS if unit.startswith(prefix))
    return round(float(match[1]) * factor)


__all__ = ["retry_after_ms"]

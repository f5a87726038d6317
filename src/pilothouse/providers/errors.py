"""What kind of error a provider means (PV-9).

One table for all dialects and servers, asked in this order: words in the structured fields of the error object,
wherever in it they stand, then the HTTP status, then the wording. Wordings are matched loosely and last, because
numbers, units and punctuation vary, and because a text that talks of tokens is more often a rate limit than an
overflow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from ..core.jsonlines import JSONLinesReader
from ..messages import JSON
from ..responses import STATUS_KINDS, ErrorInfo, ErrorKind, StreamEnd
from .frames import DONE, Unreadable, plain, values_of, word
from .hints import retry_after_ms
from .surrogates import clean_struct

MAX_ERROR_BYTES: Final = 64 * 1024
EXCERPT_BYTES: Final = 2048
"""How much of a body that is not the protocol is kept for diagnosis."""

# 1. Words in type, code, status, reason and the like, written as snake case. First kind that matches wins.
_WORDS: Final[tuple[tuple[ErrorKind, re.Pattern[str]], ...]] = (
    (
        "auth",
        re.compile(
            r"(api|access)_?key|authenti|unauthori[sz]ed|permission|access_denied|forbidden|credential"
            r"|(expired|invalid)_token|unrecognized_client|account_deactivated|organization_deactivated"
        ),
    ),
    (
        "quota",
        re.compile(
            r"insufficient_(quota|balance|credit|fund)|billing|payment_required|quota_exceeded"
            r"|exceeded_(current_)?quota|credit_(balance|limit)|out_of_credits|usage_limit_reached"
            r"|usage_not_included|spend(ing)?_limit"
        ),
    ),
    ("rate_limit", re.compile(r"rate_?limit|too_many_requests|throttl|resource_exhausted|request_limit")),
    (
        "overloaded",
        re.compile(r"overloaded|^unavailable$|service_unavailable|no_capacity|slow_down|model_not_ready"),
    ),
    (
        "context_overflow",
        re.compile(
            r"context_(length|window|size)_exceeded|exceeds?_(the_)?(available_)?context|request_too_large"
            r"|prompt_too_long|model_max_prompt_tokens|tokens_limit_reached|context_overflow|input_too_long"
        ),
    ),
)

# 2. The HTTP status, or the number that stands for it in an error object inside a stream: `STATUS_KINDS`.

# 3. Wordings.
_OUTPUT_BUDGET: Final = re.compile(
    r"max_?(completion_|output_|new_)?tokens|(output|completion) tokens", re.IGNORECASE
)
_TOO_MUCH: Final = re.compile(
    r"too (large|big|high)|at most|exceed|greater than|supported range|maximum (allowed|number)|must be|\d\s*>\s*\d",
    re.IGNORECASE,
)
_OF_THE_INPUT: Final = re.compile(r"context|prompt|input|messages", re.IGNORECASE)
_PAIRING: Final = re.compile(
    r"tool_use.{0,80}(without|must have a corresponding).{0,20}.?tool_result"
    r"|unexpected .{0,4}tool_(use_id|result)"
    r"|tool_result.{0,60}(corresponding|previous|no matching).{0,40}tool_use"
    r"|tool_calls?['\"`]?\)? must be followed by tool"
    r"|tool_call_ids? did not have response"
    r"|insufficient tool messages"
    r"|role ['\"`]?tool['\"`]? must (be a response|follow)"
    r"|no tool (output|call) found for function"
    r"|function response parts.{0,40}function call parts"
    r"|function call turn comes immediately after"
    r"|same number of function calls and responses"
    r"|unexpected role ['\"`]?(tool|user)['\"`]? after role"
    r"|toolresult blocks?|tool_call_id.{0,40}not found|tool (result|call).{0,20} id.{0,40}not found",
    re.IGNORECASE | re.DOTALL,
)
_PASSING: Final[tuple[tuple[ErrorKind, re.Pattern[str]], ...]] = (
    ("rate_limit", re.compile(r"rate.?limit|too many (requests|tokens)|throttl", re.IGNORECASE)),
    (
        "quota",
        re.compile(
            r"exceed.{0,40}\bquota|\bquota.{0,20}exceed|insufficient (balance|credits|quota)", re.IGNORECASE
        ),
    ),
    (
        "overloaded",
        re.compile(
            r"\boverload|over ?capacity|service (is )?unavailable|\bqueue (is |limit )?(full|exceed|reached)"
            r"|exceed.{0,40}\bqueue",
            re.IGNORECASE,
        ),
    ),
)
_OVERFLOW: Final = re.compile(
    r"(maximum|max|model'?s?|available|allowed).{0,40}(context|prompt|input).{0,12}(length|window|size|limit|token)"
    r"|context.{0,12}(length|window|size|limit)"
    r"|(prompt|input|request|message).{0,20}(is |are )?too (long|large)"
    r"|(input|prompt).{0,8}(token count|tokens?|length).{0,40}(exceed|over|above|longer|greater|larger)"
    r"|exceed.{0,40}(context|maximum (input|number of (input )?tokens)|input (limit|length))"
    r"|reduce the length of the (messages|prompt|input)|too many (input |prompt )?tokens in"
    r"|inputs?\W{0,3} tokens \+ \W?max_new_tokens|inputs?\W{0,3} must have less than .{1,12} tokens"
    r"|range of input length",
    re.IGNORECASE | re.DOTALL,
)

_NAMING_KEYS: Final = frozenset(
    {"type", "code", "status", "reason", "error", "error_type", "error_code", "errortype", "errorcode"}
    | {"__type", "name", "exception", "kind"}
)
_TYPE_HEADERS: Final = ("x-amzn-errortype", "x-error-type", "x-error-code")


def classify(
    error: JSON,
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
    now_ms: int = 0,
) -> ErrorInfo:
    """Names the kind of an error. `error` is its object or text; `status` is None inside a stream.

    `headers` have lower-case names; `now_ms` is the wall clock, for dates in them.
    """
    headers = headers or {}
    words = [_snake(header.split(":")[0]) for name in _TYPE_HEADERS if (header := headers.get(name))]
    numbers: list[int] = []
    for name in _names(error):
        if name.isdigit():
            numbers.append(int(name))
        else:
            words.append(_snake(name))
    said = status or next((number for number in numbers if 400 <= number < 600), None)
    message = message_of(error)
    kind, code = _kind(words, said, message)
    return ErrorInfo(
        kind,
        message,
        code or _code(error),
        status,
        retry_after_ms(headers, error, message, now_ms),
        plain(error),
    )


def _kind(words: list[str], status: int | None, message: str) -> tuple[ErrorKind, str | None]:
    for kind, pattern in _WORDS:
        if any(pattern.search(name) for name in words):
            return kind, None
    if status is not None:
        if status in STATUS_KINDS:
            return STATUS_KINDS[status], None
        if status >= 500:
            return "server_error", None
    return _by_wording(message, "server_error" if status is None else "invalid_request")


def _by_wording(message: str, otherwise: ErrorKind) -> tuple[ErrorKind, str | None]:
    if _OUTPUT_BUDGET.search(message) and _TOO_MUCH.search(message) and not _OF_THE_INPUT.search(message):
        return "invalid_request", None
    if _PAIRING.search(message):
        return "invalid_request", "tool_pairing"
    for kind, pattern in _PASSING:
        if pattern.search(message):
            return kind, None
    if _OVERFLOW.search(message):
        return "context_overflow", None
    return otherwise, None


def _names(error: JSON, depth: int = 0) -> Iterator[str]:
    """The identifiers in the naming fields of an error object, however deep it is nested."""
    if depth > 8:
        return
    if isinstance(error, dict):
        for key, value in error.items():
            if isinstance(value, dict | list):
                yield from _names(value, depth + 1)
            elif (
                key.lower() in _NAMING_KEYS and (name := word(value)) and " " not in name and len(name) < 100
            ):
                yield name
            elif isinstance(value, str) and value[:1] == "{":
                # A gateway quotes the error of the server behind it.
                yield from _names(_parsed(value), depth + 1)
    elif isinstance(error, list):
        for value in error:
            yield from _names(value, depth + 1)


def message_of(error: JSON) -> str:
    """The provider's own words: the first message in the error object, else all of it as text."""
    if isinstance(error, str):
        return error
    found = _message(error)
    return found or json.dumps(error, ensure_ascii=False, default=str)[:EXCERPT_BYTES]


def _message(error: JSON, depth: int = 0) -> str:
    if depth > 8:
        return ""
    if isinstance(error, list):
        return next((text for item in error if (text := _message(item, depth + 1))), "")
    if not isinstance(error, dict):
        return ""
    for key in ("message", "Message", "msg", "detail", "error", "error_description", "errorMessage"):
        if isinstance(value := error.get(key), str) and value:
            return value
    inner = (_message(value, depth + 1) for value in error.values() if isinstance(value, dict | list))
    return next((text for text in inner if text), "")


def _code(error: JSON) -> str | None:
    """The most telling identifier: a code, else a status word, else a type."""
    objects = list(_objects(error))
    for key in ("code", "status", "reason", "type"):
        for item in objects:
            name = item.get(key)
            if isinstance(name, str) and name and name != "error":
                return name
    return None


def _objects(error: JSON, depth: int = 0) -> Iterator[dict[str, JSON]]:
    if depth > 8:
        return
    if isinstance(error, dict):
        yield error
    values = error.values() if isinstance(error, dict) else error if isinstance(error, list) else ()
    for value in values:
        yield from _objects(value, depth + 1)


def _snake(name: str) -> str:
    """`ThrottlingException`, `RESOURCE_EXHAUSTED` and `rate-limit` in one spelling."""
    if not name.isupper():
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"[^a-z0-9]+", "_", name.lower())


def _parsed(text: str) -> JSON:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


# Bodies


def error_in(body: bytes) -> JSON:
    """The error object of a body in any JSON shape, also as an event stream; None if there is none."""
    for value in _values(body):
        items = value if isinstance(value, list) else [value]
        for item in items:
            if isinstance(item, dict) and (error := error_object(item)) is not None:
                return error
    return None


def error_object(value: dict[str, JSON]) -> JSON:
    """The error that an object is or holds, or None. `error: null` means nothing."""
    inner = value.get("error")
    if inner:  # what stands beside it (a type, a code) belongs to it
        return value if isinstance(inner, str) else inner
    if value.get("object") == "error" or value.get("type") == "error":
        return value
    if value.get("errors"):
        return value["errors"]
    return None


def _values(body: bytes) -> list[JSON]:
    text = body.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] not in b"{[" or not text:
        from ..core.sse import SSEReader

        reader = SSEReader(error_field=True)
        text = b"\n".join([frame.data for frame in (*reader.feed(text + b"\n\n"), *reader.finish())])
    try:
        return [value for value in values_of(text) if value != DONE]
    except Unreadable as error:
        return error.values + _lines(text)


def _lines(text: bytes) -> list[JSON]:
    """The values of those lines that are JSON: a broken one does not hide the error in the next."""
    reader = JSONLinesReader()
    values: list[JSON] = []
    for line in (*reader.feed(text), *reader.finish()):
        if line[:1] in b"{[":
            try:
                values += values_of(line)
            except Unreadable:
                continue
    return values


def refused(status: int, headers: Mapping[str, str], body: bytes, now_ms: int) -> StreamEnd:
    """The end of a response that began with an error status. The status alone is enough [108]."""
    values = _values(body)
    error: JSON = error_in(body)
    if error is None and values and isinstance(values[0], dict | list):
        error = values[0]  # `{"message": …}` and other shapes without a name
    if error is None:
        error = excerpt(body) or f"HTTP status {status}"
    info = classify(error, status=status, headers=headers, now_ms=now_ms)
    if any(_snake(name) == "content_filter" for name in _names(error)):  # a stop reason, no error
        return StreamEnd("content_filter", "content_filter")
    return StreamEnd("error", None, clean_struct(info))


def malformed(body: bytes, why: str) -> StreamEnd:
    """The end of a response that is not the protocol; the beginning of the body is kept."""
    return StreamEnd("error", None, ErrorInfo("malformed", why, native={"body": excerpt(body)}))


def excerpt(body: bytes) -> str:
    """The first 2 KiB of a body as text."""
    return body[:EXCERPT_BYTES].decode("utf-8", "replace").replace("\0", "\ufffd")


__all__ = [
    "EXCERPT_BYTES",
    "MAX_ERROR_BYTES",
    "classify",
    "error_in",
    "error_object",
    "excerpt",
    "malformed",
    "message_of",
    "refused",
]

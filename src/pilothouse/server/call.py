"""One request on its way to a route: who asks, what may be reached, and its body, read within limits."""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from math import isfinite
from typing import Any, Final
from urllib.parse import parse_qsl

from msgspec import Struct
from starlette.responses import Response
from starlette.types import Receive, Scope

from ..clock import within
from ..contracts import Clock
from ..core.canonical import scrub
from ..messages import JSON
from .problems import Problem, invalid
from .scope import ScopedRuns
from .settings import ServerLimits

JSON_TYPE: Final = "application/json"
MOST: Final = (1 << 31) - 1


class Call(Struct):
    """A request, authenticated. Its body has not been read."""

    scope: Scope
    receive: Receive
    runs: ScopedRuns
    params: Mapping[str, str]
    headers: Mapping[str, str]
    limits: ServerLimits
    clock: Clock

    def with_body(self, body: Mapping[str, JSON], params: Mapping[str, str]) -> Call:
        """The same request with another body and other parameters, as if it had come so."""
        import msgspec

        data = msgspec.json.encode(body)
        first = [{"type": "http.request", "body": data, "more_body": False}]

        async def receive() -> MutableMapping[str, Any]:
            return first.pop() if first else await self.receive()

        headers = {**self.headers, "content-length": str(len(data)), "content-type": JSON_TYPE}
        return msgspec.structs.replace(self, receive=receive, params=params, headers=headers)

    @property
    def query(self) -> dict[str, str]:
        """The query; of a repeated name the last value counts.

        Raises:
            Problem: 422, a value holds NUL: some stores refuse it even in a question.
        """
        found = dict(parse_qsl(self.scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
        if wrong := [name for name, value in found.items() if "\0" in value]:
            raise invalid((wrong[0], "must not hold NUL"))
        return found

    @property
    def path(self) -> str:
        """The path below that prefix."""
        return str(self.scope["path"])[len(self.root) :]

    @property
    def root(self) -> str:
        """The prefix that we are mounted under (SV-2)."""
        return str(self.scope.get("root_path", ""))

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A yes or no of the query."""
        value = self.query.get(name)
        if value is None:
            return default
        if value.lower() in ("", "1", "true", "yes"):
            return True
        if value.lower() in ("0", "false", "no"):
            return False
        raise invalid((name, "must be true or false"))

    def number(self, name: str, default: int, *, least: int = 0, most: int | None = None) -> int:
        """A whole number of the query, clamped to `most`, and to what any store can count to."""
        value = self.query.get(name)
        if value is None:
            return default
        try:
            found = int(value)
        except ValueError:
            raise invalid((name, "must be a whole number")) from None
        if found < least:
            raise invalid((name, f"must be at least {least}"))
        return min(found, MOST if most is None else most)

    async def json(self) -> dict[str, JSON]:
        """The body as a JSON object. Lone surrogates in it become U+FFFD.

        Raises:
            Problem: 415, 413, 408, 400, 422.
        """
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != JSON_TYPE:  # SV-19: that alone stops forms of other sites
            raise Problem(415, "media_type", f"the body must be {JSON_TYPE}")
        data = await self._body()
        try:
            value = json.loads(data, parse_constant=_refuse, parse_float=_finite)
        except RecursionError:
            raise invalid(("", "nested too deep")) from None
        except ValueError as error:
            raise Problem(400, "invalid_json", f"the body is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise invalid(("", "the body must be a JSON object"))
        if self.limits.json_depth is not None and _deeper(value, self.limits.json_depth):
            raise invalid(("", f"nested deeper than {self.limits.json_depth}"))
        return scrub(value)

    async def maybe_json(self) -> dict[str, JSON]:
        """The same; an empty body is an empty object."""
        if self.headers.get("content-length", "0") == "0" and "transfer-encoding" not in self.headers:
            return {}
        return await self.json()

    async def _body(self) -> bytes:
        limit = self.limits.body
        declared = self.headers.get("content-length", "")
        if limit is not None and declared.isdecimal() and int(declared) > limit:
            raise Problem(413, "too_large", f"the body has {declared} bytes, the limit is {limit}")
        seconds = self.limits.body_timeout
        if seconds is None:
            return await self._chunks(limit)
        try:
            return await within(self.clock, seconds, self._chunks(limit))
        except TimeoutError:
            raise Problem(408, "body_timeout", f"the body did not come within {seconds} s") from None

    async def _chunks(self, limit: int | None) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Problem(400, "bad_request", "the connection ended inside the body")
            chunk = message.get("body", b"")
            size += len(chunk)
            if limit is not None and size > limit:
                raise Problem(413, "too_large", f"the body has more than {limit} bytes")
            chunks.append(chunk)
            if not message.get("more_body"):
                return b"".join(chunks)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


def _finite(digits: str) -> float:
    """A number; one that no JSON can hold again, as 1e999, is as little one as NaN."""
    found = float(digits)
    if not isfinite(found):
        _refuse(digits)
    return found


def _deeper(value: JSON, limit: int) -> bool:
    """Whether a value is nested deeper than `limit`; without recursion."""
    level: list[JSON] = [value]
    for _ in range(limit):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item if isinstance(item, list) else ())
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def only(body: Mapping[str, JSON], *names: str) -> None:
    """Refuses members that are not known: a typing error must not be ignored (§7)."""
    unknown = [name for name in body if name not in names]
    if unknown:
        raise invalid(*[(name, "is not known here") for name in unknown])


def answer(value: JSON, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer."""
    import msgspec

    return Response(msgspec.json.encode(value), status, dict(headers or {}), JSON_TYPE)


__all__ = ["Call", "answer", "only"]

"""What an exception means to an interface, one case a row (AG-60 … AG-62)."""

from __future__ import annotations

import asyncio
import socket

import pytest
from msgspec.structs import replace

from pilothouse.agent_errors import AgentError
from pilothouse.core.classify import classify, of_kind
from pilothouse.errors import JournalFull, ProviderError, SendTimeout
from pilothouse.responses import ErrorInfo
from pilothouse.transport import NoAnswer


class Status(Exception):
    def __init__(self, text: str, **fields: object) -> None:
        super().__init__(text)
        self.__dict__.update(fields)


class Response:
    def __init__(self, status_code: int, **headers: str) -> None:
        self.status_code = status_code
        self.headers = headers


class AbortError(Exception):
    pass


class Hostile(Exception):
    @property
    def status(self) -> int:
        raise RuntimeError("no")

    def __str__(self) -> str:
        raise RuntimeError("no")


class HostileText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


ROWS = [
    (ConnectionRefusedError(111, "Connection refused"), "connection", True, None),
    (socket.gaierror(-2, "Name or service not known"), "connection", True, None),
    (NoAnswer("no answer from host: timed out"), "connection", True, None),
    (TimeoutError("connect"), "connection", True, None),
    (RuntimeError("Failed to fetch"), "connection", True, None),
    (RuntimeError("getaddrinfo ENOTFOUND example.com"), "connection", True, None),
    (SendTimeout("no response began within 60 s"), "connection", True, None),
    (AbortError("The operation was aborted"), "connection", True, None),
    (asyncio.CancelledError(), "connection", True, None),
    (Status("no", status=401), "auth", False, 401),
    (Status("no", status_code=403), "auth", False, 403),
    (Status("slow down", status=429), "server", True, 429),
    (Status("slow down", response=Response(429, **{"retry-after": "7"})), "server", True, 429),
    (Status("early", status=425), "server", True, 425),
    (Status("gone", status=404), "server", False, 404),
    (Status("boom", status=500), "server", True, 500),
    (Status("fine?", status=200), "server", True, None),
    (Status("moved", status=302), "server", True, None),
    (Status("true", status=True), "server", True, None),
    (caused(RuntimeError("wrapped"), Status("x", status=503)), "server", True, 503),
    (caused(RuntimeError("wrapped"), Status("x", response=Response(401))), "auth", False, 401),
    (RuntimeError("HTTP 502 from upstream"), "server", True, 502),
    (RuntimeError("request failed with status: 503"), "server", True, 503),
    (RuntimeError("code=404 no such agent"), "server", False, 404),
    (RuntimeError("status code 401"), "auth", False, 401),
    (RuntimeError("model gpt-404 is busy"), "server", True, None),
    (RuntimeError("got 500 tokens"), "server", True, None),
    (RuntimeError("network error, status 404"), "connection", True, None),
    (ProviderError("bad key", ErrorInfo("auth", "bad key")), "auth", False, None),
    (ProviderError("slow", ErrorInfo("rate_limit", "slow")), "server", True, None),
    (ProviderError("cut", ErrorInfo("transport", "cut")), "connection", True, None),
    (ProviderError("no", ErrorInfo("invalid_request", "no")), "server", False, None),
    (JournalFull("no space left"), "server", True, None),
    (Hostile(), "server", True, None),
    (HostileText(), "server", True, None),
    (ValueError(""), "server", True, None),
    ("a text", "server", True, None),
    (None, "server", True, None),
    (object(), "server", True, None),
]


@pytest.mark.parametrize(("error", "kind", "retryable", "status"), ROWS)
def test_every_failure_has_one_class(error, kind, retryable, status) -> None:
    """AG-60, AG-61: first match wins; nothing that an object does gets in the way."""
    found = classify(error, run_id="r1")
    assert (found.kind, found.retryable, found.status) == (kind, retryable, status)
    assert found.run_id == "r1"
    assert found.recovery is None
    assert str(found)
    if isinstance(error, BaseException):
        assert found.__cause__ is error


def test_an_agent_error_is_itself() -> None:
    """AG-60: the same object, also inside another exception."""
    error = AgentError("x", "server", retryable=True)
    assert classify(error) is error
    assert classify(caused(RuntimeError("around it"), error)) is error
    assert error.__cause__ is None


def test_a_delay_is_told() -> None:
    """§3.6: a rate limit is retryable with a delay."""
    told = classify(Status("slow", response=Response(429, **{"retry-after": "7"})))
    assert (told.code, told.retry_after) == ("rate_limited", 7.0)
    assert classify(Status("slow", status=503, retry_after=2)).retry_after == 2.0
    assert of_kind("rate_limit", "x", retryable=True, retry_after=3.0).retry_after == 3.0


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("server", {"recovery": "retry"}),
        ("interrupted", {}),
        ("interrupted", {"recovery": "retry"}),
        ("interrupted", {"recovery": "check", "detail": "d", "retryable": True}),
        ("interrupted", {"recovery": "check"}),
        ("interrupted", {"recovery": "none"}),
        ("interrupted", {"recovery": "retry", "retryable": True, "detail": "d"}),
        ("server", {"detail": None, "recovery": "none"}),
    ],
)
def test_recovery_says_one_thing(kind, fields) -> None:
    """AG-62: only on `interrupted`; `retry` is retryable without a detail, the others need one."""
    with pytest.raises(ValueError, match=r"interrupted|detail"):
        AgentError("x", kind, **fields)


def test_projections_are_values() -> None:
    """§2: frozen, compared by content."""
    from pilothouse.projection import MessageDelivery

    delivery = MessageDelivery("g", "streaming")
    assert replace(delivery, phase="complete", outcome="success") != delivery
    with pytest.raises(AttributeError):
        delivery.phase = "complete"  # type: ignore[misc]

"""The table of error kinds and the hints when to ask again (PV-9, PV-10)."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from pilothouse.providers.decode import decode
from pilothouse.providers.errors import classify, refused
from pilothouse.providers.hints import retry_after_ms
from pilothouse.responses import RETRYABLE
from wirekit import FIXTURES, INDEX


def rows(number: str) -> list[dict]:
    return json.loads((FIXTURES / INDEX[number]["input"]).read_text("utf-8"))["rows"]


@pytest.mark.parametrize(
    "row", [*rows("105"), *rows("106")], ids=lambda row: f"{row['status']} {json.dumps(row['body'])[:60]}"
)
def test_handed_refusals_have_the_right_class(row: dict) -> None:
    """[105] [106]: every wording of an overflow is one, nothing else is; in the dialect that says it."""
    body = json.dumps(row["body"]).encode()
    end = refused(row["status"], row["headers"], body, 0)
    assert (end.reason, end.error.kind) == ("error", row["class"])
    assert (
        decode(row["dialect"], body, status=row["status"], headers=row["headers"])["error_kind"]
        == row["class"]
    )
    assert end.error.message in json.dumps(row["body"], ensure_ascii=False)
    assert (row["class"] in RETRYABLE) == (row["class"] in ("rate_limit", "overloaded", "server_error"))


@pytest.mark.parametrize(
    "row", [row for row in rows("105") if row["status"] == 400], ids=lambda row: json.dumps(row["body"])[:60]
)
@pytest.mark.parametrize("shape", ["array", "upper", "numbers", "code only as text", "in a stream"])
def test_wordings_are_matched_loosely(row: dict, shape: str) -> None:
    """Numbers, case, an array around the object, and a stream instead of a status change nothing."""
    body = json.loads(json.dumps(row["body"]))
    status: int | None = 400
    if shape == "array":
        body = [body]
    elif shape == "upper":
        body["error"]["message"] = body["error"]["message"].upper()
    elif shape == "numbers":
        body["error"]["message"] = body["error"]["message"].replace("0", "7").replace("1", "12,3")
    elif shape == "in a stream":
        status = None
    assert classify(body, status=status).kind == "context_overflow"


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        # words in the fields win over the status
        (429, {"error": {"type": "insufficient_quota"}}, "quota", None),
        (429, {"error": {"code": "insufficient_quota", "type": "rate_limit_error"}}, "quota", None),
        (400, {"error": {"status": "RESOURCE_EXHAUSTED", "message": "m"}}, "rate_limit", None),
        (403, {"error": {"status": "PERMISSION_DENIED"}}, "auth", None),
        (400, {"error": {"message": "API key not valid", "details": [{"reason": "API_KEY_INVALID"}]}}, "auth", None),
        (500, {"error": {"type": "overloaded_error"}}, "overloaded", None),
        (400, {"__type": "com.amazon#ThrottlingException", "message": "m"}, "rate_limit", None),
        (400, {"error": {"type": "billing_error"}}, "quota", None),
        (413, {"error": {"code": "rate_limit_exceeded", "type": "tokens"}}, "rate_limit", None),
        (400, {"error": {"code": "context_length_exceeded"}}, "context_overflow", None),
        # the status, where no word is specific
        (401, {}, "auth", None), (402, {}, "quota", None), (403, {}, "auth", None), (413, {}, "context_overflow", None),
        (429, {}, "rate_limit", None), (500, {}, "server_error", None), (502, {}, "server_error", None),
        (503, {"error": {"type": "server_error"}}, "overloaded", None), (529, {}, "overloaded", None),
        (429, {"error": {"message": "maximum context length exceeded for your tier: too many tokens"}}, "rate_limit", None),
        (404, {"error": {"code": "model_not_found", "message": "no such model"}}, "invalid_request", "model_not_found"),
        # the wording, last
        (400, {"error": {"message": "The daily token quota exceeded for context caching"}}, "quota", None),
        (400, {"error": {"message": "You exceeded the context token quota of your plan"}}, "quota", None),
        (400, {"error": {"message": "Request queue is full: 30000 prompt tokens exceed the context limit of the batch"}}, "overloaded", None),
        (400, {"error": {"message": "Range of input length should be [1, 30720]"}}, "context_overflow", None),
        (422, {"error": "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000", "error_type": "validation"}, "context_overflow", None),
        (422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 100 `max_new_tokens`", "error_type": "validation"}, "context_overflow", None),
        (400, {"error": {"message": "max_tokens is too large: 100000. This model supports at most 4096 completion tokens"}}, "invalid_request", None),
        (400, {"error": {"message": "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens for claude"}}, "invalid_request", None),
        (400, {"error": {"message": "maxOutputTokens value of 70000 but the supported range is from 1 to 65537"}}, "invalid_request", None),
        (400, {"error": {"message": "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'."}}, "invalid_request", "tool_pairing"),
        (400, {"error": {"message": "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."}}, "invalid_request", "tool_pairing"),
        (400, {"error": {"message": "messages.2.content.0: unexpected `tool_use_id` found in `tool_result` blocks: x"}}, "invalid_request", "tool_pairing"),
        (400, {"error": {"message": "No tool output found for function call call_x."}}, "invalid_request", "tool_pairing"),
        (400, {"error": {"message": "Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn."}}, "invalid_request", "tool_pairing"),
        (400, {"message": "Not the same number of function calls and responses"}, "invalid_request", "tool_pairing"),
        (400, {"error": {"message": "Your prompt is too long."}}, "context_overflow", None),
        (400, {"detail": "The context window was exceeded"}, "context_overflow", None),
        (400, {"error": "the request exceeds the available context size"}, "context_overflow", None),
        (422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, "invalid_request", None),
    ],
)  # fmt: skip
def test_fields_then_status_then_wording(status: int, body: object, kind: str, code: str | None) -> None:
    """PV-9, its three steps in order."""
    error = refused(status, {}, json.dumps(body).encode(), 0).error
    assert error is not None
    assert error.kind == kind
    assert error.status == status
    if code is not None:
        assert error.code == code


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"<html><h1>502 Bad Gateway</h1></html>", "502 Bad Gateway"),
        (b"", "HTTP status 500"),
        (b'event: error\ndata: {"error":{"message":"inside a stream"}}\n\n', "inside a stream"),
        (b'{"error":{"mess', '{"error"'),
        (b"\xff\x00broken", "broken"),
        (b'"just text"', "just text"),
        (b"x" * 5000, "x" * 2048),
    ],
)
def test_bodies_of_any_kind_are_kept_for_people(body: bytes, says: str) -> None:
    """The provider's own words, or what there is, at most 2 KiB."""
    error = refused(500, {}, body, 0).error
    assert error is not None
    assert error.kind == "server_error"
    assert says in error.message
    assert len(error.message) <= 2048


def test_a_filter_that_refuses_the_prompt_is_a_stop_reason() -> None:
    """Issue 4: a content filter is no error, also where a server says it by a status."""
    body = b'{"error":{"code":"content_filter","message":"m","innererror":{"code":"ResponsibleAIPolicyViolation"}}}'
    assert refused(400, {}, body, 0).reason == "content_filter"


@pytest.mark.parametrize("row", rows("107"), ids=lambda row: json.dumps(row["headers"]))
def test_handed_hints_are_read(row: dict) -> None:
    """[107]: what is longer than the cap is given as it is; the loop gives up on it."""
    now_ms = int(datetime.fromisoformat(row["now"]).timestamp() * 1000)
    hint = retry_after_ms(row["headers"], None, "", now_ms)
    want = row["wait_ms"]
    assert hint == (None if want == "backoff" else 18_000_000 if want == "give_up" else want)


@pytest.mark.parametrize(
    ("headers", "error", "message", "wait"),
    [
        ({"retry-after": "-5"}, None, "", None),
        ({"retry-after": "NaN"}, None, "", None),
        ({"retry-after": "1.5"}, None, "", 1500),
        ({"retry-after": "0"}, None, "", 0),
        ({"retry-after": "Mon, 05 Jan 2026 09:00:00 GMT"}, None, "", 0),
        ({"retry-after": "soon", "x-ratelimit-reset-after": "3"}, None, "", 3000),
        ({"retry-after-ms": "x", "retry-after": "2"}, None, "", 2000),
        ({"x-ratelimit-reset": "1767607205"}, None, "", 5000),
        ({"x-ratelimit-reset": "1767607205000"}, None, "", 5000),
        ({"x-ratelimit-reset": "12"}, None, "", 12_000),
        ({"x-ratelimit-reset": "1m30s"}, None, "", 90_000),
        ({}, [{"error": {"details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}]}}], "", 34_500),
        ({}, None, "Rate limit reached. Please try again in 1.2s. Visit …", 1200),
        ({}, None, "try again in 350ms", 350),
        ({}, None, "Please retry after 2 minutes", 120_000),
        ({}, None, "try again later", None),
    ],
)  # fmt: skip
def test_the_first_valid_hint_counts(headers, error, message, wait) -> None:
    """PV-10: a past date is now; negative or unreadable is none, and the next place is asked."""
    assert retry_after_ms(headers, error, message, 1767607200000) == wait

"""The OpenAPI document of the control API and the faces, made from the table of routes (SV-263).

What a route does is said once, in its handler's docstring, and its shapes are those of the vocabulary's structs where one
of them is on the wire. What is left (which query, which body, which answer) is a row here; a route without a row fails
when the document is made, so none can be forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import getdoc
from types import MappingProxyType
from typing import Any, Final, NamedTuple, get_args

import msgspec

from .. import commands, events
from .._version import __version__
from ..messages import InputPart, ToolSpec
from .problems import MEDIA_TYPE
from .settings import WhenBusy

JSONSchema = dict[str, Any]

_TEXT: Final[JSONSchema] = {"type": "string"}
_ID: Final[JSONSchema] = {"type": "string", "minLength": 1, "maxLength": 200}
_BOOL: Final[JSONSchema] = {"type": "boolean"}
_OBJECT: Final[JSONSchema] = {"type": "object"}
_TIME: Final[JSONSchema] = {"type": ["string", "null"], "format": "date-time"}


def _ref(name: str) -> JSONSchema:
    return {"$ref": f"#/components/schemas/{name}"}


def _maybe(schema: JSONSchema) -> JSONSchema:
    return {"anyOf": [schema, {"type": "null"}]}


def _record(required: str, closed: bool = False, /, **properties: JSONSchema) -> JSONSchema:
    found: JSONSchema = {"type": "object", "properties": properties}
    if required:
        found["required"] = required.split()
    if closed:
        found["additionalProperties"] = False
    return found


def _page(of: JSONSchema) -> JSONSchema:
    return _record("items", items={"type": "array", "items": of}, next={"type": ["string", "null"]})


_POLICY: Final[JSONSchema] = {"enum": [*get_args(WhenBusy), None]}

_SCHEMAS: Final[Mapping[str, JSONSchema]] = MappingProxyType(
    {
        "Controller": _record("key exports", key=_TEXT, exports={"type": "array", "items": _TEXT}),
        "Problem": _record(
            "type title status detail instance code",
            type=_TEXT,
            title=_TEXT,
            status={"type": "integer"},
            detail=_TEXT,
            instance=_TEXT,
            code=_TEXT,
            errors={"type": "array", "items": _record("path message", path=_TEXT, message=_TEXT)},
        ),
        "Parent": _record("run_id", True, run_id=_ID, keep_through={"type": ["string", "null"]}),
        "StartRun": _record(
            "",
            True,
            agent=_TEXT,
            thread_id=_ID,
            run_id=_ID,
            input={"anyOf": [_TEXT, {"type": "array", "items": _ref("InputPart")}, {"type": "null"}]},
            action={"enum": ["send", "retry", "regenerate"]},
            target=_TEXT,
            parent=_maybe(_ref("Parent")),
            when_busy=_POLICY,
            client_tools={"type": "array", "items": _ref("ToolSpec")},
            state=_maybe(_OBJECT),
            metadata=_OBJECT,
            limits=_OBJECT,
            deadline={"type": ["number", "null"]},
        ),
        "Run": _record(
            "run_id thread_id agent state status ownership live last_seq",
            run_id=_TEXT,
            thread_id=_TEXT,
            agent=_TEXT,
            state=_TEXT,
            status=_TEXT,
            ownership=_TEXT,
            live=_BOOL,
            last_seq={"type": "integer"},
            can=_page(_TEXT)["properties"]["items"],
            requests={"type": "array", "items": _ref("Request")},
            segments={
                "type": "array",
                "items": _record("run_id first_seq", run_id=_TEXT, first_seq={"type": "integer"}),
            },
            outcome=_maybe(_ref("Outcome")),
            created_at=_TIME,
            updated_at=_TIME,
        ),
        "Queued": _record("run_id thread_id status", run_id=_TEXT, thread_id=_TEXT, status={"const": "queued"}),
        "Thread": _record(
            "thread_id title pinned archived",
            thread_id=_TEXT,
            title=_TEXT,
            agent=_TEXT,
            created_at=_TIME,
            updated_at=_TIME,
            last_run={"type": ["string", "null"]},
            status={"type": ["string", "null"]},
            pinned=_BOOL,
            archived=_BOOL,
            metadata=_OBJECT,
            head={"type": ["string", "null"]},
        ),
        "ThreadMessage": _record(
            "id role parts run_id delivery",
            id=_TEXT,
            role=_TEXT,
            parts={"type": "array", "items": _OBJECT},
            run_id=_TEXT,
            delivery=_OBJECT,
            siblings={"type": "array", "items": _TEXT},
        ),
        "Branch": _record(
            "run_id parent status state input",
            run_id=_TEXT,
            parent=_maybe(_OBJECT),
            status=_TEXT,
            state=_TEXT,
            input=_TEXT,
        ),
        "Artifact": _record(
            "digest media_type size",
            digest=_TEXT,
            media_type=_TEXT,
            size={"type": "integer"},
            name=_TEXT,
            preview=_TEXT,
        ),
        "Fact": _record("run_seq at kind", run_seq={"type": "integer"}, at=_TIME, kind=_TEXT),
        "Ack": _record(
            "command_id run_id state duplicate",
            command_id=_TEXT,
            run_id=_TEXT,
            state=_TEXT,
            duplicate=_BOOL,
            code={"type": ["string", "null"]},
            message=_TEXT,
        ),
        "Chat": _record(
            "id messages",
            id=_ID,
            messages={
                "type": "array",
                "items": _record("id role parts", id=_TEXT, role=_TEXT, parts={"type": "array", "items": _OBJECT}),
            },
            trigger={"enum": ["submit-message", "regenerate-message"]},
            messageId=_TEXT,
        ),
        "RunInput": _record(
            "threadId runId messages",
            threadId=_ID,
            runId=_ID,
            messages={"type": "array", "items": _record("id role", id=_TEXT, role=_TEXT)},
            tools={"type": ["array", "null"]},
            context={"type": ["array", "null"]},
            state={},
            forwardedProps={},
            resume={"type": ["array", "null"]},
            protocolVersion=_TEXT,
        ),
    }
)  # fmt: skip


class Row(NamedTuple):
    """What a route takes and gives. `answers` are schemas by status, or the name of a media type."""

    tag: str
    answers: Mapping[int, JSONSchema | str | None]
    body: JSONSchema | None = None
    query: Mapping[str, JSONSchema] = MappingProxyType({})
    headers: Sequence[str] = ()
    body_required: bool = True


_EVENTS: Final = "text/event-stream"
_CURSOR: Final = {"cursor": _TEXT, "limit": {"type": "integer", "minimum": 1}}
_RESUMED: Final = ("Last-Event-ID",)
_KEYED: Final = ("Idempotency-Key",)
_COMMAND: Final[JSONSchema] = {
    "allOf": [_ref("CommandBody"), _record("", command_id=_ID, extensions=_OBJECT)]
}
_REASON: Final = _record("", True, reason=_TEXT, command_id=_ID)
_FORK: Final = _record("from", True, **{"from": _ID, "title": {**_TEXT, "maxLength": 200}, "thread_id": _ID})
_MARKS: Final[dict[str, JSONSchema]] = {"title": {**_TEXT, "maxLength": 200}, "metadata": _OBJECT}
_STOP: Final = _record("threadId", threadId=_ID, runId=_maybe(_ID))
_STOPPED: Final = _record("stopped", stopped=_BOOL)
_ACKED: Final[dict[int, JSONSchema | str | None]] = {200: _ref("Ack"), 202: _ref("Ack")}
_HYDRATED: Final[dict[int, JSONSchema | str | None]] = {200: _EVENTS}

_AGUI_GET: Final = Row(
    "ag-ui",
    _HYDRATED,
    query={"runId": _TEXT, "threadId": _TEXT, "offset": _TEXT, "profile": _TEXT, "messages": _TEXT},
    headers=_RESUMED,
)
_AGUI_POST: Final = Row(
    "ag-ui", {200: _EVENTS}, _ref("RunInput"), {"profile": _TEXT}, (*_RESUMED, "X-Run-Id")
)
_PAGE_OF_RUNS: Final = Row(
    "runs",
    {200: _page(_ref("Run"))},
    query={
        **_CURSOR, "thread": _TEXT, "agent": _TEXT, "state": _TEXT, "status": _TEXT, "outcome": _TEXT,
        "parent": _TEXT,
    },
)  # fmt: skip

ROWS: Final[Mapping[tuple[str, str], Row]] = MappingProxyType(
    {
        ("POST", "/agui"): _AGUI_POST,
        ("GET", "/agui"): _AGUI_GET,
        ("POST", "/agui/{agent}"): _AGUI_POST,
        ("GET", "/agui/{agent}"): _AGUI_GET,
        ("POST", "/agui/{agent}/connect"): Row("ag-ui", {200: _EVENTS}, _record("threadId", threadId=_ID)),
        ("POST", "/agui/{agent}/stop"): Row("ag-ui", {200: _STOPPED}, _STOP),
        ("GET", "/agui/{agent}/capabilities"): Row("ag-ui", {200: _OBJECT}),
        ("POST", "/copilotkit"): Row("copilotkit", {200: _EVENTS}, _record("method", method=_TEXT)),
        ("GET", "/copilotkit/info"): Row("copilotkit", {200: _OBJECT}),
        ("POST", "/copilotkit/agent/{agent}/run"): Row("copilotkit", {200: _EVENTS}, _ref("RunInput")),
        ("POST", "/copilotkit/agent/{agent}/connect"): Row(
            "copilotkit", {200: _EVENTS}, _record("threadId", threadId=_ID)
        ),
        ("POST", "/copilotkit/agent/{agent}/stop/{thread}"): Row(
            "copilotkit", {200: _STOPPED}, _record("", runId=_maybe(_ID)), body_required=False
        ),
        ("POST", "/aisdk/{agent}"): Row("ai-sdk", {200: _EVENTS}, _ref("Chat"), headers=_KEYED),
        ("GET", "/aisdk/{agent}/{chat}/stream"): Row("ai-sdk", {200: _EVENTS, 204: None}),
        ("POST", "/aisdk/{agent}/{chat}/stop"): Row("ai-sdk", {200: _STOPPED}, _OBJECT, body_required=False),
        ("GET", "/v1/agents"): Row("runs", {200: _page(_OBJECT)}),
        ("POST", "/v1/runs"): Row(
            "runs",
            {201: _ref("Run"), 200: _ref("Run"), 202: _ref("Queued")},
            _ref("StartRun"),
            headers=_KEYED,
        ),
        ("GET", "/v1/runs"): _PAGE_OF_RUNS,
        ("GET", "/v1/runs/{run}"): Row("runs", {200: _ref("Run")}, query={"wait": {"type": "integer", "minimum": 0}}),
        ("GET", "/v1/runs/{run}/events"): Row(
            "runs",
            {200: _record("events", events={"type": "array", "items": _ref("Fact")}), 204: None},
            query={
                "after": _TEXT, "limit": {"type": "integer", "minimum": 1}, "kinds": _TEXT, "deltas": _BOOL,
                "through_unknown": _BOOL, "until": _TEXT,
            },
            headers=_RESUMED,
        ),
        ("POST", "/v1/runs/{run}/commands"): Row("runs", _ACKED, _COMMAND, headers=_KEYED),
        ("GET", "/v1/runs/{run}/commands/{command}"): Row("runs", _ACKED),
        ("POST", "/v1/runs/{run}/cancel"): Row(
            "runs", {200: {"anyOf": [_ref("Ack"), _ref("Run")]}, 202: _ref("Ack")}, _REASON, body_required=False
        ),
        ("POST", "/v1/runs/{run}/recover"): Row(
            "runs",
            {200: _ref("Run")},
            _record("", True, accept=_maybe(_record("", True, violation=_TEXT, config_change=_TEXT))),
            body_required=False,
        ),
        ("POST", "/v1/runs/{run}/check"): Row("runs", {200: _record("kind run", kind=_TEXT, run=_ref("Run"))}),
        ("POST", "/v1/runs/{run}/abandon"): Row("runs", {200: _ref("Run")}, _record("reason", True, reason=_TEXT)),
        ("GET", "/v1/runs/{run}/input"): Row("runs", {200: _page(_OBJECT)}),
        ("GET", "/v1/runs/{run}/requests"): Row("runs", {200: _page(_ref("Request"))}),
        ("GET", "/v1/runs/{run}/artifacts"): Row("runs", {200: _page(_ref("Artifact"))}),
        ("GET", "/v1/runs/{run}/artifacts/{digest}"): Row(
            "runs", {200: "*/*", 206: "*/*", 304: None, 416: None}, headers=("Range", "If-None-Match", "If-Range")
        ),
        ("GET", "/v1/threads"): Row(
            "threads", {200: _page(_ref("Thread"))}, query={**_CURSOR, "archived": _BOOL, "q": _TEXT}
        ),
        ("POST", "/v1/threads"): Row(
            "threads",
            {201: _ref("Thread"), 200: _ref("Thread")},
            _record("", True, thread_id=_ID, agent=_TEXT, **_MARKS),
            headers=_KEYED,
            body_required=False,
        ),
        ("GET", "/v1/threads/{thread}"): Row("threads", {200: _ref("Thread")}),
        ("PATCH", "/v1/threads/{thread}"): Row(
            "threads",
            {200: _ref("Thread")},
            _record("", True, pinned=_BOOL, archived=_BOOL, **_MARKS),
            headers=_KEYED,
        ),
        ("DELETE", "/v1/threads/{thread}"): Row("threads", {204: None}, query={"cancel": _BOOL, "purge": _BOOL}),
        ("GET", "/v1/threads/{thread}/messages"): Row(
            "threads",
            {200: _page(_ref("ThreadMessage"))},
            query={"head": _TEXT, "before": _TEXT, "limit": {"type": "integer", "minimum": 0}},
        ),
        ("GET", "/v1/threads/{thread}/runs"): Row("threads", {200: _page(_ref("Run"))}, query=_CURSOR),
        ("GET", "/v1/threads/{thread}/tree"): Row("threads", {200: _page(_ref("Branch"))}),
        ("POST", "/v1/threads/{thread}/fork"): Row(
            "threads", {201: _ref("Thread"), 200: _ref("Thread")}, _FORK, headers=_KEYED
        ),
        ("POST", "/v1/threads/{thread}/head"): Row("threads", {200: _ref("Thread")}, _record("run_id", True, run_id=_ID)),
        ("GET", "/v1/threads/{thread}/controllers"): Row(
            "threads", {200: _record("items", items={"type": "array", "items": _ref("Controller")})}
        ),
        ("GET", "/v1/threads/{thread}/controllers/{key}/{export}"): Row("threads", {200: "*/*", 422: None}),
        ("GET", "/openapi.json"): Row("server", {200: _OBJECT}),
        ("GET", "/metrics"): Row("server", {200: "text/plain"}),
    }
)  # fmt: skip
"""What each route takes and gives besides what all have: authentication, and problems."""

_HEADERS: Final = {
    "Location": "Where what was made is.",
    "Retry-After": "Seconds after which to try again.",
    "Pilothouse-Run-Id": "The run.",
    "Pilothouse-Thread-Id": "Its thread.",
    "Idempotent-Replayed": "`true`: this was asked before, and nothing was done again.",
}


def document_of(table: Iterable[tuple[str, str, Callable[..., Any]]], root: str) -> dict[str, Any]:
    """The document for these routes.

    Raises:
        KeyError: a route has no row.
    """
    paths: dict[str, dict[str, Any]] = {}
    for method, template, handler in table:
        row = ROWS[method, template]
        paths.setdefault(template, {})[method.lower()] = _operation(method, template, handler, row)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pilothouse", "version": __version__},
        "servers": [{"url": root or "/"}],
        "paths": paths,
        "components": {
            "schemas": {**_vocabulary(), **_SCHEMAS},
            "headers": {
                name: {"description": text, "schema": _TEXT} for name, text in _HEADERS.items()
            },
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}, {}],
    }  # fmt: skip


def _operation(method: str, template: str, handler: Callable[..., Any], row: Row) -> dict[str, Any]:
    summary = (getdoc(handler) or "").partition("\n")[0]
    found: dict[str, Any] = {
        "operationId": f"{method.lower()}_{re.sub(r'[^a-z]+', '_', template).strip('_')}",
        "summary": re.sub(r" \(SV-.*\)", "", summary),
        "tags": [row.tag],
        "parameters": [
            *[_parameter(name, "path", _TEXT, required=True) for name in re.findall(r"{(\w+)}", template)],
            *[_parameter(name, "query", schema) for name, schema in row.query.items()],
            *[_parameter(name, "header", _TEXT) for name in row.headers],
        ],
        "responses": {
            **{str(status): _response(what) for status, what in row.answers.items()},
            "default": {
                "description": "Refused: a problem document (RFC 9457).",
                "content": {MEDIA_TYPE: {"schema": _ref("Problem")}},
                "headers": {"Retry-After": {"$ref": "#/components/headers/Retry-After"}},
            },
        },
    }
    if row.body is not None:
        content = {"application/json": {"schema": row.body}}
        found["requestBody"] = {"required": row.body_required, "content": content}
    return found


def _parameter(name: str, place: str, schema: JSONSchema, *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": place, "required": required, "schema": schema}


def _response(what: JSONSchema | str | None) -> dict[str, Any]:
    headers = {name: {"$ref": f"#/components/headers/{name}"} for name in _HEADERS}
    if what is None:
        return {"description": "Nothing more.", "headers": headers}
    if isinstance(what, str):
        content: dict[str, Any] = {what: {"schema": _TEXT}}
        if what == _EVENTS:
            content["application/json"] = {"schema": _OBJECT}
    else:
        content = {"application/json": {"schema": what}}
        if "events" in what.get("properties", {}):
            content[_EVENTS] = {"schema": _TEXT}
    return {"description": "Done.", "content": content, "headers": headers}


def _vocabulary() -> dict[str, Any]:
    """The schemas of what is on the wire as it is in the vocabulary."""
    named = {
        "CommandBody": commands.CommandBody,
        "InputPart": InputPart,
        "Outcome": events.Outcome,
        "Request": commands.Request,
        "ToolSpec": ToolSpec,
    }
    schemas, components = msgspec.json.schema_components(
        named.values(), ref_template="#/components/schemas/{name}"
    )
    found = dict(zip(named, schemas, strict=True))
    return {**components, **{name: schema for name, schema in found.items() if name not in components}}


__all__ = ["ROWS", "Row", "document_of"]

"""The OpenAPI document against the served process: whatever fits it, and much that does not, is answered, never with 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from nodekit import FOREIGN
from pilothouse.server.openapi import ROWS
from served import Gate, Served

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A served process with two threads: a finished run in one, a run that waits in the other."""
    folder = tmp_path_factory.mktemp("served")
    gate = Gate(folder)
    with Served(folder, str(FOREIGN / "agents.py"), env=gate.env) as served:
        with httpx2.Client(base_url=served.url, timeout=30) as client:
            for number, text in enumerate(("hello", "buy tea"), 1):
                body = {"run_id": f"r{number}", "thread_id": f"t{number}", "input": text}
                client.post("/v1/runs", json=body).raise_for_status()
                client.get(f"/v1/runs/r{number}?wait=10").raise_for_status()
        yield served.url
    gate.close()


@pytest.fixture(scope="module")
def document(url: str) -> Any:
    return httpx2.get(f"{url}/openapi.json").json()


@pytest.fixture(scope="module")
def api(document: Any) -> Any:
    return schemathesis.openapi.from_dict(document)


def asked() -> list[Any]:
    """Each route with what fits it, and those that take a body with what does not."""
    found = [(route, GenerationMode.POSITIVE) for route in sorted(ROWS)]
    found += [(route, GenerationMode.NEGATIVE) for route, row in sorted(ROWS.items()) if row.body is not None]
    return [pytest.param(route, mode, id=f"{' '.join(route)}-{mode.value}") for route, mode in found]


@pytest.mark.parametrize(("route", "mode"), asked())
def test_no_request_gets_a_server_error(
    api: Any, url: str, route: tuple[str, str], mode: GenerationMode
) -> None:
    """SV-263, SV §13: bounded; the same requests each time."""
    method, path = route
    named = {"run": ["r1", "r2"], "thread": ["t1", "t2"], "agent": ["default"]}

    @given(case=api[path][method].as_strategy(generation_mode=mode))
    @settings(
        max_examples=8, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def ask(case: Any) -> None:
        counted.append(case)
        for name, values in named.items():  # most requests shall reach something
            if name in (case.path_parameters or {}) and len(counted) % 3:
                case.path_parameters[name] = values[len(counted) % len(values)]
        if (case.query or {}).get("wait"):
            case.query["wait"] = 0
        case.call_and_validate(base_url=url, checks=CHECKS, timeout=20)

    counted: list[Any] = []
    ask()


def test_every_route_is_in_the_document(document: Any) -> None:
    """SV-263: every route once, in words of the handlers, without the ids of our own pages."""
    found = {
        (method.upper(), path): operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }
    assert set(found) == set(ROWS)
    assert all(operation["summary"] for operation in found.values())
    assert "SV-" not in str(document)
    assert len({operation["operationId"] for operation in found.values()}) == len(found)

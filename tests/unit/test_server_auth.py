"""Who may ask, and what of whom can be reached (SV-10 … SV-19, SV-240)."""

from __future__ import annotations

import asyncio
import inspect
import time
from hashlib import sha256

import pytest

from asgikit import Connection, ask, run_input, served
from pilothouse.errors import ConfigError
from pilothouse.journal.memory import MemoryJournal
from pilothouse.messages import Message
from pilothouse.server import agui, aisdk, artifacts, control, copilotkit, exports, threads
from pilothouse.server.auth import (
    AuthRequest,
    BearerTokens,
    HostUser,
    LoopbackOnly,
    Principal,
    TrustedHeader,
    Unauthenticated,
)
from pilothouse.server.names import run_key
from pilothouse.server.settings import CORS
from pilothouse.testing.scripted import Hold, ScriptedProvider

POST = ("POST", "/agui/default")


def token(name: str) -> tuple[str, Principal]:
    return sha256(f"token-{name}".encode()).hexdigest(), Principal(name, f"tenant-{name}")


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer token-{name}"}


def request(**fields) -> AuthRequest:
    headers = {"host": "localhost:8700", **fields.pop("headers", {})}
    return AuthRequest(
        fields.pop("method", "GET"), "/v1/runs", headers, fields.pop("peer", "127.0.0.1"), **fields
    )


LOCAL = [
    (request(), True),
    (request(peer="::1"), True),
    (request(peer="192.168.1.7"), False),
    (request(peer=None), False),
    (request(headers={"host": "127.0.0.1"}), True),
    (request(headers={"host": "[::1]:8700"}), True),
    (request(headers={"host": "evil.example"}), False),  # DNS rebinding
    (request(headers={"host": "chat.local"}), True),  # in allowed_hosts
    (request(headers={"origin": "http://localhost:8700"}), True),
    (request(headers={"origin": "http://localhost:9999"}), False),
    (request(headers={"origin": "https://page.example"}), True),  # allowed by cors
    (request(headers={"origin": "null"}), False),
    (request(headers={"x-forwarded-for": "1.2.3.4"}), False),  # the peer is a proxy
    (request(headers={"forwarded": "for=1.2.3.4"}), False),
]


@pytest.mark.parametrize(("asked", "allowed"), LOCAL)
async def test_the_loopback_rules(asked: AuthRequest, allowed: bool) -> None:
    """SV-17."""
    auth = LoopbackOnly(["chat.local"], ["https://page.example"])
    if allowed:
        assert await auth(asked) == Principal("local", "local")
    else:
        with pytest.raises(Unauthenticated):
            await auth(asked)


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", "Basic token-a", "token-a"])
async def test_a_wrong_token_is_refused_on_every_route_before_a_byte_of_a_stream(header: str) -> None:
    """SV-10, fixture 183: 401 with WWW-Authenticate; the body is not read; health and page need none."""
    app = served(ScriptedProvider(), auth=BearerTokens(dict([token("a")])))
    async with app.lifespan():
        for method, template, _ in app.routes.table:
            path = template.replace("{", "").replace("}", "")
            connection = Connection(app, method, path, headers={"authorization": header} if header else {})
            connection._incoming = []  # reading the body would wait for ever
            async with connection:
                await connection.ended()
                assert connection.status == 401, (method, template)
                assert connection.headers["www-authenticate"] == "Bearer"
                assert connection.json()["code"] == "unauthenticated"
        for path in ("/healthz", "/readyz", "/"):
            assert (await ask(app, "GET", path)).status == 200


@pytest.mark.parametrize("name", ["Host", "Origin", "Authorization"])
async def test_who_asks_is_said_once(name: str) -> None:
    """SV-10, SV-17: of two, a proxy may have read the one and we the other."""
    app = served(ScriptedProvider(), auth=BearerTokens(dict([token("a")])))
    async with app.lifespan():
        twice = Connection(app, "GET", "/v1/agents", headers={**bearer("a"), "origin": "http://localhost"})
        twice.scope["headers"].append((name.lower().encode(), b"localhost"))
        async with twice:
            await twice.ended()
            assert (twice.status, twice.json()["code"]) == (400, "bad_request")


async def test_bearer_tokens_are_digests() -> None:
    """SV-18: no token stands in a configuration."""
    with pytest.raises(ConfigError, match="SHA-256"):
        BearerTokens({"secret": Principal("a", "a")})
    found = await BearerTokens(dict([token("a"), token("b")]))(request(headers=bearer("b")))
    assert found.id == "b"


async def test_a_trusted_header_counts_from_a_trusted_proxy_only() -> None:
    """SV-18, SV-241."""
    auth = TrustedHeader("X-User", ["10.0.0.1"])
    assert (await auth(request(peer="10.0.0.1", headers={"x-user": "ann"}))).tenant == "ann"
    for wrong in (request(headers={"x-user": "ann"}), request(peer="10.0.0.1")):
        with pytest.raises(Unauthenticated):
            await auth(wrong)


async def test_the_host_apps_user_needs_an_origin_for_changes() -> None:
    """SV-18: an identity borne by a cookie could be used by another site."""

    class User:
        is_authenticated = True
        display_name = "ann"

    auth = HostUser()
    assert (await auth(request(user=User()))).id == "ann"
    same = {"origin": "http://localhost:8700"}
    assert (await auth(request(user=User(), method="POST", headers=same))).id == "ann"
    for wrong in (
        request(),
        request(user=User(), method="POST"),
        request(user=User(), method="POST", headers={"origin": "http://evil"}),
    ):
        with pytest.raises(Unauthenticated):
            await auth(wrong)


def echo(asked) -> str:
    return f"you said {asked.messages[-1].text}"


async def test_nothing_of_one_tenant_is_reachable_by_another() -> None:
    """SV-11 … SV-14, fixture 164: fifty principals at once, the same ids, secrets in every prompt."""
    names = [f"p{number}" for number in range(50)]
    provider = ScriptedProvider(echo, repeat=True)
    app = served(provider, auth=BearerTokens(dict(map(token, names))))
    async with app.lifespan():
        answers = await asyncio.gather(
            *[ask(app, *POST, run_input("t", "r", f"secret-{name}-"), headers=bearer(name)) for name in names]
        )
        for name, answer in zip(names, answers, strict=True):
            assert answer.text == f"you said secret-{name}-"
            seen = answer.body
            for path in (
                "/v1/threads",
                "/v1/runs",
                "/v1/runs/r",
                "/v1/runs/r/events",
                "/v1/threads/t/messages",
                "/agui?threadId=t",
            ):
                seen += (await ask(app, "GET", path, headers=bearer(name))).body
            others = [other for other in names if other != name and f"secret-{other}-".encode() in seen]
            assert others == []
        for asked in provider.requests:
            assert len({message.text for message in asked.messages if message.role == "user"}) == 1


async def test_every_route_answers_404_for_what_is_somebody_elses() -> None:
    """SV-12: every route, every kind of id; the same body as for what does not exist."""
    app = served(ScriptedProvider("a", ["b", Hold()]), auth=BearerTokens(dict([token("a"), token("b")])))
    async with app.lifespan():
        await ask(app, *POST, run_input("t1", "r1", "hi"), headers=bearer("a"))
        paths = ["/v1/runs/{run}", "/v1/runs/{run}/events", "/v1/runs/{run}/input", "/v1/runs/{run}/requests"]
        paths += [
            "/v1/threads/{thread}",
            "/v1/threads/{thread}/messages",
            "/v1/threads/{thread}/runs",
            "/agui?runId={run}",
        ]
        for path in paths:
            theirs = await ask(app, "GET", path.format(run="r1", thread="t1"), headers=bearer("b"))
            nobodys = await ask(app, "GET", path.format(run="r9", thread="t9"), headers=bearer("b"))
            guessed = run_key("tenant-a", "r1")
            derived = await ask(app, "GET", path.format(run=guessed, thread="t9"), headers=bearer("b"))
            for answer in (theirs, nobodys, derived):
                assert answer.status == 404, path
                assert {**answer.json(), "instance": ""} == {**nobodys.json(), "instance": ""}
        for command in ("cancel", "recover", "abandon", "check", "commands"):
            body = (
                {"reason": "x"}
                if command == "abandon"
                else {"kind": "cancel", "reason": "x"}
                if command == "commands"
                else {}
            )
            assert (await ask(app, "POST", f"/v1/runs/r1/{command}", body, headers=bearer("b"))).status == 404
        assert (await ask(app, "PATCH", "/v1/threads/t1", {"title": "x"}, headers=bearer("b"))).status == 404
        await ask(app, "DELETE", "/v1/threads/t1?purge=true", headers=bearer("b"))
        assert (await ask(app, "GET", "/v1/runs/r1", headers=bearer("a"))).status == 200
        stopped = await ask(app, "POST", "/agui/default/stop", {"threadId": "t1"}, headers=bearer("b"))
        assert stopped.json() == {"stopped": False}


async def test_no_route_tells_a_foreign_run_or_thread_from_none() -> None:
    """SV-12: all routes of the table that name a run or thread, in every method: what is somebody's is as nobody's."""
    bodies = {
        "commands": {"kind": "cancel", "command_id": "k"},
        "abandon": {"reason": "x"},
        "fork": {"from": "r1"},
        "head": {"run_id": "r1"},
        "{thread}": {"title": "x"},
    }
    app = served(ScriptedProvider("a", repeat=True), auth=BearerTokens(dict([token("a"), token("b")])))
    async with app.lifespan():
        await ask(app, *POST, run_input("t1", "r1", "hi"), headers=bearer("a"))
        walked = 0
        for method, template, _ in app.routes.table:
            if "{run}" not in template and "{thread}" not in template:
                continue
            if method == "DELETE" or template.startswith("/copilotkit"):
                continue  # these say the same of what is not there as of what is: 204, and stopped: false
            walked += 1
            body = bodies.get(template.rpartition("/")[2], {}) if method in ("POST", "PATCH") else None
            found = []
            for run, thread in (("r1", "t1"), ("r9", "t9")):
                path = template.replace("{run}", run).replace("{thread}", thread)
                for name in ("command", "digest", "key", "export"):
                    path = path.replace(f"{{{name}}}", "x")
                answer = await ask(app, method, path, body, headers=bearer("b"))
                found.append((answer.status, {**answer.json(), "instance": ""}, answer.headers.keys()))
            assert found[0] == found[1], (method, template)
            assert found[0][0] == 404, (method, template)
        assert walked > 20
        listed = (await ask(app, "GET", "/v1/threads", headers=bearer("b"))).json()
        assert listed["items"] == []


async def test_equal_ids_of_two_tenants_are_two_runs() -> None:
    """SV-13."""
    journal = MemoryJournal()
    provider = ScriptedProvider(echo, repeat=True)
    app = served(provider, auth=BearerTokens(dict([token("a"), token("b")])), journal=journal)
    async with app.lifespan():
        for name in "ab":
            await ask(app, *POST, run_input("t", "r", f"I am {name}"), headers=bearer(name))
            shown = (await ask(app, "GET", "/v1/runs/r", headers=bearer(name))).json()
            assert (shown["run_id"], shown["thread_id"]) == ("r", "t")
            facts = (await ask(app, "GET", "/v1/runs/r/events", headers=bearer(name))).body
            assert run_key(f"tenant-{name}", "r").encode() not in facts.replace(b"-1-1", b"")[:400]


def test_what_looks_derived_cannot_be_forged_by_the_local_tenant() -> None:
    """SV-13: ids of the loopback tenant stay as they are, but for those that look like somebody's."""
    theirs = run_key("tenant-a", "r1")
    assert run_key("local", "r1") == "r1"
    assert run_key("local", theirs) != theirs


def test_no_route_reaches_the_run_controller_or_the_journal() -> None:
    """SV-11: the door is the only way; read from the source of the route modules."""
    for module in (agui, aisdk, artifacts, control, copilotkit, exports, threads):
        source = inspect.getsource(module)
        for forbidden in (
            "RunController",
            "from ..journal",
            "from ..runs.controller",
            "ServedAgent",
            ".served.",
        ):
            assert forbidden not in source, (module.__name__, forbidden)


async def test_foreign_and_missing_take_the_same_time() -> None:
    """SV-12: no difference that 1000 calls can see beyond noise."""
    app = served(ScriptedProvider("a"), auth=BearerTokens(dict([token("a"), token("b")])))
    async with app.lifespan():
        await ask(app, *POST, run_input("t1", "r1", "hi"), headers=bearer("a"))

        async def measure(run: str) -> float:
            began = time.perf_counter()
            for _ in range(250):
                await ask(app, "GET", f"/v1/runs/{run}", headers=bearer("b"))
            return time.perf_counter() - began

        theirs, nobodys = [], []
        for _ in range(2):
            theirs.append(await measure("r1"))
            nobodys.append(await measure("r9"))
        assert min(theirs) < 3 * min(nobodys)
        assert min(nobodys) < 3 * min(theirs)


# Cross-origin


async def test_no_cors_header_unless_configured() -> None:
    """SV-240: the host application may send its own."""
    app = served(ScriptedProvider())
    async with app.lifespan():
        answer = await ask(app, "GET", "/v1/agents", headers={"origin": "http://localhost"})
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_preflight_needs_no_token_and_errors_carry_the_headers() -> None:
    """SV-240, fixture 183."""
    app = served(
        ScriptedProvider(),
        cors=CORS(("https://page.example",), allow_credentials=True),
        auth=BearerTokens(dict([token("a")])),
    )
    async with app.lifespan():
        origin = {"origin": "https://page.example"}
        asked = {
            **origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization",
        }
        preflight = await ask(app, "OPTIONS", "/agui/default", headers=asked)
        assert preflight.status == 204
        for name in ("Authorization", "Last-Event-ID", "Idempotency-Key", "X-Run-Id"):
            assert name in preflight.headers["access-control-allow-headers"]
        assert preflight.headers["access-control-allow-credentials"] == "true"
        refused = await ask(app, "GET", "/v1/runs", headers=origin)
        assert refused.status == 401
        assert refused.headers["access-control-allow-origin"] == "https://page.example"
        assert "Pilothouse-Run-Id" in refused.headers["access-control-expose-headers"]
        foreign = await ask(
            app, "OPTIONS", "/agui/default", headers={**asked, "origin": "https://evil.example"}
        )
        assert foreign.status == 403


async def test_a_cache_is_told_that_the_answer_depends_on_the_origin() -> None:
    """SV-240: also where the origin is not allowed, or none was sent; not where anybody may."""
    exact = served(
        ScriptedProvider(), cors=CORS(("https://page.example",)), auth=BearerTokens(dict([token("a")]))
    )
    anybody = served(ScriptedProvider(), cors=CORS(("*",)), auth=BearerTokens(dict([token("a")])))
    async with exact.lifespan(), anybody.lifespan():
        for headers in ({}, {"origin": "https://page.example"}, {"origin": "https://page.example.evil"}):
            found = await ask(exact, "GET", "/v1/agents", headers={**headers, **bearer("a")})
            assert found.headers["vary"] == "Origin"
            allowed = headers.get("origin") == "https://page.example"
            assert ("access-control-allow-origin" in found.headers) is allowed
        found = await ask(
            anybody, "GET", "/v1/agents", headers={"origin": "https://x.example", **bearer("a")}
        )
        assert found.headers["access-control-allow-origin"] == "*"
        assert "vary" not in found.headers


def test_any_origin_with_credentials_is_a_mistake() -> None:
    """SV-240."""
    with pytest.raises(ValueError, match="credentials"):
        CORS(("*",), allow_credentials=True)


async def test_messages_of_the_model_cannot_hide_a_tenant() -> None:
    """SV-14, RC-81: the principal stands in the run's specification, not on a shared object."""
    journal = MemoryJournal()
    app = served(ScriptedProvider("a"), auth=BearerTokens(dict([token("a")])), journal=journal)
    async with app.lifespan():
        await ask(app, *POST, run_input("t1", "r1", "hi"), headers=bearer("a"))
        spec = (await journal.head(run_key("tenant-a", "r1"))).registration.spec
        assert spec.tenant == "tenant-a"
        assert spec.extensions["server/ids"]["principal"] == "a"
        assert isinstance(spec.input[0], Message)

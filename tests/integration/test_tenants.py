"""Fifty tenants at once, secrets in what they say: nothing of one is in anything of another (fixture 164)."""

from __future__ import annotations

import asyncio
import json
import logging
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from asgikit import Connection, ask, run_input
from pilothouse.conversation.controller import AgentController
from pilothouse.journal.sqlite import SQLiteJournal
from pilothouse.loop.tools import tool
from pilothouse.records import RunQuery
from pilothouse.server.app import Server
from pilothouse.server.auth import BearerTokens, Principal
from pilothouse.testing.scripted import Hold, ScriptedProvider, call

TENANTS = 50


def secret(number: int) -> str:
    return f"secret-{number:03}-{sha256(str(number).encode()).hexdigest()[:12]}"


def token(number: int) -> dict[str, str]:
    return {"authorization": f"Bearer token-{number:036}"}


def secrets_in(text: str) -> set[int]:
    return {number for number in range(TENANTS) if secret(number) in text}


@tool(effect="read")
async def echo(text: str) -> str:
    """Says it again."""
    await asyncio.sleep(0)
    return f"echo of {text}"


def answer(request: Any) -> Any:
    """Calls the tool with what was said, then repeats all that it was ever told."""
    if request.messages[-1].role == "user":
        return [call("echo", {"text": request.messages[-1].text})]
    return ["I was told: ", " / ".join(message.text for message in request.messages)]


async def test_fifty_tenants_in_parallel_share_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SV-11, SV-13, SV-14, proof 9: all use the same ids for threads, runs and messages; streams, lists, model requests,
    the store, logs and metrics hold no foreign byte; every address of another tenant is 404."""
    caplog.set_level(logging.DEBUG)
    provider = ScriptedProvider(answer, repeat=True)
    auth = BearerTokens(
        {
            sha256(token(number)["authorization"][7:].encode()).hexdigest(): Principal(
                f"p{number}", f"tenant-{number}", frozenset({"operator"})
            )
            for number in range(TENANTS)
        }
    )
    async with SQLiteJournal(tmp_path / "all.db") as journal:
        app = Server({"default": AgentController(provider, tools=[echo])}, journal=journal, auth=auth)
        async with app.lifespan():

            async def live(number: int) -> list[Connection]:
                found = []
                for turn in range(3):
                    body = run_input("thread", f"run-{turn}", f"{secret(number)} turn {turn}")
                    found.append(await ask(app, "POST", "/agui", body, headers=token(number)))
                return found

            streams = await asyncio.gather(*[live(number) for number in range(TENANTS)])
            for number, mine in enumerate(streams):
                for stream in mine:
                    assert stream.status == 200, stream.body
                    assert stream.events[-1]["type"] == "RUN_FINISHED"
                    assert secrets_in(stream.body.decode()) == {number}
                assert f"{secret(number)} turn 0 / " in mine[2].text
            for request in provider.requests:
                assert len(secrets_in(str(request))) == 1

            paths = [
                "/v1/runs", "/v1/runs/run-1", "/v1/runs/run-1/events", "/v1/runs/run-1/input", "/v1/threads",
                "/v1/threads/thread", "/v1/threads/thread/messages", "/v1/threads/thread/tree",
                "/agui?threadId=thread", "/agui?runId=run-2",
            ]  # fmt: skip
            for number in range(TENANTS):
                for path in paths:
                    found = await ask(app, "GET", path, headers=token(number))
                    assert found.status == 200, path
                    assert secrets_in(found.body.decode()) <= {number}, path
            metrics = await ask(app, "GET", "/metrics", headers=token(0))
            assert secrets_in(metrics.body.decode()) == set()

            # Ids of the journal, which nobody is told, open nothing either.
            keys = [entry.run_id for entry in (await journal.list(RunQuery(), limit=500)).items]
            assert len(keys) == TENANTS * 3
            own = {sha256(f"tenant-0\nr\nrun-{turn}".encode()).hexdigest()[:40] for turn in range(3)}
            for key in keys[:20]:
                if key.partition("-")[2] not in own:
                    for path in (f"/v1/runs/{key}", f"/v1/runs/{key}/events", f"/agui?runId={key}"):
                        assert (await ask(app, "GET", path, headers=token(0))).status == 404

            # What is stored of a run holds the secret of its tenant only.
            for entry in (await journal.list(RunQuery(), limit=500)).items:
                head = await journal.head(entry.run_id)
                assert head is not None
                facts = str((await journal.read(entry.run_id)).records) + str(head.registration)
                assert secrets_in(facts) == {int(head.registration.spec.tenant.partition("-")[2])}
    assert secrets_in(caplog.text) == set()
    assert "token-0" not in caplog.text


async def test_two_clients_on_one_thread_see_one_order_and_act_once(tmp_path: Path) -> None:
    """SV-52, SV-103, SV-183: the same events in the same order; a stop and an answer from any of them count once."""
    bought: list[str] = []

    @tool(approval=True)
    async def buy(what: str) -> str:
        """Buys."""
        bought.append(what)
        return f"bought {what}"

    hold = Hold()
    provider = ScriptedProvider(
        [call("buy", {"what": "tea"}, call_id="c1")], "Enjoy.", ["half ", hold, "whole"]
    )
    async with SQLiteJournal(tmp_path / "two.db") as journal:
        app = Server({"default": AgentController(provider, tools=[buy])}, journal=journal, drain_timeout=0.0)
        async with app.lifespan():
            first = await ask(app, "POST", "/agui", run_input("t", "r1", "buy tea"))
            (asked,) = first.events[-1]["outcome"]["interrupts"]
            resume = [{"interruptId": asked["id"], "status": "resolved", "payload": {"approved": True}}]
            both = await asyncio.gather(
                *[
                    ask(app, "POST", "/agui", run_input("t", f"a{number}", resume=resume))
                    for number in range(2)
                ]
            )
            assert sorted(answer.status for answer in both) in ([200, 200], [200, 409])
            assert bought == ["tea"]
            stored = [record.fact.kind for record in (await journal.read("r1")).records]
            assert stored.count("request_resolved") == 1

            body = run_input("t", "r2", "go")
            async with (
                Connection(app, "POST", "/agui", json_body=body) as one,
                Connection(app, "POST", "/agui", json_body=body) as two,
            ):
                await one.seen("half ")
                await two.seen("half ")
                stops = await asyncio.gather(
                    *[ask(app, "POST", "/agui/default/stop", {"threadId": "t"}) for _ in range(2)]
                )
                assert [stop.status for stop in stops] == [200, 200]
                await one.ended()
                await two.ended()
                assert [(frame.id, frame.data) for frame in one.frames] == [
                    (frame.id, frame.data) for frame in two.frames
                ]
            facts = [record.fact.kind for record in (await journal.read("r2")).records]
            assert facts.count("run_ended") == facts.count("stop_requested") == 1
            assert json.loads(json.dumps(one.events[-1]["outcome"])) == {"type": "cancelled"}

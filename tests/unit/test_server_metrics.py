"""What a server counts (SV-261)."""

from __future__ import annotations

import asyncio
import re
from hashlib import sha256
from pathlib import Path

from asgikit import Connection, ask, run_input, served
from pilothouse.journal.memory import MemoryJournal
from pilothouse.journal.sqlite import SQLiteJournal
from pilothouse.messages import Usage
from pilothouse.server.auth import BearerTokens, Principal
from pilothouse.testing.clock import StepClock
from pilothouse.testing.scripted import Hold, ScriptedProvider, Sleep, failure


async def scraped(app, **options) -> dict[str, float]:
    answer = await ask(app, "GET", "/metrics", **options)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = answer.body.decode()
    assert all(re.fullmatch(r"(# .*|[a-z_]+(\{[^{}]*\})? [0-9.e+-]+)", line) for line in text.splitlines())
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line[0] != "#"
    }


async def until(app, name: str, value: float) -> dict[str, float]:
    while (found := await scraped(app)).get(name) != value:
        await asyncio.sleep(0)
    return found


async def test_runs_tokens_times_streams_and_commands_are_counted() -> None:
    """SV-261: by agent, outcome, model, face and kind; a request's time and the time to its first piece."""
    clock, hold = StepClock(), Hold()
    provider = ScriptedProvider(
        [Sleep(2.0), "slow ", Sleep(4.0), "answer", Usage(100, output=7)],
        failure("auth", "secret words"),
        ["half ", hold],
        clock=clock,
    )
    app = served(provider, clock=clock)
    async with app.lifespan():
        async with Connection(app, "POST", "/agui/default", json_body=run_input("t1", "r1", "secret")) as one:
            for _ in range(12):
                await clock.advance(0.5)
            await one.ended()
        await ask(app, "POST", "/agui/default", run_input("t1", "r2", "more"))
        async with Connection(app, "POST", "/agui/default", json_body=run_input("t1", "r3", "go")) as live:
            await live.seen("half ")
            found = await scraped(app)
            assert found['pilothouse_runs_live{agent="default"}'] == 1
            assert found['pilothouse_streams_live{face="agui"}'] == 1
            await ask(app, "POST", "/v1/runs/r3/cancel")
            await live.ended()
        found = await until(app, 'pilothouse_runs_ended_total{agent="default",outcome="cancelled"}', 1)
        assert found['pilothouse_runs_ended_total{agent="default",outcome="completed"}'] == 1
        assert found['pilothouse_runs_ended_total{agent="default",outcome="failed"}'] == 1
        assert found['pilothouse_commands_total{kind="cancel",state="applied"}'] == 1
        model = (
            'gen_ai_operation_name="chat",gen_ai_provider_name="scripted",gen_ai_request_model="scripted-1"'
        )
        assert found[f'gen_ai_client_token_usage_sum{{{model},gen_ai_token_type="input"}}'] == 100
        assert found[f'gen_ai_client_token_usage_sum{{{model},gen_ai_token_type="output"}}'] == 7
        assert found[f"gen_ai_client_operation_time_to_first_chunk_seconds_sum{{{model}}}"] >= 2
        assert found[f'gen_ai_client_operation_duration_seconds_sum{{error_type="",{model}}}'] >= 6
        assert found[f'gen_ai_client_operation_duration_seconds_count{{error_type="auth",{model}}}'] == 1
        assert found["pilothouse_journal_append_seconds_count"] >= 4
        found = await until(app, "pilothouse_stop_seconds_count", 1)
        text = (await ask(app, "GET", "/metrics")).body.decode()
        assert not any(word in text for word in ("secret", "r1", "t1", "half"))


async def test_only_operators_and_this_machine_may_look() -> None:
    """SV-261."""
    plain, operator = "p" * 40, "o" * 40
    auth = BearerTokens(
        {
            sha256(plain.encode()).hexdigest(): Principal("p", "p"),
            sha256(operator.encode()).hexdigest(): Principal("o", "o", frozenset({"operator"})),
        }
    )
    app = served(ScriptedProvider(), auth=auth, journal=MemoryJournal())
    async with app.lifespan():
        assert (await ask(app, "GET", "/metrics")).status == 401
        refused = await ask(app, "GET", "/metrics", headers={"authorization": f"Bearer {plain}"})
        assert (refused.status, refused.json()["code"]) == (404, "not_found")
        assert await scraped(app, headers={"authorization": f"Bearer {operator}"})


async def test_slow_and_failing_appends_are_seen() -> None:
    """SV-261: what a journal takes to store is counted, whether it stored or not."""
    clock = StepClock()

    class Slow(MemoryJournal):
        async def append(self, *args, **kwargs):
            await clock.sleep(0.2)
            return await super().append(*args, **kwargs)

    journal = Slow()
    journal.immediate = False
    app = served(ScriptedProvider("ok"), clock=clock, journal=journal)
    async with (
        app.lifespan(),
        Connection(app, "POST", "/agui/default", json_body=run_input("t1", "r1", "go")) as one,
    ):
        while not one.closed:
            await clock.advance(0.2)
        found = await scraped(app)
        assert found["pilothouse_journal_append_seconds_sum"] >= 0.4
        slow = found["pilothouse_journal_append_seconds_count"]
        assert found['pilothouse_journal_append_seconds_bucket{le="0.1"}'] <= slow - 2


async def test_appends_to_a_file_are_timed_once_they_are_durable(tmp_path: Path) -> None:
    """SV-261: a journal that takes an append at once tells later that it is stored; a served run does not notice."""
    async with SQLiteJournal(tmp_path / "served.db") as journal:
        app = served(ScriptedProvider("from a file"), journal=journal)
        async with app.lifespan():
            answer = await ask(app, "POST", "/agui/default", run_input("t1", "r1", "go"))
            assert "from a file" in answer.body.decode()
            assert "RUN_FINISHED" in answer.body.decode()
            found = await scraped(app)
            assert found['pilothouse_runs_ended_total{agent="default",outcome="completed"}'] == 1
            facts = (await journal.read("r1")).records
            assert 2 <= found["pilothouse_journal_append_seconds_count"] <= len(facts)


async def test_opentelemetry_is_told_the_same_where_it_is_set_up() -> None:
    """SV-261: the conventions' own names and attributes; SV-262: a reader that fails changes nothing."""
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    app = served(
        ScriptedProvider(["answer", Usage(100, output=7)], failure("auth", "secret"), ["half ", Hold()])
    )
    async with app.lifespan():
        await ask(app, "POST", "/agui/default", run_input("t1", "r1", "secret"))
        await ask(app, "POST", "/agui/default", run_input("t1", "r2", "secret"))
        async with Connection(app, "POST", "/agui/default", json_body=run_input("t1", "r3", "go")) as live:
            await live.seen("half ")
            await until(app, 'pilothouse_runs_ended_total{agent="default",outcome="failed"}', 1)
            data = reader.get_metrics_data()
            await ask(app, "POST", "/v1/runs/r3/cancel")
    found = {
        metric.name: metric.data.data_points
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    model = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "scripted-1",
    }
    tokens = {point.attributes["gen_ai.token.type"]: point for point in found["gen_ai.client.token.usage"]}
    assert (tokens["input"].sum, tokens["output"].sum) == (100, 7)
    assert tokens["input"].attributes == {**model, "gen_ai.token.type": "input"}
    took = [dict(point.attributes) for point in found["gen_ai.client.operation.duration"]]
    assert model in took
    assert {**model, "error.type": "auth"} in took
    ended = {point.attributes["outcome"]: point.value for point in found["pilothouse_runs_ended"]}
    assert ended == {"completed": 1, "failed": 1}
    assert [(point.attributes["agent"], point.value) for point in found["pilothouse_runs_live"]] == [
        ("default", 1)
    ]
    assert [(point.attributes["face"], point.value) for point in found["pilothouse_streams_live"]] == [
        ("agui", 1)
    ]
    assert found["pilothouse_journal_append_seconds"][0].count >= 4
    assert "secret" not in data.to_json()

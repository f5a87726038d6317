"""Artifacts over HTTP (SV-160)."""

from __future__ import annotations

from hashlib import sha256

from asgikit import ask, run_input, served
from pilothouse.loop.tools import tool
from pilothouse.server.auth import BearerTokens, Principal
from pilothouse.testing.scripted import ScriptedProvider, call


@tool(effect="read")
async def report() -> str:
    """A long report."""
    return "word " * 20_000


def reporting(**options):
    return served(ScriptedProvider([call("report", {})], "done", repeat=True), tools=[report], **options)


async def test_what_was_too_large_is_listed_and_fetched_through_its_run() -> None:
    """SV-160: type, size, preview; bytes with an ETag, ranges, and headers that keep a browser from showing it."""
    app = reporting()
    async with app.lifespan():
        await ask(app, "POST", "/agui/default", run_input("t1", "r1", "go"))
        (item,) = (await ask(app, "GET", "/v1/runs/r1/artifacts")).json()["items"]
        assert item["size"] == 100_000
        assert item["preview"].startswith("word word")
        path = f"/v1/runs/r1/artifacts/{item['digest']}"
        whole = await ask(app, "GET", path)
        assert whole.status == 200
        assert whole.body == b"word " * 20_000
        assert sha256(whole.body).hexdigest() in whole.headers["etag"]
        assert whole.headers["content-type"].startswith(item["media_type"])
        assert whole.headers["content-disposition"].startswith("attachment")
        assert whole.headers["x-content-type-options"] == "nosniff"
        assert whole.headers["content-security-policy"] == "sandbox"
        again = await ask(app, "GET", path, headers={"if-none-match": whole.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
        for asked, got, said in (
            ("bytes=0-3", b"word", "bytes 0-3/100000"),
            ("bytes=99995-", b"word ", "bytes 99995-99999/100000"),
            ("bytes=-5", b"word ", "bytes 99995-99999/100000"),
        ):
            part = await ask(app, "GET", path, headers={"range": asked})
            assert (part.status, part.body, part.headers["content-range"]) == (206, got, said)
        beyond = await ask(app, "GET", path, headers={"range": "bytes=100000-"})
        assert (beyond.status, beyond.headers["content-range"]) == (416, "bytes */100000")
        assert (await ask(app, "GET", path, headers={"range": "lines=1-2"})).status == 200


async def test_a_digest_alone_opens_nothing() -> None:
    """SV-11: equal bytes of two tenants are stored once, and each reaches them through a run of its own only."""
    one, two = "a" * 40, "b" * 40
    auth = BearerTokens(
        {
            sha256(one.encode()).hexdigest(): Principal("one", "one"),
            sha256(two.encode()).hexdigest(): Principal("two", "two"),
        }
    )
    app = reporting(auth=auth)
    async with app.lifespan():
        mine, theirs = {"authorization": f"Bearer {one}"}, {"authorization": f"Bearer {two}"}
        await ask(app, "POST", "/agui/default", run_input("t1", "r1", "go"), headers=mine)
        await ask(app, "POST", "/v1/runs", {"run_id": "r2", "thread_id": "t2"}, headers=theirs)
        (item,) = (await ask(app, "GET", "/v1/runs/r1/artifacts", headers=mine)).json()["items"]
        for run in ("r1", "r2"):
            found = await ask(app, "GET", f"/v1/runs/{run}/artifacts/{item['digest']}", headers=theirs)
            assert found.status == 404
        assert (await ask(app, "GET", "/v1/runs/r1/artifacts", headers=theirs)).status == 404
        assert (await ask(app, "GET", f"/v1/runs/r1/artifacts/{'0' * 64}", headers=mine)).status == 404


async def test_what_stands_behind_megabytes_of_facts_is_found_too() -> None:
    """SV-160: a run of more than one page of facts, whose answer is stored apart."""
    app = served(ScriptedProvider(["long " * 20_000] * 60))
    async with app.lifespan():
        await ask(app, "POST", "/v1/runs", {"run_id": "r1", "thread_id": "t1", "input": "hi"})
        assert (await ask(app, "GET", "/v1/runs/r1?wait=30")).json()["status"] == "completed"
        (item,) = (await ask(app, "GET", "/v1/runs/r1/artifacts")).json()["items"]
        assert item["size"] == 6_000_000
        whole = await ask(app, "GET", f"/v1/runs/r1/artifacts/{item['digest']}")
        assert whole.body == b"long " * 1_200_000

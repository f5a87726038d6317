"""Branches, copies and repeated requests of threads (server page §7)."""

from __future__ import annotations

from typing import Any

import pytest

from asgikit import Connection, ask, run_input, served
from pilothouse.journal.memory import MemoryJournal
from pilothouse.loop.tools import tool
from pilothouse.testing.scripted import Cut, Hold, ScriptedProvider, call


def echo(request: Any) -> str:
    said = [message.text for message in request.messages if message.role == "user"]
    return "answer to " + " / ".join(said)


def echoing(**options: Any) -> Any:
    return served(ScriptedProvider(echo, repeat=True), **options)


async def run(app: Any, run_id: str, thread: str = "t1", **body: Any) -> Any:
    """A run to its end."""
    begun = await ask(app, "POST", "/v1/runs", {"thread_id": thread, "run_id": run_id, **body})
    assert begun.status == 201, begun.body
    view = (await ask(app, "GET", f"/v1/runs/{run_id}?wait=10")).json()
    assert view["status"] == "completed"
    return view


async def messages(app: Any, thread: str = "t1", query: str = "") -> list[Any]:
    return (await ask(app, "GET", f"/v1/threads/{thread}/messages{query}")).json()["items"]


def said(items: list[Any]) -> list[str]:
    return ["".join(part.get("text", "") for part in item["parts"]) for item in items]


async def test_a_tree_shows_all_branches_and_messages_name_their_alternatives() -> None:
    """SV-152: an edit and a regeneration stand beside what they replace; nothing is deleted."""
    app = echoing()
    async with app.lifespan():
        await run(app, "r1", input="one")
        await run(app, "r2", input="two")
        first = await messages(app)
        await run(app, "r3", action="regenerate", target=first[3]["id"])
        await run(app, "r4", input="three", parent={"run_id": "r1"})
        tree = (await ask(app, "GET", "/v1/threads/t1/tree")).json()
        assert [(item["run_id"], (item["parent"] or {}).get("run_id")) for item in tree["items"]] == [
            ("r1", None), ("r2", "r1"), ("r3", "r2"), ("r4", "r1"),
        ]  # fmt: skip
        assert [item["input"] for item in tree["items"]] == ["one", "two", "", "three"]
        assert tree["head"] == "r4"
        now = await messages(app)
        assert said(now) == ["one", "answer to one", "three", "answer to one / three"]
        assert now[2]["siblings"] == [first[2]["id"], now[2]["id"]]
        assert "siblings" not in now[0]
        old = await messages(app, query="?head=r3")
        assert old[2]["siblings"] == now[2]["siblings"]
        assert old[3]["siblings"] == [first[3]["id"], old[3]["id"]]


@pytest.mark.parametrize("face", ["control", "agui"])
async def test_a_chosen_branch_is_gone_on_with(face: str) -> None:
    """SV-154: the next send of every face hangs on it; after it the choice is over."""
    app = echoing()
    async with app.lifespan():
        await run(app, "r1", input="one")
        await run(app, "r2", input="two")
        chosen = await ask(app, "POST", "/v1/threads/t1/head", {"run_id": "r1"})
        assert chosen.json()["head"] == "r1"
        assert said(await messages(app)) == ["one", "answer to one"]
        if face == "control":
            await run(app, "r3", input="three")
        else:
            answer = await ask(app, "POST", "/agui/default", run_input("t1", "r3", "three"))
            assert answer.text == "answer to one / three"
        assert said(await messages(app)) == ["one", "answer to one", "three", "answer to one / three"]
        await run(app, "r4", input="four")
        assert said(await messages(app))[-1] == "answer to one / three / four"


async def test_a_chosen_branch_is_regenerated_and_retried() -> None:
    """SV-101, SV-154: what is answered again is the answer of that branch."""
    app = echoing()
    async with app.lifespan():
        await run(app, "r1", input="one")
        await run(app, "r2", input="two")
        first = await messages(app, query="?head=r1")
        await ask(app, "POST", "/v1/threads/t1/head", {"run_id": "r1"})
        await run(app, "r3", action="regenerate", target=first[1]["id"])
        assert said(await messages(app)) == ["one", "answer to one"]
        assert (await messages(app))[1]["siblings"][0] == first[1]["id"]


async def test_a_branch_cannot_be_chosen_while_a_run_lives_or_from_elsewhere() -> None:
    """SV-154."""
    hold = Hold()
    app = served(ScriptedProvider("a", [hold, "b"], "c"))
    async with app.lifespan():
        await run(app, "r1", input="one")
        await ask(app, "POST", "/v1/runs", {"thread_id": "t1", "run_id": "r2", "input": "two"})
        await hold.reached()
        busy = await ask(app, "POST", "/v1/threads/t1/head", {"run_id": "r1"})
        assert (busy.status, busy.json()["code"], busy.json()["run_id"]) == (409, "thread_busy", "r2")
        hold.release()
        await ask(app, "GET", "/v1/runs/r2?wait=10")
        await run(app, "r3", thread="t2", input="other")
        assert (await ask(app, "POST", "/v1/threads/t1/head", {"run_id": "r3"})).status == 422
        assert (await ask(app, "POST", "/v1/threads/t1/head", {"run_id": "nothing"})).status == 404


async def test_a_copy_begins_with_the_path_and_the_source_is_untouched() -> None:
    """SV-153: from a run, or from a message in the middle; its first run keeps what was copied."""
    app = echoing()
    async with app.lifespan():
        await run(app, "r1", input="one")
        await run(app, "r2", input="two")
        source = await messages(app)
        made = await ask(app, "POST", "/v1/threads/t1/fork", {"from": source[1]["id"], "title": "again"})
        assert made.status == 201
        copy = made.json()["thread_id"]
        assert made.headers["location"] == f"/v1/threads/{copy}"
        assert made.json()["title"] == "again"
        assert [item["id"] for item in await messages(app, copy)] == [item["id"] for item in source[:2]]
        await run(app, "r3", thread=copy, input="other")
        assert said(await messages(app, copy)) == ["one", "answer to one", "other", "answer to one / other"]
        assert await messages(app) == source
        whole = (await ask(app, "POST", "/v1/threads/t1/fork", {"from": "r2"})).json()
        assert whole["title"] == "one"
        assert said(await messages(app, whole["thread_id"])) == said(source)
        assert (await ask(app, "POST", "/v1/threads/t1/fork", {"from": "nothing"})).status == 404


async def test_a_copy_outlives_what_it_was_copied_from() -> None:
    """SV-153, SV-155: the source is purged before the copy has a run of its own; another copy's copy, too."""
    journal = MemoryJournal()
    app = echoing(journal=journal)
    async with app.lifespan():
        await run(app, "r1", input="one")
        await run(app, "r2", input="two")
        source = await messages(app)
        made = await ask(app, "POST", "/v1/threads/t1/fork", {"from": source[1]["id"]})
        copy = made.json()["thread_id"]
        await ask(app, "PATCH", f"/v1/threads/{copy}", {"archived": True})
        whole = (await ask(app, "POST", "/v1/threads/t1/fork", {"from": "r2"})).json()["thread_id"]
        assert (await ask(app, "DELETE", "/v1/threads/t1?purge=true")).status == 204
        assert (await ask(app, "GET", "/v1/runs/r1")).status == 404
    again = echoing(journal=journal)
    async with again.lifespan():
        assert said(await messages(again, copy)) == ["one", "answer to one"]
        assert said(await messages(again, whole)) == said(source)
        later = (await ask(again, "POST", f"/v1/threads/{whole}/fork", {"from": source[2]["id"]})).json()
        assert said(await messages(again, later["thread_id"])) == said(source)[:3]
        await run(again, "r3", thread=copy, input="three")
        assert said(await messages(again, copy))[:3] == ["one", "answer to one", "three"]
        shown = (await ask(again, "GET", f"/v1/threads/{copy}")).body
        assert b"answer to one" not in shown  # what is kept is no part of the record that is shown


async def test_open_requests_do_not_travel_into_a_copy() -> None:
    """SV-153: the call gets a result that says so, and the copy can go on at once."""

    @tool(approval=True)
    async def buy() -> str:
        """Buys."""
        return "bought"

    app = served(ScriptedProvider([call("buy", {}, call_id="c1")], echo), tools=[buy])
    async with app.lifespan():
        await ask(app, "POST", "/agui/default", run_input("t1", "r1", "one"))
        copy = (await ask(app, "POST", "/v1/threads/t1/fork", {"from": "r1"})).json()["thread_id"]
        items = await messages(app, copy)
        assert items[-1]["role"] == "tool"
        assert said(items)[-1] == "Not answered in this copy."
        await run(app, "r2", thread=copy, input="never mind")
        assert (await ask(app, "GET", "/v1/runs/r1")).json()["status"] == "waiting"


async def test_repeated_requests_of_threads_are_done_once_also_after_a_restart() -> None:
    """SV-15, SV-16, fixture 120: by Idempotency-Key; the same key for other content is a conflict."""
    journal = MemoryJournal()
    app = echoing(journal=journal)
    key = {"idempotency-key": "k1"}
    async with app.lifespan():
        made = await ask(app, "POST", "/v1/threads", {"title": "a"}, headers=key)
        assert made.status == 201
        again = await ask(app, "POST", "/v1/threads", {"title": "a"}, headers=key)
        assert (again.status, again.headers["idempotent-replayed"]) == (200, "true")
        assert again.json() == made.json()
        other = await ask(app, "POST", "/v1/threads", {"title": "b"}, headers=key)
        assert (other.status, other.json()["code"]) == (409, "thread_conflict")
        await run(app, "r1", input="one")
        fork = await ask(app, "POST", "/v1/threads/t1/fork", {"from": "r1"}, headers=key)
        renamed = await ask(app, "PATCH", "/v1/threads/t1", {"title": "new"}, headers=key)
        assert renamed.json()["title"] == "new"
    app = echoing(journal=journal)
    async with app.lifespan():
        again = await ask(app, "POST", "/v1/threads/t1/fork", {"from": "r1"}, headers=key)
        assert (again.status, again.json()["thread_id"]) == (200, fork.json()["thread_id"])
        other = await ask(app, "POST", "/v1/threads/t1/fork", {"from": "r1", "title": "x"}, headers=key)
        assert other.status == 409
        await ask(app, "PATCH", "/v1/threads/t1", {"title": "newer"})
        again = await ask(app, "PATCH", "/v1/threads/t1", {"title": "new"}, headers=key)
        assert again.headers["idempotent-replayed"] == "true"
        assert again.json()["title"] == "newer"  # what was done is not done again
        other = await ask(app, "PATCH", "/v1/threads/t1", {"title": "else"}, headers=key)
        assert other.status == 409
        items = (await ask(app, "GET", "/v1/threads")).json()["items"]
        assert len(items) == 3


async def test_what_a_run_is_asked_to_do_must_fit() -> None:
    """SV §7: a typing error is not ignored."""
    app = echoing()
    async with app.lifespan():
        for body in (
            {"action": "retri"},
            {"action": "retry", "input": "x"},
            {"action": "regenerate"},
            {"target": "m", "input": "x"},
        ):
            refused = await ask(app, "POST", "/v1/runs", body)
            assert (refused.status, refused.json()["code"]) == (422, "invalid_input"), body


async def test_retry_goes_on_after_a_failure() -> None:
    """SV-101 over the control API: the same message, no new one."""
    from pilothouse.testing.scripted import failure

    app = served(ScriptedProvider(failure("auth", "no"), "better"))
    async with app.lifespan():
        await ask(app, "POST", "/v1/runs", {"thread_id": "t1", "run_id": "r1", "input": "one"})
        assert (await ask(app, "GET", "/v1/runs/r1?wait=10")).json()["status"] == "failed"
        await run(app, "r2", action="retry")
        assert said(await messages(app)) == ["one", "better"]


async def test_a_copy_of_a_live_run_holds_what_was_whole_then() -> None:
    """SV-153: what the run says later is not in it."""
    hold = Hold()
    app = served(ScriptedProvider("a", ["half", hold, "b"], echo))
    async with app.lifespan():
        await run(app, "r1", input="one")
        async with Connection(app, "POST", "/agui/default", json_body=run_input("t1", "r2", "two")) as live:
            await live.seen("half")
            copy = (await ask(app, "POST", "/v1/threads/t1/fork", {"from": "r2"})).json()["thread_id"]
            assert said(await messages(app, copy)) == ["one", "a", "two"]
            hold.release()
            await live.ended()
        await run(app, "r3", thread=copy, input="three")
        assert said(await messages(app, copy))[:4] == ["one", "a", "two", "three"]


async def test_a_retry_in_an_older_branch_settles_first_what_nobody_knows() -> None:
    """SV-154, AC-50: as in the newest one, the unknown run is abandoned on the record; a completed one has nothing to retry."""
    app = served(ScriptedProvider("a", ["half", Cut()], "c", "whole"))
    async with app.lifespan():
        await run(app, "r1", input="one")
        await ask(app, "POST", "/v1/runs", {"thread_id": "t1", "run_id": "r2", "input": "two"})
        assert (await ask(app, "GET", "/v1/runs/r2?wait=10")).json()["status"] == "unknown"
        await run(app, "r3", input="three", parent={"run_id": "r1"})
        await ask(app, "POST", "/v1/threads/t1/head", {"run_id": "r1"})
        nothing = await ask(app, "POST", "/v1/runs", {"thread_id": "t1", "run_id": "r4", "action": "retry"})
        assert nothing.status == 404, nothing.body
        await ask(app, "POST", "/v1/threads/t1/head", {"run_id": "r2"})
        await run(app, "r5", action="retry")
        assert said(await messages(app)) == ["one", "a", "two", "whole"]
        abandoned = (await ask(app, "GET", "/v1/runs/r2")).json()
        assert (abandoned["status"], abandoned["outcome"]["settled"]) == ("unknown", True)


async def test_a_copy_up_to_an_answer_has_the_results_of_its_calls() -> None:
    """SV-153: what a call came to is known, so it is not told that nobody answered."""

    @tool
    async def work() -> str:
        """Works."""
        return "worked"

    app = served(ScriptedProvider(["Well.", call("work", {}, call_id="c1")], "done", echo), tools=[work])
    async with app.lifespan():
        await run(app, "r1", input="one")
        answer = (await messages(app, "t1"))[1]["id"]
        copy = (await ask(app, "POST", "/v1/threads/t1/fork", {"from": answer})).json()["thread_id"]
        assert said(await messages(app, copy)) == ["one", "Well.", "worked"]

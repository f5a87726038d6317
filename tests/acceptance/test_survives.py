"""A killed server, over HTTP and the command line: what was seen is there and marked, nothing is run twice."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import httpx2
import pytest

from served import HELD, Gate, Served, pilothouse


def run_input(thread: str, run: str, text: str) -> dict:
    return {
        "threadId": thread,
        "runId": run,
        "protocolVersion": "1.0",
        "messages": [{"id": f"{run}-u", "role": "user", "content": text}],
        "tools": [],
        "context": [],
        "state": {},
        "forwardedProps": {},
    }


def ask(client: httpx2.Client, thread: str, run: str, text: str, *, until: str = "") -> list[dict]:
    """Posts a message and reads events to the end, or until a text was seen."""
    events: list[dict] = []
    with client.stream("POST", "agui/default", json=run_input(thread, run, text)) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data:"):
                events.append(json.loads(line[5:]))
                if until and until in text_of(events):
                    break
    return events


def text_of(events: list[dict]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")


@pytest.fixture
def client_for():
    clients: list[httpx2.Client] = []

    def make(served: Served) -> httpx2.Client:
        clients.append(httpx2.Client(base_url=f"{served.url}/", timeout=30))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def test_an_answer_cut_by_a_crash_is_there_marked_unknown_and_the_next_message_works(
    tmp_path: Path, gate: Gate, client_for
) -> None:
    """Issue 2 step 3; RC-50, RC-60, SV-152: shown, not guessed; abandoned on the record by the command line."""
    served = Served(tmp_path, str(HELD), env=gate.env).start()
    client = client_for(served)
    ask(client, "t1", "r1", "hold on", until="First half.")
    served.wait_saved("First half.")
    served.kill()

    with Served(tmp_path, str(HELD), env=gate.env) as again:
        client = client_for(again)
        found = client.get("v1/threads/t1/messages").json()
        last = found["items"][-1]
        assert last["role"] == "assistant"
        assert "First half." in last["parts"][0]["text"]
        assert last["delivery"]["outcome"] == "interrupted"
        view = client.get("v1/runs/r1").json()
        assert (view["status"], view["outcome"]) == ("unknown", None)
        assert set(view["unknown"]["ways"]) == {"recover", "abandon"}

        events = ask(client, "t1", "r2", "next")
        assert text_of(events) == "You said next. "
        assert events[-1]["type"] == "RUN_FINISHED"
        assert client.get("v1/runs/r1").json()["status"] == "unknown"

    listed = pilothouse("runs", "list", "--db", "chat.db", "--status", "unknown", cwd=tmp_path)
    assert listed.returncode == 0
    run_id = listed.stdout.split("\n")[1].split()[0]
    assert "First half" in pilothouse("runs", "show", run_id, "--db", "chat.db", cwd=tmp_path).stdout
    gone = pilothouse("runs", "abandon", run_id, "--reason", "seen enough", "--db", "chat.db", cwd=tmp_path)
    assert "abandoned" in gone.stdout
    assert (
        "no runs" in pilothouse("runs", "list", "--db", "chat.db", "--status", "running", cwd=tmp_path).stdout
    )
    assert gate.lines().count("asked") == 2


def test_a_lost_run_recovers_from_its_facts(tmp_path: Path, gate: Gate, client_for) -> None:
    """LP-49, RC-54: the model is asked again, the partial stays in the record, the run ends completed."""
    served = Served(tmp_path, str(HELD), env=gate.env).start()
    ask(client_for(served), "t1", "r1", "hold on", until="First half.")
    served.wait_saved("First half.")
    served.kill()
    with Served(tmp_path, str(HELD), env=gate.env) as again:
        client = client_for(again)
        view = client.post("v1/runs/r1/recover", json={}).json()
        assert view["status"] in ("running", "accepted")
        gate.open()
        assert client.get("v1/runs/r1?wait=30").json()["status"] == "completed"
        items = client.get("v1/threads/t1/messages").json()["items"]
        answers = [item for item in items if item["role"] == "assistant"]
        assert "Second half." in answers[-1]["parts"][0]["text"]
        assert answers[-1]["delivery"]["outcome"] == "success"
    assert gate.lines().count("asked") == 2


def test_a_tool_cut_by_a_crash_is_unknown_and_not_run_again(tmp_path: Path, gate: Gate, client_for) -> None:
    """EF-1, EF-10, [135]: the intent was durable, so the restart knows; the effect is counted by the tool itself."""
    served = Served(tmp_path, str(HELD), env=gate.env).start()
    client = client_for(served)
    with client.stream("POST", "agui/default", json=run_input("t1", "r1", "ring the bell")) as response:
        lines = response.iter_lines()
        while "waiting tool" not in gate.lines():
            next(lines)
    served.kill()
    with Served(tmp_path, str(HELD), "--recover", "on_open", env=gate.env) as again:
        client = client_for(again)
        assert client.get("v1/runs/r1?wait=30").json()["status"] == "completed"
        items = client.get("v1/threads/t1/messages").json()["items"]
        result = next(item for item in items if item["role"] == "tool")
        assert result["ledger"] == "unknown"
        assert "check before" in result["parts"][0]["text"].lower()
        assert items[-1]["role"] == "assistant"
    assert [line for line in gate.lines() if line.startswith("rang")] == ["rang 2"]


def test_reload_in_mid_answer_shows_the_same_answer_going_on(tmp_path: Path, gate: Gate, client_for) -> None:
    """SV-45, SV-48, SV-60 [148]: leaving does not stop; joining from the start shows each text once."""
    with Served(tmp_path, str(HELD), env=gate.env) as served:
        client = client_for(served)
        ask(client, "t1", "r1", "hold on", until="First half.")
        assert client.get("v1/threads/t1/messages").json()["active_run"]["run_id"] == "r1"
        events: list[dict] = []
        with client.stream("GET", "agui/default", params={"runId": "r1", "offset": -1}) as response:
            for line in response.iter_lines():
                if line.startswith("data:"):
                    events.append(json.loads(line[5:]))
                    if "First half." in text_of(events) and "Second" not in text_of(events):
                        gate.open()
        assert text_of(events) == "You said hold on. First half. Second half."
        assert events[-1]["type"] == "RUN_FINISHED"


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGHUP])
def test_serve_ends_cleanly_with_an_open_stream(
    tmp_path: Path, gate: Gate, client_for, asked: signal.Signals
) -> None:
    """SV-221, SV-222: SIGTERM, or its terminal closed, with a live run: exit code 0; the run is handed to recovery."""
    served = Served(tmp_path, str(HELD), env=gate.env).start()
    client = client_for(served)
    with client.stream("POST", "agui/default", json=run_input("t1", "r1", "hold on")) as response:
        lines = response.iter_lines()
        while "First half." not in next(lines):
            pass
        served.process.send_signal(asked)
        served.process.send_signal(asked)
        with pytest.raises(httpx2.HTTPError):  # cut, not closed: the client must not take it for an end
            list(lines)
    assert served.stop() == 0
    status = pilothouse("runs", "list", "--db", "chat.db", cwd=tmp_path).stdout.splitlines()[1].split("\t")[2]
    assert status == "unknown"  # on the record, not by the death of its owner

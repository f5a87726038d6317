"""`pilothouse chat URL`: the terminal talks to any AG-UI agent, ours or not (AG-11)."""

from __future__ import annotations

import subprocess
import sys
import threading
from asyncio import new_event_loop, set_event_loop
from pathlib import Path

from pilothouse.testing import ScriptedEndpoint
from pilothouse.testing.endpoint import Refuse, failed, finished, reasoning, result, started, text, tool_call
from served import HELD, Gate, Served, clean_env, pilothouse


class Foreign:
    """A scripted endpoint on a loop of its own, for processes that talk to it."""

    def __init__(self, *scripts) -> None:
        self.endpoint = ScriptedEndpoint(*scripts)

    def __enter__(self) -> ScriptedEndpoint:
        self.loop = new_event_loop()
        ready = threading.Event()

        def run() -> None:
            set_event_loop(self.loop)
            self.loop.run_until_complete(self.endpoint.__aenter__())
            ready.set()
            self.loop.run_forever()
            self.loop.run_until_complete(self.endpoint.__aexit__())
            self.loop.close()

        self.thread = threading.Thread(target=run)
        self.thread.start()
        ready.wait(30)
        return self.endpoint

    def __exit__(self, *exc: object) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(30)


NOT_OURS = [Refuse(404, "not here")]
ASK = finished(
    {"type": "interrupt", "interrupts": [{"id": "i", "reason": "confirmation", "message": "Really?"}]}
)


def say(url: str, *lines: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pilothouse", "chat", url],
        cwd=cwd,
        env={**clean_env(), "NO_COLOR": "1", "COLUMNS": "200"},
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_foreign_agent(tmp_path: Path) -> None:
    """Text, reasoning, a tool, a question, a failure and a retry, from a server that knows nothing of Pilothouse."""
    scripts = [
        NOT_OURS,
        [started(), *reasoning("r", "hm"), *text("a", "Let ", "me see."), *tool_call("c", "look", "{}", parent="a"), result("c", "blue"), *text("b", "It is blue."), finished()],
        [started(), *text("d", "I would pay."), ASK],
        [started(), *text("e", "Paid."), finished()],
        [started(), failed("the model is away", "overloaded")],
        [started(), *text("f", "Back again."), finished()],
    ]  # fmt: skip
    with Foreign(*scripts) as endpoint:
        done = say(endpoint.url, "why?", "pay", "perhaps", "y", "fail", "/retry", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for said in ("hm\nLet me see.", "⚙ look …", "blue", "It is blue.", "asks: Really? [y/n]", "answer with y or n",
                 "Paid.", "the model is away", "Back again."):  # fmt: skip
        assert said in done.stdout, said
    assert endpoint.asked[3].body["resume"] == [{"interruptId": "i", "status": "resolved", "payload": True}]
    assert [item["content"] for item in endpoint.asked[5].body["messages"] if item["role"] == "user"][
        -1
    ] == "fail"


def test_our_server_by_its_root(tmp_path: Path, gate: Gate) -> None:
    """The root of a server is enough; a thread is gone on with; what nobody serves is said in one line."""
    served = Served(tmp_path, str(HELD), env=gate.env).start()
    try:
        first = pilothouse("chat", served.url, "-M", "hello", "--thread", "t1", cwd=tmp_path)
        assert (first.returncode, first.stdout.strip()) == (0, "You said hello.")
        again = pilothouse("chat", served.url, "-M", "more", "--thread", "t1", cwd=tmp_path)
        assert "You said hello." in again.stdout
        assert again.stdout.strip().endswith("You said more.")
    finally:
        served.stop()
    gone = pilothouse("chat", served.url, "-M", "hello", cwd=tmp_path)
    assert gone.returncode != 0
    assert "does not answer" in gone.stderr + gone.stdout
    assert "Traceback" not in gone.stderr


PAYS = """
from pilothouse import AgentController, tool
from pilothouse.testing import ScriptedProvider
from pilothouse.testing.scripted import call

@tool(approval=True)
def pay() -> str:
    "Pays."
    return "paid"

def answer(request):
    return "It is done." if any(m.role == "tool" for m in request.messages) else [call("pay", call_id="c1")]

agent = AgentController(ScriptedProvider(*[answer] * 9), tools=[pay])
"""


def test_a_question_stays_open_when_the_terminal_is_left(tmp_path: Path) -> None:
    """AG-141: `/quit` at a question ends nothing; another terminal shows it again, and the answer goes on from there."""
    (tmp_path / "pays.py").write_text(PAYS)
    command = [sys.executable, "-m", "pilothouse", "chat", "pays.py", "--thread", "t1", "--db", "q.db"]
    env = {**clean_env(), "NO_COLOR": "1", "COLUMNS": "200"}

    def chat(*lines: str) -> subprocess.CompletedProcess[str]:
        said = "".join(f"{line}\n" for line in lines)
        return subprocess.run(
            command,
            cwd=tmp_path,
            env=env,
            input=said,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    first = chat("pay, please", "/quit")
    assert "asks: May pay run? [y/n]" in first.stdout, first.stderr
    second = chat("y")
    assert "asks: May pay run? [y/n]" in second.stdout, second.stderr
    assert "It is done." in second.stdout
    assert "Traceback" not in first.stderr + second.stderr

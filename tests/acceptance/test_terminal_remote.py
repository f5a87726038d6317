"""`pilothouse chat URL`: the terminal talks to any AG-UI agent, ours or not (AG-11)."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import threading
from asyncio import new_event_loop, set_event_loop
from collections.abc import Callable
from pathlib import Path

import pytest

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
def pay(what: str) -> str:
    "Pays."
    return f"paid {what}"

def answer(request):
    n, last = len(request.messages), request.messages[-1]
    if last.role == "tool":
        return "It is done."
    if "pay" not in last.text:
        return f"You said {last.text}."
    both = ["first", "second"][: 2 if "both" in last.text else 1]
    return [call("pay", {"what": what}, call_id=f"c{n}{what}") for what in both]

agent = AgentController(ScriptedProvider(*[answer] * 9), tools=[pay])
"""


@pytest.fixture
def pays(tmp_path: Path) -> Callable[..., str]:
    """A terminal with an agent that pays, over one file; what it printed."""
    (tmp_path / "pays.py").write_text(PAYS)
    command = [sys.executable, "-m", "pilothouse", "chat", "pays.py", "--thread", "t1", "--db", "q.db"]

    def chat(*lines: str) -> str:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**clean_env(), "NO_COLOR": "1", "COLUMNS": "200"},
            input="".join(f"{line}\n" for line in lines),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    return chat


def test_questions_are_asked_one_at_a_time(pays: Callable[..., str]) -> None:
    """AG-131: each names what would run; one is allowed, the other not; how each came out is told."""
    out = pays("pay both", "perhaps", "y", "n")
    first, second = (
        'pay {"what":"first"}\nasks (1 of 2): May pay run? [y/n]',
        'pay {"what":"second"}\nasks (2 of 2): ',
    )
    assert out.index(first) < out.index("answer with y or n") < out.index(second)
    assert "⚙ pay succeeded paid first" in out
    assert "⚙ pay refused" in out
    assert "It is done." in out


def test_a_question_can_be_ended(pays: Callable[..., str]) -> None:
    """AG-95: `/stop` ends the run that waits, nothing is performed, and the conversation goes on."""
    out = pays("/stop", "pay", "/stop", "hello", "/stop")
    assert out.count("nothing waits for an answer") == 2
    assert "cancelled" in out
    assert "You said hello." in out
    assert "paid" not in out
    assert "asks" not in pays()


def test_a_foreign_question_that_is_ended_is_answered_as_cancelled(tmp_path: Path) -> None:
    """AG-95: a stop is no answer to a backend of somebody else; leaving the question is."""
    scripts = [NOT_OURS, [started(), ASK], [started(), *text("e", "As you wish."), finished()]]
    with Foreign(*scripts) as endpoint:
        done = say(endpoint.url, "pay", "/stop", cwd=tmp_path)
    assert "As you wish." in done.stdout, done.stderr
    assert endpoint.asked[2].body["resume"] == [{"interruptId": "i", "status": "cancelled"}]


def test_a_value_is_asked_for_as_its_schema_says(tmp_path: Path) -> None:
    """AG-131: a number is sent as one; what does not fit is said in one line, and the question stays."""
    ask = {
        "id": "i",
        "reason": "input_required",
        "message": "How many?",
        "responseSchema": {"type": "integer"},
    }
    pause = finished({"type": "interrupt", "interrupts": [ask]})
    scripts = [NOT_OURS, [started(), pause], [started(), *text("e", "Seven it is."), finished()]]
    with Foreign(*scripts) as endpoint:
        done = say(endpoint.url, "buy", "many", "7", cwd=tmp_path)
    assert "Seven it is." in done.stdout, done.stderr
    assert done.stdout.count("asks: How many?") == 2
    assert endpoint.asked[2].body["resume"][0]["payload"] == 7


def test_an_answer_that_is_being_made_is_read_on(tmp_path: Path, gate: Gate) -> None:
    """AG-44: somebody asked on that thread already: the terminal joins, and asks only then."""
    served = Served(tmp_path, str(HELD), env=gate.env).start()
    try:
        command = [sys.executable, "-u", "-m", "pilothouse", "chat", served.url, "--thread", "t1"]
        env = {**clean_env(), "NO_COLOR": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        asking = subprocess.Popen([*command, "-M", "hold on"], cwd=tmp_path, env=env, **pipes)
        assert asking.stdout is not None
        seen = b""
        while b"First half." not in seen:
            seen += asking.stdout.read(1)
        joined = subprocess.Popen(command, cwd=tmp_path, env=env, **pipes)
        assert joined.stdout is not None
        seen = b""
        while b"First half." not in seen:
            seen += joined.stdout.read(1)
        assert b"> " not in seen
        gate.open()
        out, _ = joined.communicate(b"/quit\n", timeout=60)
        assert b"> " in out
        assert asking.wait(60) == joined.returncode == 0
        asking.communicate()
    finally:
        served.stop()


def test_a_terminal_keeps_what_was_typed(tmp_path: Path) -> None:
    """A real terminal: the arrow brings back the last line, as everywhere."""
    (tmp_path / "pays.py").write_text(PAYS)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        env = {**clean_env(), "TERM": "xterm", "NO_COLOR": "1"}
        os.execve(
            sys.executable, [sys.executable, "-m", "pilothouse", "chat", "pays.py", "--db", "q.db"], env
        )
    seen = b""

    def wait(text: bytes, times: int = 1) -> None:
        nonlocal seen
        while seen.count(text) < times:
            ready, _, _ = select.select([terminal], [], [], 60)
            assert ready, seen
            seen += os.read(terminal, 4096)

    wait(b"> ")
    os.write(terminal, b"hello\n")
    wait(b"You said hello.")
    wait(b"> ", 2)
    os.write(terminal, b"\x1b[A\n")
    wait(b"You said hello.", 2)
    wait(b"> ", 3)
    os.write(terminal, b"\x04")
    assert os.waitpid(pid, 0)[1] == 0
    os.close(terminal)


def test_a_question_stays_open_when_the_terminal_is_left(pays: Callable[..., str]) -> None:
    """AG-141: `/quit` at a question ends nothing; another terminal shows it again, and the answer goes on from there."""
    assert "asks: May pay run? [y/n]" in pays("pay, please", "/quit")
    out = pays("y")
    assert "asks: May pay run? [y/n]" in out
    assert "It is done." in out

"""The terminal: chat, stop with Ctrl-C, go on with a thread, and decide about a lost run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest

from served import HELD, Gate, Served, clean_env, hangup, pilothouse


class Chat:
    """`pilothouse chat` as a process with pipes; reads what it prints character by character."""

    def __init__(self, folder: Path, gate: Gate, *args: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "pilothouse", "chat", str(HELD), "--db", "chat.db", *args],
            cwd=folder,
            env={**clean_env(), **gate.env, "NO_COLOR": "1", "COLUMNS": "200"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )
        self.seen = ""
        self._queue: Queue[str] = Queue()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while char := self.process.stdout.read(1):
            self._queue.put(char)

    def say(self, line: str) -> None:
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def wait(self, text: str) -> None:
        while text not in self.seen:
            self.seen += self._queue.get(timeout=30)

    def leave(self) -> int:
        self.process.stdin.close()
        code = self.process.wait(30)
        self._reader.join(10)
        self.process.stdout.close()
        return code


def test_a_dialogue_with_a_stop_and_a_tool(tmp_path: Path, gate: Gate) -> None:
    """Ctrl-C stops the answer, not the program; the next message works; tools are shown; Ctrl-D leaves."""
    chat = Chat(tmp_path, gate)
    chat.wait("> ")
    chat.say("hold on")
    chat.wait("First half.")
    chat.process.send_signal(signal.SIGINT)
    chat.wait("> ")
    chat.say("hello")
    chat.wait("You said hello.")
    chat.say("ring the bell")
    chat.wait("ring_bell")
    gate.open()
    chat.wait("The bell: rang 2")
    assert chat.leave() == 0
    assert "cancelled" in pilothouse("runs", "list", "--db", "chat.db", cwd=tmp_path).stdout


def test_ctrl_c_at_the_prompt_and_a_mistyped_command(tmp_path: Path, gate: Gate) -> None:
    """Neither hangs, leaves, or reaches the model: each says what there is."""
    chat = Chat(tmp_path, gate)
    chat.wait("> ")
    chat.process.send_signal(signal.SIGINT)
    chat.wait("Ctrl-D or /quit leaves\n\n> ")
    chat.say("/rtry")
    chat.wait("no command /rtry: /help lists them")
    chat.say("/etc/hosts?")
    chat.wait("You said /etc/hosts?.")
    assert chat.leave() == 0


def test_one_message_and_going_on_with_the_thread(tmp_path: Path, gate: Gate) -> None:
    """`-M` prints the answer and exits; `--thread` goes on where it was."""
    first = pilothouse("chat", str(HELD), "-M", "hello", "--thread", "t1", cwd=tmp_path, env=gate.env)
    assert (first.returncode, first.stdout.strip()) == (0, "You said hello.")
    again = pilothouse("chat", str(HELD), "-M", "more", "--thread", "t1", cwd=tmp_path, env=gate.env)
    assert "You said hello." in again.stdout
    assert again.stdout.strip().endswith("You said more.")


def test_one_message_that_leads_to_a_question(tmp_path: Path) -> None:
    """Nobody is there to answer: it says how to come back to the question, and there it is asked again."""
    asking = str(HELD.with_name("asking.py"))
    first = pilothouse("chat", asking, "-M", "pay", cwd=tmp_path)
    assert first.returncode == 1
    said = first.stdout.strip().splitlines()[-1]
    assert said.startswith("it waits for an answer, which can be given later: --thread ")
    command = [sys.executable, "-m", "pilothouse", "chat", asking, *said.rpartition(": ")[2].split()]
    again = subprocess.run(
        command,
        cwd=tmp_path,
        env=clean_env(),
        input="y\n",
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (again.returncode, again.stderr.count("Traceback")) == (0, 0)
    assert "asks: May pay run? [y/n]" in again.stdout
    assert "That is done." in again.stdout


def test_ctrl_c_while_the_program_is_loaded_is_no_traceback(tmp_path: Path) -> None:
    """As if it came while the first package is imported."""
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    done = pilothouse("--version", cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (130, "")


def test_a_reader_that_leaves_stops_the_answer(tmp_path: Path, gate: Gate) -> None:
    """`pilothouse chat -M … | head`: no traceback, and what nobody reads is not written any further."""
    command = [sys.executable, "-m", "pilothouse", "chat", str(HELD), "--db", "chat.db", "-M", "hold on"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**clean_env(), **gate.env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdout.read(29) == b"You said hold on. First half."
        process.stdout.close()
        gate.open()
        assert process.stderr.read().decode().splitlines() == [f"agent {HELD}"]
        assert process.wait(30) == 1


def one_message(
    folder: Path,
    gate: Gate,
    target: Path,
    text: str,
    until: str,
    *,
    on_hangup: signal.Handlers = signal.SIG_DFL,
) -> subprocess.Popen[str]:
    """`pilothouse chat -M`, as far as this was printed."""
    with hangup(on_hangup):
        process = subprocess.Popen(
            [sys.executable, "-m", "pilothouse", "chat", str(target), "--db", "chat.db", "-M", text],
            cwd=folder,
            env={**clean_env(), **gate.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    seen = ""
    while until not in seen:
        seen += process.stdout.read(1)
    return process


@pytest.mark.parametrize(
    "asked", [[signal.SIGTERM], [signal.SIGHUP, signal.SIGHUP], [signal.SIGINT, signal.SIGTERM]]
)
def test_a_program_that_is_asked_to_end_stops_its_answer_on_the_record(
    tmp_path: Path, gate: Gate, asked: list[signal.Signals]
) -> None:
    """A service manager, or a terminal that is closed (the shell says it once more): RC-19, RC-39. No unknown outcome."""
    with one_message(tmp_path, gate, HELD, "hold on", "First half.") as process:
        for number in asked:
            process.send_signal(number)
        assert process.wait(30) == -asked[-1]
    listed = pilothouse("runs", "list", "--db", "chat.db", cwd=tmp_path).stdout.splitlines()[1].split("\t")
    assert listed[2] == "cancelled"
    assert (
        "You said hold on. First half."
        in pilothouse("runs", "show", listed[0], "--db", "chat.db", cwd=tmp_path).stdout
    )


def test_a_program_that_was_told_not_to_mind_its_terminal_goes_on(tmp_path: Path, gate: Gate) -> None:
    """`nohup pilothouse chat -M …`: SIGHUP changes nothing, the answer is whole."""
    process = one_message(tmp_path, gate, HELD, "hold on", "First half.", on_hangup=signal.SIG_IGN)
    with process:
        process.send_signal(signal.SIGHUP)
        gate.open()
        assert process.stdout.read().strip() == "Second half."
        assert process.wait(30) == 0


DEAF = """
import asyncio
import sys

sys.path.insert(0, {folder!r})
from held import HeldModel, wait
from pilothouse import AgentController, tool

@tool
async def ring_bell(times: int = 1) -> str:
    "Rings, and cannot be stopped."
    print("rings", flush=True)
    while True:
        try:
            await wait("tool")
        except asyncio.CancelledError:
            pass

agent = AgentController(HeldModel(), tools=[ring_bell])
"""


@pytest.mark.parametrize(("asked", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 1)])
def test_a_tool_that_ignores_its_end_does_not_hold_the_program(
    tmp_path: Path, gate: Gate, asked: signal.Signals, code: int
) -> None:
    """RC-40: the call is unknown, the run is cancelled, and the process is gone in bounded time."""
    target = tmp_path / "deaf.py"
    target.write_text(DEAF.format(folder=str(HELD.parent)))
    with one_message(tmp_path, gate, target, "ring the bell", "rings") as process:
        process.send_signal(asked)
        assert process.wait(40) == code
    listed = pilothouse("runs", "list", "--db", "chat.db", cwd=tmp_path).stdout.splitlines()[1].split("\t")
    assert listed[2] == "cancelled"


def test_a_lost_run_is_recovered_by_the_command_line(tmp_path: Path, gate: Gate) -> None:
    """`runs recover` goes on from the facts and prints the answer; the chain is intact afterwards."""
    served = Served(tmp_path, str(HELD), env=gate.env).start()
    chat = subprocess.Popen(
        [sys.executable, "-m", "pilothouse", "chat", str(HELD), "-M", "hold on", "--db", "crash.db"],
        cwd=tmp_path, env={**clean_env(), **gate.env}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    seen = ""
    while "First half." not in seen:
        seen += chat.stdout.read(1)
    chat.kill()
    chat.wait(20)
    chat.stdout.close()
    served.stop()
    listed = pilothouse("runs", "list", "--db", "crash.db", "--status", "unknown", cwd=tmp_path)
    run_id = listed.stdout.split("\n")[1].split()[0]
    gate.open()
    recovered = pilothouse(
        "runs", "recover", run_id[:10], str(HELD), "--db", "crash.db", cwd=tmp_path, env=gate.env
    )
    assert recovered.returncode == 0, recovered.stderr
    assert "Second half." in recovered.stdout
    assert "completed" in pilothouse("runs", "show", run_id, "--db", "crash.db", cwd=tmp_path).stdout
    verified = pilothouse("runs", "verify", "--db", "crash.db", cwd=tmp_path)
    assert (verified.returncode, "0 problems" in verified.stdout) == (0, True)


def test_help_says_what_each_command_is_for(tmp_path: Path) -> None:
    """Help texts name the arguments and what to expect."""
    whole = pilothouse("--help", cwd=tmp_path).stdout
    assert all(name in whole for name in ("serve", "chat", "runs", "decode", "record"))
    for command in (["serve"], ["chat"], ["decode"], ["record"], ["runs", "recover"], ["runs", "abandon"]):
        result = pilothouse(*command, "--help", cwd=tmp_path)
        assert result.returncode == 0
        assert "Usage" in result.stdout
    assert pilothouse("--version", cwd=tmp_path).stdout.startswith("pilothouse ")

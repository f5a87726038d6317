"""Bad input to the commands: one line that says what to do, exit code not 0, nothing lost (issue 2)."""

from __future__ import annotations

import socket
import sqlite3
from pathlib import Path

import pytest

from served import HELD, Gate, pilothouse


def refused(result, *words: str, code: int = 1) -> None:
    assert result.returncode == code, (result.returncode, result.stderr)
    lines = [line for line in result.stderr.splitlines() if line.startswith("pilothouse:")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in lines[0], lines[0]


def test_an_unknown_target(tmp_path: Path) -> None:
    refused(pilothouse("serve", "nowhere.py", cwd=tmp_path), "nowhere.py", "no such file")
    refused(pilothouse("serve", "no.such.module:agent", cwd=tmp_path), "no module named")
    (tmp_path / "empty.py").write_text("x = 1\n")
    refused(pilothouse("serve", "empty.py", cwd=tmp_path), "empty.py defines no 'agent'", "empty.py:NAME")
    refused(pilothouse("serve", "empty.py:mine", cwd=tmp_path), "empty.py defines no 'mine'")
    (tmp_path / "broken.py").write_text("import nothing_like_this\n")
    refused(pilothouse("chat", "broken.py", "-M", "hi", cwd=tmp_path), "broken.py cannot be loaded")
    (tmp_path / "wrong.py").write_text("agent = 3\n")
    refused(pilothouse("chat", "wrong.py", "-M", "hi", cwd=tmp_path), "must be an AgentController")
    (tmp_path / "script.py").write_text("import asyncio\nasyncio.run(asyncio.sleep(0))\n")
    refused(pilothouse("chat", "script.py", "-M", "hi", cwd=tmp_path), "under `if __name__ == '__main__':`")
    assert not [*tmp_path.glob("*.db*")]  # where no agent was loaded, no journal is left behind


def test_an_unknown_model_and_a_missing_key(tmp_path: Path) -> None:
    refused(
        pilothouse("chat", "-m", "gpt-5", "-M", "hi", cwd=tmp_path), "unknown model 'gpt-5'", "openai:NAME"
    )
    refused(pilothouse("chat", "-m", "openai:gpt-5", "-M", "hi", cwd=tmp_path), "OPENAI_API_KEY", "'local'")
    refused(pilothouse("chat", "-m", "local:missing.gguf", "-M", "hi", cwd=tmp_path), "missing.gguf")
    (tmp_path / "text.gguf").write_text("not a model")
    refused(pilothouse("chat", "-m", "local:text.gguf", "-M", "hi", cwd=tmp_path), "text.gguf")
    assert not [*tmp_path.glob("*.db*")]


def test_no_key_and_no_network(tmp_path: Path) -> None:
    """The local model cannot be fetched: the line names the ways out."""
    env = {"PILOTHOUSE_CACHE": str(tmp_path / "cache"), "UV_OFFLINE": "1", "PIP_NO_INDEX": "1"}
    env |= {
        "UV_NO_CACHE": "1",
        "UV_CACHE_DIR": str(tmp_path / "uv"),
        "PIP_FIND_LINKS": "",
        "UV_FIND_LINKS": "",
    }
    refused(pilothouse("chat", "-M", "hi", cwd=tmp_path, env=env), "local:/path/to.gguf")


def test_an_occupied_port(tmp_path: Path, gate: Gate) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = pilothouse("serve", str(HELD), "--port", port, "--no-open", cwd=tmp_path, env=gate.env)
    refused(result, port, "--port")


@pytest.mark.parametrize("command", ["serve", "chat"])
def test_a_database_that_cannot_be_used(tmp_path: Path, gate: Gate, command: str) -> None:
    """An unwritable place, a file that is no journal, a newer journal: told, and left untouched."""
    extra = ["-M", "hi"] if command == "chat" else ["--no-open", "--port", "0"]

    def run(db: str):
        return pilothouse(command, str(HELD), *extra, "--db", db, cwd=tmp_path, env=gate.env)

    refused(run("no/such/folder/chat.db"), "no/such/folder")
    (tmp_path / "text.db").write_text("this is no database, but it has more than sixteen bytes")
    before = (tmp_path / "text.db").read_bytes()
    refused(run("text.db"), "text.db")
    assert (tmp_path / "text.db").read_bytes() == before
    with sqlite3.connect(tmp_path / "foreign.db") as foreign:
        foreign.execute("CREATE TABLE mine(x)")
    foreign.close()
    before = (tmp_path / "foreign.db").read_bytes()
    refused(run("foreign.db"), "foreign.db")
    assert (tmp_path / "foreign.db").read_bytes() == before
    pilothouse("chat", str(HELD), "-M", "hello", "--db", "newer.db", cwd=tmp_path, env=gate.env)
    with sqlite3.connect(tmp_path / "newer.db") as newer:
        newer.execute("PRAGMA user_version = 9999")
    newer.close()
    refused(run("newer.db"), "newer")
    listed = pilothouse("runs", "list", "--db", "missing.db", cwd=tmp_path)
    refused(listed, "no journal at missing.db")
    assert not (tmp_path / "missing.db").exists()


def test_a_tool_with_an_unsupported_signature(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(
        "from pilothouse import AgentController, tool\n"
        "@tool\n"
        "def wrong(port):\n    'No annotation.'\n"
        "async def model(messages):\n    yield 'x'\n"
        "agent = AgentController(model)\n"
    )
    refused(pilothouse("chat", "tools.py", "-M", "hi", cwd=tmp_path), "wrong", "port")


def test_wrong_use_is_told_apart_from_failure(tmp_path: Path) -> None:
    assert pilothouse("serve", "--nonsense", cwd=tmp_path).returncode == 2
    refused(pilothouse("decode", "--dialect", "morse", "x.sse", cwd=tmp_path), "morse", "openai-chat")
    refused(pilothouse("decode", "--dialect", "anthropic", "x.sse", cwd=tmp_path), "cannot read x.sse")


def test_a_server_that_answers_html_or_500(tmp_path: Path) -> None:
    """A failed answer is told in one line, and the message stays in the thread."""
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    class Wrong(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            html = self.path.startswith("/html")
            body = b"<html><body>It works!</body></html>" if html else b"boom"
            self.send_response(200 if html else 500)
            self.send_header("content-type", "text/html" if html else "text/plain")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Wrong) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        (tmp_path / "agents.py").write_text(
            "from pilothouse import AgentController, LoopConfig, provider\n"
            "from pilothouse.loop.config import RetryPolicy\n"
            f"agent = AgentController(provider('{base}/500/v1#m'), config=LoopConfig(retry=RetryPolicy(attempts=1)))\n"
        )
        html = pilothouse("chat", "-m", f"{base}/html/v1#m", "-M", "hi", cwd=tmp_path)
        failed = pilothouse("chat", "agents.py", "-M", "hi", cwd=tmp_path)
        server.shutdown()
    for result in (html, failed):
        assert result.returncode == 1
        assert "Traceback" not in result.stderr + result.stdout
    assert "It works!" in html.stdout
    assert "500" in failed.stdout or "boom" in failed.stdout
    assert "failed" in pilothouse("runs", "list", cwd=tmp_path).stdout


def test_a_question_that_no_run_can_answer(tmp_path: Path, gate: Gate) -> None:
    """A status that does not exist, a run that has ended: told at once, before any model is looked for."""
    pilothouse("chat", str(HELD), "-M", "hello", "--db", "a.db", cwd=tmp_path, env=gate.env)
    refused(
        pilothouse("runs", "list", "--status", "done", "--db", "a.db", cwd=tmp_path), "completed", "'done'"
    )
    listed = pilothouse("runs", "list", "--status", "completed", "--db", "a.db", cwd=tmp_path)
    run_id = listed.stdout.splitlines()[1].split()[0]
    result = pilothouse("runs", "recover", run_id, "--db", "a.db", cwd=tmp_path)
    refused(result, run_id, "it has ended, completed")
    assert "local model" not in result.stderr


def test_an_address_for_other_machines(tmp_path: Path, gate: Gate) -> None:
    """The command has no sign-in: it says what has."""
    refused(
        pilothouse("serve", str(HELD), "--host", "0.0.0.0", cwd=tmp_path, env=gate.env), "0.0.0.0", "auth="
    )


def test_a_function_as_the_target(tmp_path: Path) -> None:
    """A function that yields text is an agent; one that makes agents is told who asks; anything else is one line."""
    (tmp_path / "parrot.py").write_text("async def agent(messages):\n    yield messages[-1].text.upper()\n")
    (tmp_path / "makes.py").write_text(
        "from pilothouse import AgentController\nfrom parrot import agent as parrot\n"
        "def agent(context): return AgentController(parrot)\n"
        "def none(context): return 3\ndef fails(context): return 1 / 0\ndef bare(): return 3\n"
    )
    for target in ("parrot.py", "makes.py"):
        said = pilothouse("chat", target, "-M", "hi", cwd=tmp_path)
        assert (said.returncode, said.stdout.strip()) == (0, "HI"), said.stderr
    refused(pilothouse("chat", "makes.py:none", "-M", "hi", cwd=tmp_path), "AgentController, got int")
    refused(pilothouse("chat", "makes.py:fails", "-M", "hi", cwd=tmp_path), "ZeroDivisionError")
    refused(pilothouse("serve", "makes.py:bare", "--no-open", cwd=tmp_path), "bare() must take one argument")

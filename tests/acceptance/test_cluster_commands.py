"""Web nodes and a worker as an operator starts them, over one Postgres: asked at one, followed at another, stopped, handed over."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from postgres_server import shared_dsn
from served import clean_env

AGENT = """
from pilothouse import AgentController
from pilothouse.clock import SystemClock
from pilothouse.testing import ScriptedProvider
from pilothouse.testing.scripted import Sleep

def answer(request):
    said = request.messages[-1].text
    if "slow" in said:
        return [piece for number in range(100) for piece in (f"{number} ", Sleep(0.05))]
    return [f"You said: {said}"]

agent = AgentController(ScriptedProvider(answer, repeat=True, clock=SystemClock()))
"""

pytestmark = pytest.mark.timeout(180)


class Process:
    """A command of ours that serves; it is ended by its pid."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pilothouse", *args],
            cwd=folder,
            env=clean_env(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                self.url = found[0]
                return
        raise AssertionError(f"{args[0]} ended with {self.process.wait()}: {self.lines}")

    def stop(self) -> int:
        """SIGTERM, and its end."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Waits for its end."""
        assert self.process.stderr is not None
        if not self.process.stderr.closed:
            self.lines += self.process.stderr.readlines()
            self.process.stderr.close()
        return self.process.wait(60)


class Site:
    """The processes of one test over a schema of its own."""

    def __init__(self, folder: Path) -> None:
        (folder / "agent.py").write_text(AGENT)
        self._folder = folder
        self._place = (
            "--db",
            f"{shared_dsn()}#s{uuid.uuid4().hex[:12]}",
            "--dispatch",
            "dbos",
            "--port",
            "0",
        )
        self.processes: list[Process] = []

    def worker(self) -> Process:
        return self._start("worker", "agent.py", *self._place, "--lease", "2")

    def web(self) -> Process:
        return self._start("serve", "agent.py", *self._place, "--no-open")

    def _start(self, *args: str) -> Process:
        self.processes.append(Process(self._folder, *args))
        return self.processes[-1]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for process in made.processes:
        if process.process.poll() is None:
            process.process.kill()
        process.wait()


def events(url: str, run_id: str) -> Iterator[dict]:
    """What a follower of the control API is given."""
    headers = {"accept": "text/event-stream"}
    with httpx2.stream("GET", f"{url}/v1/runs/{run_id}/events", headers=headers, timeout=60) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line[6:])


def begin(url: str, said: str) -> str:
    """A run in a thread of its own."""
    answer = httpx2.post(f"{url}/v1/runs", json={"agent": "default", "input": said}, timeout=30)
    assert answer.status_code == 201, answer.text
    return answer.json()["run_id"]


def test_asked_at_one_node_followed_and_stopped_at_another(site: Site) -> None:
    """Roles: any node follows and commands; the worker drives; its metrics count what it drove."""
    worker, one, two = site.worker(), site.web(), site.web()
    run_id = begin(one.url, "hello")
    seen = list(events(two.url, run_id))
    assert [item["run_seq"] for item in seen if item["type"] == "fact"] == list(range(1, 10))
    assert seen[-1]["status"] == "completed"
    assert "You said: hello" in json.dumps(seen)
    run_id = begin(two.url, "slow")
    for item in events(one.url, run_id):
        if item["type"] == "delta":
            answer = httpx2.post(f"{two.url}/v1/runs/{run_id}/cancel", json={"reason": "enough"}, timeout=30)
            assert answer.status_code == 200, answer.text
            break
    assert [item for item in events(one.url, run_id)][-1]["status"] == "cancelled"
    metrics = httpx2.get(f"{worker.url}/metrics", timeout=30).text
    assert re.search(r"pilothouse_runs_ended_total\{.*cancelled.*\} 1", metrics)
    assert "cancelled" not in httpx2.get(f"{one.url}/metrics", timeout=30).text
    assert httpx2.get(f"{worker.url}/readyz", timeout=30).status_code == 200
    assert httpx2.get(f"{worker.url}/v1/runs", timeout=30).status_code == 404
    assert [process.stop() for process in (one, two, worker)] == [0, 0, 0]


def test_a_worker_that_is_stopped_hands_over_to_the_next(site: Site) -> None:
    """A rolling deploy by SIGTERM, twice so that it hurries: the stream of a web node goes on to the run's end."""
    old, web = site.worker(), site.web()
    run_id = begin(web.url, "slow")
    seen = []
    for item in events(web.url, run_id):
        seen.append(item)
        if item["type"] == "delta" and len(site.processes) == 2:
            old.process.send_signal(signal.SIGTERM)
            while httpx2.get(f"{old.url}/readyz", timeout=30).status_code != 503:  # it drains
                pass
            old.process.send_signal(signal.SIGTERM)
            site.worker()
    assert old.wait() == 0
    facts = [item for item in seen if item["type"] == "fact"]
    assert [item["run_seq"] for item in facts] == list(range(1, len(facts) + 1))
    assert seen[-1]["status"] == "completed"
    assert "continuity_restored" in [item["kind"] for item in facts]


def test_the_journal_of_a_site_is_read_by_every_command(site: Site) -> None:
    """`pilothouse runs` works on Postgres as on a file; the password is not shown."""
    site.worker()
    web = site.web()
    run_id = begin(web.url, "hello")
    assert list(events(web.url, run_id))[-1]["status"] == "completed"
    place = site._place[:2]
    command = [sys.executable, "-m", "pilothouse", "runs"]
    for words, expected in (
        (("list",), "completed"),
        (("show", run_id), "You said: hello"),
        (("verify",), "1 run"),
    ):
        done = subprocess.run(
            [*command, *words, *place],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            env=clean_env(),
        )
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout
    assert not any("pilot@" in line for line in web.lines)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("serve", "agent.py", "--dispatch", "dbos"), "--db postgresql://"),
        (("worker", "agent.py"), "--db postgresql://"),
        (("serve", "agent.py", "--dispatch", "dbos", "--embedded"), "choose one"),
        (("worker", "agent.py", "--db", "postgresql://h/d", "--dispatch", "cron"), "dbos or temporal"),
        (("worker", "agent.py", "--db", "postgresql://h/d", "--rate", "fast"), "STARTS/SECONDS"),
        (("worker", "agent.py", "--host", "0.0.0.0"), "to this one alone"),
    ],
)
def test_what_does_not_go_together_is_said(tmp_path: Path, args: tuple[str, ...], said: str) -> None:
    """One line that says what to do, and nothing is left behind."""
    (tmp_path / "agent.py").write_text(AGENT)
    done = subprocess.run(
        [sys.executable, "-m", "pilothouse", *args],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env=clean_env(),
    )
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["agent.py"]

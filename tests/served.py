"""Pilothouse as a process, as a user starts it: `pilothouse serve`, killed, stopped, started again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Self

import httpx2

ROOT = Path(__file__).parents[1]
HELD = ROOT / "tests/acceptance/agents/held.py"


@contextmanager
def hangup(handler: signal.Handlers) -> Iterator[None]:
    """What processes that are started meanwhile do on SIGHUP: pytest's own ignores it where it was started so."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


class Served:
    """One `pilothouse serve`, from its first line to its end. A context manager: it is stopped on leaving."""

    def __init__(self, folder: Path, *args: str, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.args = args
        self.env = env or {}
        self.url = ""
        self.lines: list[str] = []
        self._queue: Queue[str | None] = Queue()
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> Self:
        """Starts it and waits for the line that says where the chat is."""
        self._queue = Queue()
        with hangup(signal.SIG_DFL):
            self.process = subprocess.Popen(
                self.command(),
                cwd=self.folder,
                env={**clean_env(), **self.env},
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
            )
        self._reader = Thread(target=self._read, args=(self.process, self._queue), daemon=True)
        self._reader.start()
        while (line := self.next_line(60)) is not None:
            if found := re.search(r"http://\S+", line):
                self.url = found[0].rstrip("/")
                return self
        raise AssertionError(f"serve ended with {self.process.wait()}: {self.lines}")

    def command(self) -> list[str]:
        """What is started."""
        command = [sys.executable, "-m", "pilothouse", "serve", *self.args]
        return [*command, "--db", str(self.folder / "chat.db"), "--port", "0", "--no-open"]

    @staticmethod
    def _read(process: subprocess.Popen[str], queue: Queue[str | None]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            queue.put(line.rstrip())
        queue.put(None)

    def next_line(self, seconds: float) -> str | None:
        """The next line that it says, None at its end."""
        try:
            line = self._queue.get(timeout=seconds)
        except Empty:
            raise AssertionError(f"serve says nothing more: {self.lines}") from None
        if line is not None:
            self.lines.append(line)
        return line

    def wait_saved(self, text: str) -> None:
        """Waits until a text is in the record: what was told less than `partial_interval` ago need not be (RC-19)."""
        with httpx2.Client(base_url=f"{self.url}/", timeout=30) as client:
            while True:
                for thread in client.get("v1/threads").json()["items"]:
                    if text in client.get(f"v1/threads/{thread['thread_id']}/messages").text:
                        return

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        assert self.process is not None
        self.process.kill()
        self._ended(20)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self._ended(45)

    def _ended(self, seconds: float) -> int:
        assert self.process is not None
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        if self.process.stderr is not None:
            self.process.stderr.close()
        return code

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        if self.process is not None:
            self.stop()


class Gate:
    """The test's side of the scripted agent: lets a wait go on, and reads what happened."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "gate"
        self.log = folder / "log"
        os.mkfifo(self.path)
        self.log.touch()
        self._fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)

    @property
    def env(self) -> dict[str, str]:
        return {"HELD_GATE": str(self.path), "HELD_LOG": str(self.log)}

    def open(self) -> None:
        os.write(self._fd, b".")

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def close(self) -> None:
        os.close(self._fd)


def clean_env() -> dict[str, str]:
    """The environment without keys, so that no test can reach a paid model."""
    return {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}


def pilothouse(*args: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A command, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "pilothouse", *args],
        cwd=cwd,
        env={**clean_env(), **(env or {})},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

"""Other people's clients under test: a Node process that drives one, and a proxy that breaks connections."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
from collections import deque
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, Self

FOREIGN = Path(__file__).parent / "foreign"


def clients() -> Path:
    """Where the clients are installed; installs them if they are not, or not as the lock file says.

    `./dev test` has done so before, where time does not count.
    """
    stamp, lock = FOREIGN / "node_modules/.package-lock.json", FOREIGN / "package-lock.json"
    if not stamp.exists() or stamp.stat().st_mtime < lock.stat().st_mtime:
        npm = shutil.which("npm")
        assert npm is not None, "the foreign clients need Node: ./dev test installs it"
        subprocess.run([npm, "ci", "--silent"], cwd=FOREIGN, check=True, timeout=300)
        stamp.touch()
    return FOREIGN


class Failed(AssertionError):
    """The client threw."""


class Client:
    """One client in a Node process of its own. A context manager."""

    def __init__(self, script: str, *args: str) -> None:
        node = shutil.which("node")
        assert node is not None, "the foreign clients need Node: ./dev test installs it"
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self.process = subprocess.Popen(
            [node, script, *args],
            cwd=clients(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._line()["ready"]

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the client ended with {self.process.wait()}"
        return json.loads(line)

    def __call__(self, op: str, **given: Any) -> Any:
        """Does something and returns what the client shows then.

        Raises:
            Failed: the client threw.
        """
        self._number += 1
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"id": self._number, "op": op, **given}) + "\n")
        self.process.stdin.flush()
        while (answer := self._answers.pop(self._number, None)) is None:
            line = self._line()
            self._answers[line["id"]] = line
        if "error" in answer:
            raise Failed(answer["error"])
        return answer["value"]

    def wait(self, **until: Any) -> Any:
        """Waits until what the client shows has these values; `text`: contains it anywhere."""
        return self("wait", until=until)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)
        self.process.stdout.close()


class CuttingProxy:
    """Passes bytes on, and resets connections behind as many frames as the test says.

    Attributes:
        cuts: for the next answers that are streams, behind how many frames each is cut; when empty, none is.
        streams: how many there were so far.
    """

    def __init__(self, url: str, *cuts: int) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self.target = (host, int(port))
        self.cuts = deque(cuts)
        self.streams = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            far = socket.create_connection(self.target)
            up = Thread(target=self._up, args=(near, far), daemon=True)
            up.start()
            Thread(target=self._down, args=(near, far, up), daemon=True).start()

    def _up(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while data := near.recv(65536):
                far.sendall(data)
        with suppress(OSError):
            far.shutdown(socket.SHUT_WR)

    def _down(self, near: socket.socket, far: socket.socket, up: Thread) -> None:
        left: int | None = None
        is_stream = False
        with suppress(OSError), near, far:
            while data := far.recv(65536):
                if not is_stream and b"text/event-stream" in data:
                    is_stream = True
                    self.streams += 1
                    left = self.cuts.popleft() if self.cuts else None
                if left is None:
                    near.sendall(data)
                    continue
                pieces = data.split(b"\ndata: ")
                if len(pieces) - 1 < left:
                    left -= len(pieces) - 1
                    near.sendall(data)
                    continue
                whole = b"\ndata: ".join(pieces[: left + 1])
                frame_end = whole.rfind(b"\n\n")
                near.sendall(data[: len(whole) if frame_end < 0 else max(frame_end + 2, 0)])
                # A reset, as by a proxy that dies. The socket is closed only when nobody reads from it any more.
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                near.shutdown(socket.SHUT_RD)
                up.join()
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._listening.close()

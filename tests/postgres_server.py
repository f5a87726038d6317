"""A real Postgres server for tests, on a socket in a folder of its own.

The machine's own binaries are used (`PATH`, then Debian's folders), else those of the package `pgserver`. With
`PILOTHOUSE_TEST_POSTGRES` set to a DSN that server is used instead, and is not killed.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def binaries() -> Path:
    """The folder with `initdb` and `postgres`."""
    folders = [
        Path(found).resolve().parent for name in ("postgres", "initdb") if (found := shutil.which(name))
    ]
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    spec = find_spec("pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError(
            "no Postgres server here: install Debian's `postgresql`, or the package `pgserver`"
        )
    package = Path(spec.origin).parent
    if os.geteuid() == 0:  # the server refuses root, and another user may not look into root's folders
        place = Path(tempfile.mkdtemp(prefix="pilothouse-postgres-bin-"))
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        for folder in (package, package.with_name("pgserver.libs")):
            if folder.exists():
                shutil.copytree(folder, place / folder.name, symlinks=True)
        place.chmod(0o755)
        package = place / package.name
    return package / "pginstall" / "bin"


def _server_user() -> str | None:
    """Postgres does not run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


class PostgresServer:
    """One server; `stop(hard=True)` is a `kill -9` of it, `start` brings it back with the same data."""

    def __init__(self, *, synced: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pilothouse-postgres-"))
        self._synced = synced
        self._user = _server_user()
        self._data = self.folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            entry = pwd.getpwnam(self._user)
            os.chown(self.folder, entry.pw_uid, entry.pw_gid)
        command = [
            binaries() / "initdb",
            "-D",
            self._data,
            "-A",
            "trust",
            "-U",
            "pilot",
            "-E",
            "UTF8",
            "--no-sync",
        ]
        subprocess.run(
            [*command, "--locale=C"],
            user=self._user,
            cwd="/",
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=60,
        )
        atexit.register(self.remove)
        self.start()

    @property
    def dsn(self) -> str:
        return f"postgresql://pilot@/postgres?host={self.folder}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        sync = "on" if self._synced else "off"
        command = [
            *(binaries() / "postgres", "-D", self._data, "-k", self.folder, "-h", ""),
            *("-c", f"fsync={sync}", "-c", "max_connections=300"),
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen([*command], user=self._user, cwd="/", stdout=log, stderr=log)
        ready = [binaries() / "pg_isready", "-q", "-h", self.folder]
        for _ in range(300):
            if subprocess.run([*ready], check=False, timeout=20).returncode == 0:
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError(f"Postgres did not start: {(self.folder / 'log').read_text()}")

    def stop(self, *, hard: bool = False) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(
            signal.SIGQUIT if hard else signal.SIGINT
        )  # immediate, or fast: clients are cut off
        process.wait(60)

    def remove(self) -> None:
        self.stop(hard=True)
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def shared_server() -> PostgresServer:
    """The server that all tests of this process use which do not stop it."""
    return PostgresServer()


@cache
def shared_dsn() -> str:
    return os.environ.get("PILOTHOUSE_TEST_POSTGRES") or shared_server().dsn

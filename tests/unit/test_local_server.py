"""What a local server knows before it loads anything, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from test_local_gguf import gguf

import pilothouse.local
from pilothouse.errors import UsageError
from pilothouse.local import LocalModelUnavailable, LocalServer, open_model
from pilothouse.local.server import default_threads


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some model.gguf"
    path.write_bytes(gguf())
    return path


def test_importing_the_package_loads_neither_llama_cpp_nor_asyncio() -> None:
    code = "import sys, pilothouse.local; print({'xllamacpp', 'asyncio', 'subprocess'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_each_name_of_the_package_is_there_and_no_other() -> None:
    for name in pilothouse.local.__all__:
        assert getattr(pilothouse.local, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pilothouse.local.nothing


def test_the_file_names_the_model_unless_the_host_does(file: Path) -> None:
    assert LocalServer(file).model == "Tiny"
    assert LocalServer(file, alias="mine").model == "mine"


def test_the_window_is_never_larger_than_what_the_model_was_trained_for(file: Path) -> None:
    assert LocalServer(file, context=1024).context_window == 1024
    assert LocalServer(file, context=1_000_000).context_window == 2048


def test_one_core_is_left_to_others() -> None:
    assert default_threads() >= 1
    assert LocalServer.__init__.__kwdefaults__["threads"] is None


def test_each_server_has_its_own_key(file: Path) -> None:
    assert LocalServer(file).api_key != LocalServer(file).api_key


def test_a_spec_is_local_or_local_with_a_path(file: Path) -> None:
    assert open_model(f"local:{file}").path == file
    for spec in ("", "local:", "localhost", "openai:gpt"):
        with pytest.raises(ValueError, match="neither 'local' nor"):
            open_model(spec)


def test_a_missing_file_and_a_wrong_one_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(LocalModelUnavailable, match="there is no file"):
        open_model(f"local:{tmp_path / 'nothing.gguf'}")
    (tmp_path / "page.gguf").write_text("<html>")
    with pytest.raises(LocalModelUnavailable, match="not a GGUF file"):
        LocalServer(tmp_path / "page.gguf")


def test_without_the_extra_the_text_says_how_to_install_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)  # how Python notes that a module is not there
    with pytest.raises(LocalModelUnavailable, match=r"pip install 'pilothouse\[local\]'"):
        LocalServer(file)
    monkeypatch.setenv("PILOTHOUSE_CACHE", str(file.parent / "cache"))
    heard: list[str] = []
    with pytest.raises(LocalModelUnavailable, match=r"llama\.cpp is not installed"):
        open_model("local", lambda text, _: heard.append(text))
    assert heard == []  # nothing was fetched for an engine that is not there


def test_there_is_no_address_before_the_start_and_no_start_after_the_close(file: Path) -> None:
    server = LocalServer(file)
    assert not server.running
    with pytest.raises(UsageError, match="before start"):
        _ = server.base_url
    server.close()
    server.close()
    with pytest.raises(UsageError, match="while closed"):
        server.start()

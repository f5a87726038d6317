"""A GGUF file says what it is before anything is loaded, and a wrong one is named as such."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from pilothouse.local.errors import LocalModelUnavailable
from pilothouse.local.gguf import read_header


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def gguf(*pairs: bytes, version: int = 3, template: str = "{{ messages }}", weights: int = 64) -> bytes:
    """A whole file with two tensors of 32 bytes each."""
    pairs = (
        pair("general.architecture", 8, text("llama")),
        pair("general.name", 8, text("Tiny")),
        *pairs,
        pair("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + text("a") + text("bc")),
        pair("tokenizer.ggml.scores", 9, struct.pack("<IQ", 6, 2) + bytes(8)),
        pair("tokenizer.nested", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 0, 3) + bytes(3)),
        pair("llama.context_length", 4, struct.pack("<I", 2048)),
        pair("tokenizer.chat_template", 8, text(template)),
    )
    head = b"GGUF" + struct.pack("<IQQ", version, 2, len(pairs)) + b"".join(pairs)
    for name, offset in (("one", 0), ("two", 32)):
        head += text(name) + struct.pack("<IQIQ", 1, 8, 0, offset)
    return head + bytes(-len(head) % 32) + bytes(weights)


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_the_head_tells_name_window_and_template(tmp_path: Path) -> None:
    header = read_header(written(tmp_path / "tiny.gguf", gguf()))
    assert (header.architecture, header.name, header.context_length) == ("llama", "Tiny", 2048)
    assert header.chat_template == "{{ messages }}"


def test_a_template_with_a_place_for_tools_is_seen(tmp_path: Path) -> None:
    assert not read_header(written(tmp_path / "a.gguf", gguf())).calls_tools
    assert read_header(written(tmp_path / "b.gguf", gguf(template="{% if tools %}"))).calls_tools


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a GGUF file"),
        (b"PK\x03\x04 a zip file", "not a GGUF file"),
        (b"GGUF", "cut off"),
        (gguf(version=1), "GGUF version 1"),
        (gguf(pair("odd", 99, b"")), "unknown type 99"),
        (gguf(weights=32), "cut off"),
    ],
)
def test_a_wrong_file_is_named_with_what_to_do(tmp_path: Path, data: bytes, says: str) -> None:
    with pytest.raises(LocalModelUnavailable, match=says) as caught:
        read_header(written(tmp_path / "wrong.gguf", data))
    assert "--model local:" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.path == tmp_path / "wrong.gguf"


def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    whole = gguf()
    for size in range(len(whole) - 32):
        with pytest.raises(LocalModelUnavailable):
            read_header(written(tmp_path / "cut.gguf", whole[:size]))


def test_a_missing_file_and_a_folder_are_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.gguf", tmp_path):
        with pytest.raises(LocalModelUnavailable, match="there is no file"):
            read_header(path)

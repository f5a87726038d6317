"""Artifacts in stored bodies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse.core.canonical import encode
from pilothouse.journal.blobs import named_in, reference
from pilothouse.messages import Image, Message, Text


@given(st.binary(max_size=50), st.text(max_size=30), st.text(max_size=30))
def test_every_artifact_of_a_body_is_found_and_text_is_none(data: bytes, media_type: str, text: str) -> None:
    """RC-71, JR-8: whatever the names hold; a text that looks like a reference is only a text."""
    ref = reference(data, media_type)
    quoted = encode(ref).decode()
    message = Message("m", "user", (Text(text), Text(quoted), ref, Image("image/png", artifact=ref)))
    scrubbed = encode(media_type).decode()
    assert [encode(kind).decode() for _, kind in named_in(encode(message))] == [scrubbed] * 2
    assert {digest for digest, _ in named_in(encode(message))} == {ref.digest}
    assert list(named_in(encode(Text(quoted)))) == []


@pytest.mark.parametrize(
    ("media_type", "preview"),
    [
        ("text/html; charset=utf-8", "<p>é"),
        ("application/json", "<p>é"),
        ("application/vnd.x+json", "<p>é"),
        ("application/octet-stream", ""),
        ("image/svg", ""),
    ],
)
def test_a_text_has_a_preview(media_type: str, preview: str) -> None:
    """RC-71: at most 2,000 characters, none cut in half."""
    assert reference("<p>é".encode(), media_type).preview == preview
    assert len(reference(b"x" * 9_000, media_type).preview) in (0, 2000)
    cut = reference(b"x" * 7_999 + "é".encode(), "text/plain")
    assert set(cut.preview) == {"x"}

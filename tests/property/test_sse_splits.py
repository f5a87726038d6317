"""Any split of the same bytes gives the same frames and the same response (PV-12)."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilothouse.core.sse import Frame, SSEReader
from pilothouse.providers.decode import DECODERS, decode
from wirekit import wire_cases

PIECES = st.sampled_from(
    [b"data: ", b"data:", b"data", b"event: x", b"id: 1", b": c", b"a", "日🌊".encode(), b" ", b"\n", b"\r", b"\r\n", b"\n\n", b"\xef\xbb\xbf"]
)  # fmt: skip


def read(chunks: list[bytes]) -> list[Frame]:
    reader = SSEReader()
    return [frame for chunk in chunks for frame in reader.feed(chunk)] + reader.finish()


def cut(body: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({at % (len(body) + 1) for at in cuts})
    return [body[a:b] for a, b in zip([0, *places], [*places, len(body)], strict=True)]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PIECES, max_size=30), st.lists(st.integers(0, 10**6), max_size=12))
def test_frames_do_not_depend_on_the_reads(pieces: list[bytes], cuts: list[int]) -> None:
    """Cuts inside characters, field names, between CR and LF, inside a byte-order mark."""
    body = b"".join(pieces)
    assert read(cut(body, cuts)) == read([body]) == read([body[at : at + 1] for at in range(len(body))])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(wire_cases(*DECODERS)), st.lists(st.integers(0, 10**6), max_size=30))
def test_responses_do_not_depend_on_the_reads(case, cuts: list[int]) -> None:
    """The whole summary, notices and figures included."""
    assert decode(case.dialect, cut(case.body, cuts), **case.options) == decode(
        case.dialect, case.body, **case.options
    )


# What may be the beginning of a tag is held back, and shown where nothing follows: no prefix of the whole.
UNTAGGED = [case for case in wire_cases(*DECODERS) if case.think_tags == "off"]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(UNTAGGED), st.integers(0, 10**6), st.sampled_from(["eof", "reset"]))
def test_a_cut_body_never_raises_and_never_gains(case, at: int, end: str) -> None:
    """A prefix of a body gives a prefix of its text, and runs no call that the whole does not have."""
    whole = decode(case.dialect, case.body, **case.options)
    part = decode(case.dialect, case.body[: at % (len(case.body) + 1)], **{**case.options, "end": end})
    assert whole["text"].startswith(part["text"])
    assert whole["reasoning"].startswith(part["reasoning"])
    if part["terminal"] == "tool_calls":
        assert part["tool_calls"] == whole["tool_calls"]

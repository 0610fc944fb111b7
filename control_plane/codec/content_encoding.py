"""Undoes the Content-Encoding of a request body within a limit (RFC 9110, 8.4).

Triton 24.10 takes a corrupt gzip body for raw input; here it is an error. What 128 KiB unpack to can be 128 MiB, so the
decoded body comes in pieces: whoever collects them can count them, and stop.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from control_plane.domain.errors import InvalidRequest, NotSupported, PayloadTooLarge

_AUTO_DETECT = zlib.MAX_WBITS | 32
"""zlib's window bits that accept both a gzip and a zlib ("deflate") header."""

_INPUT_BYTES = 256 * 1024
"""Fed at a time: zlib copies what it has not taken yet."""

_PIECE_BYTES = 1 << 20
"""A piece decoded: 2 to 5 ms."""


def is_encoded(encoding: bytes) -> bool:
    """Whether a body with this Content-Encoding must be decoded. Raises NotSupported for one that cannot be."""
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return False
    if name not in (b"gzip", b"deflate", b"x-gzip"):
        raise NotSupported(f"Content-Encoding {encoding.decode('latin-1')!r} is not supported; gzip, deflate and identity are")
    return True


def decoded_pieces(body: bytes | bytearray, *, max_bytes: int) -> Iterator[bytes]:
    """The decoded body of a gzip or deflate one, piece by piece.

    Raises:
        InvalidRequest: corrupt or cut off. PayloadTooLarge: more than `max_bytes` once decoded.
    """
    decoder, view, left = zlib.decompressobj(_AUTO_DETECT), memoryview(body), max_bytes
    for at in range(0, len(body), _INPUT_BYTES):
        feed: bytes | memoryview = view[at : at + _INPUT_BYTES]
        is_full = True
        while feed or is_full:  # a full piece may not be all that zlib has made of what it was fed
            room = min(_PIECE_BYTES, left + 1)
            piece = _decode(decoder, feed, room)
            is_full, feed = len(piece) == room, decoder.unconsumed_tail
            left -= len(piece)
            if left < 0:
                raise PayloadTooLarge(f"the decoded body exceeds {max_bytes} bytes")
            if piece:
                yield piece
            if decoder.eof and (decoder.unused_data or at + _INPUT_BYTES < len(body)):
                raise InvalidRequest("the compressed body is followed by other data")
    if not decoder.eof:
        raise InvalidRequest("the compressed body is cut off")


def decode_body(body: bytes | bytearray, encoding: bytes, *, max_bytes: int) -> bytes | bytearray:
    """The whole decoded body of one that came with this Content-Encoding. Raises as the other two."""
    return b"".join(decoded_pieces(body, max_bytes=max_bytes)) if is_encoded(encoding) else body


def _decode(decoder: zlib._Decompress, feed: bytes | memoryview, max_bytes: int) -> bytes:
    try:
        return decoder.decompress(feed, max_bytes)
    except zlib.error as exc:
        raise InvalidRequest(f"the body is not valid gzip or deflate: {exc}") from exc

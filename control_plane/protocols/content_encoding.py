"""Undoes the Content-Encoding of a body within a bound (RFC 9110, 8.4).

Triton 24.10 takes a corrupt gzip body for raw input; here it is an error.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from control_plane.core.errors import NotSupported
from control_plane.protocols.inflating import inflated_pieces
from control_plane.protocols.kserve.body_limits import InflateBound

_AUTO_DETECT = zlib.MAX_WBITS | 32
"""zlib's window bits that accept both a gzip and a zlib ("deflate") header."""


def is_encoded(encoding: bytes) -> bool:
    """Whether a body with this Content-Encoding must be decoded. Raises NotSupported for one that cannot be."""
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return False
    if name not in (b"gzip", b"deflate", b"x-gzip"):
        raise NotSupported(f"Content-Encoding {encoding.decode('latin-1')!r} is not supported; gzip, deflate and identity are")
    return True


def decoded_pieces(body: bytes | bytearray, bound: InflateBound) -> Iterator[bytes]:
    """The decoded body of a gzip or deflate one, piece by piece; as `inflated_pieces`."""
    return inflated_pieces(body, _AUTO_DETECT, "gzip or deflate", bound)


def decode_body(body: bytes | bytearray, encoding: bytes, bound: InflateBound) -> bytes | bytearray:
    """The whole decoded body of one that came with this Content-Encoding. Raises as the other two."""
    return b"".join(decoded_pieces(body, bound)) if is_encoded(encoding) else body

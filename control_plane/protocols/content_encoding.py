"""Decodes the Content-Encoding of a body, within a bound on its decoded size (RFC 9110, 8.4).

A corrupt gzip body is an error here; Triton 24.10 would compute with the corrupt bytes as raw input.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from control_plane.core.errors import NotSupported
from control_plane.protocols.inflating import inflated_pieces
from control_plane.protocols.kserve.requests.body_limits import InflateBound

_AUTO_DETECT = zlib.MAX_WBITS | 32
"""zlib's window bits that accept both a gzip and a zlib ("deflate") header."""


def is_encoded(encoding: bytes) -> bool:
    """Whether a body with this Content-Encoding must be decoded.

    Raises NotSupported: the encoding is unknown.
    """
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return False
    if name not in (b"gzip", b"deflate", b"x-gzip"):
        raise NotSupported(f"Content-Encoding {encoding.decode('latin-1')!r} is not supported; gzip, deflate and identity are")
    return True


def decoded_pieces(body: bytes | bytearray, bound: InflateBound) -> Iterator[bytes]:
    """Decode a gzip or deflate body piece by piece. Raises as `inflated_pieces` does."""
    return inflated_pieces(body, _AUTO_DETECT, "gzip or deflate", bound)

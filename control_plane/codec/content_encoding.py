"""Undoes the Content-Encoding of a request body within a limit (RFC 9110, 8.4).

Triton 24.10 takes a corrupt gzip body for raw input; here it is an error.
"""

from __future__ import annotations

import zlib

from control_plane.domain.errors import InvalidRequest, NotSupported, PayloadTooLarge

_AUTO_DETECT = zlib.MAX_WBITS | 32
"""zlib's window bits that accept both a gzip and a zlib ("deflate") header."""


def decode_body(body: bytes, encoding: bytes, *, max_bytes: int) -> bytes:
    """The decoded body of one that came with this Content-Encoding.

    Raises:
        NotSupported: an encoding other than gzip, deflate or identity.
        InvalidRequest: corrupt or cut off.
        PayloadTooLarge: more than `max_bytes` once decoded.
    """
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return body
    if name not in (b"gzip", b"deflate", b"x-gzip"):
        raise NotSupported(f"Content-Encoding {encoding.decode('latin-1')!r} is not supported; gzip, deflate and identity are")
    decoder = zlib.decompressobj(_AUTO_DETECT)
    try:
        decoded = decoder.decompress(body, max_bytes + 1)
    except zlib.error as exc:
        raise InvalidRequest(f"the body is not valid {name.decode()}: {exc}") from exc
    if len(decoded) > max_bytes:
        raise PayloadTooLarge(f"the decoded body exceeds {max_bytes} bytes")
    if not decoder.eof or decoder.unused_data:
        raise InvalidRequest(f"the {name.decode()} body is cut off or followed by other data")
    return decoded

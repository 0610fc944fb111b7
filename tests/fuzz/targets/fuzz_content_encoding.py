"""Content-Encoding: never more than the limit, and what is accepted is what the standard library makes of it."""

from __future__ import annotations

import gzip
import zlib

from tests.fuzz.harness import fuzz, instrumented

with instrumented():
    from control_plane.core.errors import InvalidRequest, NotSupported, PayloadTooLarge
    from control_plane.protocols.content_encoding import decoded_pieces, is_encoded
    from control_plane.protocols.kserve.requests.body_limits import InflateBound

LIMIT = 5000
BOUND = InflateBound(LIMIT, "too large")
ENCODINGS = (b"gzip", b"deflate", b"identity", b"")


def decode_body(body: bytes, encoding: bytes, bound: InflateBound) -> bytes:
    return b"".join(decoded_pieces(body, bound)) if is_encoded(encoding) else body


def check(data: bytes) -> None:
    kind, body = (data[0] % 8, data[1:]) if data else (0, b"")
    encoding = ENCODINGS[kind] if kind < len(ENCODINGS) else body[:8]
    packed = (gzip.compress(body, mtime=0) if kind == 4 else zlib.compress(body)) if kind in (4, 5) else body
    try:
        decoded = decode_body(packed, b"gzip" if kind in (4, 5) else encoding, BOUND)
    except (InvalidRequest, NotSupported, PayloadTooLarge):
        assert kind not in (4, 5) or len(body) > LIMIT, "what was just packed is refused"
        return
    if encoding.strip().lower() in (b"", b"identity") and kind not in (4, 5):
        assert decoded == body
        return
    assert len(decoded) <= LIMIT
    assert decoded == zlib.decompress(packed, zlib.MAX_WBITS | 32)


if __name__ == "__main__":
    fuzz(check)

"""Header blocks of HTTP/2 (HPACK, RFC 7541), made stateless so that equal bytes mean equal fields and can be
cached.

We announce a dynamic table of size 0. Once the peer has acknowledged that, its blocks no longer depend on
earlier ones, so a block that was decoded once is looked up: gRPC clients send the same block with every call.
The blocks that we send use no dynamic table either, so each is encoded once.
"""

from __future__ import annotations

from control_plane.core.algorithms.bounded_cache import BoundedCache
from control_plane.protocols.http2.frames import Code, Http2Error
from control_plane.protocols.http2.hpack import Fields as Fields
from control_plane.protocols.http2.hpack import HeaderListTooLarge, HpackReader

NO_TABLE = b"\x20"
"""Dynamic table size update to 0, before a connection's first block (RFC 7541, 6.3). A peer that allows no
table requires it (4.2)."""

_FIELD_BYTES = 130
"""Memory of a field's Python objects, without its text."""

_STATIC_INDEX = {
    (b":method", b"GET"): 2,
    (b":method", b"POST"): 3,
    (b":path", b"/"): 4,
    (b":scheme", b"http"): 6,
    (b":status", b"200"): 8,
}
_STATIC_NAME_INDEX = {b":authority": 1, b":path": 4, b":status": 8, b"content-type": 31, b"user-agent": 58}


KnownBlocks = BoundedCache[bytes, Fields]
"""Cache of decoded header blocks by their bytes, shared by all connections of one server or client."""

_MAX_FIELDS = 100
"""Limit of fields in one head; Envoy's default. A field costs more than its bytes show, and gRPC calls have
about ten."""

_BUILT = BoundedCache[Fields, bytes]()


def size_of(fields: Fields) -> int:
    """The fields' approximate size in memory, in bytes."""
    return sum(len(name) + len(value) + _FIELD_BYTES for name, value in fields)


class HeaderBlockTooLarge(Http2Error):
    """Error of a header block that is larger than allowed, or expands to more."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Code.ENHANCE_YOUR_CALM)


class HeaderDecoder:
    """Caching decoder of one connection's header blocks, which must come in order."""

    def __init__(self, known: KnownBlocks, *, max_bytes: int) -> None:
        self._known = known
        self._reader = HpackReader(max_bytes=max_bytes, max_fields=_MAX_FIELDS)
        self.is_stateless = False
        """Whether decoding is stateless: no block depends on earlier ones or affects later ones."""

    def forbid_table(self) -> None:
        """Forbid a dynamic table; to be called when the peer has acknowledged our SETTINGS."""
        # Its table may have entries until its next block begins with the change of size (RFC 7541, 4.2).
        self._reader.max_table_bytes = 0
        self.is_stateless = not self._reader.table_bytes

    @property
    def table_is_allowed(self) -> bool:
        """Whether the peer has not yet acknowledged that it may use no dynamic table."""
        return self._reader.max_table_bytes > 0

    def knows(self, block: bytes) -> bool:
        """Whether the block is cached, from any connection, and means the same on this one."""
        return self.is_stateless and self._known.get(block) is not None

    def decode(self, block: bytes) -> Fields:
        """Decode a complete block.

        Raises Http2Error, after which the connection's table is lost and it must be closed. HeaderBlockTooLarge loses nothing where
        no table is allowed.
        """
        is_stateless = self.is_stateless
        if is_stateless:  # and stays it, since the peer may have no table any more
            known = self._known.get(block)
            if known is not None:
                return known
        try:
            fields = self._reader.read(block)
        except HeaderListTooLarge as exc:
            raise HeaderBlockTooLarge(f"the header list is too large: {exc}") from exc
        except (IndexError, ValueError) as exc:
            raise Http2Error(f"the header block cannot be read: {exc}", Code.COMPRESSION_ERROR) from exc
        self.is_stateless = not self.table_is_allowed and not self._reader.table_bytes
        # As it was before this block, which a table may have been needed to read.
        if is_stateless:
            self._known.keep(block, fields, size_bytes=len(block) + size_of(fields))
        return fields


def encode_fields(fields: Fields) -> bytes:
    """Encode fields as a stateless header block, from a cache of blocks; for fields that recur."""
    block = _BUILT.get(fields)
    if block is None:
        block = encode_varying(fields)
        _BUILT.keep(fields, block, size_bytes=len(block) + size_of(fields))
    return block


def encode_varying(fields: Fields) -> bytes:
    """Encode fields without the cache: those that hardly recur would only displace others."""
    return b"".join(map(_encode_field, fields))


def _encode_field(field: tuple[bytes, bytes]) -> bytes:
    index = _STATIC_INDEX.get(field)
    if index is not None:
        return bytes((0x80 | index,))
    name, value = field
    name_index = _STATIC_NAME_INDEX.get(name)
    head = b"\x00" + _encode_string(name) if name_index is None else _encode_number(name_index, prefix_bits=4)
    return head + _encode_string(value)


def _encode_string(text: bytes) -> bytes:
    return _encode_number(len(text), prefix_bits=7) + text


def _encode_number(number: int, *, prefix_bits: int) -> bytes:
    limit = (1 << prefix_bits) - 1
    if number < limit:
        return bytes((number,))
    encoded = bytearray((limit,))
    number -= limit
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)

"""Header blocks of HTTP/2 (HPACK, RFC 7541), arranged so that equal bytes mean equal fields.

We announce a header table of size 0. From the peer's acknowledgement on, its blocks depend on nothing before them, so a
block that has been read once is looked up; gRPC clients send the same block with every call. What we send uses no
table at all, so that it too is built once.
"""

from __future__ import annotations

from control_plane.core.bounded_cache import BoundedCache
from control_plane.protocols.http2.frames import Code, Http2Error
from control_plane.protocols.http2.hpack import Fields as Fields
from control_plane.protocols.http2.hpack import HeaderListTooLarge, HpackReader

NO_TABLE = b"\x20"
"""Sent before a connection's first block: we use no table (RFC 7541, 6.3). A peer that allows none insists on being told."""

_FIELD_BYTES = 130
"""What the objects of a field take beside its text."""

_STATIC_INDEX = {
    (b":method", b"GET"): 2,
    (b":method", b"POST"): 3,
    (b":path", b"/"): 4,
    (b":scheme", b"http"): 6,
    (b":status", b"200"): 8,
}
_STATIC_NAME_INDEX = {b":authority": 1, b":path": 4, b":status": 8, b"content-type": 31, b"user-agent": 58}


KnownBlocks = BoundedCache[bytes, Fields]
"""Header blocks that were read, by their bytes; shared by the connections of one server or client."""

_MAX_FIELDS = 100
"""Of one head; Envoy's default. Each costs more than its bytes say, and gRPC's calls have about ten."""

_BUILT = BoundedCache[Fields, bytes]()


def size_of(fields: Fields) -> int:
    """About what they take in memory."""
    return sum(len(name) + len(value) + _FIELD_BYTES for name, value in fields)


class HeaderDecoder:
    """Reads one connection's header blocks, in order."""

    def __init__(self, known: KnownBlocks, *, max_bytes: int) -> None:
        self._known = known
        self._reader = HpackReader(max_bytes=max_bytes, max_fields=_MAX_FIELDS)

    def forbid_table(self) -> None:
        """To be called when the peer has acknowledged a header table of size 0."""
        self._reader.max_table_bytes = 0

    @property
    def depends_on_nothing(self) -> bool:
        """Whether a block means the same whatever came before it, and changes nothing for those behind it."""
        return self._reader.max_table_bytes == self._reader.table_bytes == 0

    @property
    def may_have_table(self) -> bool:
        """Whether the peer has not acknowledged yet that there is none."""
        return self._reader.max_table_bytes > 0

    def knows(self, block: bytes) -> bool:
        """Whether it was read before, on any connection, and means the same here."""
        return self.depends_on_nothing and self._known.get(block) is not None

    def decode(self, block: bytes) -> Fields:
        """The fields of a whole block. Raises Http2Error: the connection's state is lost with it."""
        depends_on_nothing = self.depends_on_nothing
        if depends_on_nothing:
            known = self._known.get(block)
            if known is not None:
                return known
        try:
            fields = self._reader.read(block)
        except HeaderListTooLarge as exc:
            raise Http2Error(f"the header list is too large: {exc}", Code.ENHANCE_YOUR_CALM) from exc
        except (IndexError, ValueError) as exc:
            raise Http2Error(f"the header block cannot be read: {exc}", Code.COMPRESSION_ERROR) from exc
        if depends_on_nothing:
            self._known.keep(block, fields, size_bytes=len(block) + size_of(fields))
        return fields


def encode_fields(fields: Fields) -> bytes:
    """A header block of literals that neither use nor change the peer's table."""
    block = _BUILT.get(fields)
    if block is None:
        block = encode_varying(fields)
        _BUILT.keep(fields, block, size_bytes=len(block) + size_of(fields))
    return block


def encode_varying(fields: Fields) -> bytes:
    """As `encode_fields`, for fields that hardly come again."""
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

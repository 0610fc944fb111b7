"""Header blocks of HTTP/2 (HPACK, RFC 7541), arranged so that equal bytes mean equal fields.

We announce a header table of size 0. From the peer's acknowledgement on, its blocks depend on nothing before them, so a
block that has been read once is looked up; gRPC clients send the same block with every call. What we send uses no
table at all, so that it too is built once.
"""

from __future__ import annotations

from functools import lru_cache

import hpack

from control_plane.codec.http2_frames import Code, Http2Error

Fields = tuple[tuple[bytes, bytes], ...]
"""Names in lower case, as HTTP/2 has them."""

NO_TABLE = b"\x20"
"""Sent before a connection's first block: we use no table (RFC 7541, 6.3). A peer that allows none insists on being told."""

_SIZE_UPDATES = tuple(bytes((first,)) for first in range(0x20, 0x40))
"""How a block begins that changes the table's size, which it must do each time that it comes."""

_MAX_KNOWN_BLOCKS = 2048
_MAX_KNOWN_BYTES = 2048
_MAX_KNOWN_FIELDS = 64
"""Of a block that is kept; with the number of them this bounds what peers can make us keep to some MB."""

_STATIC_INDEX = {
    (b":method", b"GET"): 2,
    (b":method", b"POST"): 3,
    (b":path", b"/"): 4,
    (b":scheme", b"http"): 6,
    (b":status", b"200"): 8,
}
_STATIC_NAME_INDEX = {b":authority": 1, b":path": 4, b":status": 8, b"content-type": 31, b"user-agent": 58}


class KnownBlocks:
    """Header blocks that were read, by their bytes; shared by the connections of one server or client."""

    def __init__(self) -> None:
        self._fields: dict[bytes, Fields] = {}

    def get(self, block: bytes) -> Fields | None:
        return self._fields.get(block)

    def keep(self, block: bytes, fields: Fields) -> None:
        if len(block) > _MAX_KNOWN_BYTES or len(fields) > _MAX_KNOWN_FIELDS:
            return
        if len(self._fields) >= _MAX_KNOWN_BLOCKS:
            self._fields.clear()
        self._fields[block] = fields


class HeaderDecoder:
    """Reads one connection's header blocks, in order."""

    def __init__(self, known: KnownBlocks, *, max_bytes: int) -> None:
        self._known = known
        self._decoder = hpack.Decoder(max_header_list_size=max_bytes)

    def forbid_table(self) -> None:
        """To be called when the peer has acknowledged a header table of size 0."""
        self._decoder.max_allowed_table_size = 0

    def decode(self, block: bytes) -> Fields:
        """The fields of a whole block. Raises Http2Error: the connection's state is lost with it."""
        decoder = self._decoder
        depends_on_nothing = decoder.max_allowed_table_size == decoder.header_table_size == 0
        if depends_on_nothing:
            known = self._known.get(block)
            if known is not None:
                return known
        try:
            fields = tuple((bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True))
        except hpack.OversizedHeaderListError as exc:
            raise Http2Error(f"the header list is too large: {exc}", Code.ENHANCE_YOUR_CALM) from exc
        except (hpack.HPACKError, IndexError, ValueError) as exc:
            raise Http2Error(f"the header block cannot be read: {exc}", Code.COMPRESSION_ERROR) from exc
        if depends_on_nothing and not block.startswith(_SIZE_UPDATES):
            self._known.keep(block, fields)
        return fields


@lru_cache(maxsize=_MAX_KNOWN_BLOCKS)
def encode_fields(fields: Fields) -> bytes:
    """A header block of literals that neither use nor change the peer's table."""
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

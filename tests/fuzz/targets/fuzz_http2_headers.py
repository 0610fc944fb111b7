"""Header blocks: any bytes are fields or a protocol error, remembered blocks mean the same, and ours can be read."""

from __future__ import annotations

import hpack

from tests.fuzz.harness import fuzz, instrumented

with instrumented():
    from control_plane.protocols.http2.frames import Http2Error
    from control_plane.protocols.http2.headers import Fields, HeaderDecoder, KnownBlocks, encode_fields


def check(data: bytes) -> None:
    """The first byte says how many blocks the rest is, and when the table is forbidden."""
    mark, rest = (data[0], data[1:]) if data else (0, b"")
    count = 1 + mark % 4
    blocks = [rest[at * len(rest) // count : (at + 1) * len(rest) // count] for at in range(count)]
    forbidden_from = mark // 4 % 4
    known = KnownBlocks()
    first, second = (read(blocks, known, forbidden_from) for _ in range(2))
    assert first == second == read(blocks, KnownBlocks(), forbidden_from)
    peers = peers_reading(blocks, forbidden_from)
    for number, fields in enumerate(first):
        if fields is not None:
            assert fields == peers[number]
            assert_ours_is_read(fields)


def read(blocks: list[bytes], known: KnownBlocks, forbidden_from: int) -> list[Fields | None]:
    """Return the fields of each block on one connection, None and the end where one is refused."""
    decoder, seen = HeaderDecoder(known, max_bytes=16 << 10), []
    for number, block in enumerate(blocks):
        if number == forbidden_from:
            decoder.forbid_table()
        try:
            seen.append(decoder.decode(block))
        except Http2Error as exc:
            str(exc).encode()
            return [*seen, None]
    return seen


def peers_reading(blocks: list[bytes], forbidden_from: int) -> list[Fields]:
    """The fields of each block as another library reads them, up to one that it refuses."""
    decoder, seen = hpack.Decoder(max_header_list_size=1 << 20), []
    for number, block in enumerate(blocks):
        if number == forbidden_from:
            decoder.max_allowed_table_size = decoder.header_table_size = 0  # whether or not the peer says so
        try:
            seen.append(tuple((bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)))
        except (hpack.HPACKError, IndexError, ValueError):
            break
    return seen


def assert_ours_is_read(fields: Fields) -> None:
    """By a decoder that has no table, and as exactly these fields."""
    decoder = hpack.Decoder(max_header_list_size=1 << 20)
    decoder.max_allowed_table_size = 0
    decoder.header_table_size = 0
    assert tuple((bytes(name), bytes(value)) for name, value in decoder.decode(encode_fields(fields), raw=True)) == fields


if __name__ == "__main__":
    fuzz(check)

"""Huffman decoder of HPACK (RFC 7541, 5.2 and appendix B), which consumes a byte at a time.

The table in the library `hpack` consumes half a byte at a time, at a fifth of a microsecond a byte, and a
peer may send 16 KB of it in one block. The rows here are built from that table and take a third of the time.
Used by `protocols/http2/hpack`.
"""

from __future__ import annotations

from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE

_Half = tuple[int, int, int]
"""An entry of the library's table: the next state, flags, and the symbol that is complete."""
_Step = tuple[int, bytes | None, bool]
"""The next state, the symbols that are complete (None: invalid code), and whether the string may end here."""

_ROWS: list[list[_Step]] = []
"""The transition table: steps by state, then by the next byte."""


def prepare() -> None:
    """Build the table, which takes 50 ms; to be called before the first client is served.

    Built lazily, it would delay all clients at the moment when one of them sends the first coded string.
    """
    if not _ROWS:
        _ROWS.extend(map(_make_row, range(len(HUFFMAN_TABLE) // 16)))


def decode_huffman(coded: bytes) -> bytes:
    """Decode a string. Raises ValueError: it contains an invalid code, or ends within one."""
    prepare()
    rows, state, may_end = _ROWS, 0, True
    pieces: list[bytes] = []
    for byte in coded:
        state, piece, may_end = rows[state][byte]
        if piece is None:
            raise ValueError("what is no code of Huffman's")
        pieces.append(piece)
    if not may_end:
        raise ValueError("a string in Huffman's code that ends within a code")
    return b"".join(pieces)


def _make_row(state: int) -> list[_Step]:
    highs = HUFFMAN_TABLE[state * 16 : state * 16 + 16]
    return [_step(high, low) for high in highs for low in HUFFMAN_TABLE[high[0] * 16 : high[0] * 16 + 16]]


def _step(high: _Half, low: _Half) -> _Step:
    if (high[1] | low[1]) & HUFFMAN_FAIL:
        return 0, None, False
    ended = bytes([symbol for _, flags, symbol in (high, low) if flags & HUFFMAN_EMIT_SYMBOL])
    return low[0], ended, bool(low[1] & HUFFMAN_COMPLETE)

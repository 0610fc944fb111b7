"""Huffman's code of HPACK (RFC 7541, 5.2 and appendix B), read a byte at a time.

hpack's table moves on by half bytes, which costs a fifth of a microsecond a byte; a peer may send 16 KB of it in one block. The rows here
are made from that table and take a third of the time. Used by `protocols/http2/hpack`.
"""

from __future__ import annotations

from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE

_Half = tuple[int, int, int]
"""Of hpack's: the next state, flags, the symbol that ends."""
_Step = tuple[int, bytes | None, bool]
"""The next state, what ends (None: there is no such code), and whether the string may end there."""

_ROWS: list[list[_Step]] = []
"""By state, and by the next byte."""


def prepare() -> None:
    """Make the table, which takes 50 ms: before anybody is served, or one block that goes through all states holds everybody up."""
    if not _ROWS:
        _ROWS.extend(map(_make_row, range(len(HUFFMAN_TABLE) // 16)))


def decode_huffman(coded: bytes) -> bytes:
    """The string. Raises ValueError: it holds what is no code, or ends within one."""
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

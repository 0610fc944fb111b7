"""Huffman decoder of HPACK (RFC 7541, 5.2 and appendix B), which consumes a byte at a time.

The table in the library `hpack` consumes half a byte at a time, at a fifth of a microsecond a byte, and a
peer may send 16 KB of it in one block. The rows here are built from that table and take a third of the time.
Used by `protocols/http2/hpack`.
"""

from __future__ import annotations

from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE

_Step = tuple[int, bytes | None, bool]
"""The next state, the symbols that are complete (None: invalid code), and whether the string may end here."""

_INVALID: _Step = (0, None, False)

_ROWS: list[list[_Step]] = []
"""The transition table: steps by state, then by the next byte."""


def prepare() -> None:
    """Build the table, which takes 10 ms; to be called before the first client is served.

    Built lazily, it would delay all clients at the moment when one of them sends the first coded string.
    """
    if not _ROWS:
        steps = [_half_step(*each) for each in HUFFMAN_TABLE]
        halves = [steps[at : at + 16] for at in range(0, len(steps), 16)]
        _ROWS.extend(_make_row(row, halves) for row in halves)


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


def _half_step(state: int, flags: int, symbol: int) -> _Step:
    """An entry of the library's table, which is of half a byte."""
    if flags & HUFFMAN_FAIL:
        return _INVALID
    return state, bytes([symbol]) if flags & HUFFMAN_EMIT_SYMBOL else b"", bool(flags & HUFFMAN_COMPLETE)


def _make_row(highs: list[_Step], halves: list[list[_Step]]) -> list[_Step]:
    row: list[_Step] = []
    for state, piece, _ in highs:
        if piece is None:
            row += 16 * [_INVALID]
        elif piece:
            row += [_INVALID if more is None else (after, piece + more, may_end) for after, more, may_end in halves[state]]
        else:
            row += halves[state]
    return row

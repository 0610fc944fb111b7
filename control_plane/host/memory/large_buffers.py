"""Large buffers given back to the kernel in steps, so that nobody waits for it.

To unmap 128 MB takes the kernel 10 ms, and a bytearray is freed in one go: for so long the event loop would serve
nobody. Used by the frontends for the bodies of requests.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import sys

LARGE_BYTES = 8 * 2**20
"""Buffers from which on it pays: less is unmapped within half a millisecond."""

_STEP_BYTES, _PAUSE_S = 2 * 2**20, 0.001
"""The pages of so many bytes are given back in 0.15 ms, and others have the loop for a millisecond after that: 2 GB/s."""

_C = ctypes.CDLL(None)


def _references(holder: list[bytearray]) -> int:
    return sys.getrefcount(holder[0])


_SOLE = _references([bytearray(1)])
"""Count of references to a buffer that only its list has."""


def free_in_steps(holder: list[bytearray]) -> bool:
    """Free the buffer in this list, and empty the list. False: it is small, or somebody else has it, too, and it is freed
    as ever, with its last reference."""
    if len(holder[0]) < LARGE_BYTES or _references(holder) != _SOLE:
        holder.clear()
        return False
    _Freeing(holder.pop()).step()
    return True


class _Freeing:
    """Buffer that nobody reads any more, of which page after page is given back (madvise(2), MADV_DONTNEED)."""

    def __init__(self, buffer: bytearray) -> None:
        first = ctypes.c_char.from_buffer(buffer)  # keeps the buffer, where it is
        self._first: ctypes.c_char | None = first
        address = ctypes.addressof(first)
        # Whole pages only: what shares the first and the last with the buffer stays.
        self._at = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        self._end = (address + len(buffer)) // mmap.PAGESIZE * mmap.PAGESIZE

    def step(self) -> None:
        size_bytes = min(_STEP_BYTES, self._end - self._at)
        _C.madvise(ctypes.c_void_p(self._at), ctypes.c_size_t(size_bytes), mmap.MADV_DONTNEED)
        self._at += size_bytes
        if self._at < self._end:
            asyncio.get_running_loop().call_later(_PAUSE_S, self.step)
        else:
            self._first = None

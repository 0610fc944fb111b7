"""Program that answers Triton in place of a Python stub that has died, where Triton (24.10) would wait for
the stub for ever.

python -I -S abandoned_load.py /dev/shm/REGION

Exit status 0: it has answered; 1: Triton was not waiting. It is a process of its own, since a region that is
truncated kills (SIGBUS) whichever process reads it.

While a stub starts, and while it completes its model's configuration, Triton waits for its messages without a
limit. Such a load cannot be cancelled, an unload of the model hangs as well, and four of them occupy all
threads that Triton loads with. But Triton waits on a queue in shared memory, into which any process of the
same user can put a message. The first message is only a sign of life. As the second, Triton gets its own
question back, reports that this was unexpected, and gives the load up, which leaves nothing behind.
Alternatives that were rejected: a restart of Triton costs all other models; another stub in the dead one's
place tears down what the two share while Triton does so too, which ended Triton in one of three tries.

Offsets are those of server 24.10 (64 bits, glibc). Each is checked before anything is written: in a region of
another layout nothing is done.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import struct
import sys
from pathlib import Path

_CONTROL = 352
"""Offset of the control block, the first allocation in a region, by which Triton and the stub find everything
else.
"""
_TO_STUB, _TO_TRITON = _CONTROL + 88, _CONTROL + 96
"""Offsets of the pointers to the two queues."""

# Offsets within a queue: two semaphores (free slots, messages), a mutex, its capacity, its buffer, and the
# index of the next write.
_ROOM, _WAITING, _LOCK, _SIZE, _BUFFER, _HEAD = 16, 48, 80, 120, 128, 136
_HEADER = 16
"""Bytes of the header before the data of each allocation."""
_QUEUE_SIZE = 1000
_SHARED_ROBUST = 144
"""Kind of the mutex (PTHREAD_MUTEX_ROBUST_NP | PTHREAD_PROCESS_SHARED), at byte 16 of it."""

_libc = ctypes.CDLL(None, use_errno=True)


def answer(region: Path) -> bool:
    """Answer Triton if it waits for a message of the stub in this region; return whether it did.

    The stub must be gone. Call it again after a moment: a load takes one or two answers.
    """
    try:
        with region.open("r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
            return _answer(shared)
    except (OSError, ValueError, struct.error):  # the region has just gone, or has another layout
        return False


def _answer(shared: mmap.mmap) -> bool:
    to_stub, to_triton = _long(shared, _TO_STUB), _long(shared, _TO_TRITON)
    if not (_is_queue(shared, to_stub) and _is_queue(shared, to_triton) and _is_awaited(shared, to_triton)):
        return False
    asked = _int(shared, to_stub + _HEAD)
    question = _long(shared, _slot(shared, to_stub, asked - 1)) if asked else 0
    return _put(shared, to_triton, question)


def _is_queue(shared: mmap.mmap, queue: int) -> bool:
    if queue <= 0 or queue % 8:
        return False
    return _long(shared, queue + _SIZE) == _QUEUE_SIZE and _int(shared, queue + _LOCK + 16) == _SHARED_ROBUST


def _is_awaited(shared: mmap.mmap, queue: int) -> bool:
    """Whether Triton waits for a message: glibc's semaphores have their value in the lower half, the number
    of waiters in the upper.
    """
    value = _long(shared, queue + _WAITING)
    return value >> 32 > 0 and value & 0xFFFFFFFF == 0


def _put(shared: mmap.mmap, queue: int, message: int) -> bool:
    """Put a message into the queue in the way Triton's own code does; never wait, since the other side may
    hold the lock.
    """
    at = ctypes.c_char.from_buffer(shared)
    address = ctypes.addressof(at)
    try:
        if _libc.sem_trywait(ctypes.c_void_p(address + queue + _ROOM)) != 0:
            return False
        if not _lock(address + queue + _LOCK):
            _libc.sem_post(ctypes.c_void_p(address + queue + _ROOM))
            return False
        head = _int(shared, queue + _HEAD)
        struct.pack_into("<q", shared, _slot(shared, queue, head), message)
        struct.pack_into("<i", shared, queue + _HEAD, (head + 1) % _QUEUE_SIZE)
        _libc.pthread_mutex_unlock(ctypes.c_void_p(address + queue + _LOCK))
        _libc.sem_post(ctypes.c_void_p(address + queue + _WAITING))
        return True
    finally:
        del at  # an exported pointer would keep the region from being closed


def _lock(address: int) -> bool:
    """Take the mutex, also if the stub died while it held it; False if somebody else holds it."""
    result = _libc.pthread_mutex_trylock(ctypes.c_void_p(address))
    if result == errno.EOWNERDEAD:
        result = _libc.pthread_mutex_consistent(ctypes.c_void_p(address))
    return bool(result == 0)


def _slot(shared: mmap.mmap, queue: int, number: int) -> int:
    return _long(shared, queue + _BUFFER) + _HEADER + 8 * (number % _QUEUE_SIZE)


def _long(shared: mmap.mmap, at: int) -> int:
    return int(struct.unpack_from("<q", shared, at)[0])


def _int(shared: mmap.mmap, at: int) -> int:
    return int(struct.unpack_from("<i", shared, at)[0])


if __name__ == "__main__":
    sys.exit(0 if answer(Path(sys.argv[1])) else 1)

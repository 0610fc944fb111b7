"""Answering in place of a dead stub, in a region with Triton 24.10's layout, where a process waits as Triton
would.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from control_plane.triton.embedded.watchdogs import abandoned_load
from tests.unit.triton.embedded.waiting import wait_for

QUESTION = 41456

_TRITON = """
import ctypes, mmap, struct, sys
libc = ctypes.CDLL(None)
with open(sys.argv[1], "r+b") as file:
    shared = mmap.mmap(file.fileno(), 0)
base = ctypes.addressof(ctypes.c_char.from_buffer(shared))
at = lambda offset: ctypes.c_void_p(base + offset)

def queue(where, buffer):
    libc.sem_init(at(where + 16), 1, 1000)
    libc.sem_init(at(where + 48), 1, 0)
    kind = (ctypes.c_char * 64)()
    libc.pthread_mutexattr_init(kind), libc.pthread_mutexattr_setpshared(kind, 1), libc.pthread_mutexattr_setrobust(kind, 1)
    libc.pthread_mutex_init(at(where + 80), kind)
    struct.pack_into("<qq", shared, where + 120, 1000, buffer)

def put(where, message):
    libc.sem_wait(at(where + 16))
    buffer, head = struct.unpack_from("<q", shared, where + 128)[0], struct.unpack_from("<i", shared, where + 136)[0]
    struct.pack_into("<q", shared, buffer + 16 + 8 * head, message)
    struct.pack_into("<i", shared, where + 136, head + 1)
    libc.sem_post(at(where + 48))

def take(where):
    libc.sem_wait(at(where + 48))
    buffer, tail = struct.unpack_from("<q", shared, where + 128)[0], struct.unpack_from("<i", shared, where + 140)[0]
    struct.pack_into("<i", shared, where + 140, tail + 1)
    libc.sem_post(at(where + 16))
    return struct.unpack_from("<q", shared, buffer + 16 + 8 * tail)[0]

TO_STUB, TO_TRITON = 496, 8688
struct.pack_into("<qq", shared, 440, TO_STUB, TO_TRITON)
queue(TO_STUB, 656), queue(TO_TRITON, 8848)
if "died with the lock" in sys.argv:
    import os
    if os.fork() == 0:
        libc.pthread_mutex_lock(at(TO_TRITON + 80))
        os._exit(1)
    os.wait()
if "is a queue of nobody's" in sys.argv:
    print("waits", flush=True)
    sys.exit(sys.stdin.read(1) == "")
print("waits", flush=True)
print(take(TO_TRITON), flush=True)
put(TO_STUB, int(sys.argv[2]))
print(take(TO_TRITON), flush=True)
"""


@contextmanager
def waiting(region: Path, *how: str) -> Iterator[subprocess.Popen[str]]:
    region.write_bytes(bytes(1 << 20))
    program = [sys.executable, "-c", _TRITON, str(region), str(QUESTION), *how]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as triton:
        try:
            assert triton.stdout is not None
            assert triton.stdout.readline() == "waits\n"
            yield triton
        finally:
            triton.kill()


@pytest.mark.parametrize("how", [(), ("died with the lock",)], ids=["plainly", "whose lock the stub has died with"])
def test_triton_gets_a_sign_of_life_and_then_its_own_question(tmp_path: Path, how: tuple[str, ...]) -> None:
    with waiting(tmp_path / "region", *how) as triton:
        assert triton.stdout is not None
        for expected in ("0\n", f"{QUESTION}\n"):
            wait_for(lambda: abandoned_load.answer(tmp_path / "region"), "somebody who waits", within_s=30)
            assert triton.stdout.readline() == expected
        assert triton.wait(timeout=30) == 0
        assert not abandoned_load.answer(tmp_path / "region"), "nobody waits any more"


def test_as_a_program_it_says_whether_it_has_answered(tmp_path: Path) -> None:
    def answers() -> bool:
        return subprocess.run([sys.executable, "-I", "-S", abandoned_load.__file__, str(tmp_path / "region")]).returncode == 0

    with waiting(tmp_path / "region") as triton:
        wait_for(answers, "somebody who waits", within_s=30)
        assert triton.stdout is not None
        assert triton.stdout.readline() == "0\n"
    (tmp_path / "region").unlink()
    assert not answers()


def test_where_nobody_waits_nothing_is_written(tmp_path: Path) -> None:
    with waiting(tmp_path / "region", "is a queue of nobody's"):
        before = (tmp_path / "region").read_bytes()
        assert not abandoned_load.answer(tmp_path / "region")
        assert (tmp_path / "region").read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"x" * 100, id="too short"),
        pytest.param(bytes(1 << 20), id="zeros"),
        pytest.param(b"\xff" * (1 << 20), id="ones"),
        pytest.param(bytes(440) + b"\x00\x10\x00\x00\x00\x00\x00\x00" * 1000, id="queues that are none"),
        pytest.param(bytes(440) + b"\xf0\xff\xff\xff\x00\x00\x00\x00" * 1000, id="queues beyond the end"),
    ],
)
def test_what_is_no_region_of_this_kind_is_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "region").write_bytes(content)
    assert not abandoned_load.answer(tmp_path / "region")
    assert (tmp_path / "region").read_bytes() == content


def test_one_that_has_gone_is_no_error(tmp_path: Path) -> None:
    assert not abandoned_load.answer(tmp_path / "region")

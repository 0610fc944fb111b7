from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from control_plane.host.memory.process_memory import held_bytes

MIB = 2**20
PAGE = os.sysconf("SC_PAGE_SIZE")
ROLLUP = "00400000-7ffd [rollup]\nRss:  {rss} kB\nPss:  {pss} kB\nPss_Dirty:  1 kB\nPss_Anon:  2 kB\n"

# Holds so many MiB, that many of them together with a child of its own, and says so.
HOLDER = """
import os, sys
held = bytearray(b"x") * (int(sys.argv[1]) << 20)
readable, writable = os.pipe()
child = os.fork() if len(sys.argv) > 2 else None
if child == 0:
    os.write(writable, b"x")
    sys.stdin.read()
    os._exit(0)
if child:
    os.read(readable, 1)
print(child or 0, flush=True)
sys.stdin.read()
if child:
    os.waitpid(child, 0)
"""


class Proc:
    """Fake of /proc with the processes that a test adds."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def process(self, pid: int, *, rollup: str | None, statm: str | None) -> None:
        (self.path / str(pid)).mkdir()
        for name, text in (("smaps_rollup", rollup), ("statm", statm)):
            if text is not None:
                (self.path / str(pid) / name).write_text(text)

    def held(self, *pids: int) -> int | None:
        return held_bytes(pids, proc=self.path)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


class TestReading:
    def test_shared_pages_count_in_parts(self, proc: Proc) -> None:
        proc.process(1, rollup=ROLLUP.format(rss=900, pss=300), statm="1000 225 10 0 0 0 0")
        proc.process(2, rollup=ROLLUP.format(rss=80, pss=70), statm="1000 20 10 0 0 0 0")
        assert proc.held(1, 2) == 370 * 1024

    @pytest.mark.parametrize("rollup", [None, "", "Rss: 12 kB\n"], ids=["not there", "empty", "without the line"])
    def test_where_nobody_tells_them_apart_all_count(self, proc: Proc, rollup: str | None) -> None:
        proc.process(1, rollup=rollup, statm="1000 25 10 0 0 0 0")
        proc.process(2, rollup=ROLLUP.format(rss=80, pss=70), statm="1 1 1 0 0 0 0")
        assert proc.held(1, 2) == 25 * PAGE + 70 * 1024

    def test_one_that_has_ended_holds_none(self, proc: Proc) -> None:
        proc.process(1, rollup=ROLLUP.format(rss=80, pss=70), statm=None)
        assert proc.held(1, 99) == 70 * 1024

    def test_of_nobody_nothing_is_known(self, proc: Proc) -> None:
        proc.process(1, rollup=None, statm="")
        assert proc.held() is None
        assert proc.held(1, 99) is None


@contextmanager
def holder(*arguments: str) -> Iterator[list[int]]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        child = int(process.stdout.readline())
        yield [process.pid, child] if child else [process.pid]
        process.stdin.close()


class TestReal:
    def test_what_a_process_holds_is_counted(self) -> None:
        with holder("0") as empty, holder("64") as full:
            more = (held_bytes(full) or 0) - (held_bytes(empty) or 0)
        assert abs(more - 64 * MIB) < 4 * MIB

    def test_what_two_processes_share_counts_once(self) -> None:
        with holder("64") as one, holder("64", "shared") as two:
            assert len(two) == 2
            more = (held_bytes(two) or 0) - (held_bytes(one) or 0)
        assert abs(more) < 16 * MIB  # and not 64

    def test_of_a_process_that_has_ended_nothing_is_known(self) -> None:
        with holder("0") as ended:
            pass
        assert held_bytes(ended) is None

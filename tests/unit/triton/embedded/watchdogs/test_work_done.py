from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from control_plane.triton.embedded.watchdogs.work_done import work_of

_STAT = "7 (a ) b) S 1 7 7 0 -1 0 100 0 {faults} 0 {user} {system} 0 0 20 0 1 0 5"


def write(proc: Path, *, faults: int = 0, user: int = 0, system: int = 0, read: int | None = 0) -> None:
    (proc / "7").mkdir(exist_ok=True)
    (proc / "7" / "stat").write_text(_STAT.format(faults=faults, user=user, system=system))
    if read is not None:
        (proc / "7" / "io").write_text(f"rchar: {read}\nwchar: 9\nread_bytes: 5\n")


def test_each_kind_of_work_changes_it(tmp_path: Path) -> None:
    write(tmp_path)
    assert work_of([7], tmp_path) == 0
    for kind in ("faults", "user", "system", "read"):
        write(tmp_path, **{kind: 3})
        assert work_of([7], tmp_path) == 3, kind


def test_what_may_not_be_read_and_what_has_ended_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, user=2, read=None)
    assert work_of([7, 8], tmp_path) == 2


def test_it_is_the_kernels_own_form() -> None:
    before = work_of([os.getpid()])
    until_s = time.process_time() + 0.05
    while time.process_time() < until_s:
        pass
    assert work_of([os.getpid()]) >= before + 3  # ticks of 10 ms, of which a part may have been counted before
    with subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE) as sleeping:
        assert sleeping.stdout is not None
        sleeping.stdout.readline()
        time.sleep(0.1)
        once = work_of([sleeping.pid])
        time.sleep(0.3)
        assert work_of([sleeping.pid]) == once > 0
        sleeping.kill()

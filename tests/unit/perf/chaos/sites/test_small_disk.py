"""A disk that can be filled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perf.servers.processes import PROJECT

_PROGRAM = """
import sys
from pathlib import Path
from perf.chaos.sites import small_disk

try:
    with small_disk.mounted(Path(sys.argv[1]), 1 << 20) as folder:
        with small_disk.filled(folder):
            try:
                (folder / "more").write_bytes(bytes(5000))
            except OSError as exc:
                print(exc.strerror)
        (folder / "more").write_bytes(bytes(5000))
        print([path.name for path in folder.iterdir()])
except small_disk.CannotMount:
    print("cannot mount")
"""


def test_nothing_fits_meanwhile_and_nobody_else_sees_it(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    done = subprocess.run([sys.executable, "-c", _PROGRAM, str(folder)], capture_output=True, text=True, cwd=PROJECT)
    if done.stdout == "cannot mount\n":
        pytest.skip("no mount namespaces here")
    assert done.stdout.splitlines() == ["No space left on device", "['more']"], done.stderr
    assert list(folder.iterdir()) == []

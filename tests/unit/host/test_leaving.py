from __future__ import annotations

import subprocess
import sys
import time

import pytest

_PROGRAM = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from control_plane.host.leaving import end_within
ThreadPoolExecutor(1).submit(time.sleep, float(sys.argv[1]))
end_within(float(sys.argv[2]))
sys.exit(int(sys.argv[3]))
"""


@pytest.mark.parametrize(
    ("sleeps_s", "limit_s", "status", "ends"),
    [
        pytest.param(600, 0.1, 0, 0, id="a thread goes on"),
        pytest.param(0, 600, 3, 3, id="by itself"),
    ],
)
def test_a_process_ends(sleeps_s: float, limit_s: float, status: int, ends: int) -> None:
    began_s = time.monotonic()
    done = subprocess.run([sys.executable, "-c", _PROGRAM, *map(str, (sleeps_s, limit_s, status))], check=False, timeout=300)
    assert done.returncode == ends
    assert time.monotonic() - began_s < 200

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import gc
import control_plane.app.data_plane
from control_plane.host.garbage import freeze_garbage_collector
before = len(gc.get_objects())
freeze_garbage_collector()
print(before, gc.get_freeze_count(), len(gc.get_objects()), gc.get_threshold()[0])
"""


def test_a_collection_looks_only_through_what_came_later() -> None:
    """Runs in a process of its own, since freezing would change the tests that come after it."""
    printed = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True).stdout
    before, frozen, left, young = map(int, printed.split())
    assert frozen > 0.8 * before
    assert left < 0.05 * before
    assert young == 5_000

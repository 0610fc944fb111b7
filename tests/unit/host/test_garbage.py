from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import gc
import control_plane.app.data_plane
from control_plane.host.garbage import keep_what_is_there
before = len(gc.get_objects())
keep_what_is_there()
print(before, gc.get_freeze_count(), len(gc.get_objects()))
"""


def test_a_collection_looks_only_through_what_came_later() -> None:
    """In a process of its own: what is frozen stays so."""
    printed = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True).stdout
    before, frozen, left = map(int, printed.split())
    assert frozen > 0.8 * before
    assert left < 0.05 * before

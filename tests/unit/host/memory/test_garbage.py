from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import gc
import control_plane.app.data_plane.data_plane
from control_plane.host.memory.garbage import freeze_garbage_collector
before = len(gc.get_objects())
freeze_garbage_collector()
print(before, gc.get_freeze_count(), len(gc.get_objects()), gc.get_threshold()[0])
"""

_START = """
import gc
collections = []
gc.callbacks.append(lambda phase, info: collections.append(gc.isenabled()))
import {module}
print(len(collections), gc.isenabled(), gc.get_freeze_count())
"""

_FORK = """
import asyncio, gc, os, sys, uvloop
import {module}
gc.enable()
os.register_at_fork(after_in_child=lambda: os.write(1, b"%d " % gc.isenabled()))
async def main():
    child = await asyncio.create_subprocess_exec("true", stdout=None)
    await child.wait()
uvloop.run(main())
print(int(gc.isenabled()))
gc.disable()
uvloop.run(main())
print(int(gc.isenabled()))
"""


@pytest.mark.parametrize("module", ["control_plane.__main__", "control_plane.app.worker_program"])
def test_a_start_is_not_held_up_by_collections(module: str) -> None:
    printed = subprocess.run([sys.executable, "-c", _START.format(module=module)], capture_output=True, text=True, check=True).stdout
    made, is_enabled, frozen = printed.split()
    assert int(made) < 20, "without the pause hundreds"
    assert is_enabled == "True"
    assert int(frozen) > 10_000, "what was imported"


def test_a_collection_looks_only_through_what_came_later() -> None:
    """Runs in a process of its own, since freezing would change the tests that come after it."""
    printed = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True).stdout
    before, frozen, left, young = map(int, printed.split())
    assert frozen > 0.8 * before
    assert left < 0.05 * before
    assert young == 5_000


@pytest.mark.parametrize("module", ["control_plane.__main__", "control_plane.app.worker_program", "tests.conftest"])
def test_nothing_is_collected_between_a_fork_and_the_program_of_the_new_process(module: str) -> None:
    printed = subprocess.run([sys.executable, "-uc", _FORK.format(module=module)], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["0", "1", "0", "0"], "in the new process and in this one, where it was collected and where it was not"

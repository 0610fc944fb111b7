from __future__ import annotations

import asyncio
import gc
import os
import weakref
from itertools import pairwise

import pytest

from control_plane.host.memory import large_buffers
from control_plane.host.memory.large_buffers import LARGE_BYTES, free_in_steps
from control_plane.host.memory.process_memory import held_bytes


class Buffer(bytearray):
    """Buffer of which a test sees that it is gone."""


def large() -> Buffer:
    return Buffer(b"\1" * 5 * LARGE_BYTES)


async def test_a_large_buffer_is_given_back_a_little_at_a_time_and_is_gone_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_buffers, "_PAUSE_S", 0.0)
    holder: list[bytearray] = [large()]
    gone = weakref.ref(holder[0])
    left = [_resident()]
    assert free_in_steps(holder)
    assert not holder
    while gone() is not None:
        left.append(_resident())
        await asyncio.sleep(0)
    steps = [before - after for before, after in pairwise(left)]
    assert left[0] - left[-1] > LARGE_BYTES * 3
    assert max(steps) < 3 * LARGE_BYTES


async def test_a_buffer_that_somebody_else_has_too_keeps_what_is_in_it() -> None:
    body = large()
    view = memoryview(body)
    assert not free_in_steps([body])
    del body
    assert view[0] == view[-1] == 1
    assert not free_in_steps([view.obj])  # type: ignore[list-item]  # a view is somebody else
    assert view[-1] == 1


async def test_a_small_one_is_freed_at_once() -> None:
    holder: list[bytearray] = [Buffer(b"\1" * 1000)]
    gone = weakref.ref(holder[0])
    assert not free_in_steps(holder)
    gc.collect()
    assert gone() is None


def _resident() -> int:
    return held_bytes([os.getpid()]) or 0

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perf.fleet.report import Memory
from perf.fleet.servers import Logged, logged_in, triton_sessions, watching_memory

LOG = """2026-11-21T23:59:58Z I 4206 model_lifecycle.cc:472] "loading: encoder_64x1:1"
2026-11-21T23:59:59Z I 4206 model_lifecycle.cc:472] "loading: other:1"
2026-11-21T23:59:59Z I 4206 python_be.cc:2249] "TRITONBACKEND_ModelInstanceInitialize: encoder_64x1_0_0 (CPU device 0)"
2026-11-22T00:00:01Z I 4206 model_lifecycle.cc:839] "successfully loaded 'encoder_64x1'"
2026-11-22T00:00:03Z I 4206 model_lifecycle.cc:839] "successfully loaded 'other'"
2026-11-22T00:00:04Z I 4206 model_lifecycle.cc:624] "successfully unloaded 'encoder_64x1' version 1"
2026-11-22T00:00:05Z I 4206 model_lifecycle.cc:472] "loading: encoder_64x1:1"
2026-11-22T00:00:06Z I 4206 model_lifecycle.cc:839] "successfully loaded 'encoder_64x1'"
2026-11-22T00:00:06Z I 4206 model_lifecycle.cc:472] "loading: half:1"
"""


def test_loads_are_counted_and_timed_by_the_logs_of_all(tmp_path: Path) -> None:
    for server in ("one", "two"):
        (tmp_path / server / "triton").mkdir(parents=True)
    (tmp_path / "one/triton/triton.log").write_text(LOG)
    (tmp_path / "two/triton/triton.log").write_text('2026-11-21T23:00:00Z I 1 server.cc:1] "Waiting"\n')
    assert logged_in(tmp_path) == Logged([3.0, 4.0, 1.0], unloads=1)


def test_what_models_held_is_above_what_each_held_before_them() -> None:
    memory = Memory([0.0, 0.5, 1.0], {7: [50, 150, 140], 8: [90, 100, 185]})
    assert memory.empty_bytes() == 90
    assert memory.most_bytes_of_models() == 100
    assert Memory().most_bytes_of_models() == Memory().empty_bytes() == 0


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Process named as a Triton's, in a session of its own as its guardian would be."""
    program = tmp_path / "tritonserver"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    process = subprocess.Popen([program, "30"], start_new_session=True)
    while Path(f"/proc/{process.pid}/comm").read_text().strip() != "tritonserver":
        time.sleep(0.01)
    yield process
    process.kill()
    process.wait()


def test_what_each_triton_holds_is_watched(stand_in: subprocess.Popen[bytes]) -> None:
    assert triton_sessions(os.getpid()) == [stand_in.pid]
    with watching_memory(os.getpid()) as memory:
        deadline_s = time.monotonic() + 20
        while len(memory.times_s) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.05)
    (samples,) = memory.held_bytes.values()
    assert len(samples) == len(memory.times_s) >= 2
    assert 0 < samples[0] < 50 * 2**20


def test_beneath_a_process_without_any_there_is_no_triton() -> None:
    assert triton_sessions(os.getpid()) == []

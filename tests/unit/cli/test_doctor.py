from __future__ import annotations

import fcntl
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pynvml
import pytest

from control_plane.cli.doctor import Verdict, _disk, _gpu, _gpu_memory, _ports
from control_plane.host.gpu_memory import GpuMemory
from control_plane.models.adapters.profile import NO_DEVICE, Profile
from control_plane.settings import load_settings
from tests.fakes.nvml import FakeGpu, FakeNvml


@pytest.mark.parametrize(
    ("profile", "verdict", "found"),
    [
        pytest.param(Profile("", NO_DEVICE), Verdict.OK, "none: models run on the CPU, and are weighed by main memory", id="none there"),
        pytest.param(Profile("gpu", "torch can use the GPU"), Verdict.OK, "configs/gpu.pbtxt: torch can use the GPU", id="used"),
        pytest.param(Profile("", "nothing computes on it"), Verdict.NOTE, "on the CPU: nothing computes on it", id="not used"),
    ],
)
def test_what_a_gpu_is_used_for_and_why(profile: Profile, verdict: Verdict, found: str) -> None:
    check = _gpu(profile)
    assert check.verdict is verdict
    assert found in check.found
    assert bool(check.advice) == (verdict is Verdict.NOTE)


@pytest.mark.parametrize(
    ("gpu", "verdict", "found"),
    [
        pytest.param(FakeGpu({1: 5}), Verdict.OK, "weighed by it", id="told"),
        pytest.param(FakeGpu(pynvml.NVMLError_NotSupported), Verdict.NOTE, "does not say how much each process holds", id="not told"),
    ],
)
def test_whether_models_are_weighed_by_gpu_memory(tmp_path: Path, gpu: FakeGpu, verdict: Verdict, found: str) -> None:
    (tmp_path / "nvidiactl").touch()
    (check,) = _gpu_memory(GpuMemory(load=lambda: FakeNvml(gpu), driver=tmp_path / "nvidiactl"))
    assert check.verdict is verdict
    assert found in check.found
    assert bool(check.advice) == (verdict is Verdict.NOTE)
    assert not list(_gpu_memory(GpuMemory(driver=tmp_path / "none"))), "said once, by the line of the GPU"


@contextmanager
def running(state_dir: Path, readiness: object) -> Iterator[None]:
    """A tidegate of this state folder, whose admin API says only this."""

    class Admin(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path in ("/health/ready", "/fleet")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(readiness).encode())

        def log_message(self, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Admin) as server, (state_dir / "endpoints.json").open("w") as endpoints:
        json.dump({"admin": f"http://127.0.0.1:{server.server_port}"}, endpoints)
        endpoints.flush()
        fcntl.flock(endpoints, fcntl.LOCK_EX)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield
        server.shutdown()
        thread.join()


def test_what_servers_of_a_running_one_lack_is_noted(tmp_path: Path) -> None:
    with running(tmp_path, {"degraded": [], "notes": ["triton-1: no node"]}):
        checks = list(_ports(load_settings({"state_dir": tmp_path})))
    assert [(check.verdict, check.found) for check in checks][1:] == [(Verdict.NOTE, "triton-1: no node")]


@pytest.mark.parametrize("degraded", [[], ["usage cannot be stored, and waits in memory: its disk is full"]])
def test_what_a_running_one_says_of_itself_is_noted(tmp_path: Path, degraded: list[str]) -> None:
    with running(tmp_path, {"ready": True, "degraded": degraded}):
        checks = list(_ports(load_settings({"state_dir": tmp_path})))
    assert [(check.verdict, check.found) for check in checks] == [
        (Verdict.OK, "tidegate is running"),
        *((Verdict.NOTE, sentence) for sentence in degraded),
    ]


def test_one_that_does_not_answer_is_running_all_the_same(tmp_path: Path) -> None:
    with running(tmp_path, "nonsense"):
        assert [check.found for check in _ports(load_settings({"state_dir": tmp_path}))] == ["tidegate is running"]


@pytest.mark.parametrize(
    ("free_bytes", "verdict", "advice"),
    [(3 * 2**30, Verdict.OK, ""), (2**30, Verdict.NOTE, "2 GiB or more is safe"), (2**20, Verdict.NOTE, "usage waits in memory")],
)
def test_a_full_disk_and_what_it_means(tmp_path: Path, free_bytes: int, verdict: Verdict, advice: str) -> None:
    check = _disk(tmp_path, free_bytes=free_bytes)
    assert check.verdict is verdict
    assert advice in check.advice

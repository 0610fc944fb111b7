from __future__ import annotations

import asyncio
import fcntl
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest

from control_plane.cli.doctor import (
    Check,
    Verdict,
    _attached,
    _control_locks,
    _disk,
    _gpu,
    _gpu_memory,
    _numpy,
    _ports,
    _shared_memory,
    _triton,
    run_checks,
)
from control_plane.host.memory.gpu_memory import GpuMemory
from control_plane.models.adapters.profile import NO_DEVICE, Profile
from control_plane.settings import load_settings
from tests.aio import run
from tests.fakes.triton.nvml import FakeGpu, FakeNvml
from tests.http_server import AskedRequest, http_server
from tests.unit.triton.adopted.scripted import Theirs, triton


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


@pytest.mark.parametrize(("version", "verdict"), [("1.26.4", Verdict.OK), ("2.5.5", Verdict.MISSING)])
def test_whether_python_models_can_use_this_numpy(version: str, verdict: Verdict) -> None:
    check = _numpy(version)
    assert (check.found, check.verdict) == (version, verdict)
    assert ("numpy<2" in check.advice) == (verdict is Verdict.MISSING)


@contextmanager
def running(state_dir: Path, readiness: object, *, key: str = "") -> Iterator[None]:
    """A tidegate of this state folder, whose admin API says only this, of its fleet to those who show the key."""

    def answer(asked: AskedRequest) -> None:
        assert asked.path in ("/health/ready", "/fleet")
        knows = asked.path != "/fleet" or not key or asked.headers.get("authorization") == f"Bearer {key}"
        asked.answer(200 if knows else 401, readiness)

    with http_server(answer) as url, (state_dir / "endpoints.json").open("w") as endpoints:
        json.dump({"admin": url}, endpoints)
        endpoints.flush()
        fcntl.flock(endpoints, fcntl.LOCK_EX)
        yield


def test_what_servers_of_a_running_one_lack_is_noted(tmp_path: Path) -> None:
    with running(tmp_path, {"degraded": [], "notes": ["triton-1: no node"]}):
        checks = list(_ports(load_settings({"state_dir": tmp_path})))
    assert [(check.verdict, check.found) for check in checks][1:] == [(Verdict.NOTE, "triton-1: no node")]


def test_the_notes_of_one_that_asks_for_keys_are_those_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_API_KEY", "tg_0123456789ab_x")
    with running(tmp_path, {"degraded": [], "notes": ["triton-1: no node"]}, key="tg_0123456789ab_x"):
        assert [check.name for check in _ports(load_settings({"state_dir": tmp_path}))] == ["ports", "fleet"]


def test_a_machine_without_shared_memory_is_told_so(tmp_path: Path) -> None:
    check = _shared_memory(tmp_path / "shm")
    assert (check.verdict, check.found) == (Verdict.NOTE, "0 MiB")


def test_in_front_of_tritons_that_others_run_nothing_of_an_own_one_is_missing(tmp_path: Path) -> None:
    given = {"state_dir": tmp_path, "cache_dir": tmp_path / "none", "triton_url": "http://127.0.0.1:1?grpc_port=1&metrics_port=1"}
    found = {check.name for check in run_checks(load_settings(given))}
    assert "disk" in found
    assert not found & {"glibc", "libpython", "NumPy", "embedded Triton", "shared memory", "model text_encoder"}


def test_a_machine_for_which_there_is_no_triton_is_not_told_to_download_one(tmp_path: Path) -> None:
    check = _triton(tmp_path, "aarch64")
    assert (check.verdict, check.found, "--triton-url" in check.advice) == (Verdict.MISSING, "none for aarch64", True)


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


def locks(theirs: Theirs) -> list[Check]:
    """What is said of the locks of a Triton that was started so."""

    async def main() -> list[Check]:
        async with triton(theirs):
            urls = f"http://127.0.0.1:{theirs.http_port}?grpc_port={theirs.grpc_port}&metrics_port=1"
            settings = load_settings({"state_dir": theirs.repository / "state", "triton_url": urls})
            return await asyncio.to_thread(lambda: list(_control_locks(settings)))

    return run(main())


@pytest.mark.parametrize(
    ("grpc_secret", "is_http_locked", "flags"),
    [
        pytest.param("", False, ["--grpc-restricted-protocol", "--http-restricted-api"], id="none"),
        pytest.param("", True, ["--grpc-restricted-protocol"], id="over HTTP only"),
        pytest.param("a secret", False, ["--http-restricted-api"], id="over gRPC only"),
        pytest.param("a secret", True, [], id="both"),
    ],
)
def test_a_triton_of_others_that_anybody_may_load_into_is_noted(
    tmp_path: Path, grpc_secret: str, is_http_locked: bool, flags: list[str]
) -> None:
    checks = locks(Theirs(tmp_path, secret=grpc_secret, is_http_locked=is_http_locked))
    assert [check.verdict for check in checks] == [Verdict.NOTE] * bool(flags)
    assert [flag for check in checks for flag in ("--grpc-restricted-protocol", "--http-restricted-api") if flag in check.advice] == flags
    assert all("nothing that it answers is cached" in check.found for check in checks)


def test_one_that_does_not_answer_is_no_open_one(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}?grpc_port={port}&metrics_port={port}"
    assert list(_control_locks(load_settings({"state_dir": tmp_path, "triton_url": url}))) == []


def test_tritons_of_lists_and_of_a_running_node_are_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "servers.yaml").write_text("- {url: 'http://10.0.0.5:8000', name: listed}\n")
    with (tmp_path / "endpoints.json").open("w") as endpoints:
        json.dump({"node": "http://127.0.0.1:9", "triton": "http://127.0.0.1:7000?grpc_port=7001"}, endpoints)
        endpoints.flush()
        fcntl.flock(endpoints, fcntl.LOCK_EX)
        settings = load_settings({"state_dir": tmp_path, "servers_file": tmp_path / "servers.yaml"})
        assert [(name, str(each.grpc)) for name, each in _attached(settings)] == [("listed", "10.0.0.5:8001"), ("Triton", "127.0.0.1:7001")]

from __future__ import annotations

import errno
import os
import threading
import time
import zipfile
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path

import pytest

from control_plane.core.errors import StartupError
from control_plane.triton.embedded import installation
from control_plane.triton.embedded.installation import TritonInstallation, ensure_installed, own_installation, running_python
from tests.unit.triton.embedded.fake_wheel import LIBS, SERVER, write_wheel


def unpacked(cache_dir: Path) -> list[str]:
    return sorted(path.name for path in cache_dir.iterdir() if path.name != "wheels")


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    write_wheel(tmp_path)
    return tmp_path


def test_unpacks_what_this_python_needs_and_nothing_else(cache_dir: Path) -> None:
    found = ensure_installed(cache_dir, python="3.11")
    root = cache_dir / "triton-2.51.0-cp311"
    files = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    assert files == [
        f"{LIBS}/libcudart-09529672.so.12.6.77",
        f"{SERVER}/backends/python/libtriton_python.so",
        f"{SERVER}/backends/python/triton_python_backend_stub",
        f"{SERVER}/backends/python/triton_python_backend_utils.py",
        f"{SERVER}/bin/tritonserver",
        f"{SERVER}/caches/local/libtritoncache_local.so",
    ]
    assert found == TritonInstallation(
        binary=root / SERVER / "bin/tritonserver",
        python_backend=root / SERVER / "backends/python",
        caches=root / SERVER / "caches",
        libs=root / LIBS,
    )


@pytest.mark.parametrize("version", ["3.11", "3.12"])
def test_the_stub_is_the_one_for_the_python_and_can_be_run(cache_dir: Path, version: str) -> None:
    found = ensure_installed(cache_dir, python=version)
    assert f"# stub for {version}" in found.stub.read_text()
    assert os.access(found.stub, os.X_OK)
    assert os.access(found.binary, os.X_OK)


def test_other_users_of_the_cache_can_read_it(cache_dir: Path) -> None:
    ensure_installed(cache_dir, python="3.11")
    assert (cache_dir / "triton-2.51.0-cp311").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(("numpy", "refused"), [("1.26.4", False), ("2.0.0", True), ("2.5.5", True)])
def test_a_numpy_under_which_the_stubs_read_garbage_is_refused(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, numpy: str, refused: bool
) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: numpy)
    with pytest.raises(StartupError, match=rf"need NumPy 1, .* has {numpy}.*install 'numpy<2'") if refused else nullcontext():
        ensure_installed(cache_dir)


def test_the_running_python_is_the_default(cache_dir: Path) -> None:
    ensure_installed(cache_dir)
    assert unpacked(cache_dir) == [f"triton-2.51.0-cp{running_python().replace('.', '')}"]


def test_a_second_call_needs_no_wheel_and_changes_nothing(cache_dir: Path) -> None:
    first = ensure_installed(cache_dir, python="3.11")
    (cache_dir / "wheels" / os.listdir(cache_dir / "wheels")[0]).unlink()
    before = first.binary.stat().st_ctime_ns
    assert ensure_installed(cache_dir, python="3.11") == first
    assert first.binary.stat().st_ctime_ns == before


def test_a_missing_wheel_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"nvidia_pytriton-0\.7\.0.*\.whl is missing.*run `make setup`"):
        ensure_installed(tmp_path, python="3.11")


def test_an_unsupported_python_names_the_supported_ones(cache_dir: Path) -> None:
    with pytest.raises(StartupError, match=r"no stub for Python 3\.13; use Python 3\.11, 3\.12, or --triton-url"):
        ensure_installed(cache_dir, python="3.13")


@pytest.mark.parametrize(
    ("library", "version", "refused"),
    [
        pytest.param("glibc", "2.35", None, id="just enough"),
        pytest.param("glibc", "2.41.9000", None, id="newer, with a suffix"),
        pytest.param("glibc", "2.31", "this system has 2.31", id="too old"),
        pytest.param("", "", "another C library", id="musl"),
    ],
)
def test_glibc(library: str, version: str, refused: str | None) -> None:
    refusal = installation._glibc_refusal(library, version)
    assert refusal is None if refused is None else refusal is not None and refused in refusal


def test_another_machine_is_refused(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(StartupError, match="built for x86_64, this is aarch64; use --triton-url"):
        ensure_installed(cache_dir, python="3.11")


@pytest.mark.parametrize("keep_bytes", [0, 100, -50], ids=["empty", "cut short", "cut at the end"])
def test_a_damaged_wheel_is_named_and_leaves_nothing(cache_dir: Path, keep_bytes: int) -> None:
    wheel = next((cache_dir / "wheels").iterdir())
    wheel.write_bytes(wheel.read_bytes()[:keep_bytes])
    with pytest.raises(StartupError, match=r"is damaged .*delete it and run `make setup`"):
        ensure_installed(cache_dir, python="3.11")
    assert unpacked(cache_dir) == []


@pytest.mark.parametrize(
    ("code", "text"),
    [
        pytest.param(errno.ENOSPC, r"no space left to unpack Triton in .*: it takes 120 MiB, \d+ MiB are free", id="disk full"),
        pytest.param(errno.EROFS, r"cannot unpack Triton in .*: Read-only file system", id="read-only"),
    ],
)
def test_what_the_disk_refuses_is_said_and_leaves_nothing(cache_dir: Path, monkeypatch: pytest.MonkeyPatch, code: int, text: str) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("shutil.copyfileobj", refuse)
    with pytest.raises(StartupError, match=text):
        ensure_installed(cache_dir, python="3.11")
    assert unpacked(cache_dir) == []


def test_an_unpack_that_was_killed_is_not_trusted_and_is_swept_up_when_old(cache_dir: Path) -> None:
    killed, running = cache_dir / ".triton-2.51.0-cp311.aaaa", cache_dir / ".triton-2.51.0-cp311.bbbb"
    for building in (killed, running):
        (building / SERVER).mkdir(parents=True)
    an_hour_ago = time.time() - 3700
    os.utime(killed, (an_hour_ago, an_hour_ago))
    assert ensure_installed(cache_dir, python="3.11").binary.exists()
    assert unpacked(cache_dir) == [running.name, "triton-2.51.0-cp311"]


def test_processes_that_unpack_at_once_all_get_the_same_whole_thing(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(4, timeout=20)
    extract = installation._extract

    def extract_together(archive: zipfile.ZipFile, building: Path, version: str) -> None:
        extract(archive, building, version)
        together.wait()

    monkeypatch.setattr(installation, "_extract", extract_together)
    found: list[TritonInstallation] = []
    threads = [threading.Thread(target=lambda: found.append(ensure_installed(cache_dir, python="3.11"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert unpacked(cache_dir) == ["triton-2.51.0-cp311"]


def test_an_own_tritonserver_is_used_with_what_lies_beside_it_also_through_a_link(tmp_path: Path) -> None:
    binary, stub = tmp_path / "opt/tritonserver/bin/tritonserver", tmp_path / "opt/tritonserver/backends/python/triton_python_backend_stub"
    for program in (binary, stub):
        program.parent.mkdir(parents=True)
        program.touch(0o755)
    (link := tmp_path / "tritonserver").symlink_to(binary)
    for path in (binary, link):
        found = own_installation(path)
        assert (found.binary, found.stub, found.is_own) == (binary, stub, True)
        assert found.backends == tmp_path / "opt/tritonserver/backends"
    stub.unlink()
    with pytest.raises(StartupError, match=f"{stub} is missing"):
        own_installation(binary)
    binary.chmod(0o644)
    with pytest.raises(StartupError, match=f"--tritonserver {link} may not be run by this user"):
        own_installation(link)
    for path in (tmp_path / "none", tmp_path / "opt"):
        with pytest.raises(StartupError, match=f"--tritonserver {path}: there is no such file; in NVIDIA's image it is /opt/"):
            own_installation(path)

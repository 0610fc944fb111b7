"""Finder of a Triton by its command line: in a made-up /proc, and a real process with its real child."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.triton.adopted.processes import ProcessesUnseen, TritonProcesses, find_triton
from control_plane.triton.embedded.watchdogs.stubs import children_of

REPOSITORY = Path("/state/triton/repository")
OURS = ("/opt/tritonserver/bin/tritonserver", f"--model-repository={REPOSITORY}", "--grpc-port=8001")


def process(proc: Path, pid: int, *arguments: str) -> None:
    (proc / str(pid) / "root/dev/shm").mkdir(parents=True)
    (proc / str(pid) / "cmdline").write_text("".join(f"{each}\0" for each in arguments))


@pytest.mark.parametrize(
    ("arguments", "prefix"),
    [
        pytest.param(OURS, "triton_python_backend_shm_region_", id="an equals sign"),
        pytest.param(
            ("tritonserver", "--model-repository", f"{REPOSITORY}/"), "triton_python_backend_shm_region_", id="a blank and a slash"
        ),
        pytest.param(("tritonserver", f"--model-store={REPOSITORY}"), "triton_python_backend_shm_region_", id="its other name"),
        pytest.param((*OURS, "--backend-config=python,shm-region-prefix-name=mine_"), "mine_", id="regions of another name"),
        pytest.param((*OURS, "--backend-config", "python,shm-region-prefix-name=mine_"), "mine_", id="the same with a blank"),
    ],
)
def test_the_triton_of_our_repository_is_found(tmp_path: Path, arguments: tuple[str, ...], prefix: str) -> None:
    process(tmp_path, 7, *arguments)
    process(tmp_path, 8, "tritonserver", "--model-repository=/other")
    process(tmp_path, 9, "/bin/sh", "-c", " ".join(arguments))
    process(tmp_path, 10, "")
    (tmp_path / "self").mkdir()
    assert find_triton(REPOSITORY, proc=tmp_path) == TritonProcesses(7, prefix, tmp_path / "7/root/dev/shm")


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(ProcessesUnseen, match=r"no process is seen .* shareProcessNamespace"):
        find_triton(REPOSITORY, proc=tmp_path)
    process(tmp_path, 7, *OURS)
    (tmp_path / "7/root/dev/shm").rmdir()  # as if it may not be entered
    with pytest.raises(ProcessesUnseen, match="process 7 is another user's: run both as the same user"):
        find_triton(REPOSITORY, proc=tmp_path)
    process(tmp_path, 8, *OURS)
    with pytest.raises(ProcessesUnseen, match="2 processes load"):
        find_triton(REPOSITORY, proc=tmp_path)


_WITH_CHILD = "import subprocess; subprocess.Popen(['/proc/self/exe', '-c', 'input()']); print(flush=True); input()"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    arguments = ["/somewhere/tritonserver", "-c", _WITH_CHILD, "--model-repository", str(tmp_path)]
    with subprocess.Popen(arguments, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as found:
        assert found.stdout is not None
        found.stdout.readline()
        yield found
        assert found.stdin is not None
        found.stdin.close()


def test_a_real_process_is_found_with_its_child_and_its_shared_memory(tmp_path: Path, running: subprocess.Popen[str]) -> None:
    found = find_triton(tmp_path)
    assert found.pid == running.pid
    assert found.shared_memory.samefile("/dev/shm")
    assert set(found.all()) == {running.pid, *children_of(running.pid)}
    assert len(set(found.all())) == 2


def test_one_that_has_ended_has_no_children() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert children_of(ended.pid) == []
    assert children_of(os.getpid()) is not None

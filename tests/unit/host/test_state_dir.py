from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from control_plane.core.errors import StartupError
from control_plane.host.state_dir import StateDir, read_endpoints, running_state_dirs

ENDPOINTS = {"http": "http://127.0.0.1:8000", "admin": "http://127.0.0.1:8080"}
_HOLD = """
import sys
from pathlib import Path
from control_plane.host.state_dir import StateDir
with StateDir(Path(sys.argv[1])) as state:
    state.write_endpoints({"http": "http://127.0.0.1:8000"})
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Start another process that locks the folder and writes its endpoints."""
    with subprocess.Popen([sys.executable, "-c", _HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_endpoints_are_there_while_it_is_held_and_gone_after(tmp_path: Path) -> None:
    assert read_endpoints(tmp_path) == {}
    with StateDir(tmp_path) as state:
        assert read_endpoints(tmp_path) == {}
        state.write_endpoints(ENDPOINTS)
        assert read_endpoints(tmp_path) == ENDPOINTS
        state.write_endpoints(ENDPOINTS | {"grpc": "127.0.0.1:8001"})
        assert read_endpoints(tmp_path)["grpc"] == "127.0.0.1:8001"
    assert read_endpoints(tmp_path) == {}
    assert {path.name for path in tmp_path.iterdir()} == {"lock"}


def test_they_are_gone_after_a_failure_too(tmp_path: Path) -> None:
    def fail() -> None:
        with StateDir(tmp_path) as state:
            state.write_endpoints(ENDPOINTS)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert read_endpoints(tmp_path) == {}


def test_a_second_holder_is_refused_and_told_who_holds_it(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    assert read_endpoints(tmp_path) == {"http": "http://127.0.0.1:8000"}
    with pytest.raises(StartupError, match=f"in use by tidegate with pid {holder.pid};"):
        StateDir(tmp_path).__enter__()
    assert read_endpoints(tmp_path) != {}, "the refused one has taken away the holder's file"
    assert (tmp_path / "lock").read_text() == str(holder.pid)


def test_one_that_was_killed_leaves_nothing_that_is_trusted(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "endpoints.json").exists()
    assert read_endpoints(tmp_path) == {}
    with StateDir(tmp_path):
        assert not (tmp_path / "endpoints.json").exists()
        assert (tmp_path / "lock").read_text() == str(os.getpid())


def test_reading_does_not_keep_another_from_taking_it(tmp_path: Path) -> None:
    (tmp_path / "endpoints.json").write_text(json.dumps(ENDPOINTS))
    assert read_endpoints(tmp_path) == {}
    with StateDir(tmp_path) as state:
        state.write_endpoints(ENDPOINTS)
        assert read_endpoints(tmp_path) == read_endpoints(tmp_path) == ENDPOINTS


@pytest.mark.parametrize("text", ["", "{", "\x00"])
def test_a_file_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "endpoints.json").write_text(text)
    assert read_endpoints(tmp_path) == {}


def test_a_folder_is_made_for_its_owner_only(tmp_path: Path) -> None:
    with StateDir(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match=r"--state-dir .*file/state cannot be written.*choose another"):
        StateDir(tmp_path / "file" / "state").__enter__()


def test_what_this_user_runs_is_found(tmp_path: Path) -> None:
    with StateDir(tmp_path) as state:
        state.write_endpoints(ENDPOINTS)
        assert tmp_path in running_state_dirs()
    assert tmp_path not in running_state_dirs()


def test_only_what_holds_its_file_counts(tmp_path: Path) -> None:
    """In /proc some processes have another file open, or the file of a dead tidegate, or have just ended."""
    left, none = tmp_path / "left", tmp_path / "none"
    for folder in (left, none):
        folder.mkdir()
    (left / "endpoints.json").write_text(json.dumps(ENDPOINTS))
    (none / "endpoints.json").write_text("no json")
    with StateDir(tmp_path / "held") as state:
        state.write_endpoints(ENDPOINTS)
        for number, target in enumerate((tmp_path / "held" / "lock", state.path / "endpoints.json", left / "endpoints.json", none / "x")):
            descriptors = tmp_path / "proc" / str(number) / "fd"
            descriptors.mkdir(parents=True)
            (descriptors / "3").symlink_to(target)
        (tmp_path / "proc" / "99").mkdir()
        assert running_state_dirs(tmp_path / "proc") == [state.path]

"""Publishing: a version directory is replaced as a whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from python_backends.export.publish import replacing
from python_backends.export.recipe import BuildError


@pytest.fixture
def version_directory(tmp_path: Path) -> Path:
    return tmp_path / "1"


def old_version(version_directory: Path) -> None:
    version_directory.mkdir()
    (version_directory / "old").touch()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_first_version_appears_whole(version_directory: Path) -> None:
    with replacing(version_directory) as staging:
        (staging / "new").touch()
        assert not version_directory.exists()

    assert names(version_directory) == ["new"]
    assert names(version_directory.parent) == ["1"]


def test_a_new_version_replaces_the_old_one_file_for_file(version_directory: Path) -> None:
    old_version(version_directory)

    with replacing(version_directory) as staging:
        (staging / "new").touch()
        assert names(version_directory) == ["old"]

    assert names(version_directory) == ["new"]
    assert names(version_directory.parent) == ["1"]


@pytest.mark.parametrize("error", [BuildError("not good enough"), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_build_that_fails_leaves_what_was_there_and_nothing_else(version_directory: Path, error: BaseException) -> None:
    def build() -> None:
        with replacing(version_directory) as staging:
            (staging / "half").touch()
            raise error

    old_version(version_directory)

    with pytest.raises(type(error)):
        build()

    assert names(version_directory) == ["old"]
    assert names(version_directory.parent) == ["1"]


def test_a_killed_build_leaves_nothing_that_the_next_one_uses(version_directory: Path) -> None:
    script = f"""
import os, signal
from pathlib import Path
from python_backends.export.publish import replacing
with replacing(Path({str(version_directory)!r})) as staging:
    (staging / "half").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", script], check=False, cwd=Path(__file__).parents[4])

    assert killed.returncode == -signal.SIGKILL
    assert names(version_directory.parent) == [".1.building"]
    with replacing(version_directory) as staging:
        assert names(staging) == []
    assert names(version_directory.parent) == ["1"]


def test_two_builds_of_one_model_do_not_meet(version_directory: Path) -> None:
    with replacing(version_directory), pytest.raises(BuildError, match="another process is building it now"), replacing(version_directory):
        pytest.fail("the second build began")


def test_a_build_that_has_ended_holds_nothing(version_directory: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(2):
        with replacing(version_directory):
            pass

    assert len(os.listdir("/proc/self/fd")) == before

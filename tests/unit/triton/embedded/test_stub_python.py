"""Which Python the stubs of a Triton are of: small programs that are linked against a libpython, or none, stand for them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from control_plane.triton.embedded.installation import running_python
from control_plane.triton.embedded.stub_python import stub_python

OTHER = "3.99"


@pytest.fixture
def tritonserver(tmp_path: Path) -> Path:
    for path in ("bin/tritonserver", "backends/python/triton_python_backend_stub"):
        (tmp_path / path).parent.mkdir(parents=True)
        shutil.copy("/bin/true", tmp_path / path)
    return tmp_path / "bin/tritonserver"


@pytest.fixture
def path(tmp_path: Path) -> str:
    python = tmp_path / "machine/python3"
    python.parent.mkdir()
    shutil.copy("/bin/true", python)
    return str(python.parent)


def test_the_wheels_are_of_the_running_one() -> None:
    assert stub_python(None) == sys.executable


@pytest.mark.parametrize(("linked", "is_ours"), [(running_python(), True), (OTHER, False), (None, False)])
def test_an_own_tritons_are_of_what_they_are_linked_against(
    tritonserver: Path, path: str, linked: str | None, is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control_plane.triton.embedded.stub_python.linked_python", lambda trace: linked)
    assert stub_python(tritonserver, {"PATH": path}) == (sys.executable if is_ours else f"{path}/python3")


def test_of_one_that_cannot_be_started_the_start_says_why(tmp_path: Path) -> None:
    assert stub_python(tmp_path / "bin/tritonserver", {}) == sys.executable

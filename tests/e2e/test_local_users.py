"""Another user of the machine gets at nothing of the embedded Triton's: no port, socket, shared memory, file, and no load."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control_plane.adapters.embedded_triton.command import shm_prefix
from tests.e2e import another_user
from tests.e2e.accounts import make_first_key
from tests.e2e.conftest import MODELS
from tests.e2e.tidegate import Tidegate, descendants, start

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

USER = "nobody"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A state folder that somebody else made and everybody may enter, as pytest's own may not be."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-users-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Tidegate]:
    make_first_key(folder)
    running = start(folder, "--authentication", "--model-repository", str(MODELS), "--load", "echo")
    yield running
    assert running.stop() == 0, running.said()


@pytest.fixture(scope="module")
def found(running: Tidegate) -> Any:
    """What `another_user` got at."""
    pids = map(str, (running.process.pid, *descendants(running.process.pid)))
    prefix = shm_prefix(running.state_dir / "triton")
    command = [sys.executable, "-I", another_user.__file__, USER, str(running.state_dir), prefix, *pids]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_nobody_connects_to_triton(found: Any) -> None:
    assert found["connected"] == []


def test_nobody_loads_code_whatever_the_flags_tell(found: Any) -> None:
    assert found["loaded"] == []


def test_nobody_reads_shared_memory(found: Any) -> None:
    assert found["regions"], "or there is nothing to read"
    assert found["regions_read"] == []


def test_nobody_reads_environments(found: Any) -> None:
    assert found["environments_read"] == []


def test_nobody_reads_what_is_remembered_or_what_triton_says(found: Any, folder: Path) -> None:
    open_to_all = {str(folder / name) for name in ("endpoints.json", "lock", "output.txt")}
    assert set(found["files_read"]) <= open_to_all

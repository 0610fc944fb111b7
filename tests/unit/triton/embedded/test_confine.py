"""The program that drops privileges and becomes Triton, with a few lines of Python in Triton's place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from control_plane.triton.embedded import confine
from tests.unit.triton.embedded.waiting import wait_for

PYTHON = (sys.executable, "-I", "-S")
SETS_MODES = """
import json, os, subprocess, sys
if len(sys.argv) == 1:
    sys.exit(subprocess.run([sys.executable, "-I", "-S", __file__, "child"]).returncode)
modes = {}
for mode in (0o644, 0o640, 0o600, 0o755):
    descriptor = os.open(str(mode), os.O_CREAT | os.O_RDWR, 0o666)
    made = os.fstat(descriptor).st_mode & 0o777
    os.fchmod(descriptor, mode)
    modes[oct(mode)] = [oct(made), oct(os.fstat(descriptor).st_mode & 0o777)]
print(json.dumps(modes))
"""


def run(*command: str, folder: Path, user: str = "") -> subprocess.CompletedProcess[str]:
    confined = [*PYTHON, confine.__file__, user, *command]
    return subprocess.run(confined, capture_output=True, text=True, cwd=folder, timeout=30, umask=0o022)


@pytest.fixture
def modes(tmp_path: Path) -> Any:
    """Return the modes of files that a confined program's child created: at creation, and after an
    `fchmod`.
    """
    (tmp_path / "program.py").write_text(SETS_MODES)
    done = run(*PYTHON, str(tmp_path / "program.py"), folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_nothing_it_makes_is_for_others_unless_it_says_so(modes: Any) -> None:
    assert {made for made, _ in modes.values()} == {"0o600"}


def test_the_mode_that_boost_sets_on_shared_memory_changes_nothing(modes: Any) -> None:
    assert modes["0o644"] == ["0o600", "0o600"]


@pytest.mark.parametrize("mode", ["0o640", "0o600", "0o755"])
def test_other_modes_are_set(modes: Any, mode: str) -> None:
    assert modes[mode][1] == mode


def test_it_is_the_program_itself_with_its_arguments_environment_and_status(tmp_path: Path) -> None:
    says = "import os, sys; print(os.environ['WHO'], *sys.argv[1:]); sys.exit(7)"
    command = [*PYTHON, confine.__file__, "", *PYTHON, "-c", says, "a b", "--flag=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "WHO": "me"}, text=True) as process:
        said, _ = process.communicate(timeout=30)
    assert (process.returncode, said) == (7, "me a b --flag=1\n")


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run("/no/such/tritonserver", folder=tmp_path)
    assert (done.returncode, done.stderr) == (127, "confine: cannot start /no/such/tritonserver: No such file or directory\n")


def test_it_gains_no_rights_by_setuid_programs(tmp_path: Path) -> None:
    done = run("/bin/grep", "NoNewPrivs", "/proc/self/status", folder=tmp_path)
    assert done.stdout.split() == ["NoNewPrivs:", "1"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_it_becomes_another_user_for_good_and_still_dies_with_its_parent(tmp_path: Path) -> None:
    """The test uses programs of the system, since the other user may not be able to read this Python."""
    status = run("/bin/cat", "/proc/self/status", folder=tmp_path, user="65534:65533:65532,65531").stdout
    fields = dict(line.split(":", 1) for line in status.splitlines())
    assert fields["Uid"].split() == ["65534"] * 4
    assert fields["Gid"].split() == ["65533"] * 4
    assert sorted(fields["Groups"].split()) == ["65531", "65532"]
    assert int(fields["CapPrm"], 16) == int(fields["CapEff"], 16) == 0
    starts = "import subprocess, sys; child = subprocess.Popen(sys.argv[1:]); print(child.pid, flush=True); sys.stdin.read()"
    command = [*PYTHON, "-c", starts, *PYTHON, confine.__file__, "65534:65534:", "/bin/sleep", "60"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        wait_for(lambda: comm(child) == "sleep", "the change")
        parent.kill()
    wait_for(lambda: comm(child) != "sleep", "its end with its parent")


def comm(pid: int) -> str:
    """Return the program that a process runs; empty if it has ended, also while it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:
        return ""
    return "" if fields[2].split()[0] == "Z" else fields[0].partition("(")[2]

"""Another user of the machine gets at nothing of the embedded Triton's: no port, socket, shared memory, file, and no load. And Triton may
itself be another user, whose models get at nothing of the gateway's."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http

from control_plane.admin.client import AdminClient
from control_plane.core.errors import InvalidRequest
from control_plane.triton.embedded.command import shm_prefix
from tests.e2e.accounts import make_first_key
from tests.e2e.conftest import MODELS
from tests.e2e.loads import bad_models
from tests.e2e.tidegate import COMPLETE, Tidegate, descendants, living, proc_files, refused_start, start, wait_for
from tests.e2e.triton import another_user

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"), pytest.mark.timeout(120)]

USER, THIRD = "nobody", "daemon"

SPY = """
import json, os
import numpy
import triton_python_backend_utils as pb_utils

def can_read(path):
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError:
        return False
    return True

class TritonPythonModel:
    def execute(self, requests):
        paths = json.loads(pb_utils.get_input_tensor_by_name(requests[0], "PATHS").as_numpy().item())
        read = [path for path in paths if can_read(path)]
        found = {"uid": os.getuid(), "groups": os.getgroups(), "home": os.environ["HOME"], "read": read}
        found = numpy.array([json.dumps(found).encode()], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("FOUND", found)])]
"""
SPY_CONFIG = """
backend: "python"
input { name: "PATHS" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "FOUND" data_type: TYPE_STRING dims: [ 1 ] }
"""


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """A folder that everybody may enter, as pytest's own may not be."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-users-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def running(root: Path) -> Iterator[Tidegate]:
    """Whose state folder somebody else made, and everybody may enter."""
    make_first_key(root / "state")
    (root / "state").chmod(0o755)
    running = start(root / "state", "--authentication", "--model-repository", str(MODELS), COMPLETE, "--load", "echo")
    yield running
    assert running.stop() == 0, running.said()


def found_by(user: str, running: Tidegate) -> Any:
    """What `another_user` gets at."""
    pids = map(str, (running.process.pid, *descendants(running.process.pid)))
    prefix = shm_prefix(running.state_dir / "triton")
    command = [sys.executable, "-I", another_user.__file__, user, str(running.state_dir), prefix, *pids]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found(running: Tidegate) -> Any:
    # Triton opens its metrics' socket last, and the gateway does not wait for that one.
    wait_for(lambda: len(list((running.state_dir / "triton" / "sockets").glob("*/*"))) == 3)
    return found_by(USER, running)


def test_nobody_connects_to_triton(found: Any) -> None:
    assert len(found["sockets"]) == 3, "or there is nothing to connect to"
    assert found["connected"] == []


def test_nobody_loads_code_whatever_the_flags_tell(found: Any) -> None:
    assert found["secrets"], "everybody can read them"
    assert found["loaded"] == []


def test_nobody_reads_shared_memory(found: Any) -> None:
    assert found["regions"], "or there is nothing to read"
    assert found["regions_read"] == []


def test_nobody_reads_environments(found: Any) -> None:
    assert found["environments_read"] == []


def test_nobody_reads_what_is_remembered_or_what_triton_says(found: Any, running: Tidegate) -> None:
    open_to_all = {str(running.state_dir / name) for name in ("endpoints.json", "lock", "output.txt")}
    assert set(found["files_read"]) <= open_to_all


def test_on_ports_it_is_everybodys_as_the_setting_says(root: Path) -> None:
    """What `another_user` tries does work where it can."""
    running = start(root / "ports", "--authentication", "--triton-transport", "tcp", "--model-repository", str(MODELS))
    running.triton_port("Metrics Service")  # the last that Triton opens
    found = found_by(USER, running)
    assert running.stop() == 0, running.said()
    assert len(found["connected"]) >= 3
    assert found["loaded"]


@pytest.fixture(scope="module")
def python(root: Path) -> str:
    """One that every user can run, with this one's packages: where this one is root's own, of the same version of the system's."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = next((each for each in (os.path.realpath(sys.executable), f"/usr/bin/{version}") if can_be_run(each)), None)
    if base is None:
        pytest.skip(f"{USER} can run neither {sys.executable} nor /usr/bin/{version}")
    subprocess.run([base, "-m", "venv", "--without-pip", root / "venv"], check=True, timeout=50)
    packages = root / "venv/lib" / version / "site-packages"
    for entry in Path(np.__file__).parents[1].iterdir():
        if not (packages / entry.name).exists():
            (packages / entry.name).symlink_to(entry.resolve())
    if not (packages / "async_timeout").exists():  # redis wants it before Python 3.11.3, so a newer one's packages lack it
        (packages / "async_timeout.py").write_text("from asyncio import timeout")
    return str(root / "venv/bin/python")


def can_be_run(python: str) -> bool:
    account, command = pwd.getpwnam(USER), [python, "-I", "-c", "import encodings, ctypes"]
    try:
        done = subprocess.run(command, user=account.pw_uid, group=account.pw_gid, extra_groups=[], timeout=20, check=False)
    except OSError:
        return False
    return done.returncode == 0


@pytest.fixture(scope="module")
def key(root: Path) -> str:
    return make_first_key(root / "as-nobody")


def start_confined(root: Path, name: str, python: str) -> Tidegate:
    """Triton is `nobody`, and its state folder was made by us for us alone."""
    spy = root / "models/spy"
    (spy / "1").mkdir(parents=True, exist_ok=True)
    (spy / "config.pbtxt").write_text(SPY_CONFIG)
    (spy / "1/model.py").write_text(SPY)
    (root / name).mkdir(exist_ok=True)
    (root / name).chmod(0o700)
    flags = ("--authentication", "--triton-user", USER, "--model-repository", str(spy.parent), "--load", "spy")
    return start(root / name, *flags, python=python, env={"AWS_SECRET_ACCESS_KEY": "secret"})


@pytest.fixture(scope="module")
def confined(root: Path, python: str, key: str) -> Iterator[Tidegate]:
    running = start_confined(root, "as-nobody", python)
    below = living(descendants(running.process.pid))
    yield running
    assert running.stop() == 0, running.said()
    assert not living(below)


def spied(running: Tidegate, key: str, paths: Iterable[Path]) -> Any:
    """What the model says of itself, and which of these it can read."""
    tensor = tritonclient.http.InferInput("PATHS", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([json.dumps(list(map(str, paths)))], dtype=object))
    with tritonclient.http.InferenceServerClient(running.address("http")) as client:
        return json.loads(client.infer("spy", [tensor], headers={"x-api-key": key}).as_numpy("FOUND").item())


def test_triton_may_be_another_user_whose_models_get_at_nothing_of_ours(confined: Tidegate, root: Path, key: str) -> None:
    nobody = pwd.getpwnam(USER)
    programs = proc_files(living(descendants(confined.process.pid)), "comm")
    users = {name: Path(f"/proc/{pid}").stat().st_uid for pid, name in programs.items()}
    assert (users["tritonserver"], users["triton_python_b"]) == (nobody.pw_uid, nobody.pw_uid)

    ours = [
        Path(f"/proc/{confined.process.pid}/environ"),
        *(path for path in confined.state_dir.iterdir() if path.name.startswith("state")),
    ]
    assert len(ours) > 1
    own = root / "models/spy/1/model.py"
    found = spied(confined, key, [*ours, own])
    assert found["uid"] == nobody.pw_uid
    assert 0 not in found["groups"]
    assert found["home"] == nobody.pw_dir
    assert found["read"] == [str(own)]

    third = found_by(THIRD, confined)
    assert third["regions"]
    assert len(third["sockets"]) == 3
    assert third["connected"] == third["loaded"] == third["regions_read"] == third["environments_read"] == third["files_read"] == []


def test_a_load_that_another_users_triton_would_never_end_ends(confined: Tidegate, root: Path, key: str) -> None:
    """Its regions are that user's, and whoever answers in one is so, too."""
    bad_models.write(root / "models", "dies", files={"1/model.py": "import os\nos._exit(3)\n"})
    with pytest.raises(InvalidRequest, match="its Python process ended with exit status 3 before the model was ready"):
        AdminClient(confined.endpoints["admin"], key).load("dies")


def test_kill_9_leaves_nothing_of_another_users_triton(root: Path, python: str) -> None:
    killed = start_confined(root, "killed", python)
    below, prefix = descendants(killed.process.pid), shm_prefix(killed.state_dir / "triton")
    killed.process.kill()
    killed.process.wait()
    wait_for(lambda: not living(below), what="the end of Triton and its stubs")
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]
    assert not list((killed.state_dir / "triton/sockets").iterdir())


def test_a_user_that_cannot_read_what_triton_reads_is_refused(root: Path) -> None:
    secret = root / "of-root-alone"
    secret.mkdir(mode=0o700)
    done = refused_start("--state-dir", str(root / "refused"), "--triton-user", USER, "--model-repository", str(secret))
    assert done.returncode == 1
    assert f"--triton-user {USER}: that user cannot read {secret}" in done.stderr

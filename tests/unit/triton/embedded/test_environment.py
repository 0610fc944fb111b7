from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from control_plane.core.errors import StartupError
from control_plane.triton.embedded.environment import require_bash, triton_environment

LIBRARIES = Path("/s/lib")


def passed_on(*names: str, named: tuple[str, ...] = ()) -> set[str]:
    """Return which of these variables Triton gets."""
    return {name for name, value in triton_environment(dict.fromkeys(names, "x"), libraries=LIBRARIES, named=named).items() if value == "x"}


@pytest.mark.parametrize(
    "name",
    [
        "HOME",
        "LANG",
        "LC_ALL",
        "TZ",
        "TMPDIR",
        "LD_PRELOAD",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_TF32_OVERRIDE",
        "OMP_NUM_THREADS",
        "MKL_DYNAMIC",
    ],
)
def test_what_computing_needs_is_passed_on(name: str) -> None:
    assert passed_on(name) == {name}


@pytest.mark.parametrize(
    "name",
    [
        *("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_CLIENT_SECRET", "HF_TOKEN", "HF_HOME"),
        *("TIDEGATE_STATE_URL", "TIDEGATE_API_KEY", "HTTPS_PROXY", "DATABASE_URL", "SSH_AUTH_SOCK", "PYTHONPATH", "KUBECONFIG"),
        pytest.param("NVIDIA_API_KEY", id="a secret under a library's name"),
        pytest.param("TORCH_HUB_TOKEN", id="another"),
    ],
)
def test_nothing_else_is(name: str) -> None:
    assert passed_on(name) == set()


def test_but_for_what_is_named() -> None:
    assert passed_on("HF_HOME", "HF_TOKEN", "NVIDIA_API_KEY", named=("HF_HOME", "NVIDIA_API_KEY", "NOT_THERE")) == {
        "HF_HOME",
        "NVIDIA_API_KEY",
    }


def test_what_is_inherited_stays_as_it_is() -> None:
    inherited = {"PATH": "/usr/bin", "AWS_PROFILE": "x"}
    assert triton_environment(inherited, libraries=LIBRARIES) == {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin",
        "LD_LIBRARY_PATH": "/s/lib",
    }
    assert inherited == {"PATH": "/usr/bin", "AWS_PROFILE": "x"}


def test_the_environments_python_comes_first_on_the_path() -> None:
    path = triton_environment({}, libraries=Path("/s/lib"))["PATH"]
    found = shutil.which("python3", path=path)
    assert found is not None
    assert Path(found).parent == Path(sys.executable).parent
    assert shutil.which("bash", path=path) is not None


def test_a_library_path_of_the_users_still_counts_after_ours() -> None:
    environment = triton_environment({"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}, libraries=Path("/s/lib"))
    assert environment["LD_LIBRARY_PATH"] == "/s/lib:/usr/local/cuda/lib64"


def test_bash_is_required(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="install the package bash"):
        require_bash({"PATH": str(tmp_path)})
    (tmp_path / "bash").touch(mode=0o755)
    require_bash({"PATH": str(tmp_path)})


def test_stubs_of_another_python_find_the_machines_own_first() -> None:
    path = triton_environment({"PATH": "/usr/bin"}, libraries=Path("/s/lib"), has_our_python=False)["PATH"]
    assert path == "/usr/bin"

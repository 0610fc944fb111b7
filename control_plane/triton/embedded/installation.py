"""Installation of Triton: from the wheel that `make setup` downloaded and verified, unpacked once for the running
Python, or one that is on this machine already (`--tritonserver`), as in NVIDIA's image.

Called by the launcher before each start; it does blocking I/O. The layout is the wheel's own, since Triton's
binaries find their libraries relative to themselves.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from control_plane.core.errors import StartupError

TRITON_VERSION = "2.51.0"
"""Version of the server in the wheel below; NVIDIA's release 24.10."""

_WHEEL = "nvidia_pytriton-0.7.0-py3-none-manylinux_2_35_x86_64.whl"
MACHINE = "x86_64"
"""Architecture that the wheel is for."""
MIN_GLIBC = (2, 35)

_LIBPYTHON = {
    "3.11": "libpython3.11.so.1.0",
    "3.12": "libpython3.12.so.1.0",
}
"""Supported Python versions with the library that the stub for each links against. The wheel has a stub for 3.13 as
well, for which there is no NumPy 1.
"""

_NUMPY_MAJOR = "1"
"""Major version of the NumPy that the wheel's stubs were compiled against. Under NumPy 2 they read the strides of every array as 0:
they end at the first text, and compute other tensors from one repeated byte.
"""

_SERVER = "pytriton/tritonserver"
_LIBS = "nvidia_pytriton.libs"
_WANTED = (f"{_SERVER}/bin/", f"{_SERVER}/backends/", f"{_SERVER}/caches/", f"{_LIBS}/")
_ABANDONED_AFTER_S = 3600.0
"""Age of a leftover from which it is removed: unpacking takes seconds, so an hour later its process must have
been killed.
"""


@dataclass(frozen=True, slots=True)
class TritonInstallation:
    """Paths of the parts of an unpacked Triton."""

    binary: Path
    python_backend: Path
    """Folder of the `python` backend, with the stub for the running Python in it."""
    caches: Path
    libs: Path
    """Shared libraries that the wheel brings; perf_analyzer needs its libcudart."""
    is_own: bool = False
    """Whether it is the operator's own, of which all backends are used."""

    @property
    def stub(self) -> Path:
        """Program that each instance of a Python model runs in."""
        return self.python_backend / "triton_python_backend_stub"

    @property
    def backends(self) -> Path:
        """Folder of its backends."""
        return self.python_backend.parent


def own_installation(tritonserver: Path) -> TritonInstallation:
    """Return the installation that a `tritonserver` is part of, with `bin` beside `backends`. Raises StartupError:
    it cannot be run, or has no `python` backend.
    """
    shown = f"--tritonserver {tritonserver}"
    binary = tritonserver.resolve()
    if not binary.is_file():
        raise StartupError(f"{shown}: there is no such file; in NVIDIA's image it is /opt/tritonserver/bin/tritonserver")
    if not os.access(binary, os.X_OK):
        raise StartupError(f"{shown} may not be run by this user")
    root = binary.parent.parent
    found = TritonInstallation(binary, root / "backends/python", root / "caches", root / "lib", is_own=True)
    if not found.stub.is_file():
        raise StartupError(f"{shown}: {found.stub} is missing, by which Triton runs Python models; its backends lie beside its bin folder")
    return found


def running_python() -> str:
    """Return the version of the running Python, such as `3.11`."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def ensure_installed(cache_dir: Path, *, python: str | None = None) -> TritonInstallation:
    """Return the Triton for this Python (or for `python`, such as "3.12") under `cache_dir`, unpacking it if
    it is not there yet.

    Raises:
        StartupError: this machine or Python cannot run it, the wheel is missing or damaged, or the disk is
            full.
    """
    version = python or running_python()
    _require_platform(version)
    if python is None and (refusal := numpy_refusal(metadata.version("numpy"))) is not None:
        raise StartupError(refusal)
    root = cache_dir / f"triton-{TRITON_VERSION}-cp{version.replace('.', '')}"
    if not root.exists():
        _install(cache_dir, root, version)
    return _parts(root)


def _parts(root: Path) -> TritonInstallation:
    server = root / _SERVER
    return TritonInstallation(
        binary=server / "bin/tritonserver", python_backend=server / "backends/python", caches=server / "caches", libs=root / _LIBS
    )


def _require_platform(version: str) -> None:
    if platform.machine() != MACHINE:
        raise StartupError(f"the embedded Triton is built for {MACHINE}, this is {platform.machine()}; use --triton-url")
    if version not in _LIBPYTHON:
        raise StartupError(f"the embedded Triton has no stub for Python {version}; use Python {', '.join(_LIBPYTHON)}, or --triton-url")
    refusal = _glibc_refusal(*platform.libc_ver())
    if refusal is not None:
        raise StartupError(refusal)


def _glibc_refusal(library: str, version: str) -> str | None:
    needed = ".".join(map(str, MIN_GLIBC))
    if library != "glibc":
        return f"the embedded Triton needs glibc {needed}, this Python uses another C library; use --triton-url"
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_GLIBC:
        return f"the embedded Triton needs glibc {needed}, this system has {version} (Debian 12 and Ubuntu 22.04 fit); use --triton-url"
    return None


def numpy_refusal(found: str) -> str | None:
    """Return why stubs of the wheel cannot use this version of NumPy; None if they can."""
    if found.partition(".")[0] == _NUMPY_MAJOR:
        return None
    return (
        f"the embedded Triton's Python models need NumPy {_NUMPY_MAJOR}, and {sys.executable} has {found}, under which they read "
        "garbage: install 'numpy<2' there (Python 3.11 and 3.12 have it), or use --tritonserver or --triton-url"
    )


def _install(cache_dir: Path, root: Path, version: str) -> None:
    """Unpack the wheel, translating its failures. Raises StartupError."""
    wheel = cache_dir / "wheels" / _WHEEL
    if not wheel.exists():
        raise StartupError(f"the embedded Triton is not downloaded ({wheel} is missing): run `make setup`")
    try:
        _unpack(wheel, root, version)
    except zipfile.BadZipFile as exc:
        raise StartupError(f"{wheel} is damaged ({exc}): delete it and run `make setup`") from exc
    except OSError as exc:
        raise StartupError(_explain(exc, cache_dir)) from exc


def _explain(error: OSError, cache_dir: Path) -> str:
    if error.errno == errno.ENOSPC:
        free_mib = shutil.disk_usage(cache_dir).free // 2**20
        return f"no space left to unpack Triton in {cache_dir}: it takes 120 MiB, {free_mib} MiB are free"
    return f"cannot unpack Triton in {cache_dir}: {error.strerror}"


def _unpack(wheel: Path, root: Path, version: str) -> None:
    """Unpack into a temporary folder and rename that to `root`, so that a folder named `root` is always
    complete.
    """
    _remove_abandoned(root)
    building = Path(tempfile.mkdtemp(prefix=f".{root.name}.", dir=root.parent))
    try:
        with zipfile.ZipFile(wheel) as archive:
            _extract(archive, building, version)
        building.chmod(0o755)
        _rename_unless_there(building, root)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _extract(archive: zipfile.ZipFile, building: Path, version: str) -> None:
    archive.extractall(building, _members(archive))
    stub = _parts(building).stub
    with archive.open(f"{_SERVER}/python_backend_stubs/{version}/{stub.name}") as source, stub.open("wb") as target:
        shutil.copyfileobj(source, target)
    for program in (_parts(building).binary, stub):
        program.chmod(0o755)


def _members(archive: zipfile.ZipFile) -> Iterator[str]:
    for name in archive.namelist():
        if name.startswith(_WANTED) and not name.startswith(f"{_LIBS}/libpython"):
            yield name


def _rename_unless_there(building: Path, root: Path) -> None:
    try:
        building.rename(root)
    except OSError as exc:
        # Another process was faster: its folder has the same contents.
        if exc.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise


def _remove_abandoned(root: Path) -> None:
    for building in root.parent.glob(f".{root.name}.*"):
        if time.time() - os.stat(building).st_mtime > _ABANDONED_AFTER_S:
            shutil.rmtree(building, ignore_errors=True)

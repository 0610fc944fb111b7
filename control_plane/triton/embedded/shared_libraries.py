"""Check that the dynamic linker finds all libraries of Triton and its Python stub, and the choice of their
libpython.

It asks the linker itself, as `ldd` does. A stub that cannot start would leave its model LOADING for ever
(server 24.10).
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from control_plane.core.errors import StartupError

_TRACE_TIMEOUT_S = 10.0
_NOT_FOUND = re.compile(r"^\s*(\S+) => not found", re.MULTILINE)
_PYTHON_LIBRARY = re.compile(r"(libpython\d+\.\d+)\.so")


def link_libpython(library_dir: Path) -> None:
    """Link the interpreter's own libpython, if it has one, into `library_dir` for `LD_LIBRARY_PATH`.

    It gets a folder of its own, since the interpreter's `lib/` has other libraries that Triton must not pick
    up (conda: libstdc++, OpenSSL). If the interpreter has none, the linker takes the system's.
    """
    library_dir.mkdir(parents=True, exist_ok=True)
    for stale in library_dir.iterdir():
        stale.unlink()
    own = own_libpython()
    if own is not None:
        (library_dir / own.name).symlink_to(own)


def own_libpython() -> Path | None:
    """Return the libpython that this interpreter brings along, or None."""
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    folders = (sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib")
    return next((path for folder in folders if folder and (path := Path(folder, name)).exists()), None)


def require_loadable(binary: Path, environment: Mapping[str, str]) -> str:
    """Return the dynamic linker's trace of `binary`. Raises StartupError, with what to install, unless every library
    is found under `environment`.
    """
    try:
        traced = subprocess.run(
            [binary],
            env={**environment, "LD_TRACE_LOADED_OBJECTS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=_TRACE_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise StartupError(f"cannot run {binary}: {exc}") from exc
    missing = missing_libraries(traced.stdout)
    if missing:
        raise StartupError(f"{binary.name} needs {', '.join(missing)}, which the dynamic linker does not find: {advice(missing)}")
    if traced.returncode != 0:
        raise StartupError(f"the dynamic linker cannot load {binary}: {traced.stderr.strip()[:500]}")
    return traced.stdout


def linked_python(trace: str) -> str | None:
    """Return the version of Python, such as `3.12`, that a program is linked against, by a trace of the dynamic
    linker."""
    found = re.search(r"libpython(\d+\.\d+)\.so", trace)
    return found and found[1]


def missing_libraries(trace: str) -> list[str]:
    """Return the libraries that are not found, according to a trace of the dynamic linker (ld.so(8))."""
    return list(dict.fromkeys(_NOT_FOUND.findall(trace)))


def advice(missing: list[str]) -> str:
    """Say what to do about missing libraries; there must be at least one."""
    python = _PYTHON_LIBRARY.match(missing[0])
    if python is None:
        return "install the packages that hold them"
    return f"install the package {python[1]} (apt-get install {python[1]}), or use a Python that was built with --enable-shared"

"""The Python of Triton's stubs, whose packages models in Python import: the running one, or the machine's own.

Used by the launcher for their environment, and by `models/adapters/profile`, which asks what computes there.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from control_plane.core.errors import StartupError
from control_plane.triton.embedded.environment import triton_environment
from control_plane.triton.embedded.installation import TritonInstallation, own_installation, running_python
from control_plane.triton.embedded.shared_libraries import linked_python, own_libpython, require_loadable


def has_our_python(installation: TritonInstallation, environment: Mapping[str, str]) -> bool:
    """Whether stubs are of the running Python's version, and so import what is installed for it. Raises StartupError: the stub
    cannot be loaded."""
    trace = require_loadable(installation.stub, environment)
    return not installation.is_own or linked_python(trace) == running_python()


def stub_python(tritonserver: Path | None, inherited: Mapping[str, str] = os.environ) -> str:
    """Return the program of the Python that stubs of a Triton are of: the operator's own one, or the wheel's (None)."""
    if tritonserver is None:
        return sys.executable
    libraries = (own_libpython() or Path(sys.executable)).parent
    try:
        if has_our_python(own_installation(tritonserver.absolute()), triton_environment(inherited, libraries=libraries)):
            return sys.executable
    except StartupError:  # which the start of Triton will raise, too
        return sys.executable
    path = triton_environment(inherited, libraries=libraries, has_our_python=False)["PATH"]
    return shutil.which("python3", path=path) or "python3"

"""Environment of Triton and its stubs: variables of ours that computing needs, and none that may be a secret.

Any model's code can read it. Variables that are not known here are passed on if the setting `triton_env`
names them.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from control_plane.core.errors import StartupError

_PASSED_ON = (
    *("HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LANGUAGE", "LC_*"),
    *("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "MALLOC_*", "GLIBC_TUNABLES"),
    *("CUDA_*", "NVIDIA_*", "NCCL_*", "CUDNN_*", "CUBLAS_*", "TRT_*", "TENSORRT_*"),
    *("OMP_*", "KMP_*", "GOMP_*", "MKL_*", "OPENBLAS_*", "BLIS_*", "DNNL_*", "ONEDNN_*", "NUMEXPR_*"),
    *("ORT_*", "TORCH_*", "TORCHINDUCTOR_*", "PYTORCH_*", "TRITON_*", "XLA_*", "TF_*", "TOKENIZERS_PARALLELISM"),
)
"""Patterns of variables that are passed on: the machine's own, then those of libraries that compute."""

_MAY_BE_A_SECRET = re.compile("KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH")
"""Names that are held back although a pattern matches them, such as NVIDIA_API_KEY."""


def triton_environment(
    inherited: Mapping[str, str], *, libraries: Path, named: Collection[str] = (), has_our_python: bool = True
) -> dict[str, str]:
    """Select Triton's environment from the `inherited` one, with the variables that are `named`; the dynamic
    linker searches `libraries` first. Stubs that are not of our Python (`has_our_python`) use the machine's own.

    Stubs run Python in isolated mode: they ignore every PYTHON* variable, PYTHONPATH included.
    """
    kept = {name: value for name, value in inherited.items() if name in named or _is_passed_on(name)}
    path = kept.get("PATH", "/usr/bin:/bin")
    return {
        **kept,
        # The stub finds its packages through the first `python3` on the path.
        "PATH": _joined(Path(sys.executable).parent, path) if has_our_python else path,
        "LD_LIBRARY_PATH": _joined(libraries, kept.get("LD_LIBRARY_PATH")),
    }


def require_bash(environment: Mapping[str, str]) -> None:
    """Raise StartupError if there is no bash: Triton starts Python stubs through it, and without it a load
    hangs.
    """
    if shutil.which("bash", path=environment["PATH"]) is None:
        raise StartupError("Triton starts Python models through bash, which is not on the PATH: install the package bash")


def _is_passed_on(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _PASSED_ON) and not _MAY_BE_A_SECRET.search(name)


def _joined(first: Path, rest: str | None) -> str:
    return f"{first}:{rest}" if rest else str(first)

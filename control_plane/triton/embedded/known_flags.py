"""Check of the flags that an operator passes to Triton (`--triton-arg`) against Triton's own list of flags.

It runs before Triton starts, for two reasons. Triton would report an unknown flag above a page of help, of
which the tail of the log has only the end. And Triton accepts any abbreviation of a flag, so that one that
settings forbid by name would get by.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from control_plane.core.errors import StartupError

_HELP_TIMEOUT_S = 10.0
_NAME = re.compile(r"^  (--[a-z0-9-]+)", re.MULTILINE)


def require_known(flags: Sequence[str], binary: Path, environment: Mapping[str, str]) -> None:
    """Raise StartupError for the first of `flags` whose whole name Triton's help does not have."""
    if not flags:
        return
    try:
        printed = subprocess.run(
            [binary, "--help"], env=dict(environment), capture_output=True, text=True, check=False, timeout=_HELP_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise StartupError(f"cannot run {binary}: {exc}") from exc
    known = set(_NAME.findall(printed.stdout + printed.stderr))
    for flag in flags:
        if flag.partition("=")[0] not in known:
            raise StartupError(f"--triton-arg {flag}: Triton has no such flag; `{binary} --help` lists them")

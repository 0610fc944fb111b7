"""Check of Triton's flags against its own list of them: those that an operator passes (`--triton-arg`), and, for a
Triton of another version (`--tritonserver`), ours.

It runs before Triton starts, for two reasons. Triton would report an unknown flag above a page of help, of
which the tail of the log has only the end. And Triton accepts any abbreviation of a flag, so that one that
settings forbid by name would get by.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from control_plane.core.errors import StartupError

_HELP_TIMEOUT_S = 10.0
_NAME = re.compile(r"^  (--[a-z0-9-]+)", re.MULTILINE)


_WHERE_KNOWN: tuple[str, ...] = (
    # Since 26.05 clients' shared memory is off by default. Who may use it decides the gateway, for all versions alike.
    "--allow-client-shm=true",
)
"""Flags that only some versions know, and that make these behave as the others."""


def require_known(flags: Sequence[str], known: Collection[str]) -> None:
    """Raise StartupError for the first of the operator's `flags` whose whole name Triton does not know."""
    for flag in flags:
        if _name(flag) not in known:
            raise StartupError(f"--triton-arg {flag}: Triton has no such flag; `tritonserver --help` lists them")


def require_ours(command: Sequence[str], known: Collection[str]) -> None:
    """Raise StartupError for a Triton that does not know all flags of our command: it is too old."""
    if missing := sorted({_name(flag) for flag in command[1:]} - set(known)):
        raise StartupError(f"--tritonserver {command[0]}: it does not know {', '.join(missing)}; use release 24.10 or a later one")


def of_this_version(known: Collection[str]) -> list[str]:
    """Return the flags of ours that this version of Triton wants and others do not know."""
    return [flag for flag in _WHERE_KNOWN if _name(flag) in known]


def known_flags(binary: Path, environment: Mapping[str, str]) -> frozenset[str]:
    """Return the names of all flags of a Triton, by its own help. Raises StartupError."""
    try:
        printed = subprocess.run(
            [binary, "--help"], env=dict(environment), capture_output=True, text=True, check=False, timeout=_HELP_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise StartupError(f"cannot run {binary}: {exc}") from exc
    return frozenset(_NAME.findall(printed.stdout + printed.stderr))


def _name(flag: str) -> str:
    return flag.partition("=")[0]

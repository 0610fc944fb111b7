"""User account that the embedded Triton and its stubs run as, if it is another one than ours
(`--triton-user`).
"""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from control_plane.core.errors import StartupError

_CHECK_TIMEOUT_S = 30.0
_UNREADABLE = 3

_CHECK = f"""
for path in "$@"; do
  [ -r "$path" ] && {{ [ ! -d "$path" ] || [ -x "$path" ]; }} || {{ echo "$path"; exit {_UNREADABLE}; }}
done
exec python3 -I -c "import numpy"
"""
"""Script that does what a stub does at its start, in bash, as Triton starts it; it prints the first path that
is not readable.
"""


@dataclass(frozen=True, slots=True)
class Account:
    """User of this machine as getpwnam(3) returns it, with all its groups."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    @property
    def identity(self) -> str:
        """User and groups in the form that `confine.py` takes."""
        return f"{self.uid}:{self.gid}:{','.join(map(str, self.groups))}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that replace ours in the environment of the account's processes."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


def find_account(name: str, *, our_uid: int | None = None) -> Account:
    """Look a user up. Raises StartupError: there is no such user, it is root, or this process may not become
    it.
    """
    if (os.geteuid() if our_uid is None else our_uid) != 0:
        raise StartupError(f"--triton-user {name}: only root may start processes as another user; start tidegate as root, or leave it out")
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise StartupError(f"--triton-user {name}: this machine has no such user") from None
    if found.pw_uid == 0:
        raise StartupError(f"--triton-user {name}: that is root; name a user that may do less")
    groups = tuple(os.getgrouplist(name, found.pw_gid))
    return Account(name, found.pw_uid, found.pw_gid, groups, found.pw_dir)


def grant_traversal(account: Account, folders: Iterable[Path]) -> None:
    """Let the account's group pass through folders of ours that are closed to all others; other permissions
    stay as they are.
    """
    for folder in folders:
        state = folder.stat()
        if stat.S_IMODE(state.st_mode) & 0o077 == 0:
            os.chown(folder, -1, account.gid)
            folder.chmod(stat.S_IMODE(state.st_mode) | 0o010)


def require_reach(account: Account, paths: Sequence[Path], environment: Mapping[str, str]) -> None:
    """Raise StartupError unless the account can read `paths` and run the Python that stubs run in."""
    try:
        done = subprocess.run(
            ["bash", "-c", _CHECK, "bash", *map(str, paths)],
            env=dict(environment),
            user=account.uid,
            group=account.gid,
            extra_groups=account.groups,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            timeout=_CHECK_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise StartupError(f"--triton-user {account.name}: that user cannot run bash: {exc}") from exc
    if done.returncode == _UNREADABLE:
        path = done.stdout.strip()
        raise StartupError(f"--triton-user {account.name}: that user cannot read {path}: give it the right to, also to the folders above")
    if done.returncode != 0:
        why = done.stderr.strip()[-500:]
        raise StartupError(f"--triton-user {account.name}: that user cannot run this Python ({environment['PATH']}) with numpy: {why}")

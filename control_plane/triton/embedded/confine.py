"""Program that drops privileges and then becomes Triton by exec, as setpriv(1) does; it uses the standard
library only.

python -I -S confine.py USER COMMAND...

The guardian starts it in Triton's place. USER is `UID:GID:GROUP,GROUP` of the user to become, or empty. Other
users of the machine can then neither enter nor read what Triton and its stubs create: sockets and files by
the umask, and regions in /dev/shm by a seccomp filter, since Boost, with which Triton 24.10 creates them,
sets their mode to 0644 whatever the umask is.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_SYS_SECCOMP = 317
"""Number on x86_64, like all numbers here: there is no embedded Triton for another architecture."""
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_SPEC_ALLOW = 4
"""Without this flag kernels before 5.16 slow down processes with a filter (mitigation of speculative store
bypass).
"""

_AUDIT_ARCH_X86_64 = 0xC000003E
_SYS_FCHMOD = 91
_BOOSTS_MODE = 0o644

_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW = 0x7FFF0000
_SUCCEED_WITHOUT_DOING_IT = 0x00050000
"""SECCOMP_RET_ERRNO with errno 0."""

_NUMBER_AT, _ARCHITECTURE_AT, _SECOND_ARGUMENT_AT = 0, 4, 24
"""Offsets in struct seccomp_data (seccomp(2))."""

_KEEP_MODE = (
    (_LOAD, 0, 0, _ARCHITECTURE_AT),
    (_JUMP_IF_EQUAL, 0, 5, _AUDIT_ARCH_X86_64),
    (_LOAD, 0, 0, _NUMBER_AT),
    (_JUMP_IF_EQUAL, 0, 3, _SYS_FCHMOD),
    (_LOAD, 0, 0, _SECOND_ARGUMENT_AT),
    (_JUMP_IF_EQUAL, 0, 1, _BOOSTS_MODE),
    (_RETURN, 0, 0, _SUCCEED_WITHOUT_DOING_IT),
    (_RETURN, 0, 0, _ALLOW),
)
"""BPF program by which fchmod(fd, 0644) succeeds without changing the mode; all other calls are allowed. Each
instruction is (code, jump if true, jump if false, operand).
"""


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def main(arguments: Sequence[str]) -> None:
    """Drop privileges, then become the command, whose descendants inherit all of it."""
    user, *command = arguments
    os.umask(0o077)
    if user:
        _become(user)
    try:
        _keep_modes()
    except OSError as exc:
        _say(f"other users of this machine can read Triton's shared memory: this kernel filters no system calls ({exc.strerror})")
    try:
        os.execv(command[0], command)  # noqa: S606
    except OSError as exc:
        _say(f"cannot start {command[0]}: {exc.strerror}")
        sys.exit(127)


def _become(user: str) -> None:
    """Become the user for good: real, effective and saved ids change, so that there is no way back."""
    uid, gid, groups = user.split(":")
    guardian = os.getppid()
    os.setgroups([int(group) for group in groups.split(",") if group])
    os.setresgid(int(gid), int(gid), int(gid))
    os.setresuid(int(uid), int(uid), int(uid))
    # A change of the user clears the parent-death signal that the guardian has set (prctl(2)). The guardian
    # may have died before it is set again, which the parent's id shows.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != guardian:
        sys.exit(1)


def _keep_modes() -> None:
    """Install the seccomp filter. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in _KEEP_MODE)
    program = _Program(len(_KEEP_MODE), code)
    # A filter requires it of a process without CAP_SYS_ADMIN (seccomp(2)); besides, no model has any business
    # with setuid programs.
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if libc.syscall(_SYS_SECCOMP, _SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_SPEC_ALLOW, ctypes.byref(program)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _say(text: str) -> None:
    sys.stderr.write(f"confine: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main(sys.argv[1:])

"""A small file system of its own, which a drill can fill without filling this machine's disk.

It is mounted in a mount namespace of this process's own, so that nobody else sees it, and nothing of it is left however the process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_PIECE = bytes(1 << 20)


class CannotMount(RuntimeError):
    """This process may not mount anything."""


@contextlib.contextmanager
def mounted(folder: Path, size_bytes: int) -> Iterator[Path]:
    """To be called by the main thread, whose children see it. Raises CannotMount."""
    _enter_namespace()
    folder.mkdir(parents=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tidegate-chaos", str(folder))
    try:
        yield folder
    finally:
        _run("umount", "--lazy", str(folder))


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """No byte more can be written there meanwhile."""
    ballast = folder / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            piece = _PIECE
            while piece:
                try:
                    file.write(piece)
                except OSError:
                    piece = piece[: len(piece) // 2]
        yield
    finally:
        ballast.unlink(missing_ok=True)


def try_to_enter() -> None:
    """Give this process a mount namespace of its own, while it has one thread, if it may have one: `mounted` says later if it may not."""
    with contextlib.suppress(CannotMount):
        _enter_namespace()


@cache
def _enter_namespace() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS):
        raise CannotMount(f"no mount namespace of one's own: {os.strerror(ctypes.get_errno())}")
    _run("mount", "--make-rprivate", "/")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CannotMount(done.stderr.strip())

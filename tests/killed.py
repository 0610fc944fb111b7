"""A process that dies by `kill -9` right before one of the steps that it takes in the file system, for tests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

_STEPS = frozenset(("open", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree"))
"""Events of the interpreter (`sys.addaudithook`), each raised before the step."""


def dies_before(step: int, folder: str, work: Callable[..., None], *arguments: Any) -> bool:
    """Run `work` in a process of its own that dies before its step of this number in `folder`; False: it took fewer."""
    process = get_context("fork").Process(target=_run, args=(step, folder, work, arguments))
    process.start()
    process.join()
    if process.exitcode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the process failed by itself, with {process.exitcode}")
    return process.exitcode == -signal.SIGKILL


def _run(step: int, folder: str, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    left = step

    def count(event: str, details: tuple[Any, ...]) -> None:
        nonlocal left
        if event in _STEPS and str(details[0]).startswith(folder):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    work(*arguments)

"""Build program adapter: implements `models/ports.ModelBuilder` by a process of the lowest priority that runs
models' recipes.

Recipes belong to `python_backends.export`, which the control plane never imports. The kernel ends the build
process when this process ends, however it ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from control_plane.models.domain.build_message import read_build_event
from control_plane.models.domain.model_build import BuildEvent, BuildEventKind
from control_plane.settings import ENV_PREFIX

_SECRETS = (ENV_PREFIX, "AWS_")
"""Prefixes of variables that are not handed on: recipes are other people's code, and these variables may hold
our secrets.
"""

_LINE_BYTES = 2**20
_REMARKS = 5
_DONE = (0, 1)
"""Exit statuses that are no failure of the program: all is up to date; something could not be built, which an
event has said.
"""


class ModelBuildProgram:
    """Build process: `python -m python_backends.export` on the folders of models that have recipes."""

    def __init__(self, repositories: Sequence[Path], *, environment: Mapping[str, str] = os.environ) -> None:
        self._repositories = repositories
        self._environment = {name: value for name, value in environment.items() if not name.startswith(_SECRETS)}

    async def build(self) -> AsyncGenerator[BuildEvent]:
        """Build what is not up to date, as `models/ports.ModelBuilder.build` says."""
        folders = sorted({recipe.parent for root in self._repositories for recipe in root.absolute().glob("*/build.py")})
        if not folders:
            return
        process = await self._start(folders)
        remarks: deque[str] = deque(maxlen=_REMARKS)
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                if event := read_build_event(line):
                    yield event
                else:
                    remarks.append(line.decode("utf-8", "replace").strip())
            if (status := await process.wait()) not in _DONE:
                yield BuildEvent(BuildEventKind.FAILED, text=f"the build ended with exit status {status}: {' / '.join(remarks)}")
        finally:
            await _end(process)

    async def _start(self, folders: Sequence[Path]) -> Process:
        """Start the build program in a session of its own, without our secrets in its environment."""
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "python_backends.export", "--json", "--background-of", str(os.getpid()), "--", *map(str, folders)),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            env=self._environment,
            limit=_LINE_BYTES,
            start_new_session=True,  # Ctrl-C must reach this process only, which then ends the build in order
        )


async def _end(process: Process) -> None:
    """Kill the process with all that it has started, which is in its process group."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

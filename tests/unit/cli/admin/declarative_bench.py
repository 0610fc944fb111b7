"""A running admin API whose state folder the command line finds, as that of a `tidegate` that this user runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from control_plane.host.state_dir import StateDir
from tests.unit.admin.admin_bench import Bench
from tests.wire.admin.admin import admin_server


@dataclass(frozen=True)
class Shell:
    """A shell in a folder, whose `tidegate` commands ask that admin API."""

    folder: Path
    url: str
    bench: Bench

    def run(self, line: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        known = {
            "PATH": path,
            "HOME": str(self.folder),
            "TIDEGATE_STATE_DIR": str(self.folder / "state"),
            "COLUMNS": "120",
            "NO_COLOR": "1",
        }
        return subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, timeout=300, cwd=self.folder, env={**known, **environment}
        )


@contextmanager
def shell(folder: Path) -> Iterator[Shell]:
    bench = Bench()
    with admin_server(bench) as url, StateDir(folder / "state") as state:
        state.write_endpoints({"admin": url})
        yield Shell(folder, url, bench)

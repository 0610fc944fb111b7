"""Two processes over a Lease of Kubernetes, of which one is stopped: at the scripted API server, and at a real one where
there is one.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.kubernetes.api_servers import API_SERVERS, AnyApi, an_api

PROJECT = Path(__file__).parents[3]
TAKEN_OVER_S = 60.0
"""Far more than it takes, on a machine that is busy."""


@dataclass
class Holders:
    """The processes, and what each has said and when."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]]

    def said(self, name: str) -> list[tuple[float, str]]:
        lines = [line.partition(" ") for line in (self.folder / name).read_text().rpartition("\n")[0].splitlines()]
        return [(float(time_s), what) for time_s, _, what in lines]

    def await_leader(self, *, after: int) -> tuple[str, int]:
        """Wait for a leader whose token is greater, and return its name and its token."""
        ends_s = time.monotonic() + TAKEN_OVER_S
        while True:
            for name in self.processes:
                called = [int(what.removeprefix("called ")) for _, what in self.said(name) if what.startswith("called ")]
                if any(token > after for token in called):
                    return name, called[-1]
            assert time.monotonic() < ends_s, f"nobody leads: {[self.said(each) for each in self.processes]}"
            time.sleep(0.02)


@contextmanager
def holders(api: AnyApi, folder: Path) -> Iterator[Holders]:
    processes = {}
    try:
        for name in ("one", "other"):
            with (folder / name).open("w") as said, (folder / f"{name}.log").open("w") as log:
                words = [sys.executable, "-u", "-m", "tests.contract.kubernetes.lease_holder", name, api.url, str(api.account)]
                processes[name] = subprocess.Popen(words, stdout=said, stderr=log, cwd=PROJECT)
        yield Holders(folder, processes)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


@pytest.fixture(params=API_SERVERS)
def api(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyApi]:
    with ExitStack() as held:
        yield an_api(request.param, request, held, tmp_path)


def test_a_leader_that_is_stopped_is_followed_soon_and_its_late_call_refused(api: AnyApi, tmp_path: Path) -> None:
    with holders(api, tmp_path) as it:
        first, token = it.await_leader(after=0)
        stopped_s = time.monotonic()
        it.processes[first].send_signal(signal.SIGSTOP)
        second, its_token = it.await_leader(after=token)
        assert second != first
        continued_s = time.monotonic()
        it.processes[first].send_signal(signal.SIGCONT)
        while it.said(first)[-1][0] < continued_s:
            assert time.monotonic() < continued_s + 30.0, it.said(first)
            time.sleep(0.02)
        assert [what for time_s, what in it.said(first) if time_s > stopped_s] == ["refused"]
        assert [what for _, what in it.said(second)][-1] == f"called {its_token}"
        lease = api.get("Lease", "tidegate")
        assert lease is not None
        assert lease["spec"]["holderIdentity"] == second

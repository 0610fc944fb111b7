"""A process of a drill that leaves another one behind."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from perf.chaos.sites.gateways import Gateway
from perf.servers import processes
from perf.servers.processes import tree
from tests.e2e.tidegate import living, wait_for


@pytest.fixture
def careless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    """One that starts a process which nothing ends."""
    command = ["sh", "-c", f"sleep 600 & : > {tmp_path}/endpoints.json; wait"]
    monkeypatch.setattr(processes, "start_tidegate", lambda *_: subprocess.Popen(command, start_new_session=True))
    return Gateway(tmp_path)


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_what_outlives_it_fails_the_drill_and_is_ended(is_killed: bool, careless: Gateway) -> None:
    careless.start()
    (left,) = set(tree(careless.pid)) - {careless.pid}
    if is_killed:
        careless.kill()
    with pytest.raises(RuntimeError, match=re.escape("outlived what a drill has ended: sleep")):
        careless.stop(within_s=0.2)
    wait_for(lambda: not living({left}), what="its end")

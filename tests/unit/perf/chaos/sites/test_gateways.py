"""A process of a drill that leaves another one behind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perf.chaos.sites.gateways import Gateway
from perf.servers.processes import tree
from tests.e2e.tidegate import living, wait_for


class Careless(Gateway):
    """Starts a process that nothing ends."""

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self._command = ["sh", "-c", f"sleep 600 & : > {state}/endpoints.json; wait"]


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_what_outlives_it_fails_the_drill_and_is_ended(is_killed: bool, tmp_path: Path) -> None:
    gateway = Careless(tmp_path)
    gateway.start()
    (left,) = set(tree(gateway.pid)) - {gateway.pid}
    if is_killed:
        gateway.kill()
    with pytest.raises(RuntimeError, match=re.escape("outlived what a drill has ended: sleep")):
        gateway.stop(within_s=0.2)
    wait_for(lambda: not living({left}), what="its end")

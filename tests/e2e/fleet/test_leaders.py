"""Two processes over one Triton: one is held still past its lease at any moment, and neither overcommits it nor races the other."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from control_plane.core.endpoints import Endpoints
from control_plane.core.model import ModelState
from control_plane.fleet.adapters.redis_lease import make_redis_lease
from control_plane.fleet.domain.placement.load_plan import states_of
from control_plane.models.adapters.managed_repository import ManagedRepository
from control_plane.settings import TritonSettings
from control_plane.triton.adapters.control import ControlClient
from control_plane.triton.embedded.process import EmbeddedTritonLauncher
from tests.aio import run
from tests.e2e.fleet.two_leaders import BUDGET, BYTES, LIMITS, MIB
from tests.e2e.tidegate import PROJECT
from tests.redis_server import redis_server

CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group [ { kind: KIND_CPU } ]
"""
MODEL = """
import time

class TritonPythonModel:
    def initialize(self, args):
        time.sleep(%s)

    def finalize(self):
        time.sleep(0.2)
"""
INIT_S = {"model_a": 0.02, "model_b": 0.02, "model_c": 0.3, "model_d": 2.2}
"""The last outlasts the lease."""

ROUNDS = 3
TAKEOVER_S = LIMITS.ttl_s + LIMITS.margin_s + 5.0
"""Far more than the looks and calls in between take, on a machine that is busy."""


@dataclass
class Observed:
    """What the index showed at any time, from outside."""

    looks: int = 0
    models: set[str] = field(default_factory=set)
    most_held: int = 0
    violations: list[str] = field(default_factory=list)

    def has_seen_enough(self) -> bool:
        """Whether models came and went, and there was something to be careful about."""
        return len(self.models) >= 3 and self.most_held > BUDGET - 30 * MIB

    async def watch(self, control: ControlClient) -> None:
        while True:
            states = states_of(await control.index())
            held, loading = sum(map(BYTES.__getitem__, states)), [name for name, state in states.items() if state is ModelState.LOADING]
            self.looks += 1
            self.models |= states.keys()
            self.most_held = max(self.most_held, held)
            if held > BUDGET or len(loading) > 1:
                self.violations.append(str(states))
            await asyncio.sleep(0.01)


def make_models(folder: Path) -> Path:
    for name, seconds in INIT_S.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(CONFIG)
        (folder / name / "1" / "model.py").write_text(MODEL % seconds)
    return folder


@asynccontextmanager
async def triton(state_dir: Path, source: Path) -> AsyncIterator[Endpoints]:
    ManagedRepository((source,), state_dir, config_name="").place_all()
    process = await EmbeddedTritonLauncher(TritonSettings(cache_dir=PROJECT / ".cache"), state_dir).start()
    try:
        yield process.endpoints
    finally:
        await process.stop(grace_s=4.0)


@contextmanager
def leaders(url: str, endpoints: Endpoints, folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    words = [sys.executable, "-u", "-m", "tests.e2e.fleet.two_leaders"]
    where = [url, str(endpoints.grpc).removeprefix("unix:"), endpoints.control_secret]
    processes = {}
    try:
        for holder in ("one", "other"):
            with (folder / holder).open("w") as said:
                processes[holder] = subprocess.Popen([*words, holder, *where], stdout=said, stderr=said, cwd=PROJECT)
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def test_one_that_is_held_still_past_its_lease_does_no_harm(tmp_path: Path) -> None:
    # Where it is stopped is chance, and so is what Triton does then; a failure says what the index showed.
    choose = random.Random(7)
    observed = Observed()

    async def main(url: str) -> None:
        async with triton(tmp_path / "state", make_models(tmp_path / "models")) as endpoints:
            control = ControlClient(endpoints.grpc, control_secret=endpoints.control_secret)
            lease = make_redis_lease(SecretStr(url))
            while not await control.is_live():
                await asyncio.sleep(0.02)

            async def leader(*, other_than: str = "") -> str:
                began_s = time.monotonic()
                while (found := await lease.read()) is None or found.holder == other_than:
                    assert time.monotonic() - began_s < TAKEOVER_S, "nobody takes over"
                    await asyncio.sleep(0.02)
                return found.holder

            with leaders(url, endpoints, tmp_path) as processes:
                async with asyncio.TaskGroup() as tasks:
                    watching = tasks.create_task(observed.watch(control))
                    for number in itertools.count():
                        if number >= ROUNDS and observed.has_seen_enough():
                            break
                        before = await leader()
                        await asyncio.sleep(choose.uniform(0.5, 1.5))
                        processes[before].send_signal(signal.SIGSTOP)
                        after = await leader(other_than=before)
                        await asyncio.sleep(choose.uniform(0.0, 0.7))  # while the new one begins
                        processes[before].send_signal(signal.SIGCONT)
                        await asyncio.sleep(0.5)
                        assert await leader() == after
                    watching.cancel()
            await lease.close()
            await control.close()

    with redis_server(tmp_path) as server:
        run(main(server.url), timeout_s=200.0)
    said = {holder: (tmp_path / holder).read_text() for holder in ("one", "other")}
    assert not observed.violations, (observed.violations[:5], said)
    assert all("loaded" in text and "Traceback" not in text for text in said.values()), said
    assert observed.looks > 300

"""`tidegate serve` with the suite's models, once per module that needs its own; Triton must survive whatever is done to it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from perf.servers.rabbitmq import RabbitmqServer, rabbitmq_server
from tests.contract.http.http_extensions import SHARED_BYTES, SHARED_MEMORY
from tests.e2e import tidegate as servers
from tests.real_kubernetes import RealApi, real_api
from tests.redis_server import RedisServer, redis_server

MODELS = Path(__file__).parent / "models"
FORWARDED = "^x-(tenant|locale)$|cookie|auth|key"
"""Headers for `test_header_forwarding`; those behind the first are never sent on, and no other case sends any of them."""
LOADED = ("types", "repeat", "accumulate", "accumulate_text", "classify", "patient", "facts", "fails", "say", "versions", "chain")


class BothWays:
    """The same Triton twice: straight, and through the gateway."""

    def __init__(self, running: servers.Tidegate) -> None:
        self.running = running
        self.gateway_http = running.port("http")
        self.gateway_grpc = running.address("grpc")
        self._find_triton()

    def both(self, kind: str) -> tuple[str, str]:
        """Addresses for a client, straight first."""
        http = (f"127.0.0.1:{self.straight_http}", f"127.0.0.1:{self.gateway_http}")
        return http if kind == "http" else (self.straight_grpc, self.gateway_grpc)

    def triton_lives(self) -> bool:
        return _name(self._triton) == "tritonserver"

    def await_triton(self) -> None:
        """Return at once if Triton is the one it was; else wait until there is a new one with its models."""
        if self.triton_lives():
            return
        deadline_s = time.monotonic() + 120.0
        while self.running.said().count("Triton is up") == self._restarts:
            assert time.monotonic() < deadline_s, "Triton does not come back"
            time.sleep(0.1)
        self._find_triton()

    def _find_triton(self) -> None:
        self._restarts = self.running.said().count("Triton is up")
        self._triton = next(pid for pid in servers.descendants(self.running.process.pid) if _name(pid) == "tritonserver")
        self.straight_http = self.running.triton_port("HTTPService")  # by relays: Triton itself has Unix sockets only
        self.straight_grpc = f"127.0.0.1:{self.running.triton_port('GRPCInferenceService')}"


@contextmanager
def served(state_dir: Path, models: Sequence[str] = LOADED) -> Iterator[BothWays]:
    """One for as long as the block; at its end nothing of it is left and its log tells of no defect."""
    loads = [part for name in models for part in ("--load", name)]
    # What the same calls say straight, Triton says to everybody here; tests/e2e/loads/test_fingerprints.py has the lock.
    unlocked = {"TIDEGATE_LOCK_MODEL_CONTROL": "false"}
    flags = ("--model-repository", str(MODELS), servers.COMPLETE, "--allow-shared-memory", "--header-forward-pattern", FORWARDED, *loads)
    running = servers.start(state_dir, *flags, env=unlocked)
    below = servers.descendants(running.process.pid)
    try:
        yield BothWays(running)
    finally:
        status = running.stop()
    assert status == 0, running.said()
    assert not servers.living(below), "processes outlived tidegate"
    defects = [line for line in running.said().splitlines() if "this is a defect" in line]
    assert not defects, defects


@pytest.fixture(scope="session")
def shared_memory() -> Iterator[None]:
    """A region that clients may register."""
    path = Path("/dev/shm") / SHARED_MEMORY
    path.write_bytes(SHARED_BYTES)
    yield
    path.unlink()


@pytest.fixture(scope="session")
def frontends(tmp_path_factory: pytest.TempPathFactory, shared_memory: None) -> Iterator[BothWays]:
    with served(tmp_path_factory.mktemp("contract")) as frontends:
        yield frontends


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """For cases that leave it running; each empties it first."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitmqServer]:
    """For cases that leave it running; it takes seconds to start."""
    with rabbitmq_server(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApi]:
    """A real API server of `KUBEBUILDER_ASSETS`, which the tests of this run share."""
    with real_api(tmp_path_factory.mktemp("kubernetes")) as api:
        yield api


@pytest.fixture(autouse=True)
def triton_survives(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails the case after which Triton is gone, not those behind it."""
    if "frontends" not in request.fixturenames:
        yield
        return
    frontends: BothWays = request.getfixturevalue("frontends")
    frontends.await_triton()
    yield
    assert frontends.triton_lives(), f"Triton died:\n{frontends.running.triton_log()[-3000:]}"


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""

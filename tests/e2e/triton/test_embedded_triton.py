"""The launcher and the supervisor with the real Triton; nothing of it outlives its owner, however that goes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio
import uvloop
from tritonclient.utils import InferenceServerException

from control_plane.core.endpoints import Endpoints
from control_plane.core.errors import StartupError
from control_plane.core.model import ModelState
from control_plane.models.adapters.managed_repository import ManagedRepository
from control_plane.protocols.grpc import GrpcHead, frame_message
from control_plane.protocols.http1 import HttpRequest
from control_plane.settings import TritonSettings
from control_plane.triton.adapters.connected import UpstreamClient
from control_plane.triton.adapters.control import grpc_target
from control_plane.triton.embedded.command import choose_ports, shm_prefix
from control_plane.triton.embedded.process import EmbeddedTriton, EmbeddedTritonLauncher
from control_plane.triton.ports import GrpcCall, Upstream
from control_plane.triton.servers import Servers
from control_plane.triton.supervisor import Supervisor
from tests.e2e.conftest import MODELS
from tests.e2e.tidegate import LONG_S, PROJECT, descendants, living, proc_files

MIB = 2**20
CACHE = PROJECT / ".cache"
BUSY_S = 60.0
STOP_S = 40.0
"""What a stop, or the end after a kill -9, takes at most on a busy machine: less than a request that must not hold it up."""

FACTS_MODEL = """
import json, os, sys
import numpy
import python_backends
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        facts = {"imports": list(python_backends.__path__), "python": sys.executable, "cwd": os.getcwd(), "environment": dict(os.environ)}
        facts = numpy.array([[json.dumps(facts).encode()]], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("FACTS", facts)]) for _ in requests]
"""
FACTS_CONFIG = """
backend: "python"
max_batch_size: 1
input { name: "ANY" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "FACTS" data_type: TYPE_STRING dims: [ 1 ] }
instance_group [ { kind: KIND_CPU } ]
"""

Run = Callable[[Coroutine[Any, Any, None]], None]


HEAVY_MODEL = """
import numpy

class TritonPythonModel:
    def initialize(self, args):
        self.weights = numpy.ones(%d, dtype=numpy.uint8)

    def execute(self, requests):
        return []
"""


@pytest.fixture
def run() -> Iterator[Run]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield runner.run


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    state_dir = tmp_path / "state"
    yield state_dir
    assert shared_memory(state_dir) == []
    assert sockets(state_dir) == []


def sockets(state_dir: Path) -> list[Path]:
    return list((state_dir / "triton/sockets").glob("*"))


def shared_memory(state_dir: Path) -> list[str]:
    prefix = shm_prefix(state_dir / "triton")
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


def place(state_dir: Path, *names: str, sources: tuple[Path, ...] = (MODELS,)) -> ManagedRepository:
    repository = ManagedRepository(sources, state_dir, config_name="")
    for name in names:
        repository.place(name)
    return repository


@asynccontextmanager
async def live(state_dir: Path, cache_dir: Path = CACHE) -> AsyncIterator[tuple[EmbeddedTriton, UpstreamClient]]:
    """A Triton of its own, connected, and stopped however the test ends."""
    process = await EmbeddedTritonLauncher(TritonSettings(cache_dir=cache_dir), state_dir).start()
    upstream = UpstreamClient(process.endpoints, max_connections=4)
    try:
        async with asyncio.timeout(LONG_S):
            while not await upstream.is_serving():
                await asyncio.sleep(0.02)
        yield process, upstream
    finally:
        await upstream.close()
        await process.stop(grace_s=0.6)  # what is worth testing of a stop has been, by now


async def infer(endpoints: Endpoints, model: str, name: str, *values: float) -> Any:
    """Send these FP32 values as one input; the answer is the client's result."""
    array = np.array([values], dtype=np.float32)
    tensor = tritonclient.grpc.aio.InferInput(name, list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    with grpc_target(endpoints.grpc) as target:
        async with tritonclient.grpc.aio.InferenceServerClient(target) as client:
            return await client.infer(model, [tensor])


def below_me(state_dir: Path) -> set[int]:
    """Guardian, Triton and stubs of this state folder; the session has another Triton beneath the same process."""
    return {pid for pid, line in proc_files(living(descendants(os.getpid())), "cmdline").items() if str(state_dir) in line}


def pid_of_triton(state_dir: Path) -> int:
    return next(pid for pid, name in proc_files(below_me(state_dir), "comm").items() if name == "tritonserver")


@pytest.mark.parametrize("name", ["f" * 120, "a-1.0_x@y%20#1,b"], ids=["long", "odd"])
def test_a_state_folder_may_have_a_path_that_is_none_of_a_unix_sockets(tmp_path: Path, run: Run, name: str) -> None:
    """The kernel takes 107 bytes, gRPC a URI."""
    folder = tmp_path / name
    folder.mkdir(parents=True)

    async def scenario() -> None:
        place(folder, "echo")
        async with live(folder) as (process, upstream):
            await upstream.control.load("echo", timeout_s=30)
            assert (await upstream.http.send(HttpRequest(b"GET", b"/v2/models/echo/ready"), timeout_s=20)).status == 200
            call = GrpcCall(
                GrpcHead("/inference.GRPCInferenceService/ServerLive", ((b"content-type", b"application/grpc"),), None), frame_message(b"")
            )
            assert (await upstream.grpc.unary(call, timeout_s=20)).code == 0
            assert b"nv_inference_count" in await upstream.metrics_text()
            answer = await infer(process.endpoints, "echo", "INPUT0", 1.5)
            assert answer.as_numpy("OUTPUT0").tolist() == [[1.5]]
        assert shared_memory(folder) == sockets(folder) == []

    run(scenario())


def add_facts(source: Path) -> Path:
    """A model that answers with what it sees."""
    model = source / "facts"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(FACTS_CONFIG)
    (model / "1" / "model.py").write_text(FACTS_MODEL)
    return model


def test_what_a_model_sees_where_cache_and_sources_have_names_that_no_shell_would_take(
    state_dir: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {"AWS_SECRET_ACCESS_KEY": "aws-secret", "TIDEGATE_STATE_URL": "redis://:our-secret@h", "HF_TOKEN": "hub-secret"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)

    async def scenario() -> None:
        source, cache = tmp_path / "my models (old)", tmp_path / "my cache"
        add_facts(source)
        cache.mkdir()
        (cache / "wheels").symlink_to(CACHE / "wheels")
        place(state_dir, "facts", sources=(source,))
        async with live(state_dir, cache) as (process, upstream):
            await upstream.control.load("facts", timeout_s=LONG_S)
            facts = json.loads((await infer(process.endpoints, "facts", "ANY", 0.0)).as_numpy("FACTS").item())
        assert str(state_dir / "triton/imports/python_backends") in facts["imports"]
        assert Path(facts["python"]).parent == Path(sys.executable).parent
        assert facts["cwd"] == str(state_dir / "triton/imports")
        assert not {*secrets.values()} & {*facts["environment"].values()}
        assert list(source.rglob("__pycache__")) == []

    run(scenario())


def add_heavy(source: Path, name: str, weights_bytes: int) -> None:
    """A model that holds so much and is never asked."""
    (source / name / "1").mkdir(parents=True)
    (source / name / "config.pbtxt").write_text(FACTS_CONFIG)
    (source / name / "1" / "model.py").write_text(HEAVY_MODEL % weights_bytes)


def host_bytes(process: EmbeddedTriton) -> int:
    held = process.held_memory()
    return 0 if held is None else held.host_bytes


def test_what_a_load_adds_to_its_memory_is_the_models_and_goes_with_it(state_dir: Path, tmp_path: Path, run: Run) -> None:
    async def scenario() -> None:
        source = tmp_path / "models"
        for name, weights_bytes in (("light", 0), ("heavy", 150 * MIB)):
            add_heavy(source, name, weights_bytes)
        place(state_dir, "light", "heavy", sources=(source,))
        async with live(state_dir) as (process, upstream):
            held = [host_bytes(process)]
            for name in ("light", "heavy"):
                await upstream.control.load(name, timeout_s=LONG_S)
                held.append(host_bytes(process))
            await upstream.control.unload("heavy", timeout_s=LONG_S)
            async with asyncio.timeout(LONG_S):
                while any(line.state is not ModelState.UNAVAILABLE for line in await upstream.control.index() if line.name == "heavy"):
                    await asyncio.sleep(0.02)
            held.append(host_bytes(process))
        empty, light, both, left = held
        stub = light - empty
        assert 5 * MIB < stub < 60 * MIB
        assert abs(both - light - stub - 150 * MIB) < 25 * MIB
        assert abs(left - light) < 15 * MIB

    run(scenario())


async def sleep_in_triton(endpoints: Endpoints, seconds: float) -> None:
    with suppress(InferenceServerException):
        await infer(endpoints, "slow", "SECONDS", seconds)


def test_an_ordered_stop_leaves_nothing_within_its_time_while_a_request_runs(state_dir: Path, run: Run) -> None:
    async def scenario() -> None:
        place(state_dir, "echo", "slow")
        async with live(state_dir) as (process, upstream), asyncio.TaskGroup() as group:
            for name in ("echo", "slow"):
                await upstream.control.load(name, timeout_s=LONG_S)
            assert shared_memory(state_dir)
            below = below_me(state_dir)
            assert len(below) >= 3, "guardian, Triton and a stub"
            request = group.create_task(sleep_in_triton(process.endpoints, BUSY_S))
            await asyncio.sleep(0.5)
            assert not request.done()
            await upstream.close()
            started_s = time.monotonic()
            await process.stop(grace_s=4.0)
            assert time.monotonic() - started_s < STOP_S
            assert living(below) == set()
            assert shared_memory(state_dir) == []

    run(scenario())


def test_kill_9_of_the_guardian_is_told_with_the_end_of_the_log_once_nothing_is_left(state_dir: Path, run: Run) -> None:
    async def scenario() -> None:
        place(state_dir, "echo")
        async with live(state_dir) as (process, upstream):
            await upstream.control.load("echo", timeout_s=LONG_S)
            below = below_me(state_dir)
            os.kill(os.getsid(pid_of_triton(state_dir)), signal.SIGKILL)
            started_s = time.monotonic()
            how = await process.wait()
            assert time.monotonic() - started_s < STOP_S
            assert living(below) == set()
            assert shared_memory(state_dir) == []
            assert "killed by SIGKILL" in how.splitlines()[0]
            assert "successfully loaded 'echo'" in how

    run(scenario())


OWNER = """
import asyncio, sys
from pathlib import Path
from tests.e2e.triton.test_embedded_triton import LONG_S, live, place

async def own(state_dir):
    place(state_dir, "echo")
    async with live(state_dir) as (process, upstream):
        await upstream.control.load("echo", timeout_s=LONG_S)
        print("loaded", flush=True)
        await process.wait()

asyncio.run(own(Path(sys.argv[1])))
"""


@contextmanager
def owner(state_dir: Path) -> Iterator[set[int]]:
    """A process that owns a Triton with a model, killed at the end; yields what is beneath it."""
    with subprocess.Popen([sys.executable, "-c", OWNER, str(state_dir)], stdout=subprocess.PIPE, cwd=PROJECT) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"loaded\n"
            below = descendants(process.pid)
            assert {"tritonserver", "triton_python_b"} <= set(proc_files(below, "comm").values())
            yield below
        finally:
            process.kill()


def test_after_a_kill_9_of_the_owner_the_state_folder_is_usable_at_once(state_dir: Path, run: Run) -> None:
    with owner(state_dir) as below:
        pass

    async def again() -> None:
        async with live(state_dir) as (_, upstream):
            assert living(below) == set()
            await upstream.control.load("echo", timeout_s=LONG_S)
            assert shared_memory(state_dir)

    run(again())


async def never(upstream: Upstream) -> None:
    raise AssertionError("there are no models to be restored where nothing listens")


def test_one_that_freezes_before_it_was_ever_live_is_replaced_ahead_of_the_start_timeout(state_dir: Path, run: Run) -> None:
    async def scenario() -> None:
        servers = Servers()

        async def nothing(upstream: Upstream) -> None: ...

        supervisor = Supervisor(
            launcher=EmbeddedTritonLauncher(TritonSettings(cache_dir=CACHE), state_dir),
            connect=lambda endpoints: UpstreamClient(endpoints, max_connections=4),
            servers=servers,
            restore=nothing,
            start_timeout_s=LONG_S,
            stall_timeout_s=3.0,
        )
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(supervisor.run())
            while "tritonserver" not in proc_files(below_me(state_dir), "comm").values():
                await asyncio.sleep(0.005)
            os.kill(frozen := pid_of_triton(state_dir), signal.SIGSTOP)
            async with asyncio.timeout(BUSY_S):
                while not servers.is_up:
                    await asyncio.sleep(0.05)
            assert pid_of_triton(state_dir) != frozen
            running.cancel()
        assert below_me(state_dir) == set()

    run(scenario())


def test_a_triton_that_cannot_start_is_one_error_with_the_end_of_its_log(state_dir: Path, run: Run) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            taken = other.getsockname()[1]
            settings = TritonSettings(cache_dir=CACHE, triton_transport="tcp")
            launcher = EmbeddedTritonLauncher(settings, state_dir, choose=lambda: replace(choose_ports(), grpc_port=taken))
            supervisor = Supervisor(
                launcher=launcher,
                connect=lambda endpoints: UpstreamClient(endpoints, max_connections=4),
                servers=Servers(),
                restore=never,
                start_timeout_s=LONG_S,
            )
            with pytest.raises(StartupError) as caught:
                await supervisor.run()
        assert str(caught.value).startswith(f"Triton ended with exit status 1; the end of {state_dir}/triton/triton.log:\n")
        assert f"127.0.0.1:{taken}" in str(caught.value)
        assert below_me(state_dir) == set()

    run(scenario())

"""The launcher, the guardian and a stand-in for Triton, on both event loops."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from control_plane.core.endpoints import TritonEndpoints, TritonSockets
from control_plane.core.errors import StartupError
from control_plane.settings import TritonSettings
from control_plane.triton.embedded import guardian
from control_plane.triton.embedded.command import shm_prefix
from control_plane.triton.embedded.process import EmbeddedTriton, EmbeddedTritonLauncher, describe_exit
from tests.unit.triton.embedded.fake_wheel import TRITON, write_wheel

_FLAGS_OF_OURS = (
    *("model-repository", "backend-directory", "model-control-mode", "strict-readiness", "exit-timeout-secs", "log-format"),
    *("http-address", "grpc-address", "metrics-address", "grpc-port", "http-thread-count", "backend-config", "model-config-name"),
    *("http-restricted-api", "grpc-restricted-protocol", "http-header-forward-pattern", "grpc-header-forward-pattern"),
)

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


class Lab:
    """Test bench: a state folder, a cache with the stand-in's wheel, and the launcher over both."""

    def __init__(self, folder: Path) -> None:
        self.cache_dir = folder / "cache"
        self.state_dir = folder / "state"
        write_wheel(self.cache_dir)
        backend = folder / "python_backends" / "ours"
        backend.mkdir(parents=True)
        (backend / "model.py").touch()
        own = ["KEPT", "STUBBORN", "FAIL_AT_START"]
        self.settings = TritonSettings(cache_dir=self.cache_dir, python_backends=backend.parent, model_config_name="h100", triton_env=own)
        self.processes: list[EmbeddedTriton] = []

    def launcher(self, **environment: str) -> EmbeddedTritonLauncher:
        return EmbeddedTritonLauncher(self.settings, self.state_dir, environment={"PATH": os.environ["PATH"], **environment})

    async def start(self, **environment: str) -> EmbeddedTriton:
        """Start a Triton and wait until the stand-in has reported how it was run."""
        (self.state_dir / "triton/report").unlink(missing_ok=True)
        process = await self.launcher(**environment).start()
        while not (self.state_dir / "triton/report").exists():
            await asyncio.sleep(0.01)
        return process

    @property
    def report(self) -> Any:
        return json.loads((self.state_dir / "triton/report").read_text())


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_triton_is_run_as_it_must_be(lab: Lab, run: Run) -> None:
    async def scenario() -> None:
        process = await lab.start(TIDEGATE_TOKEN="secret", AWS_SECRET_ACCESS_KEY="secret", KEPT="yes")
        root, report = lab.state_dir / "triton", lab.report
        assert isinstance(process.endpoints, TritonSockets)
        folder = process.endpoints.folder
        assert f"--http-address=unix:../sockets/{os.path.basename(folder)}/http.sock" in report["flags"]
        assert [os.stat(each).st_mode & 0o777 for each in (folder, root)] == [0o700, 0o700]
        assert "--model-config-name=h100" in report["flags"]
        assert report["cwd"] == str(root / "imports")
        assert report["environment"]["KEPT"] == "yes"
        assert "secret" not in report["environment"].values()
        assert (root / "repository").is_dir()
        assert (root / "imports/python_backends/ours/model.py").exists()
        assert sorted(path.name for path in (root / "backends").iterdir()) == ["ours", "python"]
        assert os.getsid(report["pid"]) not in (os.getsid(0), report["pid"])
        await process.stop(grace_s=50.0)
        assert os.listdir(root / "sockets") == []

    run(scenario())


def test_with_ports_it_has_no_sockets(lab: Lab, run: Run) -> None:
    lab.settings = lab.settings.model_copy(update={"triton_transport": "tcp"})

    async def scenario() -> None:
        process = await lab.start()
        assert isinstance(process.endpoints, TritonEndpoints)
        assert f"--http-port={process.endpoints.http_port}" in lab.report["flags"]
        assert not (lab.state_dir / "triton/sockets").exists()
        await process.stop(grace_s=50.0)

    run(scenario())


def test_an_ordered_stop_ends_it_and_may_be_repeated(lab: Lab, run: Run) -> None:
    async def scenario() -> None:
        process = await lab.start()
        pid = lab.report["pid"]
        await process.stop(grace_s=120.0)
        assert not lives(pid)
        await process.stop(grace_s=120.0)
        assert (await process.wait()).startswith("Triton ended with exit status 0; the end of ")

    started_s = time.monotonic()
    run(scenario())
    assert time.monotonic() - started_s < 100.0


def test_one_that_does_not_end_by_itself_is_killed_within_the_grace(lab: Lab, run: Run) -> None:
    async def scenario() -> None:
        process = await lab.start(STUBBORN="1")
        started_s = time.monotonic()
        await process.stop(grace_s=1.0)
        assert 0.4 < time.monotonic() - started_s < 60.0
        assert not lives(lab.report["pid"])
        assert (await process.wait()).startswith("Triton was killed by SIGKILL")

    run(scenario())


def test_it_holds_memory_while_it_lives(lab: Lab, run: Run) -> None:
    async def scenario() -> None:
        process = await lab.start()
        # The guardian and the stand-in: two Pythons without packages.
        held = process.held_memory()
        assert held is not None
        assert 5 * 2**20 < held.host_bytes < 100 * 2**20
        await process.stop(grace_s=50.0)
        assert process.held_memory() is None

    run(scenario())


def test_its_work_changes_while_it_does_something_and_is_unknown_where_nothing_of_it_is_seen(
    lab: Lab, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        process = await lab.start()
        await asyncio.sleep(0.2)
        once = process.work_done()
        assert once is not None
        await asyncio.sleep(0.2)
        assert process.work_done() == once, "it sleeps"
        with (lab.state_dir / "triton/triton.log").open("a") as log:
            log.write("a line\n")
        assert process.work_done() == once + 7
        with monkeypatch.context() as patch:
            patch.setattr(guardian, "session_members", lambda session: [session])  # as where /proc hides other users' processes
            assert process.work_done() is None
        await process.stop(grace_s=50.0)
        assert process.work_done() is None

    run(scenario())


def test_the_end_says_how_and_shows_the_end_of_the_log(lab: Lab, run: Run) -> None:
    async def scenario() -> None:
        await (await lab.start()).stop(grace_s=50.0)
        process = await lab.start(FAIL_AT_START="1")
        log = lab.state_dir / "triton/triton.log"
        lines = (await process.wait()).splitlines()
        assert lines == [
            f"Triton ended with exit status 1; the end of {log}:",
            "stand-in Triton says hello",
            "error: creating server: Invalid argument",
        ]
        assert log.read_text().count("hello") == 2

    run(scenario())


def test_kill_9_of_triton_is_told(lab: Lab, run: Run) -> None:
    async def scenario() -> None:
        process = await lab.start()
        os.kill(lab.report["pid"], signal.SIGKILL)
        assert (await process.wait()).startswith("Triton was killed by SIGKILL;")

    run(scenario())


def test_kill_9_of_the_guardian_is_told_once_everything_is_gone(lab: Lab, run: Run) -> None:
    async def scenario() -> None:
        process = await lab.start()
        triton, stub = lab.report["pid"], lab.report["stub"]
        region = Path("/dev/shm") / f"{shm_prefix(lab.state_dir / 'triton')}left"
        region.touch()
        try:
            os.kill(os.getsid(triton), signal.SIGKILL)
            assert "guardian was killed by SIGKILL" in await process.wait()
            assert not lives(triton)
            assert not lives(stub)
            assert not region.exists()
            assert list((lab.state_dir / "triton/sockets").iterdir()) == []
            await process.stop(grace_s=1.0)
        finally:
            region.unlink(missing_ok=True)

    run(scenario())


def test_cancelling_a_stop_leaves_the_order_standing(lab: Lab, run: Run) -> None:
    async def scenario() -> None:
        process = await lab.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await process.stop(grace_s=50.0)
        async with asyncio.timeout(100.0):
            assert (await process.wait()).startswith("Triton ended with exit status 0")

    run(scenario())


def test_cancelling_a_wait_ends_nothing(lab: Lab, run: Run) -> None:
    async def scenario() -> None:
        process = await lab.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await process.wait()
        assert lives(lab.report["pid"])
        await process.stop(grace_s=50.0)

    run(scenario())


def test_cancelling_a_start_leaves_nothing_running(lab: Lab, run: Run) -> None:
    async def scenario() -> None:
        launcher = lab.launcher()
        others = set(guardian.descendants(os.getpid()))
        for delay_s in (0.0, 0.005, 0.01, 0.02, 0.03, 0.05):
            try:
                async with asyncio.timeout(delay_s):
                    await (await launcher.start()).stop(grace_s=50.0)
            except TimeoutError:
                pass
        deadline_s = time.monotonic() + 5.0
        while not others.issuperset(guardian.descendants(os.getpid())) and time.monotonic() < deadline_s:
            await asyncio.sleep(0.05)
        assert others.issuperset(guardian.descendants(os.getpid()))

    run(scenario())


def test_a_second_start_on_the_state_folder_waits_for_the_first_to_end(lab: Lab, run: Run) -> None:
    async def scenario() -> None:
        first = await lab.start()
        (lab.state_dir / "triton/report").unlink()
        second = await lab.launcher().start()
        await asyncio.sleep(0.2)
        assert not (lab.state_dir / "triton/report").exists()
        await first.stop(grace_s=50.0)
        while not (lab.state_dir / "triton/report").exists():
            await asyncio.sleep(0.01)
        await second.stop(grace_s=50.0)

    run(scenario())


def test_what_cannot_be_started_says_why(lab: Lab, run: Run) -> None:
    async def scenario() -> None:
        with pytest.raises(StartupError, match="install the package bash"):
            await EmbeddedTritonLauncher(lab.settings, lab.state_dir, environment={"PATH": "/nowhere"}).start()
        lab.state_dir.rename(lab.state_dir.with_name("was"))
        lab.state_dir.write_text("not a folder")
        with pytest.raises(StartupError, match=r"cannot start Triton in .*/state/triton: .*Not a directory"):
            await lab.launcher().start()

    run(scenario())


@pytest.mark.parametrize("flag", ["--nothing", "--log-verb=1", "--http-addr=0.0.0.0"])
def test_a_flag_that_triton_does_not_know_by_its_whole_name_is_told_by_start(lab: Lab, run: Run, flag: str) -> None:
    lab.settings = lab.settings.model_copy(update={"triton_arg": ["--log-verbose=1", flag]})

    async def scenario() -> None:
        with pytest.raises(StartupError, match=f"--triton-arg {flag}: Triton has no such flag; `tritonserver --help`"):
            await lab.launcher().start()

    run(scenario())


@pytest.mark.parametrize(("lacks", "why"), [((), ""), (("http-restricted-api",), "does not know --http-restricted-api; use release 24.10")])
def test_an_own_tritonserver_is_started_in_place_of_the_wheels(
    lab: Lab, run: Run, tmp_path: Path, lacks: tuple[str, ...], why: str
) -> None:
    root = tmp_path / "opt/tritonserver"
    known = sorted({"allow-client-shm", *_FLAGS_OF_OURS} - set(lacks))
    script = TRITON.replace('sys.exit("  --log-verbose', 'sys.exit("' + "".join(f"  --{name}\\n" for name in known) + "  --log-verbose")
    for program, text in (("bin/tritonserver", script), ("backends/python/triton_python_backend_stub", "#!/bin/sh\n")):
        (root / program).parent.mkdir(parents=True)
        (root / program).write_text(text)
        (root / program).chmod(0o755)
    (root / "backends/tensorrt").mkdir()
    next((lab.cache_dir / "wheels").iterdir()).unlink()
    lab.settings = lab.settings.model_copy(update={"tritonserver": root / "bin/tritonserver"})

    async def scenario() -> None:
        if why:
            with pytest.raises(StartupError, match=why):
                await lab.launcher().start()
            return
        process = await lab.start()
        assert "--allow-client-shm=true" in lab.report["flags"], "off by default since 26.05"
        assert lab.report["environment"]["PATH"] == os.environ["PATH"], "the stub is of no Python of ours"
        assert sorted(path.name for path in (lab.state_dir / "triton/backends").iterdir()) == ["ours", "python", "tensorrt"]
        await process.stop(grace_s=50.0)

    run(scenario())


def test_a_missing_wheel_is_told_by_start(lab: Lab, run: Run) -> None:
    async def scenario() -> None:
        next((lab.cache_dir / "wheels").iterdir()).unlink()
        with pytest.raises(StartupError, match="run `make setup`"):
            await lab.launcher().start()

    run(scenario())


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (0, "Triton ended with exit status 0"),
        (1, "Triton ended with exit status 1"),
        (128 + 6, "Triton was killed by SIGABRT"),
        (guardian.NOT_STARTED, "Triton was not started"),
        (-9, "Triton's guardian was killed by SIGKILL, and Triton with it"),
        (250, "Triton was killed by signal 122"),
    ],
)
def test_exit_statuses(status: int, text: str) -> None:
    assert describe_exit(status) == text

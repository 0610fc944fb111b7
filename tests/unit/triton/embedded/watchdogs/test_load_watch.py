"""The watchdog of loads: the loads are fakes, the stubs are real processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, ModelLoadFailed, UpstreamUnavailable
from control_plane.triton.embedded.account import Account
from control_plane.triton.embedded.log_file import open_log
from control_plane.triton.embedded.watchdogs.load_watch import AbandonedLoadAnswerer, LoadWatch
from control_plane.triton.embedded.watchdogs.stubs import Stub, StubObservation, Stubs, now_s

_ANSWER = "load failed for model 'm': version 1 is at UNAVAILABLE state: "


class FakeStubs(Stubs):
    """Fake observer of stubs, which reports what a test sets."""

    def __init__(self) -> None:
        self.seen = StubObservation({}, {}, set())
        self.looks = 0

    def observe(self) -> StubObservation:
        seen = self.seen
        self.looks += 1
        return seen

    async def looked_at(self) -> None:
        """Wait until the watchdog has observed the present state."""
        enough = self.looks + 2
        while self.looks < enough:
            await asyncio.sleep(0.01)


@dataclass
class Lab:
    folder: Path
    stubs: FakeStubs = field(default_factory=FakeStubs)
    limits_s: list[float] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """Regions for which an answer was requested."""
    answers: list[bool] = field(default_factory=list)
    """Results of the calls in turn: whether Triton waits there; after the last one it does not."""

    def __post_init__(self) -> None:
        log, self._output = open_log(self.folder / "triton.log")
        self.watch = LoadWatch(log, self.stubs, self.answer)

    async def answer(self, region: str) -> bool:
        self.asked.append(region)
        return self.answers.pop(0) if self.answers else False

    def log(self, text: str) -> None:
        self._output.write(text.encode())
        self._output.flush()

    def close(self) -> None:
        self._output.close()

    async def load(self, during: Callable[[], object], *models: str, timeout_s: float = 300.0) -> None:
        async def load(limit_s: float) -> None:
            self.limits_s.append(limit_s)
            await self.stubs.looked_at()
            during()

        await self.watch.carry_out(models or ("m",), load, timeout_s=timeout_s)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    lab.close()


def fail(error: ControlPlaneError) -> Callable[[], object]:
    def during() -> object:
        raise error

    return during


def failing(lab: Lab, error: ControlPlaneError, expected: type[ControlPlaneError]) -> ControlPlaneError:
    with pytest.raises(expected) as caught:
        asyncio.run(lab.load(fail(error)))
    return caught.value


def test_one_that_succeeds_is_let_be(lab: Lab) -> None:
    asyncio.run(lab.load(lambda: None))
    assert lab.limits_s == [310.0]


async def test_it_begins_at_once(lab: Lab) -> None:
    """The caller has just checked that this process may load; a moment later that may be untrue."""
    has_begun = False

    async def load(limit_s: float) -> None:
        nonlocal has_begun
        has_begun = True

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(lab.watch.carry_out(("m",), load, timeout_s=300))
        await asyncio.sleep(0)
        assert has_begun


def test_one_that_fails_says_what_the_log_has_said_since_it_began(lab: Lab) -> None:
    lab.log("2026-11-22T15:55:28Z E 1 a.cc:1] \"failed to load 'm' version 1: of an earlier load\"\n")

    def during() -> None:
        lab.log("2026-11-22T15:55:28Z E 1 a.cc:1] \"Poll failed for model directory 'm': it is no folder\"\n")
        raise ModelLoadFailed("failed to load 'm', failed to poll from model repository", upstream_code=3)

    with pytest.raises(ModelLoadFailed) as caught:
        asyncio.run(lab.load(during))
    assert str(caught.value) == "failed to load 'm': it is no folder"
    assert caught.value.upstream_code == 3


def test_what_is_no_failure_of_the_load_passes_as_it_is(lab: Lab) -> None:
    error = UpstreamUnavailable("Triton is gone")
    assert failing(lab, error, UpstreamUnavailable) is error


def test_of_a_stub_that_has_died_it_is_said_how(lab: Lab) -> None:
    lab.stubs.seen = StubObservation({7: Stub(7, "r", "m", "/m/1/model.py", 0.0)}, {}, set())

    async def load(limit_s: float) -> None:
        await lab.stubs.looked_at()
        lab.stubs.seen = StubObservation({}, {7: "ended with exit status 3"}, set())
        await lab.stubs.looked_at()
        raise ModelLoadFailed(f"{_ANSWER}Internal: Received unexpected response from Python backend stub: m")

    with pytest.raises(ModelLoadFailed) as caught:
        asyncio.run(lab.watch.carry_out(("m",), load, timeout_s=300))
    assert str(caught.value) == f"{_ANSWER}Internal: its Python process ended with exit status 3 before the model was ready"


def test_where_a_stub_has_died_it_is_answered_for_as_often_as_triton_waits(lab: Lab) -> None:
    lab.stubs.seen = StubObservation({}, {}, {"region"})
    lab.answers = [True, True]

    async def load(limit_s: float) -> None:
        while len(lab.asked) < 3:
            await lab.stubs.looked_at()
        lab.stubs.seen = StubObservation({}, {}, set())
        await lab.stubs.looked_at()
        lab.asked.clear()
        await lab.stubs.looked_at()

    asyncio.run(lab.watch.carry_out(("m",), load, timeout_s=300))
    assert lab.asked == []


def test_a_region_whose_stub_is_only_just_to_come_is_let_be(lab: Lab) -> None:
    async def load(limit_s: float) -> None:
        await lab.stubs.looked_at()
        for pid in range(5):
            lab.stubs.seen = StubObservation({}, {}, {f"region{pid}"})
            looks = lab.stubs.looks
            while lab.stubs.looks == looks:
                await asyncio.sleep(0.01)

    asyncio.run(lab.watch.carry_out(("m",), load, timeout_s=300))
    assert lab.asked == []


_NOBODY = Account("nobody", 65534, 65534, (65534,), "/")
_SAYS = """test "$(id -u) $(id -G) $(pwd) $SECRET$GIVEN" = """


@pytest.mark.parametrize(
    ("account", "seen"),
    [
        pytest.param(None, f"{os.getuid()} {subprocess.check_output(['id', '-G'], text=True).strip()} / this", id="our user"),
        pytest.param(
            _NOBODY, "65534 65534 / this", id="another", marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
        ),
    ],
)
def test_what_answers_has_no_more_than_triton_has(account: Account | None, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "of the gateway's")
    environment = {"GIVEN": "this", "PATH": os.defpath}
    answer = AbandonedLoadAnswerer(environment, account, program=("/bin/sh", "-c", f'{_SAYS}"{seen}" && test "$0" = /dev/shm/region'))
    assert asyncio.run(answer("region"))
    assert not asyncio.run(answer("another"))


def test_the_program_that_answers_runs_by_its_text(tmp_path: Path) -> None:
    """For a region that does not exist the program reports that nobody waits, and prints nothing."""
    assert not asyncio.run(AbandonedLoadAnswerer({})("tidegate_nowhere"))
    ended = subprocess.run(
        [*AbandonedLoadAnswerer({}).program, str(tmp_path / "nowhere")], cwd="/", capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")


class TestDeadline:
    @staticmethod
    def processes(count: int) -> list[subprocess.Popen[bytes]]:
        return [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(count)]

    def test_stubs_of_a_load_that_takes_too_long_are_ended_and_no_others(self, lab: Lab) -> None:
        before, of_this, of_a_step, others = processes = self.processes(4)
        models = zip(processes, ("m", "m", "step", "other"), (now_s() - 5.0, *[now_s() + 0.1] * 3), strict=True)
        stubs = {
            process.pid: Stub(process.pid, "r", f"{model}_0", f"/{model}/1/model.py", started_s) for process, model, started_s in models
        }

        async def load(limit_s: float) -> None:
            lab.stubs.seen = StubObservation(stubs, {}, set())
            await asyncio.to_thread(of_this.wait)
            raise ModelLoadFailed("Stub process 'm_0' is not healthy.")

        try:
            with pytest.raises(DeadlineExceeded, match=r"'m' was not loaded within 0\.2 s .*; its Python process was still at it"):
                asyncio.run(lab.watch.carry_out(("m", "step"), load, timeout_s=0.2))
            of_a_step.wait()
            assert (before.poll(), others.poll()) == (None, None)
        finally:
            for process in processes:
                process.kill()
                process.wait()

    def test_one_that_nothing_ends_is_told_as_such(self, lab: Lab) -> None:
        async def load(limit_s: float) -> None:
            await asyncio.sleep(0.2)
            await lab.stubs.looked_at()
            raise DeadlineExceeded("RepositoryModelLoad: Deadline Exceeded")

        with pytest.raises(DeadlineExceeded, match=r"within 0\.1 s \(TIDEGATE_LOAD_TIMEOUT_S\); Triton goes on with it"):
            asyncio.run(lab.watch.carry_out(("m",), load, timeout_s=0.1))

    def test_one_that_triton_gives_no_answer_of_in_time_is_told_as_such(self, lab: Lab) -> None:
        """The call's own time limit may pass before the watchdog notices that its limit has."""
        told = failing(lab, DeadlineExceeded("RepositoryModelLoad: Deadline Exceeded"), DeadlineExceeded)
        assert str(told) == "model 'm' was not loaded within 300 s (TIDEGATE_LOAD_TIMEOUT_S); Triton goes on with it"


async def test_cancelled_it_leaves_nothing_behind(lab: Lab) -> None:
    async with asyncio.TaskGroup() as tasks:
        load = tasks.create_task(lab.watch.carry_out(("m",), lambda limit_s: asyncio.sleep(600), timeout_s=300))
        await lab.stubs.looked_at()
        load.cancel()
    assert load.cancelled()
    assert len(asyncio.all_tasks()) == 1


async def test_while_several_load_what_names_no_model_is_nobodys(lab: Lab) -> None:
    def during() -> None:
        lab.log('2026-11-22T15:55:28Z E 1 a.cc:1] "the engine was built for another device"\n')
        raise ModelLoadFailed(f"{_ANSWER}no")

    errors = await asyncio.gather(lab.load(during, "m"), lab.load(during, "n"), return_exceptions=True)
    assert [str(error) for error in errors] == [f"{_ANSWER}no"] * 2


async def test_in_the_region_of_a_loaded_model_nothing_is_answered_where_a_request_may_wait(lab: Lab) -> None:
    """Triton 24.10 ends with a signal 11 if it gets an answer of ours there."""
    lab.answers = [True] * 10

    async def load(limit_s: float) -> None:
        lab.stubs.seen = StubObservation({7: Stub(7, "r", "m_0_0", "/repository/m/1/model.py", now_s())}, {}, set())
        await lab.stubs.looked_at()

    await lab.watch.carry_out(("m",), load, timeout_s=300)

    async def next_load(limit_s: float) -> None:
        lab.stubs.seen = StubObservation({}, {7: "was killed by SIGKILL"}, {"r", "of-a-load"})
        while not lab.asked:
            await asyncio.sleep(0.01)
        await lab.stubs.looked_at()

    await lab.watch.carry_out(("m",), next_load, timeout_s=300)
    assert set(lab.asked) == {"of-a-load"}


async def test_a_stub_that_was_started_between_two_looks_is_known_once_its_load_has_ended(lab: Lab) -> None:
    """On a busy machine no look may come before the load is over; a stub that dies then would be nobody's."""
    started = Stub(7, "region", "m_0_0", "/repository/m/1/model.py", now_s() + 1.0)

    async def load(limit_s: float) -> None:
        lab.stubs.seen = StubObservation({7: started}, {}, set())

    await lab.watch.carry_out(("m",), load, timeout_s=300.0)
    assert lab.watch.started == {7: started}
    assert lab.watch.served == {"region"}

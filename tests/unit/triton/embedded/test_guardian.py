"""The real guardian with real processes; only Triton is a stand-in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from control_plane.triton.embedded import guardian
from tests.unit.triton.embedded.waiting import SOON_S, wait_for

STAND_IN = Path(__file__).with_name("stand_in.py")
SHARED_MEMORY = Path("/dev/shm")


@dataclass
class Lab:
    """Test bench: the guardians of one state folder."""

    folder: Path
    prefix: str
    cpus: str = ""
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def region(self) -> Path:
        return SHARED_MEMORY / f"{self.prefix}region"

    @property
    def sockets(self) -> Path:
        return self.folder / "sockets"

    @property
    def report(self) -> Path:
        return self.folder / "report"

    @property
    def said(self) -> Path:
        return self.folder / "said"

    def command(self, *how: str, owner: int | None = None) -> list[str]:
        stand_in = [sys.executable, "-I", "-S", str(STAND_IN), str(self.report), self.region.name, *how]
        return self.guarded(*stand_in, owner=owner)

    def guarded(self, *command: str, owner: int | None = None) -> list[str]:
        self.sockets.mkdir(exist_ok=True)
        owned = [str(self.folder / "lock"), self.prefix, str(self.sockets)]
        return [*PYTHON, guardian.__file__, str(owner or os.getpid()), *owned, self.cpus, *command]

    def start(self, *how: str) -> subprocess.Popen[bytes]:
        return self.run(self.command(*how))

    def run(self, command: list[str]) -> subprocess.Popen[bytes]:
        self.report.unlink(missing_ok=True)
        with self.said.open("wb") as said:  # a pipe would be held open by whatever outlives the guardian
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=said, start_new_session=True)
        self.started.append(process)
        return process

    def order(self, process: subprocess.Popen[bytes], order: bytes) -> None:
        assert process.stdin is not None
        process.stdin.write(order)
        process.stdin.flush()

    def pids(self) -> list[int]:
        """Return the process ids of the stand-in and its child, once both run."""
        wait_for(self.report.exists, "the stand-in")
        return [int(pid) for pid in self.report.read_text().split()]


PYTHON = (sys.executable, "-I", "-S")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path, f"tidegate_test_{uuid.uuid4().hex}_")
    yield lab
    for process in lab.started:
        guardian.kill_all([*guardian.descendants(process.pid), *guardian.session_members(process.pid)])
        process.kill()
        process.communicate()
    guardian.remove_shared_memory(lab.prefix)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def assert_nothing_left(lab: Lab, pids: list[int], within_s: float = SOON_S) -> None:
    wait_for(lambda: not any(map(lives, pids)), "the end of every process", within_s)
    wait_for(lambda: not lab.region.exists(), "the removal of shared memory", within_s)
    wait_for(lambda: not lab.sockets.exists(), "the removal of its sockets", within_s)


@pytest.mark.parametrize(
    ("how", "status"),
    [
        pytest.param("exit=0", 0, id="success"),
        pytest.param("exit=7", 7, id="failure"),
        pytest.param(f"raise={signal.SIGKILL:d}", 128 + signal.SIGKILL, id="killed"),
    ],
)
def test_exit_status_is_passed_on_and_nothing_is_left(lab: Lab, how: str, status: int) -> None:
    process = lab.start(how)
    assert process.wait(SOON_S) == status
    assert_nothing_left(lab, lab.pids(), within_s=0.1)


def test_all_that_it_starts_runs_on_the_cpus_given(lab: Lab) -> None:
    lab.cpus = str(max(os.sched_getaffinity(0)))
    process = lab.start()
    assert [os.sched_getaffinity(pid) for pid in lab.pids()] == [{int(lab.cpus)}] * 2
    lab.order(process, b"0\n")
    process.wait(SOON_S)


def test_a_program_that_is_not_there_is_named(lab: Lab) -> None:
    process = lab.run(lab.guarded("/no/such/tritonserver"))
    assert process.wait(SOON_S) == 127
    assert lab.said.read_text() == "guardian: cannot start /no/such/tritonserver: No such file or directory\n"


def test_an_ordered_stop_lets_triton_end_by_itself_and_kills_what_it_left(lab: Lab) -> None:
    process = lab.start()
    pids = lab.pids()
    assert lab.region.exists()
    lab.order(process, b"50.0\n")
    assert process.wait(SOON_S) == 3
    assert lab.said.read_text() == ""
    assert_nothing_left(lab, pids, within_s=0.1)


def test_an_order_that_is_there_before_triton_is_not_lost_on_its_way(lab: Lab) -> None:
    """The order to stop comes before Triton's exec: without blocking the signal 13 of 20 such stops took
    their whole grace.
    """
    for _ in range(5):
        process = lab.run(lab.guarded("/bin/sleep", "600"))
        lab.order(process, b"%d\n" % SOON_S)
        assert process.wait(SOON_S) == 128 + signal.SIGTERM


def test_an_ordered_stop_kills_triton_when_the_grace_is_over(lab: Lab) -> None:
    process = lab.start("stubborn")
    pids = lab.pids()
    ordered_s = time.monotonic()
    lab.order(process, b"0.4\n")
    assert process.wait(SOON_S) == 128 + signal.SIGKILL
    assert 0.4 <= time.monotonic() - ordered_s < SOON_S / 2
    assert_nothing_left(lab, pids, within_s=0.1)


def test_an_order_may_come_in_pieces_and_a_later_one_may_only_shorten_it(lab: Lab) -> None:
    process = lab.start("stubborn")
    lab.pids()
    for piece in (b"0.", b"3\n", b"60.0\n"):
        lab.order(process, piece)
        time.sleep(0.05)
    assert process.wait(SOON_S) == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_guardian_is_an_order_to_stop(lab: Lab, number: signal.Signals) -> None:
    process = lab.start()
    pids = lab.pids()
    process.send_signal(number)
    assert process.wait(SOON_S) == 3
    assert_nothing_left(lab, pids, within_s=0.1)


def test_a_descendant_that_left_parent_and_session_is_found(lab: Lab) -> None:
    process = lab.start("escape")
    _, escaped = pids = lab.pids()
    assert os.getsid(escaped) != process.pid
    process.send_signal(signal.SIGTERM)
    assert process.wait(SOON_S) == 3
    assert_nothing_left(lab, pids, within_s=0.1)


OWNER = """
import os, subprocess, sys, time
command = [part.replace("OWNER", str(os.getpid())) for part in sys.argv[1:]]
guardian = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
fork = os.fork()
if fork == 0:
    time.sleep(60)
    os._exit(0)
print(fork, flush=True)
time.sleep(60)
"""


def start_owned(lab: Lab, *how: str) -> tuple[subprocess.Popen[bytes], int]:
    """The guardian's owner is a process of its own, with a fork that has inherited the pipe."""
    command = [part if part != str(os.getpid()) else "OWNER" for part in lab.command(*how)]
    owner = subprocess.Popen([*PYTHON, "-c", OWNER, *command], stdout=subprocess.PIPE, start_new_session=True)
    lab.started.append(owner)
    assert owner.stdout is not None
    return owner, int(owner.stdout.readline())


def test_kill_9_of_the_owner_ends_everything(lab: Lab) -> None:
    owner, fork = start_owned(lab)
    pids = lab.pids()
    os.kill(fork, signal.SIGKILL)
    owner.kill()
    assert_nothing_left(lab, pids)


def test_kill_9_of_the_owner_ends_a_triton_that_does_not_want_to(lab: Lab) -> None:
    owner, fork = start_owned(lab, "stubborn")
    pids = lab.pids()
    killed_s = time.monotonic()
    os.kill(fork, signal.SIGKILL)
    owner.kill()
    assert_nothing_left(lab, pids, within_s=guardian.ORPHAN_GRACE_S + SOON_S)
    assert time.monotonic() - killed_s > guardian.ORPHAN_GRACE_S - 0.1


def test_kill_9_of_the_owner_is_noticed_even_while_a_fork_of_it_holds_the_pipe(lab: Lab) -> None:
    owner, fork = start_owned(lab)
    pids = lab.pids()
    owner.kill()
    assert_nothing_left(lab, pids)
    assert lives(fork)


def test_kill_9_of_the_guardian_ends_triton_and_its_session_tells_what_is_left(lab: Lab) -> None:
    process = lab.start()
    triton, child = lab.pids()
    process.kill()
    process.wait(SOON_S)
    wait_for(lambda: not lives(triton), "the end of the stand-in")
    assert guardian.session_members(process.pid) == [child]
    guardian.kill_all([child])
    wait_for(lambda: guardian.session_members(process.pid) == [], "the end of the session")


def test_a_second_life_waits_until_the_first_has_been_cleaned_up(lab: Lab) -> None:
    first = lab.start("stubborn")
    triton, _ = lab.pids()
    second = lab.start("exit=0")
    time.sleep(0.3)
    assert not lab.report.exists()
    lab.order(first, b"0.2\n")
    assert second.wait(SOON_S) == 0
    assert not lives(triton)
    assert first.wait(SOON_S) == 128 + signal.SIGKILL


def test_waiting_for_the_first_life_ends_with_an_order_to_stop(lab: Lab) -> None:
    lab.start()
    lab.pids()
    second = lab.start()
    lab.order(second, b"50.0\n")
    assert second.wait(SOON_S) == guardian.NOT_STARTED
    assert not lab.report.exists()
    assert not lab.sockets.exists()


def test_what_an_earlier_life_left_in_shared_memory_is_removed_and_only_that(lab: Lab) -> None:
    stale, foreign = SHARED_MEMORY / f"{lab.prefix}stale", SHARED_MEMORY / f"tidegate_test_{uuid.uuid4().hex}_foreign"
    stale.touch()
    foreign.touch()
    try:
        process = lab.start()
        lab.pids()
        assert not stale.exists()
        assert lab.region.exists()
        lab.order(process, b"50.0\n")
        assert process.wait(SOON_S) == 3
        assert foreign.exists()
    finally:
        foreign.unlink()


def test_triton_gets_neither_the_pipe_nor_the_lock(lab: Lab) -> None:
    process = lab.start()
    triton, _ = lab.pids()
    opened = {link.name: os.readlink(link) for link in Path(f"/proc/{triton}/fd").iterdir()}
    assert opened["0"] == os.devnull
    assert not any("lock" in target for target in opened.values())
    own = os.readlink(f"/proc/{process.pid}/fd/0")
    assert own.startswith("pipe:")
    assert own not in opened.values()


def test_descendants_are_all_generations_and_nobody_else(lab: Lab) -> None:
    process = lab.start()
    pids = lab.pids()
    assert sorted(guardian.descendants(process.pid)) == sorted(pids)
    assert set(pids) < set(guardian.descendants(os.getpid()))
    assert os.getpid() not in guardian.descendants(os.getpid())


def test_a_process_that_may_not_be_looked_at_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where /proc is mounted with hidepid=1, those of other users may not."""
    read = Path.read_text

    def read_unless_hidden(path: Path, **options: str) -> str:
        if path == Path("/proc/1/stat"):
            raise PermissionError(1, "Operation not permitted")
        return read(path, **options)

    monkeypatch.setattr(Path, "read_text", read_unless_hidden)
    assert os.getpid() in guardian.session_members(os.getsid(0))


def test_a_log_that_grows_too_large_is_put_aside_while_triton_goes_on_writing(lab: Lab) -> None:
    log = lab.folder / "log"
    log.write_bytes(b"x" * guardian.ROTATE_AT_BYTES)
    writes = "import time\nwhile True:\n    print('still here', flush=True)\n    time.sleep(0.05)\n"
    with log.open("ab") as output:
        command = lab.guarded(sys.executable, "-c", writes)
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True)
    lab.started.append(process)
    aside = log.with_name("log.1")
    wait_for(lambda: aside.exists() and log.stat().st_size < guardian.ROTATE_AT_BYTES, "the rotation", 30.0)
    assert aside.read_bytes().startswith(b"xxx")
    wait_for(lambda: b"still here" in log.read_bytes(), "what is written after it", 30.0)
    assert b"\0" not in log.read_bytes(), "it is written where the file ends now"

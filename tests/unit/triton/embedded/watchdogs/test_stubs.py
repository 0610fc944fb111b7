"""Observation of stubs, on real processes with the arguments of stubs: a guardian, a Python program as
Triton, its children.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from control_plane.triton.embedded import guardian
from control_plane.triton.embedded.watchdogs import stubs
from control_plane.triton.embedded.watchdogs.stubs import TICK_S, Stub, Stubs, now_s
from tests.unit.triton.embedded.waiting import wait_for

PREFIX = "tidegate_test_"
SOON_S = 30.0

_TRITON = """
import subprocess, sys
sleep = (sys.executable, "-c", "import time; time.sleep(600)")
children = [subprocess.Popen([*sleep, *line.split()]) for line in sys.stdin.readline().split("|")]
print(*(child.pid for child in children), flush=True)
sys.stdin.read()
"""
_GUARDIAN = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]]).wait()"


def region() -> str:
    return f"{PREFIX}{uuid.uuid4()}"


class Lab:
    """Start a Triton with children that have these arguments."""

    def __init__(self, folder: Path, *children: str) -> None:
        self.guardian = subprocess.Popen(
            [sys.executable, "-c", _GUARDIAN, _TRITON], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.guardian.stdin is not None
        assert self.guardian.stdout is not None
        self.guardian.stdin.write("|".join(children) + "\n")
        self.guardian.stdin.flush()
        self.pids = [int(pid) for pid in self.guardian.stdout.readline().split()]
        # Popen returns when exec closes its pipe, which is a moment before the arguments can be read.
        wait_for(lambda: all(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in self.pids), "the children's arguments", SOON_S)
        self.stubs = Stubs(self.guardian.pid, PREFIX, folder=folder)

    def end(self, number: int, how: int) -> None:
        """Make a zombie: a child that has ended and that nobody waits for."""
        os.kill(self.pids[number], how)
        wait_for(lambda: self.pids[number] in self.stubs.observe().ended, "a child's end", SOON_S)


@pytest.fixture
def labs() -> Iterator[list[Lab]]:
    labs: list[Lab] = []
    yield labs
    for lab in labs:
        guardian.kill_all(guardian.session_members(lab.guardian.pid))
        lab.guardian.communicate()


def arguments(model: str, shared: str, instance: str = "") -> str:
    return f"/repository/{model}/1/model.py {shared} 1048576 1048576 77 /backends/python 336 {instance or model} DEFAULT"


def test_stubs_are_known_by_their_arguments_and_how_they_ended(tmp_path: Path, labs: list[Lab]) -> None:
    shared = [region() for _ in range(3)]
    for each in shared:
        (tmp_path / each).touch()
    (tmp_path / "somebody_elses").touch()
    began_s = now_s()
    lab = Lab(tmp_path, arguments("a", shared[0]), arguments("b", shared[1], "b_0"), arguments("c", shared[2]))
    labs.append(lab)
    seen = lab.stubs.observe()
    started_s = {pid: stub.started_s for pid, stub in seen.living.items()}
    assert all(began_s - 2 * TICK_S <= each <= now_s() for each in started_s.values())
    assert seen.living == {
        pid: Stub(pid, each, instance, f"/repository/{instance[0]}/1/model.py", started_s[pid])
        for pid, each, instance in zip(lab.pids, shared, ("a", "b_0", "c"), strict=True)
    }
    assert seen.ended == {}
    assert seen.abandoned == set()
    lab.end(1, signal.SIGSEGV)
    seen = lab.stubs.observe()
    assert set(seen.living) == {lab.pids[0], lab.pids[2]}
    assert seen.ended == {lab.pids[1]: "was killed by SIGSEGV"}
    assert seen.abandoned == {shared[1]}


def test_stubs_are_seen_where_the_kernel_lists_no_children(tmp_path: Path, labs: list[Lab], monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the regions of all would count as abandoned, and Triton be answered in their place."""
    monkeypatch.setattr(stubs, "_CHILDREN", "not_there")
    monkeypatch.setattr(stubs, "_CHILDREN_ARE_LISTED", False)
    shared = [region() for _ in range(2)]
    for each in shared:
        (tmp_path / each).touch()
    lab = Lab(tmp_path, arguments("a", shared[0]), arguments("b", shared[1]))
    labs.append(lab)
    seen = lab.stubs.observe()
    assert (set(seen.living), seen.abandoned) == (set(lab.pids), set())
    lab.end(0, signal.SIGKILL)
    seen = lab.stubs.observe()
    assert (seen.ended, seen.abandoned) == ({lab.pids[0]: "was killed by SIGKILL"}, {shared[0]})


def test_while_a_child_may_yet_become_a_stub_no_region_is_deserted(tmp_path: Path, labs: list[Lab]) -> None:
    shared = region()
    (tmp_path / shared).touch()
    lab = Lab(tmp_path, "not one yet")
    labs.append(lab)
    assert lab.stubs.observe().abandoned == set()
    lab.end(0, signal.SIGTERM)
    assert lab.stubs.observe().abandoned == {shared}


def test_of_a_triton_that_is_gone_there_is_nothing(tmp_path: Path, labs: list[Lab]) -> None:
    lab = Lab(tmp_path, arguments("a", region()))
    labs.append(lab)
    guardian.kill_all(guardian.session_members(lab.guardian.pid))
    lab.guardian.wait()
    seen = lab.stubs.observe()
    assert (seen.living, seen.ended) == ({}, {})


@pytest.mark.parametrize(
    ("stub", "models", "is_of"),
    [
        pytest.param(Stub(1, "r", "a_0", "/repository/a/1/model.py", 0.0), ["a"], True, id="by its path"),
        pytest.param(Stub(1, "r", "a", "/repository/a/1/model.py", 0.0), ["b"], False, id="another's"),
        pytest.param(Stub(1, "r", "a_0_0", "/srv/triton/repository/a/1/m.py", 0.0), ["srv", "triton"], False, id="names of folders"),
        pytest.param(Stub(1, "r", "a_0_0", "/models/a/1/model.py", 0.0), ["a"], True, id="in a repository of another name"),
        pytest.param(Stub(1, "r", "step_0", "/repository/step/1/model.py", 0.0), ["e", "step"], True, id="an ensemble's step"),
        pytest.param(Stub(1, "r", "a_12", "/tmp/folderX/1/model.py", 0.0), ["a"], True, id="brought along: by its instance"),
        pytest.param(Stub(1, "r", "a_b_0", "/tmp/folderX/1/model.py", 0.0), ["a"], False, id="a longer name"),
        pytest.param(Stub(1, "r", "a.b_0", "/tmp/folderX/1/model.py", 0.0), ["a.b"], True, id="a name with a dot"),
        pytest.param(Stub(1, "r", "axb_0", "/tmp/folderX/1/model.py", 0.0), ["a.b"], False, id="a dot is no pattern"),
    ],
)
def test_whose_a_stub_is(stub: Stub, models: list[str], is_of: bool) -> None:
    assert stub.is_of(models) is is_of


@pytest.mark.parametrize(
    ("path", "instance", "model"),
    [
        pytest.param("/state/triton/repository/m/1/model.py", "other_0_0", "m", id="by its folder"),
        pytest.param("/repository/x/triton/repository/m_1/12/code/main.py", "", "m_1", id="whose name ends like an instance"),
        pytest.param(
            "/state/triton/backends/encoder/model.py", "text_encoder_0_1", "text_encoder", id="of a backend of ours, by the instance"
        ),
        pytest.param("/state/triton/backends/encoder/model.py", "m_1_0_1", "m_1", id="of a backend of ours, with a number of its own"),
        pytest.param("", "", "", id="not known yet"),
    ],
)
def test_it_is_known_which_model_one_serves(path: str, instance: str, model: str) -> None:
    assert Stub(1, "r", instance, path, 0.0).model == model


def test_how_a_known_one_has_ended_is_seen_and_one_is_killed(tmp_path: Path, labs: list[Lab]) -> None:
    lab = Lab(tmp_path, arguments("a", region()), arguments("b", region()))
    labs.append(lab)
    a, b = (lab.stubs.observe().living[pid] for pid in lab.pids)
    assert lab.stubs.end_of(a) is None
    lab.end(0, signal.SIGKILL)
    assert lab.stubs.end_of(a) == "was killed by SIGKILL"
    assert Stubs(_parent(a.pid), PREFIX, folder=tmp_path).end_of(a) is None, "its guardian has inherited it: Triton has ended"
    assert lab.stubs.end_of(replace(a, started_s=a.started_s - 1.0)) is None, "another process had its number before"
    assert not lab.stubs.kill(a)
    assert not lab.stubs.kill(replace(b, started_s=b.started_s - 1.0))
    assert lab.stubs.end_of(b) is None
    assert lab.stubs.kill(b)
    wait_for(lambda: lab.stubs.end_of(b) == "was killed by SIGKILL", "its end", SOON_S)
    assert not lab.stubs.kill(replace(b, pid=2**22))
    assert lab.stubs.end_of(replace(b, pid=2**22)) is None


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


_MAPS = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
print(flush=True)
sys.stdin.read()
"""


def test_of_a_triton_that_others_start_only_its_own_regions_are_seen(tmp_path: Path) -> None:
    """The names of two that were started without a prefix of their own begin alike, and to answer in another one's
    region ends that."""
    own, others = tmp_path / region(), tmp_path / region()
    for each in (own, others):
        each.write_bytes(bytes(4096))
    arguments = [sys.executable, "-c", _MAPS, str(own)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as triton:
        assert triton.stdout is not None
        assert triton.stdin is not None
        triton.stdout.readline()
        stubs = Stubs(-1, PREFIX, folder=tmp_path, triton=triton.pid)
        assert stubs.observe().abandoned == {own.name}
        triton.stdin.close()
    assert stubs.observe().abandoned == set()


def test_of_one_that_others_start_and_that_has_just_ended_there_is_nothing() -> None:
    """Its own /dev/shm, which is read through its process, ends with it."""
    with subprocess.Popen(["true"]) as triton:
        pass
    seen = Stubs(-1, PREFIX, folder=Path(f"/proc/{triton.pid}/root/dev/shm"), triton=triton.pid).observe()
    assert (seen.living, seen.ended, seen.abandoned) == ({}, {}, set())

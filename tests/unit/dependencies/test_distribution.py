"""How `make test` distributes tests over processes: each is run by one, and the files that are named are there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from xdist.remote import Producer

from control_plane.settings import PROJECT_ROOT as PROJECT
from tests.distribution import APART, BEGUN_FIRST, IN_ONE_PROCESS, TOGETHER, Share, mixed, pytest_xdist_make_scheduler

FILES = sorted((PROJECT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_file_is_of_one_share_and_the_first_alone_has_what_imports_pytorch(count: int) -> None:
    shares = [Share(number, count) for number in range(count)]
    of_each = [[file for file in FILES if not share.pytest_ignore_collect(file)] for share in shares]
    assert sorted(file for of_one in of_each for file in of_one) == FILES
    assert [any(IN_ONE_PROCESS in file.parts for file in of_one) for of_one in of_each] == [number == 0 for number in range(count)]
    first, *others = ([file for file in of_one if IN_ONE_PROCESS not in file.parts] for of_one in of_each)
    assert all(abs(len(of_one) - 2 * len(first)) <= 2 for of_one in others)


def test_what_is_no_test_is_collected_by_all() -> None:
    share = Share(1, 3)
    assert [share.pytest_ignore_collect(PROJECT / "tests" / name) for name in ("unit", "conftest.py", "aio.py")] == [None] * 3


def test_every_file_that_is_named_is_there() -> None:
    assert set(BEGUN_FIRST) <= {file.name for file in FILES}
    assert TOGETHER.keys() | APART <= {str(file.relative_to(PROJECT)) for file in FILES}


def test_after_each_other_file_comes_a_scenario() -> None:
    others = [SimpleNamespace(path=path) for path in "aaabcc"]
    assert [getattr(each, "path", each) for each in mixed(["1", "2", "3", "4"], others)] == [*"aaa1b2cc34"]
    assert list(mixed(["1"], [])) == ["1"]


class Node:
    """Process of pytest-xdist that is told which tests to run."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.shutting_down = False
        self.gateway = self

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.told += numbers

    def shutdown(self) -> None:
        self.shutting_down = True


def test_a_process_is_given_the_next_file_with_its_last_test() -> None:
    told = {"dist": "loadfile", "tx": ["popen"], "option": SimpleNamespace(loadscopereorder=False)}
    config = SimpleNamespace(getvalue=told.get, getoption=told.get, option=told["option"])
    scheduler, node = pytest_xdist_make_scheduler(config, Producer("test")), Node()
    scheduler.add_node(node)
    scheduler.add_node_collection(node, ["a.py::1", "a.py::2", "a.py::3", "b.py::1", "c.py::1"])
    scheduler.schedule()
    given = [len(node.told)]
    for number in range(3):
        scheduler.mark_test_complete(node, number)
        given.append(len(node.told))
    assert given == [3, 3, 4, 5]
    assert not node.shutting_down
    scheduler.mark_test_complete(node, 3)
    assert node.shutting_down, "nothing is left: it runs its last one and ends"


def test_one_that_hangs_ends_in_time_and_costs_no_other_its_run(tmp_path: Path) -> None:
    hangs = "import asyncio, uvloop\ndef test_{}(): uvloop.run(asyncio.Event().wait())\n"
    (tmp_path / "test_a.py").write_text(hangs.format("first") + hangs.format("second") + "def test_third(): pass\n")
    (tmp_path / "test_b.py").write_text("def test_fourth(): pass\n")
    plugins = [f"-p{name}" for name in ("xdist.plugin", "pytest_timeout", "tests.distribution", "tests.hanging", "no:cacheprovider")]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", os.devnull, *plugins, "-o", "timeout=1", "-n", "2", "--dist", "each", tmp_path],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PROJECT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert re.search(r"= 2 failed, 2 passed in ", ended.stdout), ended.stdout
    assert all(re.search(f"test_a.py.* in test_{name}", ended.stderr) for name in ("first", "second")), ended.stderr

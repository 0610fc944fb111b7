"""A runtime in a process of its own: computes the same, yields with all its threads, and no end of either side hangs the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from python_backends.runtime.errors import ExecutionError, RequestError, Unavailable
from python_backends.runtime.variants.variant_choice import Variant
from python_backends.runtime.yielding import YieldingRuntime
from tests.unit.python_backends import tiny_onnx
from tests.unit.python_backends.configs import config, tensor

CONFIG = config(input=[tensor("X", dims=[-1])], output=[tensor("Y", dims=[-1])])
X = {"X": np.array([1, 2, 3], np.float32)}


@pytest.fixture
def variant(tmp_path: Path) -> Variant:
    path = tiny_onnx.save(tiny_onnx.running_total(), tmp_path / "model.onnx")
    return Variant("", tmp_path, path, "onnxruntime", "cpu", None)


@pytest.fixture
def runtime(variant: Variant) -> Iterator[YieldingRuntime]:
    made = YieldingRuntime(variant, CONFIG, kind="CPU", device_id=0)
    yield made
    made.close()


def computed(runtime: YieldingRuntime) -> list[float]:
    (y,) = runtime.run(["Y"], X)
    return [float(each) for each in y]


def policies(pid: int) -> set[int]:
    return {os.sched_getscheduler(int(thread)) for thread in os.listdir(f"/proc/{pid}/task")}


def test_all_threads_of_its_process_yield_and_none_of_ours(runtime: YieldingRuntime) -> None:
    own = os.sched_getscheduler(threading.get_native_id())
    assert runtime.pid is None, "most models never need it"

    assert computed(runtime) == [1, 3, 6]

    assert policies(runtime.pid or 0) == {os.SCHED_IDLE}
    assert os.sched_getscheduler(threading.get_native_id()) == own


def test_a_wrong_request_fails_alone(runtime: YieldingRuntime) -> None:
    with pytest.raises(RequestError, match="X"):
        runtime.run(["Y"], {})
    pid = runtime.pid
    assert computed(runtime) == [1, 3, 6]
    assert runtime.pid == pid


def test_a_process_that_has_died_is_replaced(runtime: YieldingRuntime) -> None:
    computed(runtime)
    died = runtime.pid or 0
    os.kill(died, signal.SIGKILL)

    assert computed(runtime) == [1, 3, 6]
    assert runtime.pid != died


def test_a_run_that_no_process_survives_fails_and_the_next_one_does_not(runtime: YieldingRuntime) -> None:
    with pytest.raises(ExecutionError, match="failed twice"):
        runtime.run(["Y"], {"X": Deadly()})  # type: ignore[dict-item]

    assert computed(runtime) == [1, 3, 6]


class Deadly:
    """Ends the process that receives it."""

    def __reduce__(self) -> tuple[Callable[[int], None], tuple[int]]:
        return os._exit, (1,)


def test_a_process_that_is_stopped_is_replaced(runtime: YieldingRuntime) -> None:
    computed(runtime)
    stopped = runtime.pid or 0
    os.kill(stopped, signal.SIGSTOP)

    assert computed(runtime) == [1, 3, 6]
    assert runtime.pid != stopped
    assert not Path(f"/proc/{stopped}").exists()


def test_where_the_model_cannot_be_opened_each_run_says_why_and_that_another_try_may_succeed(
    variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = YieldingRuntime(replace(variant, file=variant.file.with_name("gone.onnx")), CONFIG, kind="CPU", device_id=0)
    with pytest.raises(Unavailable, match=r"cannot be opened .*gone\.onnx"):
        runtime.run(["Y"], X)
    monkeypatch.setattr("subprocess.Popen", None)  # nothing is started again at once
    with pytest.raises(Unavailable, match=r"cannot be opened .*gone\.onnx"):
        runtime.run(["Y"], X)
    assert runtime.pid is None


def test_its_process_ends_with_it(runtime: YieldingRuntime) -> None:
    computed(runtime)
    pid = runtime.pid
    runtime.close()
    assert not Path(f"/proc/{pid}").exists()


def test_its_process_ends_when_the_one_that_asks_is_killed(variant: Variant) -> None:
    reading, writing = os.pipe()
    program = f"""
        import os, signal
        from tests.unit.python_backends.runtime.test_yielding import CONFIG, Path, Variant, YieldingRuntime, computed
        runtime = YieldingRuntime(Variant("", Path({str(variant.file.parent)!r}), Path({str(variant.file)!r}), "onnxruntime", "cpu", None),
                                  CONFIG, kind="CPU", device_id=0)
        os.set_inheritable({writing}, True)
        computed(runtime)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], pass_fds=(writing,), check=False)
    os.close(writing)
    assert ended.returncode == -signal.SIGKILL
    assert os.read(reading, 1) == b"", "returns once no process has the other end"
    os.close(reading)

from __future__ import annotations

import inspect
import logging
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pynvml
import pytest

from control_plane.host.memory.gpu_memory import GpuMemory, GpuMemoryUnknown, load_pynvml
from control_plane.host.memory.server_memory import ServerMemory
from tests.fakes.triton.nvml import FakeGpu, FakeNvml

MIB = 2**20
NOT_SUPPORTED = pynvml.NVMLError_NotSupported


@dataclass
class Lab:
    """A machine with a driver and the processes 10 to 13."""

    root: Path
    driver: Path

    def meter(self, *gpus: FakeGpu, timeout_s: float = 60.0) -> tuple[GpuMemory, FakeNvml]:
        nvml = FakeNvml(*gpus)
        return GpuMemory(load=lambda: nvml, driver=self.driver, proc=self.root, timeout_s=timeout_s), nvml

    def held(self, *gpus: FakeGpu) -> int | None:
        return self.meter(*gpus)[0].held_bytes([10, 11])


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    for pid in range(10, 14):
        (tmp_path / str(pid)).mkdir()
    (tmp_path / "nvidiactl").touch()
    return Lab(tmp_path, tmp_path / "nvidiactl")


class TestFake:
    @pytest.mark.parametrize("name", [name for name in vars(FakeNvml) if name.startswith("nvml")])
    def test_it_is_called_as_the_real_one(self, name: str) -> None:
        fake, real = (list(inspect.signature(each).parameters) for each in (getattr(FakeNvml(), name), getattr(pynvml, name)))
        assert fake == real

    def test_errors_are_of_the_classes_that_the_real_one_raises(self) -> None:
        assert type(pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)) is NOT_SUPPORTED
        assert not issubclass(pynvml.NVMLLibraryMismatchError, pynvml.NVMLError)  # it has to be caught by itself

    def test_the_fields_of_a_process_are_the_real_ones(self) -> None:
        real = pynvml.nvmlStructToFriendlyObject(pynvml.c_nvmlProcessInfo_v3_t())
        assert {"pid", "usedGpuMemory"} <= vars(real).keys()


@pytest.mark.parametrize(
    ("gpus", "held"),
    [
        pytest.param([FakeGpu({10: 5, 11: 6, 12: 100})], 11, id="of its processes, and no others"),
        pytest.param([FakeGpu({10: 5}), FakeGpu({10: 7, 11: 1}), FakeGpu()], 13, id="on several GPUs"),
        pytest.param([FakeGpu({12: 100})], 0, id="none of its own"),
        pytest.param([], 0, id="no GPU that this container may use"),
        pytest.param([FakeGpu({10: 5}, mps=pynvml.NVMLLibraryMismatchError)], 5, id="a driver that knows no list of MPS"),
        pytest.param([FakeGpu({10: 5}, mps=NOT_SUPPORTED)], 5, id="a GPU without MPS"),
        pytest.param([FakeGpu({13: 9}, mps={10: 5})], 5, id="through MPS, whose server has the rest"),
        pytest.param([FakeGpu({10: 5}, mps={10: 5})], 5, id="in both lists"),
        pytest.param([FakeGpu({10: 5}, knows_mig=False)], 5, id="a GPU without MIG"),
        pytest.param([FakeGpu(NOT_SUPPORTED, slices={0: FakeGpu({10: 5}), 3: FakeGpu({11: 6})})], 11, id="in MIG slices"),
        pytest.param([FakeGpu({10: 5, 0: 900})], 5, id="beside one that this container does not see"),
        pytest.param([FakeGpu({10: 5, 12: None})], 5, id="beside one of which nothing is said"),
    ],
)
def test_what_processes_hold_is_added_up(lab: Lab, gpus: list[FakeGpu], held: int) -> None:
    assert lab.held(*gpus) == held


@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        pytest.param([FakeGpu({10: None})], "does not say how much", id="nothing is said of one of its processes"),
        pytest.param([FakeGpu({10: 5}), FakeGpu({11: None})], "does not say how much", id="on one of several GPUs"),
        pytest.param([FakeGpu(NOT_SUPPORTED)], "does not say how much", id="not supported"),
        pytest.param([FakeGpu(slices={1: FakeGpu(NOT_SUPPORTED)})], "does not say how much", id="not for MIG slices"),
        pytest.param([FakeGpu({48213: 5})], "another process namespace", id="numbered as on the host"),
        pytest.param([FakeGpu({10: 5, 48213: 5})], "another process namespace", id="so that 10 may be another one, too"),
        pytest.param([FakeGpu(pynvml.NVMLLibraryMismatchError)], "nvidia-ml-py failed", id="a driver that is too old"),
    ],
)
def test_what_the_driver_does_not_say_is_not_known_and_said_once(
    lab: Lab, caplog: pytest.LogCaptureFixture, gpus: list[FakeGpu], why: str
) -> None:
    meter, _ = lab.meter(*gpus)
    with caplog.at_level(logging.WARNING):
        assert [meter.held_bytes([10, 11]) for _ in range(3)] == [None] * 3
    assert len(caplog.messages) == 1
    assert why in caplog.text
    with pytest.raises(GpuMemoryUnknown, match=why):
        meter.read([10, 11])


@pytest.mark.parametrize("failure", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_UNKNOWN])
def test_a_driver_that_goes_away_and_comes_back_is_asked_anew(lab: Lab, failure: int) -> None:
    meter, nvml = lab.meter(FakeGpu({10: 5}))
    assert meter.held_bytes([10]) == 5
    nvml.failure = pynvml.NVMLError(failure)
    assert meter.held_bytes([10]) is None
    assert meter.held_bytes([10]) is None
    nvml.failure = None
    assert meter.held_bytes([10]) == 5
    assert nvml.inits == 2


def test_a_driver_that_does_not_answer_keeps_nobody_waiting_twice(lab: Lab) -> None:
    meter, nvml = lab.meter(FakeGpu({10: 5}), timeout_s=0.05)
    nvml.goes_on.clear()
    for _ in range(3):
        with pytest.raises(GpuMemoryUnknown, match="does not answer"):
            meter.read([10])
    stuck = meter._reading
    assert stuck is not None
    assert stuck.is_alive(), "one thread, however often it is asked"
    nvml.goes_on.set()
    stuck.join(60.0)
    again, _ = lab.meter(FakeGpu({10: 5}))
    assert again.held_bytes([10]) == 5


def test_without_a_driver_nothing_is_imported(tmp_path: Path) -> None:
    def load() -> object:
        raise AssertionError("imported")

    assert GpuMemory(load=load, driver=tmp_path / "nvidiactl").held_bytes([10]) is None


def test_serving_without_nvidia_ml_py_works(lab: Lab) -> None:
    """Nothing but this module imports it, and not before it is needed."""
    code = (
        "import sys; sys.modules['pynvml'] = None\n"
        "from pathlib import Path\n"
        "from control_plane.host.memory.gpu_memory import GpuMemory\n"
        f"meter = GpuMemory(driver=Path({str(lab.driver)!r}))\n"
        "assert meter.held_bytes([1]) is None\n"
        "try: meter.read([1])\n"
        "except Exception as exc: print(exc)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "nvidia-ml-py is not installed\n"


def test_the_real_library_says_that_there_is_no_driver(lab: Lab) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is one")
    with pytest.raises(GpuMemoryUnknown, match="NVML Shared Library Not Found"):
        GpuMemory(load=load_pynvml, driver=lab.driver).read([os.getpid()])


def test_a_server_holds_memory_of_both_kinds(lab: Lab) -> None:
    own = os.getpid()
    (lab.root / str(own)).mkdir()
    held = ServerMemory(lab.meter(FakeGpu({own: 7 * MIB}))[0]).held(iter([own]))
    assert held is not None
    assert held.host_bytes > MIB
    assert held.gpu_bytes == 7 * MIB


def test_a_server_that_has_ended_holds_none_that_is_known(lab: Lab) -> None:
    assert ServerMemory(lab.meter(FakeGpu())[0]).held([]) is None

"""What kind of machine this is, from files that look like Linux's and the NVIDIA driver's."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from python_backends.runtime.engines.cpu import usable_cpu_count
from python_backends.runtime.machine import NO_GPU, Machine, cpu_kind, gpu_name, this_machine

X86 = """processor\t: 0
model name\t: AMD EPYC   9R14
flags\t\t: fpu sse avx2 avx512f avx512_vnni

processor\t: 1
model name\t: the second
flags\t\t: fpu sse
"""

ARM = "processor\t: 0\nFeatures\t: fp asimd asimddp\nCPU part\t: 0xd40\n"


def cpuinfo(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    return path


def gpus(tmp_path: Path, *models: str) -> Path:
    for index, model in enumerate(models):
        directory = tmp_path / "gpus" / f"0000:0{index}:00.0"
        directory.mkdir(parents=True)
        (directory / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 16\nBus Type: \t PCIe\n")
    return tmp_path / "gpus"


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        pytest.param("avx2 avx512f avx512_vnni amx_int8", "x86_64 amx_int8", id="amx"),
        pytest.param("avx2 avx_vnni avx512f avx512_vnni", "x86_64 avx512_vnni", id="avx512-vnni"),
        pytest.param("avx2 avx_vnni", "x86_64 avx_vnni", id="avx-vnni"),
        pytest.param("avx512f avx2", "x86_64 avx512f", id="avx512"),
        pytest.param("sse avx avx2", "x86_64 avx2", id="avx2"),
        pytest.param("sse avx", "x86_64", id="nothing-that-matters"),
        pytest.param("not_avx2 xavx512f", "x86_64", id="whole-words-only"),
    ],
)
def test_the_best_instruction_set_decides(flags: str, kind: str) -> None:
    assert cpu_kind("x86_64", flags.split()) == kind


def test_the_first_cpu_speaks_for_all(tmp_path: Path) -> None:
    machine = this_machine("cpu", cpuinfo=cpuinfo(tmp_path, X86))

    assert machine == Machine(f"{platform.machine()} avx512_vnni", "AMD EPYC 9R14", usable_cpu_count())


def test_arm_says_features_and_has_no_name(tmp_path: Path) -> None:
    machine = this_machine("cpu", cpuinfo=cpuinfo(tmp_path, ARM))

    assert machine.kind == f"{platform.machine()} asimddp"
    assert machine.processor == platform.machine()


def test_without_cpuinfo_the_architecture_is_all_there_is(tmp_path: Path) -> None:
    machine = this_machine("cpu", cpuinfo=tmp_path / "absent")

    assert (machine.kind, machine.processor) == (platform.machine(), platform.machine())


def test_on_a_gpu_its_name_is_the_kind_and_the_cpu_is_told_too(tmp_path: Path) -> None:
    machine = this_machine("gpu", cpuinfo=cpuinfo(tmp_path, X86), gpus=gpus(tmp_path, "NVIDIA H200"))

    assert (machine.kind, machine.processor) == ("NVIDIA H200", "AMD EPYC 9R14")


def test_of_several_gpus_the_first_by_bus_counts(tmp_path: Path) -> None:
    assert gpu_name(gpus(tmp_path, "NVIDIA L4", "NVIDIA H200")) == "NVIDIA L4"


def test_without_a_gpu_the_kind_says_so(tmp_path: Path) -> None:
    assert gpu_name(tmp_path / "absent") is None
    assert this_machine("gpu", gpus=tmp_path / "absent").kind == NO_GPU


def test_this_very_machine_has_a_kind() -> None:
    assert this_machine("cpu").kind.startswith(platform.machine())
    assert this_machine("cpu").cpus >= 1

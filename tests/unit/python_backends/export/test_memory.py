"""Memory of a loaded variant, measured by a fresh process."""

from __future__ import annotations

import mmap
import os
import textwrap
from pathlib import Path

import numpy as np
import pytest

from python_backends.export.discovery import Target, load_targets
from python_backends.export.memory import device_memory_in_use, measure_resident_bytes, resident_set
from python_backends.export.recipe import BuildError
from tests.unit.python_backends import tiny_onnx
from tests.unit.python_backends.export.recipes import variants_folder

MIB = 2**20


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return load_targets(variants_folder(tmp_path, fp32={}, other={}))[0]


def test_the_resident_set_is_read_as_the_kernel_writes_it(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmHWM:\t    9999 kB\nVmRSS:\t     1234 kB\nRssAnon:\t 1 kB\n")

    assert resident_set(status) == 1234 * 1024


def test_the_resident_set_is_this_processs_own() -> None:
    before = resident_set()
    # An array may lie where tests before have left resident memory free.
    with mmap.mmap(-1, 64 * MIB) as held:
        held.write(bytes(64 * MIB))

        assert resident_set() - before > 48 * MIB


def test_weights_count(target: Target, tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    # The sum of the largest cell, [16, 256], with a constant.
    tiny_onnx.save(tiny_onnx.sum_with(np.ones((1, 256), np.float32)), small / "model.onnx")
    tiny_onnx.save(tiny_onnx.sum_with(np.ones((4096, 16, 256), np.float32)), large / "model.onnx")

    difference = measure_resident_bytes(target, large) - measure_resident_bytes(target, small)

    # The constant itself, and the sum with it at most a few times.
    assert 64 * MIB < difference < 512 * MIB


def test_what_fails_in_the_other_process_is_one_sentence(target: Target, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"its memory could not be measured: .*unable to find .*model\.onnx"):
        measure_resident_bytes(target, tmp_path / "nowhere")


def test_a_gpus_memory_is_the_drivers_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        textwrap.dedent("""\
        #!/bin/sh
        [ "$*" = "--id=0 --query-gpu=memory.used --format=csv,noheader,nounits" ] && echo 512
        """)
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    assert device_memory_in_use() == 512 * MIB

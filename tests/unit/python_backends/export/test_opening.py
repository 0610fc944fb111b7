"""Opening what a recipe has written with the runtime that will serve it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backends.export.discovery import Target, load_targets
from python_backends.export.opening import opened
from python_backends.export.progress import Progress
from python_backends.export.recipe import BuildError
from tests.unit.python_backends.export.recipes import variants_folder


def target(tmp_path: Path, **settings: Mapping[str, Any]) -> Target:
    (only,) = load_targets(variants_folder(tmp_path, fp32=settings))
    return only


def test_it_runs_as_it_will_be_served(tmp_path: Path) -> None:
    only = target(tmp_path)
    only.recipe.build(tmp_path, Progress(io.StringIO()))

    with opened(only, tmp_path) as run:
        (y,) = run(["Y"], {"X": np.float32([[1, 2], [3, 4]])})

    assert y.tolist() == [[1, 2], [3, 4]]


def test_a_file_that_no_runtime_can_open_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")

    with pytest.raises(BuildError, match=r"ONNX Runtime .* cannot load "), opened(target(tmp_path), tmp_path):
        pytest.fail("it was opened")


def test_a_run_that_fails_is_one_too(tmp_path: Path) -> None:
    only = target(tmp_path)
    only.recipe.build(tmp_path, Progress(io.StringIO()))

    with pytest.raises(BuildError, match=r"onnx runtime error: "), opened(only, tmp_path) as run:
        run(["Y"], {"X": np.zeros((1, 2), np.int64)})

"""What `make serve` builds needs no PyTorch: several GB that nobody should wait for before the first answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[4]

PROGRAM = """
import sys, tempfile
from dataclasses import replace
from pathlib import Path

sys.modules |= {"torch": None, "transformers": None}  # as if they were not installed
from python_backends.export.discovery import load_targets
from python_backends.export.progress import Progress

for target in load_targets(Path("model_repository/text_encoder")):
    of_recipe = target.recipe.build.__globals__
    # As little work as can be: what comes of it is not judged here.
    of_recipe.update(CALIBRATION=replace(of_recipe["CALIBRATION"], texts=4), KEEP_NEURONS=1.0)
    needs = target.recipe.serving.needs()
    if needs is None:
        with tempfile.TemporaryDirectory() as folder:
            target.recipe.build(Path(folder), Progress(sys.stderr))
        print(target.variant)
    elif target.variant == "bf16":
        print(needs)
"""


@pytest.mark.timeout(240)
def test_the_variants_that_onnx_runtime_serves_are_built_without_it() -> None:
    built = subprocess.run([sys.executable, "-c", PROGRAM], cwd=PROJECT, capture_output=True, text=True, timeout=200, check=False)

    assert (built.returncode, built.stdout.splitlines()) == (
        0,
        ["fp32", "int8", "pruned", "it needs PyTorch and transformers: `make models` installs them"],
    ), built.stderr

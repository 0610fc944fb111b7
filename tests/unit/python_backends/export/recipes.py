"""Recipes for tests: a build.py in a temporary model folder that does what a test needs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BUILD = """
from pathlib import Path
from python_backends.export.recipe import BuildError, Provenance, Recipe

def build(directory, progress):
    with progress.step("write the artefact"):
        (directory / "model.bin").write_bytes(b"artefact")
    {then}
    return {{"against_reference": {{"cosine_min": 0.99995}}}}

RECIPE = Recipe(
    build=build,
    provenance=Provenance("org/name", "package 1.0", "Apache-2.0", "{weights}"),
    libraries={libraries!r},
    sources=(Path(__file__),),
    settings={{"opset": "17"}},
)
"""

# An identity through the real ONNX Runtime. What each variant pretends comes from a file beside, so that a test can change one of them and
# leave the others as they are.
VARIANTS = """
import hashlib, json
from pathlib import Path
import numpy as np
from onnx import TensorProto
from python_backends.export.recipe import AUTO, BuildError, Gate, Provenance, Recipe, Serving
from python_backends.runtime.model_config import parse_model_config
from tests.unit.python_backends import tiny_onnx

IDENTITY = tiny_onnx.identity(TensorProto.FLOAT, ["batch", "length"])
DIGESTS = {"": "", "same": hashlib.sha256(IDENTITY.SerializeToString()).hexdigest(), "other": 64 * "0"}
GATES = {"auto": AUTO, "weak": Gate(0.8, 0.01)}
VARIANTS = json.loads((Path(__file__).parent / "variants.json").read_text())


class Trial:
    config = parse_model_config({
        "name": "m", "max_batch_size": 64,
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}],
    })

    def __init__(self, cosine_p1, relative_loss):
        self.cosine_p1, self.relative_loss = cosine_p1, relative_loss

    def inputs(self, batch, length):
        return {"X": np.ones((batch, length), np.float32)}

    def compare(self, run):
        (y,) = run(["Y"], {"X": np.float32([[2, 3]])})
        assert y.tolist() == [[2, 3]]
        return {"against_fp32": {"cosine_p1": self.cosine_p1}, "similarity": {"relative_loss": self.relative_loss}}

    def benchmark(self, run, path):
        return {"spearman": float(path.read_text()), "spearman_fp32": 0.8, "relative_loss": 0.0}


def recipe(
    name, *, cosine_p1=1.0, relative_loss=0.0, needs=None, weights="abc", device="cpu", file="model.onnx", fails=None,
    verified="", gate="auto",
):
    def build(directory, progress):
        if fails:
            raise KeyboardInterrupt if fails == "interrupt" else BuildError(fails)
        tiny_onnx.save(IDENTITY, directory / "model.onnx")
        return {"own_check": {"cosine_min": 0.5}}

    return Recipe(
        build=build,
        provenance=Provenance("org/name", "package 1.0", "Apache-2.0", weights),
        libraries=("numpy",),
        sources=(Path(__file__),),
        settings={"variant": name},
        serving=Serving(
            "onnxruntime", file, Trial(cosine_p1, relative_loss), GATES[gate], device=device, needs=lambda: needs, sha256=DIGESTS[verified]
        ),
    )


RECIPES = {name: recipe(name, **settings) for name, settings in VARIANTS.items()}
"""


def model_folder(root: Path, name: str = "m", *, then: str = "", libraries: tuple[str, ...] = ("numpy",), weights: str = "abc") -> Path:
    """A model folder whose recipe writes one artefact and then runs the statements `then`."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    body = textwrap.indent(textwrap.dedent(then).strip(), "    ").strip()
    (folder / "build.py").write_text(BUILD.format(then=body, libraries=libraries, weights=weights))
    return folder


def variants_folder(root: Path, name: str = "m", **variants: Mapping[str, Any]) -> Path:
    """A model folder with a recipe for each of the variants; VARIANTS has what each may set."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "build.py").write_text(VARIANTS)
    (folder / "variants.json").write_text(json.dumps(variants))
    return folder

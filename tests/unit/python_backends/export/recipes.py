"""Recipes for tests: a build.py in a temporary model folder that does what a test needs."""

from __future__ import annotations

import textwrap
from pathlib import Path

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


def model_folder(root: Path, name: str = "m", *, then: str = "", libraries: tuple[str, ...] = ("numpy",), weights: str = "abc") -> Path:
    """A model folder whose recipe writes one artefact and then runs the statements `then`."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    body = textwrap.indent(textwrap.dedent(then).strip(), "    ").strip()
    (folder / "build.py").write_text(BUILD.format(then=body, libraries=libraries, weights=weights))
    return folder

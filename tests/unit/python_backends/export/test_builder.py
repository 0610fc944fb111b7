"""Which targets a build builds."""

from __future__ import annotations

import io
from pathlib import Path

from python_backends.export.builder import Demand, build_if_stale
from python_backends.export.discovery import Target
from python_backends.export.progress import Progress
from python_backends.export.recipe import Agreement, Provenance, Recipe


def test_what_is_built_on_demand_is_built_once_it_is_named(tmp_path: Path) -> None:
    def build(directory: Path, _: Progress) -> Agreement:
        (directory / "weights").write_text("1")
        return {}

    recipe = Recipe(build, Provenance("n", "p", "l", "0"), (), (Path(__file__),), on_demand=True)
    target, said = Target(tmp_path, "half", recipe), io.StringIO()

    build_if_stale(target, Progress(said))
    assert not target.directory.exists()
    assert "--variant half" in said.getvalue()

    build_if_stale(target, Progress(said), Demand(named=True))
    (target.directory / "weights").write_text("2")
    build_if_stale(target, Progress(said), Demand(force=True))
    assert (target.directory / "weights").read_text() == "1", "what was built is kept fresh"

"""Every target: its corpus replayed, then a short search from there.

The search has a fixed seed, so that it goes the same way on every machine and a change of the code alone can make it
fail; `make fuzz` searches longer, elsewhere each time.

The corpus is read only: what a search finds stays in a temporary folder. A crash prints its input, to be added to the
corpus.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TARGETS = sorted(path.stem.removeprefix("fuzz_") for path in (HERE / "targets").glob("fuzz_*.py"))
SEARCH = ("-seed=1", "-runs=1500", "-max_total_time=20", "-timeout=20")
"""The longest times are for slow machines; a quick one is done in two seconds."""


def corpus(target: str) -> list[Path]:
    return sorted((HERE / "corpus" / target).iterdir())


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_known_passes(target: str) -> None:
    check = importlib.import_module(f"tests.fuzz.targets.fuzz_{target}").check
    known = corpus(target)
    assert 3 <= len(known) <= 60
    for path in known:
        check(path.read_bytes())


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed: it has no wheel for this Python")
@pytest.mark.parametrize("target", TARGETS)
def test_a_search_finds_nothing(target: str, tmp_path: Path) -> None:
    started_from = tmp_path / "corpus"
    shutil.copytree(HERE / "corpus" / target, started_from)
    module, flags = f"tests.fuzz.targets.fuzz_{target}", (*SEARCH, f"-artifact_prefix={tmp_path}/")
    done = subprocess.run(
        [sys.executable, "-m", module, *flags, str(started_from)],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    crashes = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert done.returncode == 0, f"{crashes}\n{done.stderr[-4000:]}"
    assert "corp:" in done.stderr, "nothing was tried"

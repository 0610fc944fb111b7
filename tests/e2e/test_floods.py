"""The scenario of floods runs for seconds; how fast anything was is not asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.tidegate import PROJECT

pytestmark = pytest.mark.timeout(300)
REFUSED_MS = 5_000


def test_the_scenario_measures_a_caller_beside_floods(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "perf.floods", "--rounds", "1", "--seconds", "0.3", "--only", "reset at once"]
    subprocess.run([*command, "--output", str(tmp_path)], cwd=PROJECT, check=True, timeout=300, stdout=subprocess.DEVNULL)
    document = json.loads((tmp_path / "floods.json").read_text())
    assert document["cases"][0]["flood"] == "alone"
    assert len(document["cases"]) == 4
    for case in document["cases"]:
        assert 0 < case["median"]["grpc_p50_ms"] < REFUSED_MS
        assert 0 < case["median"]["http_p50_ms"] < REFUSED_MS
    assert all(flooded["connections"] and flooded["sent_mib"] > 0 for flooded in document["floods"].values())
    assert "streams reset at once" in (tmp_path / "floods.md").read_text()

"""Jobs for more models than there is memory for: those whose model is loaded go first."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.e2e.conftest import Start
from tests.e2e.fleet.test_fleet import body, shown, write_models
from tests.e2e.jobs.test_jobs import ended, submit
from tests.e2e.tidegate import COMPLETE

MODELS = tuple(f"m{number}" for number in range(8))
ROUNDS = 5


def test_mixed_for_eight_models_they_load_each_hardly_more_than_once(start: Start, tmp_path: Path) -> None:
    """Two fit. In the order in which they came each job would need a load, 40 in all."""
    write_models(tmp_path / "models", MODELS)
    gateway = start(tmp_path / "state", "--model-repository", str(tmp_path / "models"), COMPLETE, "--memory-budget", "50MiB")
    jobs = [submit(gateway, model, body()) for _ in range(ROUNDS) for model in MODELS]
    assert Counter(ended(gateway, job)["state"] for job in jobs) == {"succeeded": len(jobs)}
    loads = Counter(event["model"] for event in shown(gateway)["events"] if event["kind"] == "loaded")
    assert sum(loads.values()) <= 2 * len(MODELS), loads

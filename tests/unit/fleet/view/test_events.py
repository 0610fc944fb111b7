from __future__ import annotations

import pytest

from control_plane.fleet.domain.counts import FleetCounts
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.view.events import FleetEvents


@pytest.mark.parametrize("logs", [True, False])
@pytest.mark.parametrize(
    ("kind", "model", "reason", "level", "message"),
    [
        (FleetEventKind.DOWN, "", "it crashed", "WARNING", "server s0 is down: it crashed"),
        (FleetEventKind.UP, "", "", "INFO", "server s0 is up"),
        (FleetEventKind.EJECTED, "", "it is slow", "WARNING", "server s0 is ejected: it is slow"),
        (FleetEventKind.READMITTED, "", "", "INFO", "server s0 is readmitted"),
        (FleetEventKind.LOST, "m", "its Python process has died", "WARNING", "model m on server s0 is lost: its Python process has died"),
        (FleetEventKind.LOADED, "m", "", None, None),
        (FleetEventKind.EVICTED, "m", "", None, None),
    ],
)
def test_what_is_logged_and_with_which_fields(
    logs: bool, kind: FleetEventKind, model: str, reason: str, level: str | None, message: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    events = FleetEvents(FleetCounts(), logs=logs)
    events.record(kind, server="s0", model=model, reason=reason)
    told = [(record.levelname, record.getMessage(), record.server, getattr(record, "model", "")) for record in caplog.records]  # type: ignore[attr-defined]
    is_told = level is not None and (logs or kind is FleetEventKind.LOST)
    assert told == ([(level, message, "s0", model)] if is_told else [])
    assert len(events.latest) == 1

"""Fixture of all tests of settings."""

from __future__ import annotations

import pytest

from control_plane import settings as module


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the machine's own TIDEGATE_ variables, so that they cannot decide a test."""
    for name in list(module.os.environ):
        if name.upper().startswith("TIDEGATE_"):
            monkeypatch.delenv(name)

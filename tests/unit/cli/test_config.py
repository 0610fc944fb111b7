from __future__ import annotations

import pytest

from control_plane.cli.config import show
from control_plane.settings import effective, load_settings


def test_every_variable_is_shown_whole_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    show()
    shown = capsys.readouterr().out.split()
    assert [name for name in effective(load_settings()) if name not in shown or f"TIDEGATE_{name.upper()}" not in shown] == []


def test_lists_are_shown_as_they_are_written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TIDEGATE_GATEWAY_CPUS", "0-1")
    show()
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert lines["gateway_cpus"].rstrip().endswith("0, 1")
    assert "(" not in lines["triton_cpus"]

"""Fixture that calls the command line in this process."""

from __future__ import annotations

import sys

import pytest

from control_plane.cli import main
from tests.unit.cli.command import CommandResult, Tidegate


@pytest.fixture
def tidegate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tidegate:
    """Run the whole command line in this process."""

    def call(*arguments: object) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["tidegate", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return CommandResult(int(ended.value.code or 0), told.out, told.err)

    return call

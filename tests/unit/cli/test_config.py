from __future__ import annotations

import pytest

from control_plane.cli.config import show
from control_plane.settings import effective, load_settings

REPOSITORIES = [f"/srv/models/of/a/team/with/a/long/name/{number}" for number in range(2)]


def test_in_a_terminal_of_80_columns_values_have_half_of_each_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"COLUMNS": "80", "TTY_COMPATIBLE": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TIDEGATE_MODEL_REPOSITORY", ",".join(REPOSITORIES))
    show()
    lines = capsys.readouterr().out.splitlines()
    first = lines[0].index("value")
    assert max(map(len, lines)) <= 80
    assert first <= 42
    variables = [line[:first].strip() for line in lines[1:]]
    assert [name for name in variables if name] == [f"TIDEGATE_{name.upper()}" for name in effective(load_settings())]
    begin = variables.index("TIDEGATE_MODEL_REPOSITORY")
    folded = [line[first:].strip() for line in lines[1 + begin : 5 + begin]]
    assert ["".join(folded[:2]), "".join(folded[2:])] == REPOSITORIES


def test_in_a_pipe_every_value_is_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TIDEGATE_MODEL_REPOSITORY", ",".join(REPOSITORIES))
    show()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(effective(load_settings()))
    (line,) = (line for line in lines if line.startswith("TIDEGATE_MODEL_REPOSITORY "))
    assert line.split(maxsplit=1)[1].rstrip() == ", ".join(REPOSITORIES)


def test_lists_are_shown_as_they_are_written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TIDEGATE_GATEWAY_CPUS", "0-1")
    show()
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert lines["TIDEGATE_GATEWAY_CPUS"].rstrip().endswith("0, 1")
    assert "(" not in lines["TIDEGATE_TRITON_CPUS"]

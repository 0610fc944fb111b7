from __future__ import annotations

import pytest
from rich.text import Text

from control_plane.cli.common.printing import moment, print_fields, print_table, remark


def test_a_table_is_whole_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_table(("name", "value"), [("x" * 30, None), ("y", 86_400_000.0), ("z", 1e-06), ("p", 2e-05), ("i", float("inf")), ("n", 3)])
    told = capsys.readouterr()
    assert [line.split() for line in told.out.splitlines()] == [
        ["name", "value"],
        ["x" * 30],
        ["y", "86400000"],
        ["z", "0.000001"],
        ["p", "0.00002"],
        ["i", "inf"],
        ["n", "3"],
    ]
    assert told.err == ""


def test_sentences_are_wrapped_to_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_table(("a", "b"), [(Text("ok", style="green"), "word " * 8)], wraps=True)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 20
    assert " ".join(lines).split() == ["a", "b", "ok", *["word"] * 8]


def test_a_word_that_is_longer_than_the_terminal_keeps_its_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_table(("a",), [("/" + "x" * 40 + "/end",)], wraps=True)
    assert "".join(capsys.readouterr().out.split()) == "a/" + "x" * 40 + "/end"


def test_fields_are_lines_but_for_those_that_are_empty(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields([("model", "m"), ("reason", ""), ("tier", None), ("why", "[red]x[/]\n" + "y " * 100)])
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["model", "m"], ["why", "[red]x[/]", *["y"] * 100]]


def test_nothing_that_is_shown_can_do_anything(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a",), [("[red]x[/] \x1b[2J\n\x9b1m",)])
    remark("[bold]y[/] \x1b]0;title\x07")
    told = capsys.readouterr()
    assert told.out.splitlines()[1].strip() == "[red]x[/]  [2J  1m"
    assert told.err == "[bold]y[/]  ]0;title \n"


def test_moments_are_in_utc() -> None:
    assert [moment(time_s) for time_s in (None, 0.0, 1_795_276_799.9)] == ["", "1970-01-01 00:00", "2026-11-21 15:59"]

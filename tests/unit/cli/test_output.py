"""`-o json` and `-o yaml`: what commands print for programs is what the admin API has, and nothing else is on standard output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from typer.main import get_command

from control_plane.cli import command_line
from tests.unit.admin.admin_bench import Bench
from tests.unit.cli.command import Tidegate
from tests.wire.admin.admin import admin_server

WITHOUT = {
    "serve": "runs until it is stopped",
    "node": "runs until it is stopped",
    "schema": "always JSON",
    "backup": "writes a file",
    "restore": "reads a file",
    "embed": "prints or writes embeddings in a form of its own",
    "models init": "prints the files that it has written",
    "models build": "runs another program",
    "audit verify": "prints the head to keep, or fails",
    "audit export": "always JSON lines",
    "jobs submit": "prints ids, or writes a file",
    "jobs watch": "prints the result as it is",
    "jobs cancel": "says what it has done",
    "jobs run": "runs until a signal",
    "jobs dead requeue": "says what it has done",
    "jobs dead drop": "says what it has done",
    "webhooks delete": "says what it has done",
    "cache purge": "says what it has done",
    "tenants delete": "says what it has done",
    "routes delete": "says what it has done",
    "prices delete": "says what it has done",
}
"""Commands that print nothing which a program would parse, and why."""


def commands(found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield each command with its name, of Typer's own Click."""
    if hasattr(found, "commands"):
        for name, command in found.commands.items():
            yield from commands(command, (*path, name))
    else:
        yield " ".join(path), found


def test_every_command_that_prints_has_an_output_option() -> None:
    has = {name for name, command in commands(get_command(command_line())) if any("-o" in each.opts for each in command.params)}
    all_ = {name for name, _ in commands(get_command(command_line()))}
    assert all_ - has == WITHOUT.keys()


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Bench, str]]:
    bench = Bench()
    bench.make_key()
    with admin_server(bench) as url:
        yield bench, url


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("models list", "/models"),
        ("models show a", "/models/a"),
        ("tenants list", "/tenants"),
        ("routes list", "/routes"),
        ("prices list", "/prices"),
        ("keys list", "/keys"),
        ("rollouts status", "/rollouts"),
        ("usage", "/usage?by=tenant"),
    ],
)
def test_it_is_what_the_admin_api_has(tidegate: Tidegate, served: tuple[Bench, str], line: str, path: str) -> None:
    bench, url = served
    expected = bench.ask("GET", path)[1]
    for option, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        ended = tidegate(*line.split(), "-o", option, "--admin-url", url)
        assert (ended.status, ended.err) == (0, "")
        assert read(ended.out) == expected


def test_what_is_changed_is_printed_as_one_object_and_remarks_stay_apart(tidegate: Tidegate, served: tuple[Bench, str]) -> None:
    ended = tidegate("tenants", "set", "new", "--burst", "3", "-o", "json", "--admin-url", served[1])
    assert json.loads(ended.out)["burst"] == 3
    assert ended.err == "tenant new is new\n"
    made = json.loads(tidegate("keys", "create", "--tenant", "new", "--scope", "viewer", "-o", "json", "--admin-url", served[1]).out)
    assert made["text"].startswith(f"tg_{made['id']}_")
    revoked = json.loads(tidegate("keys", "revoke", made["id"], "-o", "json", "--admin-url", served[1]).out)
    assert revoked["revoked_s"] is not None
    assert "text" not in revoked

"""Only `fleet/view` writes to a process's `Fleet`; everybody else reads it, or tells `FleetState` what has happened."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import control_plane
from control_plane.fleet.domain.fleet import Fleet, ModelFacts, Replica, Server

ROOT = Path(control_plane.__file__).parent
MAY_WRITE = ("fleet/view/", "fleet/domain/fleet.py", "fleet/simulation/")
"""The simulation has a fleet of its own."""

KINDS = (Fleet, Server, Replica, ModelFacts)
FIELDS = {field.name for kind in KINDS for field in fields(kind)}
MUTATORS = {"add_server", "remove_server", "put_replica", "drop_replica", "count_uses"}
COLLECTIONS = {"servers", "models", "holders", "pools", "replicas"}
CHANGES = {"clear", "pop", "popitem", "setdefault", "update"}


def writes(source: str) -> Iterator[tuple[int, str]]:
    """Find the writes to a fleet's fields: the number of each line, and the name that is written."""
    nodes = list(ast.walk(ast.parse(source)))
    # A class of the module's own may have a field of the same name.
    own = {name for node in nodes if isinstance(node, ast.ClassDef) for name in _fields(node)}
    for node in nodes:
        match node:
            case ast.Attribute(value=leader, attr=name, ctx=ast.Store() | ast.Del()) if name in FIELDS - own and not _is_self(leader):
                yield node.lineno, name
            case ast.Subscript(value=ast.Attribute(attr=name), ctx=ast.Store() | ast.Del()) if name in COLLECTIONS:
                yield node.lineno, name
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr=name), attr=change)) if name in COLLECTIONS and change in CHANGES:
                yield node.lineno, name
            case ast.Call(func=ast.Attribute(attr=name)) if name in MUTATORS:
                yield node.lineno, name


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id


def _is_self(node: ast.expr) -> bool:
    # The classes of a fleet are in a file that may write: what other classes keep of the same name is their own.
    return isinstance(node, ast.Name) and node.id == "self"


def knows_a_fleet(source: str) -> bool:
    """Whether a module imports anything of `control_plane.fleet`, without which it cannot have a `Fleet`."""
    return any(
        isinstance(node, ast.ImportFrom) and (node.module or "").startswith("control_plane.fleet") for node in ast.walk(ast.parse(source))
    )


def test_nothing_but_the_view_writes_to_the_fleet() -> None:
    sources = {path.relative_to(ROOT).as_posix(): path.read_text() for path in ROOT.rglob("*.py")}
    others = {path: source for path, source in sources.items() if not path.startswith(MAY_WRITE) and knows_a_fleet(source)}
    assert "fleet/fleet_service.py" in others
    assert {path: found for path, source in others.items() if (found := list(writes(source)))} == {}, "tell `FleetState` instead"


@pytest.mark.parametrize(
    "source",
    [
        "server.is_draining = True",
        "state.fleet.servers[name].is_up = True",
        "server.is_ejected, server.probe_from_s = True, inf",
        "replica.sequences += 1",
        "facts.service_s: float = 1.0",
        "del fleet.models[name]",
        "fleet.models[name] = facts",
        "server.replicas.pop(name)",
        "fleet.models.setdefault(name, facts)",
        "fleet.drop_replica(server, name)",
        "for server.work_s in times: pass",
        "facts.count_uses(now_s)",
    ],
)
def test_writes_are_found(source: str) -> None:
    assert list(writes(source))


@pytest.mark.parametrize(
    "source",
    ["self.state = state", "servers[name] = server", "fleet.models.get(name)", "server.is_up", "class R:\n  work_s: float\nr.work_s = 1.0"],
)
def test_reads_and_names_of_others_are_none(source: str) -> None:
    assert not list(writes(source))

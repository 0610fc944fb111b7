"""`tidegate apply | diff | get | delete | export | schema` against the admin API on a real port."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.http_server import AskedRequest, http_server
from tests.unit.admin.admin_bench import Bench
from tests.unit.cli.command import Tidegate

FILE = """
kind: Route
name: search
spec: {model: a, tenants: [acme], cache: {ttl_s: 60}}
---
kind: Tenant
name: acme
spec: {burst: 5}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.yaml"
    path.write_text(FILE)
    return path


def test_what_others_refer_to_is_made_first_and_a_second_time_changes_nothing(
    tidegate: Tidegate,
    at_keyless: tuple[str, str],
    file: Path,
) -> None:
    assert tidegate("diff", "-f", file, *at_keyless)[0] == 1
    assert tidegate("apply", "-f", file, "--dry-run", *at_keyless).out == "Tenant acme created (dry run)\nRoute search created (dry run)\n"
    assert tidegate("export", *at_keyless).out == ""
    assert tidegate("apply", "-f", file, *at_keyless)[:2] == (0, "Tenant acme created\nRoute search created\n")
    again = tidegate("apply", "-f", file, *at_keyless)
    assert (again.status, again.out) == (0, "Tenant acme unchanged\nRoute search unchanged\n")
    assert again.err == "nothing to change: everything is as the files declare it\n"
    assert tidegate("diff", "-f", file, *at_keyless) == (0, "", "")
    file.write_text(FILE.replace("burst: 5", "").replace("60", "30"))
    differs = tidegate("diff", "-f", file, *at_keyless)
    assert differs[:2] == (1, "Tenant acme\n-  burst: 5\n+  burst: none\nRoute search\n-  cache.ttl_s: 60\n+  cache.ttl_s: 30\n")
    assert (
        tidegate("apply", "-f", file, *at_keyless).out
        == "Tenant acme changed: burst 5 -> none\nRoute search changed: cache.ttl_s 60 -> 30\n"
    )
    assert tidegate("delete", "-f", file, *at_keyless)[:2] == (0, "Route search deleted\nTenant acme deleted\n")
    assert tidegate("delete", "-f", file, *at_keyless)[:2] == (0, "Route search is not there\nTenant acme is not there\n")


def test_what_a_file_names_that_there_is_not_is_warned_of_with_its_line(
    tidegate: Tidegate,
    at_keyless: tuple[str, str],
    file: Path,
) -> None:
    file.write_text("kind: Route\nname: search\nspec: {model: later}\n")
    applied = tidegate("apply", "-f", file, *at_keyless)
    assert applied[:2] == (0, "Route search created\n")
    assert applied.err == f"warning: {file}:1: there is no model 'later' now; `tidegate models list` shows those there are\n"


def test_for_programs_each_command_prints_one_list_and_its_exit_status_stays(
    tidegate: Tidegate,
    at_keyless: tuple[str, str],
    file: Path,
) -> None:
    def printed(command: str, *options: str) -> tuple[int, list[tuple[str, str, str]]]:
        ended = tidegate(command, "-f", file, "-o", "json", *options, *at_keyless)
        return ended.status, [(each["kind"], each["name"], each["outcome"]) for each in json.loads(ended.out)]

    created = [("Tenant", "acme", "created"), ("Route", "search", "created")]
    assert printed("diff") == (1, created)
    assert printed("apply", "--dry-run") == printed("apply") == (0, created)
    assert printed("apply") == (0, [("Tenant", "acme", "unchanged"), ("Route", "search", "unchanged")])
    assert printed("diff") == (0, [])
    file.write_text(FILE.replace("60", "30"))
    changed = json.loads(tidegate("diff", "-f", file, "-o", "json", *at_keyless).out)
    assert [(each["before"]["cache"]["ttl_s"], each["after"]["cache"]["ttl_s"]) for each in changed] == [(60, 30)]
    assert printed("apply", "--owner", "somebody else") == (1, []), "what has failed is told on standard error"
    assert printed("delete") == (0, [("Route", "search", "deleted"), ("Tenant", "acme", "deleted")])
    assert printed("delete") == (0, [("Route", "search", "absent"), ("Tenant", "acme", "absent")])


@pytest.mark.parametrize("output", ["yaml", "json"])
def test_what_is_exported_can_be_applied_elsewhere(
    tidegate: Tidegate,
    at_keyless: tuple[str, str],
    file: Path,
    output: str,
    keyless: Bench,
) -> None:
    tidegate("apply", "-f", file, *at_keyless)
    exported = tidegate("export", "-o", output, *at_keyless).out
    keyless.forget()
    file.write_text(exported)
    assert tidegate("apply", "-f", file, *at_keyless).out == "Tenant acme created\nRoute search created\n"
    assert tidegate("export", "-o", output, *at_keyless).out == exported


def test_one_and_all_of_a_kind(tidegate: Tidegate, at_keyless: tuple[str, str], file: Path) -> None:
    tidegate("apply", "-f", file, *at_keyless)
    one = {"kind": "Tenant", "name": "acme", "spec": {"burst": 5}}
    assert json.loads(tidegate("get", "tenant", "acme", "-o", "json", *at_keyless).out) == one
    assert json.loads(tidegate("get", "tenants", "-o", "json", *at_keyless).out) == [one]
    assert tidegate("get", "Tenant", "acme", *at_keyless).out == "kind: Tenant\nname: acme\nspec:\n  burst: 5\n"
    assert tidegate("delete", "tenant", "acme", *at_keyless)[:2] == (0, "Tenant acme deleted\n")
    assert tidegate("get", "Tenant", "acme", *at_keyless)[0] == 1


def test_with_one_mistake_nothing_is_applied(tidegate: Tidegate, at_keyless: tuple[str, str], file: Path) -> None:
    file.write_text(FILE.replace("burst", "brust"))
    refused = tidegate("apply", "-f", file, *at_keyless)
    assert (refused.status, refused.out) == (1, "")
    assert refused.err.startswith(f"error: {file}:8: Tenant acme: brust: unknown field; did you mean 'burst'?")
    assert tidegate("diff", "-f", file, *at_keyless).status == 2
    assert tidegate("export", *at_keyless).out == ""


def test_what_is_refused_of_one_does_not_keep_the_others_from_being_applied(
    tidegate: Tidegate,
    at_keyless: tuple[str, str],
    file: Path,
) -> None:
    tidegate("apply", "-f", file, "--owner", "ci", *at_keyless)
    file.write_text(FILE + "---\nkind: Tenant\nname: new\n")
    done = tidegate("apply", "-f", file, "--owner", "me", *at_keyless)
    assert (done.status, done.out) == (1, "Tenant new created\n")
    assert done.err.count("is applied by owner 'ci', not 'me'") == 2
    assert tidegate("apply", "-f", file, "--owner", "me", "--force", *at_keyless).status == 0


def test_an_api_that_is_not_there_is_no_difference(tidegate: Tidegate, file: Path) -> None:
    gone = ("--admin-url", "http://127.0.0.1:1")
    assert (tidegate("diff", "-f", file, *gone).status, tidegate("apply", "-f", file, *gone).status) == (2, 1)


@pytest.mark.parametrize("arguments", [(), ("Route",), ("Route", "x", "-f", "y")])
def test_delete_wants_one_way_of_saying_what(tidegate: Tidegate, at_keyless: tuple[str, str], arguments: tuple[str, ...]) -> None:
    refused = tidegate("delete", *arguments, *at_keyless)
    assert (refused.status, "either `delete KIND NAME`" in refused.err) == (1, True)


def test_the_schema_is_the_admin_apis(tidegate: Tidegate, keyless: Bench) -> None:
    assert json.loads(tidegate("schema").out) == keyless.ask("GET", "/schema")[1]


_GONE = 50
"""Calls that are left to a gateway that is away when it answers no more at all."""


@pytest.mark.parametrize(
    ("away", "status", "out", "err"),
    [
        pytest.param({"acme": 3, "search": 3}, 0, "Tenant acme created\nRoute search created\n", "", id="for a moment"),
        pytest.param({"acme": 0, "search": 99}, 1, "Tenant acme created\n", "not applied: Route search\n", id="it stays away"),
        pytest.param({"acme": 99, "search": 0}, 1, "", "not applied: Tenant acme, Route search\n", id="from the first on"),
        pytest.param({"acme": _GONE + 1, "search": 0}, 1, "", "not applied: Tenant acme, Route search\n", id="it ends meanwhile"),
    ],
)
def test_a_gateway_whose_store_is_away_for_a_moment_is_asked_again(
    away: dict[str, int], status: int, out: str, err: str, tidegate: Tidegate, file: Path
) -> None:
    """It is away for the first `away` calls for an object, and has applied it then."""
    left = dict(away)

    def answer(asked: AskedRequest) -> None:
        kind, name = asked.path.partition("?")[0].split("/")[-2:]
        if left[name] == _GONE:
            return
        is_away = left[name] > 0
        left[name] -= 1
        told = {"error": "Redis is away"} if is_away else {"kind": kind, "name": name, "outcome": "created", "warnings": []}
        asked.answer(503 if is_away else 200, told, content_type="application/json", retry_after="0")

    with http_server(answer) as url:
        done = tidegate("apply", "-f", file, "--admin-url", url)
    assert (done.status, done.out) == (status, out)
    assert done.err.startswith(err)
    assert ("HTTP 503" in done.err or "no answer from" in done.err) is bool(status)

"""The audit log over the admin API: who changed what, when and why."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.routing import APIRoute

from control_plane.admin.actor import _actor
from control_plane.audit.domain.entry import entry_from, verify
from tests.unit.admin.admin_bench import Bench


def changes(bench: Bench, **headers: str) -> list[dict[str, Any]]:
    return [entry["change"] for entry in bench.ask("GET", "/audit", **headers)[1]["entries"]]


def test_whoever_adds_a_call_that_changes_something_must_say_who_makes_it(bench: Bench) -> None:
    changing = [route for route in bench.app.routes if isinstance(route, APIRoute) and route.methods != {"GET"}]
    assert len(changing) > 15
    assert [route.path for route in changing if _actor not in {each.call for each in route.dependant.dependencies}] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("PUT", "/tenants/x", {"burst": 2}, ("create", "tenant", "x")),
        ("PUT", "/routes/x", {"model": "m"}, ("create", "route", "x")),
        ("PUT", "/prices/x", {"from_s": 0, "per_unit": 1, "currency": "EUR"}, ("create", "price", "x")),
        ("PATCH", "/tenants/acme", {"burst": 2}, ("replace", "tenant", "acme")),
        ("DELETE", "/tenants/acme", None, ("delete", "tenant", "acme")),
        ("PATCH", "/objects/Tenant/x", {"burst": 2}, ("create", "tenant", "x")),
        ("DELETE", "/objects/Tenant/acme", None, ("delete", "tenant", "acme")),
        ("POST", "/keys", {"tenant": "acme", "scopes": ["admin"]}, ("create", "api_key", None)),
        ("DELETE", "/cache", None, ("create", "purge", "*")),
        ("DELETE", "/cache/a", None, ("create", "purge", "a")),
        ("POST", "/models/a/load", None, ("load", "Model", "a")),
        ("POST", "/models/a/unload", None, ("unload", "Model", "a")),
    ],
)
class TestEachCall:
    def test_is_in_the_log_with_who_and_why(
        self, bench: Bench, method: str, path: str, body: object, expected: tuple[str, str, str | None]
    ) -> None:
        bench.put_tenant()
        assert bench.ask(method, path, body=body, x_tidegate_reason="incident 7: %C3%BC")[0] < 300
        (change,) = changes(bench)
        action, kind, name = expected
        assert (change["action"], change["kind"]) == (action, kind)
        assert name in (None, change["name"])
        assert (change["who"], change["reason"]) == ("anonymous at 127.0.0.1", "incident 7: ü")

    def test_is_refused_where_the_log_cannot_be_written(
        self, bench: Bench, method: str, path: str, body: object, expected: tuple[str, str, str | None]
    ) -> None:
        bench.put_tenant()
        before = bench.store.state.last
        states = dict(bench.upstream.control.states)
        bench.audit.is_away = True
        status, refused = bench.ask(method, path, body=body)
        assert (status, refused["code"], refused["retryable"]) == (503, "store_unavailable", True)
        assert "nothing was changed, since the audit log cannot be written" in refused["error"]
        assert bench.store.state.last == before
        assert bench.upstream.control.states == states


def test_a_dry_run_changes_nothing_and_needs_no_log(bench: Bench) -> None:
    bench.audit.is_away = True
    assert bench.ask("PATCH", "/objects/Tenant/x?dry_run=true", body={})[0] == 200


def test_pages(bench: Bench) -> None:
    for number in range(5):
        bench.ask("PUT", f"/tenants/t{number}", body={})
    first = bench.ask("GET", "/audit?limit=3")[1]
    second = bench.ask("GET", f"/audit?after={first['entries'][-1]['number']}")[1]
    assert ([entry["number"] for entry in first["entries"]], first["newest"]) == ([1, 2, 3], 5)
    assert [entry["number"] for entry in second["entries"]] == [4, 5]
    newest = verify(entry_from(entry) for entry in [*first["entries"], *second["entries"]])
    assert newest is not None
    assert newest.number == 5


def test_who_is_the_key_and_its_tenant_and_no_text_of_a_key_is_there() -> None:
    bench = Bench(authentication=True)
    key = bench.make_key()
    header = {"authorization": f"Bearer {key}"}
    assert bench.ask("PUT", "/tenants/x", body={}, x_tidegate_reason=f"with {key}", **header)[0] == 200
    change = changes(bench, **header)[-1]
    assert change["who"] == f"acme/{key.split('_')[1]}"
    assert key.split("_", 2)[2] not in bench.response("GET", "/audit", **header).text


def test_a_load_that_fails_is_said_to_have_failed(bench: Bench) -> None:
    assert bench.ask("POST", "/models/nowhere/load")[0] == 404
    first, second = changes(bench)
    assert (first["action"], second["action"], second["of"]) == ("load", "failed", 1)

from __future__ import annotations

import json
from itertools import cycle
from typing import Any

import pytest

from control_plane.objects.domain.price import Price
from control_plane.objects.domain.route import HedgingPolicy, Route
from control_plane.objects.domain.stored import Kind
from control_plane.objects.domain.stored_objects import to_body
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.objects import Objects
from tests.aio import run
from tests.unit.admin.admin_bench import Bench
from tests.unit.admin.paths.object_fields import ALL, DEFAULTS, LEAST

KINDS = list(LEAST)


def put(bench: Bench, kind: str, body: object = None, name: str = "x", **headers: str) -> tuple[int, Any]:
    status, answer = bench.ask("PUT", f"/{kind}/{name}", body=LEAST[kind] if body is None else body, **headers)
    return status, stored(answer)


def stored(answer: Any) -> Any:
    """Without what is said of a route when it is written only."""
    return {field: value for field, value in answer.items() if field != "warnings"}


class TestLife:
    @pytest.mark.parametrize("kind", KINDS)
    def test_what_is_put_is_shown(self, bench: Bench, kind: str) -> None:
        first = {"name": "x", "resource_version": 1} | LEAST[kind] | DEFAULTS[kind]
        assert put(bench, kind) == (200, first)
        assert bench.ask("GET", f"/{kind}/x") == (200, first)
        second = {"name": "w", "resource_version": 2} | ALL[kind]
        assert put(bench, kind, ALL[kind], "w") == (200, second)
        assert bench.ask("GET", f"/{kind}") == (200, [second, first])

    @pytest.mark.parametrize("kind", KINDS)
    def test_put_replaces_all_of_it(self, bench: Bench, kind: str) -> None:
        put(bench, kind, ALL[kind])
        assert put(bench, kind) == (200, {"name": "x", "resource_version": 2} | LEAST[kind] | DEFAULTS[kind])

    @pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind in KINDS for field in ALL[kind]])
    def test_patch_changes_what_is_given_and_nothing_else(self, bench: Bench, kind: str, field: str) -> None:
        before = LEAST[kind] | DEFAULTS[kind]
        put(bench, kind)
        patched = bench.response("PATCH", f"/{kind}/x", body={field: ALL[kind][field]})
        expected = {"name": "x", "resource_version": 2} | before | {field: ALL[kind][field]}
        assert (patched.status_code, stored(patched.json()), patched.headers["etag"]) == (200, expected, '"2"')
        assert bench.ask("GET", f"/{kind}/x") == (200, expected)

    @pytest.mark.parametrize("kind", KINDS)
    def test_patch_takes_away_what_is_null_and_keeps_the_rest(self, bench: Bench, kind: str) -> None:
        put(bench, kind, ALL[kind])
        takes_null = [field for field, default in DEFAULTS[kind].items() if default is None]
        status, body = bench.ask("PATCH", f"/{kind}/x", body=dict.fromkeys(takes_null))
        assert (status, stored(body)) == (200, {"name": "x", "resource_version": 2} | ALL[kind] | dict.fromkeys(takes_null))

    def test_patch_changes_a_part_of_a_routes_cache(self, bench: Bench) -> None:
        put(bench, "routes", ALL["routes"])
        status, body = bench.ask("PATCH", "/routes/x", body={"cache": {"ttl_s": None, "min_cost_units": 1.0}})
        assert (status, body["cache"]) == (200, {"is_on": True, "ttl_s": None, "is_private": True, "min_cost_units": 1.0})

    def test_patch_changes_a_part_of_a_routes_mirror_and_makes_one_of_a_model(self, bench: Bench) -> None:
        put(bench, "routes")
        assert bench.ask("PATCH", "/routes/x", body={"mirror": {"weight": 500}})[0] == 400
        made = {"model": "n", "version": "", "weight": 1000}
        assert bench.ask("PATCH", "/routes/x", body={"mirror": {"model": "n"}})[1]["mirror"] == made
        assert bench.ask("PATCH", "/routes/x", body={"mirror": {"weight": 500}})[1]["mirror"] == made | {"weight": 500}
        assert bench.ask("PATCH", "/routes/x", body={"mirror": {"model": "o"}})[1]["mirror"] == made | {"model": "o", "weight": 500}
        assert bench.ask("PATCH", "/routes/x", body={"version": "3"})[1]["mirror"]["model"] == "o"
        assert bench.ask("PATCH", "/routes/x", body={"mirror": None})[1]["mirror"] is None

    def test_models_and_tenants_that_there_are_not_are_warned_of_when_a_route_is_written(self, bench: Bench) -> None:
        put(bench, "tenants", name="acme")
        named = {"model": "a", "targets": [{"model": "soon", "weight": 5}], "tenants": ["acme", "b"]}
        _, made = bench.ask("PUT", "/routes/x", body=named)
        assert [" ".join(warning.split()[:6]) for warning in made["warnings"]] == [
            "there is no model 'soon' now;",
            "there is no tenant 'b' now;",
        ]
        _, changed = bench.ask("PATCH", "/routes/x", body={"targets": [{"model": "b", "weight": 5}], "tenants": ["acme"]})
        assert changed["warnings"] == []
        assert "warnings" not in bench.ask("GET", "/routes/x")[1]

    def test_while_triton_is_away_nothing_is_said_of_models_and_the_route_is_written(self, bench: Bench) -> None:
        bench.servers.down("it restarts")
        try:
            assert bench.ask("PUT", "/routes/x", body={"model": "soon"})[1]["warnings"] == []
        finally:
            bench.servers.up(bench.upstream)

    @pytest.mark.parametrize("kind", KINDS)
    def test_nothing_is_patched_into_being(self, bench: Bench, kind: str) -> None:
        status, body = bench.ask("PATCH", f"/{kind}/x", body=ALL[kind])
        assert (status, body["code"]) == (404, "object_not_found")

    @pytest.mark.parametrize("kind", KINDS)
    def test_what_is_deleted_is_gone(self, bench: Bench, kind: str) -> None:
        put(bench, kind)
        assert bench.ask("DELETE", f"/{kind}/x") == (204, None)
        assert bench.ask("GET", f"/{kind}") == (200, [])
        for method in ("GET", "DELETE"):
            status, body = bench.ask(method, f"/{kind}/x")
            assert (status, body["code"]) == (404, "object_not_found")

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            ("tenants", Tenant("acme", 0.5, 2, 3, 0.0, 2.5, -100)),
            ("routes", Route("r", "m", "3", 1.5, ("acme", "b"), hedging=HedgingPolicy(is_on=False, twice_from_s=0.2))),
            ("prices", Price("p", 1e9, 1e-6, "USD", "text_*", "acme", 1e-7, 1e-6)),
        ],
    )
    def test_it_is_the_object_that_the_control_plane_acts_on(self, bench: Bench, kind: str, value: Tenant | Route | Price) -> None:
        body = to_body(value)
        name = body.pop("name")
        assert put(bench, kind, body, name)[0] == 200
        held = run(Objects(bench.store).get(type(value), name))
        assert held.value == value

    def test_a_whole_number_may_be_written_with_a_point(self, bench: Bench) -> None:
        status, body = put(bench, "tenants", {"burst": 2.0, "priority": -1.0})
        assert (status, body["burst"], body["priority"]) == (200, 2, -1)

    def test_what_another_version_wrote_beyond_todays_bounds_is_shown(self, bench: Bench) -> None:
        run(bench.store.put(Kind.TENANT, "x", to_body(Tenant("x", weight=1e-12))))
        assert bench.ask("GET", "/tenants/x")[1]["weight"] == 1e-12
        assert [tenant["weight"] for tenant in bench.ask("GET", "/tenants")[1]] == [1e-12]

    def test_a_tenant_with_valid_keys_stays(self, bench: Bench) -> None:
        bench.make_key()
        status, body = bench.ask("DELETE", "/tenants/acme")
        assert (status, body["code"]) == (409, "conflict")
        assert "has keys that are valid" in body["error"]


@pytest.mark.parametrize("kind", KINDS)
class TestPreconditions:
    """Two clients read the same version and write: the second gets a conflict."""

    def test_the_etag_is_the_resource_version(self, bench: Bench, kind: str) -> None:
        put(bench, kind, name="other")
        made = bench.response("PUT", f"/{kind}/x", body=LEAST[kind])
        assert made.headers["etag"] == bench.response("GET", f"/{kind}/x").headers["etag"] == '"2"'
        assert made.json()["resource_version"] == 2

    def test_only_the_first_of_two_writers_wins(self, bench: Bench, kind: str) -> None:
        put(bench, kind)
        seen = bench.response("GET", f"/{kind}/x").headers["etag"]
        assert put(bench, kind, ALL[kind], if_match=seen)[0] == 200
        status, body = put(bench, kind, if_match=seen)
        assert (status, body["code"], body["retryable"]) == (409, "conflict", False)
        assert bench.ask("GET", f"/{kind}/x") == (200, {"name": "x", "resource_version": 2} | ALL[kind])

    def test_who_deletes_must_have_seen_the_newest(self, bench: Bench, kind: str) -> None:
        put(bench, kind)
        put(bench, kind)
        assert bench.ask("DELETE", f"/{kind}/x", if_match='"1"')[0] == 409
        assert bench.ask("GET", f"/{kind}/x")[0] == 200
        assert bench.ask("DELETE", f"/{kind}/x", if_match='"2"')[0] == 204

    def test_only_the_first_of_two_makers_wins(self, bench: Bench, kind: str) -> None:
        assert put(bench, kind, if_none_match="*")[0] == 200
        assert put(bench, kind, ALL[kind], if_none_match="*")[0] == 409
        assert bench.ask("GET", f"/{kind}/x")[1]["resource_version"] == 1

    def test_a_patch_is_of_what_was_seen(self, bench: Bench, kind: str) -> None:
        put(bench, kind)
        field = next(iter(DEFAULTS[kind]))
        change = {field: ALL[kind][field]}
        assert bench.ask("PATCH", f"/{kind}/x", body=change, if_match='"2"')[0] == 409
        assert bench.ask("GET", f"/{kind}/x")[1]["resource_version"] == 1
        assert bench.ask("PATCH", f"/{kind}/x", body=change, if_match='"1"')[0] == 200
        assert bench.ask("PATCH", f"/{kind}/x", body=change, if_match='"1"')[0] == 409

    def test_what_is_gone_does_not_match(self, bench: Bench, kind: str) -> None:
        put(bench, kind)
        bench.ask("DELETE", f"/{kind}/x")
        assert put(bench, kind, if_match='"1"')[0] == 409
        assert bench.ask("DELETE", f"/{kind}/x", if_match='"1"')[0] == 404
        assert put(bench, kind, if_none_match="*")[0] == 200

    @pytest.mark.parametrize(
        ("method", "tag"),
        list(
            zip(  # every tag by one of the methods, which read them alike
                cycle(["PUT", "PATCH", "DELETE"]),
                ["1", '"0"', '"01"', '"-1"', 'W/"1"', "*", '"1", "2"', '"x"', '""', '"' + "9" * 16 + '"', '"1"x'],
                strict=False,
            )
        ),
    )
    def test_what_is_no_etag_of_ours(self, bench: Bench, kind: str, method: str, tag: str) -> None:
        put(bench, kind)
        status, body = bench.ask(method, f"/{kind}/x", body=LEAST[kind] if method != "DELETE" else None, if_match=tag)
        assert (status, body["code"]) == (400, "invalid_argument")
        assert bench.ask("GET", f"/{kind}/x")[1]["resource_version"] == 1

    @pytest.mark.parametrize(("headers", "expected"), [({"if_none_match": '"1"'}, 400), ({"if_none_match": "*", "if_match": '"1"'}, 409)])
    def test_other_conditions_are_refused(self, bench: Bench, kind: str, headers: dict[str, str], expected: int) -> None:
        assert put(bench, kind, **headers)[0] == expected
        assert bench.ask("GET", f"/{kind}/x")[0] == 404


WRONG: dict[str, dict[str, list[object]]] = {
    "tenants": {
        "requests_per_s": [0, -1, 1e-9, 1e10, "1", True, float("nan"), float("inf")],
        "burst": [0, 1.5, 10**400, "1", True],
        "concurrency": [0, 10**10],
        "daily_compute_units": [-1, 1e16],
        "weight": [0, None, 1e-9],
        "priority": [101, -101, 0.5, None],
        "name": ["x"],
        "resource_version": [1],
        "limits": [{}],
    },
    "routes": {
        "model": ["", "x", "a/b", ".hidden", None, "m" * 256, "m\n"],
        "version": ["v1", "-1", "1" * 19, 1, None],
        "deadline_s": [0, -1, 1e10],
        "tenants": ["acme", [""], ["a b"], [1], ["a"] * 1001],
        "cache": [None, True, {"ttl_s": 0}, {"on": True}, {"is_on": "model"}, {"min_cost_units": -1}, {"min_cost_units": None}],
        "pool": [None, "-", "a b", "a" * 64],
        "weight": [1],
        "targets": [
            None,
            [{"model": "n"}],
            [{"model": "n", "weight": 10_001}],
            [{"model": "n", "weight": 0.5}],
            [{"model": "m", "weight": 1}],
            [{"model": "n", "weight": 6000}, {"model": "o", "weight": 5000}],
        ],
        "sticky": [None, "user", "header:", "header:x-request-id", "header:A"],
        "salt": [None, "x" * 101],
        "is_repeatable": [None, 1],
        "faster": [None, ["n"], [{"model": "m"}], [{"model": "n"}, {"model": "n"}], [{"model": "n", "version": "x"}], [{"model": "x"}]],
        "latency_budget_s": [0, -1, "50ms"],
        "cost_budget_units": [0, -1, 1e308, float("nan"), float("inf"), "5 units", [5]],
        "mirror": [
            *("n", {}, {"weight": 5}, {"model": "m"}, {"model": "x"}, {"model": "n", "version": "x"}),
            *({"model": "n", "weight": 10_001}, {"model": "n", "weight": 0.5}, {"model": "n", "percent": 5}),
        ],
    },
    "prices": {
        "from_s": [-1, None, "2026-01-01", 1e12],
        "per_unit": [-1, None, float("nan")],
        "per_input_token": [-1, None, float("nan")],
        "per_output_token": [-1, None, float("inf")],
        "currency": ["EURO", "eur", "", None],
        "models": ["", "a/b", "*" * 129],
        "tenant": ["a b", None],
        "until_s": [1],
    },
}


@pytest.mark.parametrize(
    ("kind", "field", "value"), [(kind, field, value) for kind, w in WRONG.items() for field in w for value in w[field]]
)
def test_what_cannot_be_is_refused_and_named(bench: Bench, kind: str, field: str, value: object) -> None:
    sent = json.dumps(LEAST[kind] | {field: value}).encode()
    status, body = bench.ask("PUT", f"/{kind}/x", body=sent, content_type="application/json")
    assert (status, body["code"]) == (400, "invalid_argument")
    assert field in body["error"]
    assert bench.ask("GET", f"/{kind}") == (200, [])
    put(bench, kind)
    status, body = bench.ask("PATCH", f"/{kind}/x", body=json.dumps({field: value}).encode(), content_type="application/json")
    assert (status, body["code"]) == (400, "invalid_argument")
    assert field in body["error"]
    assert bench.ask("GET", f"/{kind}/x")[1]["resource_version"] == 1


@pytest.mark.parametrize("field", [(kind, field) for kind in KINDS for field in LEAST[kind]])
def test_what_must_be_given(bench: Bench, field: tuple[str, str]) -> None:
    kind, name = field
    status, body = put(bench, kind, {key: value for key, value in LEAST[kind].items() if key != name})
    assert status == 400
    assert f"body.{name}" in body["error"]


@pytest.mark.parametrize(
    ("kind", "method", "name"),
    [
        *((kind, method, "a%20b") for kind in KINDS for method in ("GET", "PUT", "PATCH", "DELETE")),
        *(("routes", "GET", name) for name in (".hidden", "x" * 256, "a%00", "%C3%A4")),
    ],
)
def test_a_name_that_cannot_be_one(bench: Bench, kind: str, method: str, name: str) -> None:
    status, body = bench.ask(method, f"/{kind}/{name}", body=LEAST[kind] if method in ("PUT", "PATCH") else None)
    assert (status, body["code"]) == (400, "invalid_argument")
    assert "path.name" in body["error"]


STORED = [
    ("GET", "/keys", None),
    ("POST", "/keys", {"tenant": "acme", "scopes": ["admin"]}),
    ("DELETE", "/keys/0123456789ab", None),
    ("POST", "/keys/0123456789ab/rotate", None),
    *(
        (method, f"/{kind}/x", LEAST[kind] if method in ("PUT", "PATCH") else None)
        for kind in KINDS
        for method in ("GET", "PUT", "PATCH", "DELETE")
    ),
    *(("GET", f"/{kind}", None) for kind in KINDS),
    ("GET", "/usage", None),
]


@pytest.mark.parametrize(("method", "path", "body"), STORED)
def test_while_the_store_is_away(bench: Bench, method: str, path: str, body: object) -> None:
    bench.store.is_away = bench.usage.is_away = True
    response = bench.response(method, path, body=body)
    assert (response.status_code, response.json()["code"], response.json()["retryable"]) == (503, "store_unavailable", True)
    assert response.headers["retry-after"] == "1"

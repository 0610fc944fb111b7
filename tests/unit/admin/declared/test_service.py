"""Declared objects over the admin API: whatever kind it is, the same rules hold."""

from __future__ import annotations

from typing import Any, cast

import jsonschema_rs
import pytest

from control_plane.admin.declared.kinds import KINDS, document_of, json_schema, kind_named, without_defaults
from control_plane.admin.declared.service import Declared, Outcome, _merged
from control_plane.audit.domain.entry import Actor
from control_plane.audit.trail import AuditTrail
from control_plane.core.errors import InvalidRequest, ModelNotFound, ObjectNotFound
from control_plane.fleet.domain.memory import EVERYWHERE, DesiredState
from control_plane.objects.domain.stored import Kind
from control_plane.objects.domain.stored_objects import KIND_OF, to_body
from control_plane.objects.objects import Objects
from tests.aio import run
from tests.fakes.stores.audit_log import FakeAuditLog
from tests.fakes.stores.state_store import FakeStateStore
from tests.unit.admin.admin_bench import Bench
from tests.unit.admin.declared.declared_fields import LEAST_OF, STEPS
from tests.unit.admin.paths.object_fields import ALL, DEFAULTS

GATES = {"slower_by": 1.1, "alpha": 0.01, "agreement": ""}
DEFAULTS_OF: dict[str, dict[str, Any]] = {
    "Tenant": DEFAULTS["tenants"],
    "Route": DEFAULTS["routes"],
    "Price": DEFAULTS["prices"],
    "RolloutPolicy": {"gates": GATES, "bake_s": 0.0},
}
ALL_OF: dict[str, dict[str, Any]] = {
    "Tenant": ALL["tenants"],
    "Route": ALL["routes"],
    "Price": ALL["prices"],
    "RolloutPolicy": {"steps": STEPS, "gates": {"slower_by": 2.0, "alpha": 0.05, "agreement": "exact"}, "bake_s": 600.0},
}
KIND = pytest.mark.parametrize("kind", LEAST_OF)
OWN_PATHS = {"Tenant": "/tenants/x", "Route": "/routes/x", "Price": "/prices/x"}
NOT_DECLARED = {
    Kind.ROLLOUT: "begun and ended by commands: it is what happens, not what is wanted",
    Kind.API_KEY: "a key's secret is made by the gateway, and shown once",
    Kind.WEBHOOK_SECRET: "made by the gateway, and shown once",
    Kind.PURGE: "an event, nothing that lasts",
    Kind.APPLIED: "the record of what was declared",
}


def apply(bench: Bench, kind: str, spec: object, *, name: str = "x", query: str = "") -> tuple[int, Any]:
    status, done = bench.ask("PATCH", f"/objects/{kind}/{name}?{query}", body=spec)
    return status, {field: value for field, value in done.items() if field != "warnings"}


def stored(bench: Bench, kind: str) -> Any:
    type_ = KINDS[kind].type_
    assert type_ is not None
    found = run(bench.store.get(KIND_OF[type_], "x"))
    assert found is not None
    return found.body


def by_hand(bench: Bench, kind: str, spec: object) -> None:
    """Change an object as somebody does who does not apply it."""
    value = cast("Any", KINDS[kind].spec.model_validate(spec)).named("x")
    run(bench.store.put(KIND_OF[type(value)], "x", to_body(value)))


def test_a_mirror_goes_with_the_file_that_declared_it_and_else_stays(bench: Bench) -> None:
    route = {"model": "m"}
    assert apply(bench, "Route", route | {"mirror": {"model": "n"}})[0] == 200
    by_hand(bench, "Route", route | {"mirror": {"model": "n", "weight": 50}})
    assert apply(bench, "Route", route | {"mirror": {"model": "n"}, "version": "2"})[0] == 200
    assert stored(bench, "Route")["mirror"] == {"model": "n", "version": "", "weight": 50}
    assert apply(bench, "Route", route)[0] == 200
    assert stored(bench, "Route")["mirror"] is None
    by_hand(bench, "Route", route | {"mirror": {"model": "n"}})
    assert apply(bench, "Route", route | {"version": "3"})[0] == 200
    assert stored(bench, "Route")["mirror"]["model"] == "n", "which no file has declared"


def test_each_kind_that_administrators_change_can_be_declared() -> None:
    declared = {KIND_OF[kind.type_] for kind in KINDS.values() if kind.type_ is not None}
    assert declared | NOT_DECLARED.keys() == set(Kind)
    assert not declared & NOT_DECLARED.keys()


@KIND
class TestLife:
    def test_made_unchanged_changed_and_unchanged(self, bench: Bench, kind: str) -> None:
        least, all_ = LEAST_OF[kind], ALL_OF[kind]
        defaults = least | DEFAULTS_OF[kind]
        made = {"kind": kind, "name": "x", "outcome": "created", "before": None, "after": defaults}
        assert apply(bench, kind, least) == (200, made)
        assert apply(bench, kind, least) == (200, made | {"outcome": "unchanged", "before": defaults})
        assert apply(bench, kind, all_)[1]["outcome"] == "changed"
        assert stored(bench, kind) == {"name": "x"} | all_
        version = bench.ask("GET", f"/objects/{kind}/x")[1]["resource_version"]
        assert apply(bench, kind, all_)[1]["outcome"] == "unchanged"
        assert bench.ask("GET", f"/objects/{kind}/x") == (
            200,
            {"kind": kind, "name": "x", "spec": all_, "owner": "apply", "resource_version": version},
        )

    def test_what_is_given_no_more_gets_its_default(self, bench: Bench, kind: str) -> None:
        apply(bench, kind, ALL_OF[kind])
        done = apply(bench, kind, LEAST_OF[kind])[1]
        assert done["after"] == LEAST_OF[kind] | DEFAULTS_OF[kind]

    def test_what_others_have_set_stays(self, bench: Bench, kind: str) -> None:
        apply(bench, kind, LEAST_OF[kind])
        by_hand(bench, kind, LEAST_OF[kind] | ALL_OF[kind])
        taken_over = {**ALL_OF[kind], **LEAST_OF[kind]}
        assert apply(bench, kind, LEAST_OF[kind])[1]["after"] == taken_over

    def test_a_dry_run_changes_nothing(self, bench: Bench, kind: str) -> None:
        done = apply(bench, kind, LEAST_OF[kind], query="dry_run=true")
        assert done[1]["outcome"] == "created"
        assert bench.ask("GET", f"/objects/{kind}") == (200, [])
        assert run(bench.store.changes(0, timeout_s=0)) == []

    def test_of_two_owners_the_second_is_refused_unless_it_takes_over(self, bench: Bench, kind: str) -> None:
        apply(bench, kind, ALL_OF[kind], query="owner=ci")
        status, refused = apply(bench, kind, LEAST_OF[kind], query="owner=me")
        assert (status, refused["code"]) == (409, "conflict")
        assert "is applied by owner 'ci', not 'me'" in refused["error"]
        status, done = apply(bench, kind, LEAST_OF[kind], query="owner=me&force=true")
        # It takes over the fields that it gives; the other's stay, since it has never given them.
        assert (status, done["after"]) == (200, {**ALL_OF[kind], **LEAST_OF[kind]})
        assert bench.ask("GET", f"/objects/{kind}/x")[1]["owner"] == "me"

    def test_one_that_was_deleted_belongs_to_nobody(self, bench: Bench, kind: str) -> None:
        for path in (f"/objects/{kind}/x", OWN_PATHS.get(kind, f"/objects/{kind}/x")):
            assert apply(bench, kind, ALL_OF[kind], query="owner=ci")[0] == 200
            assert bench.ask("DELETE", path) == (204, None)
            assert bench.ask("GET", f"/objects/{kind}/x")[0] == 404
            assert apply(bench, kind, LEAST_OF[kind], query="owner=me&dry_run=true")[1]["outcome"] == "created"
            assert run(bench.store.list_all(Kind.APPLIED)) == []
        assert bench.ask("DELETE", f"/objects/{kind}/x")[0] == 404

    def test_after_a_crash_before_the_record_the_same_again_comes_to_the_same(self, bench: Bench, kind: str) -> None:
        apply(bench, kind, ALL_OF[kind])
        record = run(bench.store.get(Kind.APPLIED, f"{kind}:x"))
        apply(bench, kind, LEAST_OF[kind])
        assert record is not None
        assert record.body is not None
        run(bench.store.put(Kind.APPLIED, record.name, record.body))  # as if the newer one had not been written
        done = apply(bench, kind, LEAST_OF[kind])[1]
        assert (done["outcome"], done["after"]) == ("unchanged", LEAST_OF[kind] | DEFAULTS_OF[kind])

    def test_unknown_fields_are_refused_and_nothing_is_written(self, bench: Bench, kind: str) -> None:
        known = next(iter(DEFAULTS_OF[kind]))
        status, refused = apply(bench, kind, LEAST_OF[kind] | {f"{known}x": 1})
        assert (status, refused["code"]) == (400, "invalid_argument")
        assert f"{known}x: unknown field; did you mean '{known}'?" in refused["error"]
        assert run(bench.store.changes(0, timeout_s=0)) == []

    def test_what_is_exported_comes_back_as_the_same(self, bench: Bench, kind: str) -> None:
        apply(bench, kind, ALL_OF[kind])
        held = bench.ask("GET", f"/objects/{kind}/x")[1]
        document = document_of(KINDS[kind], "x", held["spec"])
        jsonschema_rs.Draft202012Validator(json_schema()).validate(document)
        assert apply(bench, kind, document["spec"])[1]["outcome"] == "unchanged"
        bench.ask("DELETE", f"/objects/{kind}/x")
        assert apply(bench, kind, document["spec"])[1]["after"] == held["spec"]

    def test_the_schema_refuses_what_the_api_refuses(self, bench: Bench, kind: str) -> None:
        validator = jsonschema_rs.Draft202012Validator(bench.ask("GET", "/schema")[1])
        document = {"kind": kind, "metadata": {"name": "x"}, "spec": LEAST_OF[kind]}
        assert validator.is_valid(document)
        for wrong in ({"extra": 1}, {"name": "x"}, {"kind": "Other"}, {"spec": {**LEAST_OF[kind], "unknown": 1}}):
            assert not validator.is_valid(document | wrong), wrong


class Models:
    """The desired state of a fleet's models, as `FleetModels` keeps it."""

    def __init__(self) -> None:
        self.desired: dict[str, DesiredState] = {}

    async def set_desired(self, name: str, desired: DesiredState | None) -> None:
        if name == "unknown":
            raise ModelNotFound("no model 'unknown'")
        self.desired.pop(name, None)
        if desired is not None:
            self.desired[name] = desired


MODEL = KINDS["Model"]


@pytest.mark.parametrize(
    ("spec", "desired"),
    [
        ({"min_replicas": 2}, DesiredState(min_replicas=2)),
        ({"everywhere": True}, DesiredState(min_replicas=EVERYWHERE)),
        ({"is_suspended": True}, DesiredState(min_replicas=0, is_suspended=True)),
    ],
)
def test_what_is_wanted_of_a_model_is_what_the_fleet_is_told(spec: dict[str, Any], desired: DesiredState) -> None:
    models = Models()
    declared = Declared(Objects(FakeStateStore()), models, AuditTrail(log := FakeAuditLog()), Actor("me"))  # type: ignore[arg-type]

    async def twice() -> list[Outcome]:
        return [(await declared.apply(MODEL, "m", spec, owner="me", force=False, dry_run=False)).outcome for _ in range(2)]

    assert run(twice()) == [Outcome.CREATED, Outcome.UNCHANGED]
    assert models.desired == {"m": desired}
    assert [(entry.change.action, entry.change.kind, entry.change.name) for entry in log.entries] == [("create", "Model", "m")]
    (live,) = run(declared.list_all(MODEL))
    assert (without_defaults(MODEL, live.spec), live.owner) == (spec, "me")
    run(declared.delete(MODEL, "m"))
    assert models.desired == {}
    with pytest.raises(ObjectNotFound):
        run(declared.delete(MODEL, "m"))
    with pytest.raises(ModelNotFound):
        run(declared.apply(MODEL, "unknown", spec, owner="me", force=False, dry_run=False))


def test_a_field_of_a_newer_gateway_is_shown_as_it_is() -> None:
    assert without_defaults(MODEL, {"min_replicas": 2, "is_newer": True, "is_unset": None}) == {"min_replicas": 2, "is_newer": True}


def test_what_a_newer_gateway_has_applied_is_no_defect() -> None:
    assert _merged(MODEL, {"min_replicas": 1}, {"is_newer": {"a": 1}}, {"min_replicas": 2})["min_replicas"] == 2


@pytest.mark.parametrize("spec", [{}, {"min_replicas": 1, "everywhere": True}, {"everywhere": True, "is_suspended": True}])
def test_a_model_that_is_wanted_in_two_ways_or_none(bench: Bench, spec: object) -> None:
    status, refused = apply(bench, "Model", spec)
    assert (status, "give one of min_replicas" in refused["error"]) == (400, True)


def test_without_a_fleet_nothing_is_wanted_of_models(bench: Bench) -> None:
    assert apply(bench, "Model", {"everywhere": True})[0] == 501
    assert bench.ask("GET", "/objects/Model") == (200, [])
    assert bench.ask("DELETE", "/objects/Model/a")[0] == 404


def test_kinds_by_the_names_that_people_write() -> None:
    assert [kind_named(text).name for text in ("Route", "route", "routes", "ROUTES")] == ["Route"] * 4
    assert [kind_named(text).name for text in ("RolloutPolicy", "rolloutpolicies")] == ["RolloutPolicy"] * 2
    with pytest.raises(InvalidRequest, match="unknown kind 'tenent'; did you mean 'Tenant'"):
        kind_named("tenent")


def test_while_the_store_is_away_it_is_said(bench: Bench) -> None:
    bench.store.is_away = True
    assert apply(bench, "Tenant", {})[0] == 503

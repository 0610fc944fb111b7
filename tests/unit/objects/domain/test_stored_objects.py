from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.errors import InvalidRequest
from control_plane.core.model import MODEL_NAME
from control_plane.core.scope import Right, Scope
from control_plane.objects.domain.api_key import ApiKey
from control_plane.objects.domain.applied import Applied
from control_plane.objects.domain.price import Price
from control_plane.objects.domain.purge import EVERY_MODEL, Purge
from control_plane.objects.domain.rollout import Agreement, Event, Phase, Rollout, Step
from control_plane.objects.domain.rollout_policy import GatePolicy, RolloutPolicy
from control_plane.objects.domain.route import CachePolicy, FasterModel, HedgingPolicy, Mirror, Route, Target
from control_plane.objects.domain.stored import Kind, Stored
from control_plane.objects.domain.stored_objects import KIND_OF, StoredObject, from_stored, name_of, to_body
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.domain.webhook_secret import WebhookSecret

KEY = ApiKey("0123456789ab", "acme", (Scope(Right.INFER, "text_*"), Scope(Right.METRICS)), "ab" * 32, 1.5, 2.5, 3.5, "for the tests")
TENANT = Tenant("acme", 10.0, 20, 30, 40.0, 2.0, -1)
ROUTE = Route(
    "fast",
    "text_encoder",
    "3",
    0.5,
    ("acme",),
    CachePolicy(is_on=True, ttl_s=60.0, is_private=True, min_cost_units=2.5),
    hedging=HedgingPolicy(is_on=True, twice_from_s=0.2),
    targets=(Target("text_encoder_v2", 500, "7"), Target("text_encoder_v3", 0)),
    sticky="header:x-user",
    salt="spring",
    is_repeatable=True,
    faster=(FasterModel("text_encoder_small"), FasterModel("text_encoder_tiny", "2")),
    latency_budget_s=0.05,
    cost_budget_units=2.5,
    mirror=Mirror("text_encoder_next", "4", 250),
)
PRICE = Price("spring", 1e9, 0.001, "EUR", "text_*", "acme", 1e-6, 5e-6)
PURGE = Purge("text_encoder", "0123456789abcdef" * 2)
ROLLOUT = Rollout(
    "fast",
    "0123456789abcdef" * 2,
    "text_encoder_v2",
    "text_encoder",
    (Step(100, 500, 60.0), Step(5000, 1, 0.0)),
    "2",
    "1",
    Phase.ROLLED_BACK,
    1,
    1e9,
    reason="faults: 9 of 10 requests, stable 0 of 90",
    token=7,
    events=(Event(1e9, "began", 100, "me"), Event(1.1e9, "rolled back", 0)),
)
POLICY = RolloutPolicy("careful", (Step(100, 500, 60.0, "first"), Step(5000, 1, 0.0)), GatePolicy(1.2, 0.05, "exact"), 600.0)
APPLIED = Applied("Route", "fast", "ci/eu", {"model": "m", "cache": {"ttl_s": 60}, "tenants": ["a"]})
SECRET = WebhookSecret("0123456789ab", "acme", "whsec_" + "A" * 43 + "=", 1.5)
ALL = [
    *(SECRET, replace(SECRET, tenant=""), KEY, TENANT, ROUTE, PRICE, PURGE, ROLLOUT, POLICY, APPLIED),
    *(
        Tenant("plain"),
        Route("r", "m", tenants=()),
        Route("r", "m", "1", mirror=Mirror("m", "2", 0)),
        replace(KEY, expires_s=None, revoked_s=None),
    ),
    replace(
        ROLLOUT, phase=Phase.SHADOW, shadow=Step(1000, 5, 1.0), agreement=Agreement("same-space", "Y", 0.9, 0.02), bake_s=5.0, copies=3
    ),
    *(replace(PURGE, model=EVERY_MODEL), replace(ROUTE, cache=CachePolicy()), replace(ROUTE, cache=CachePolicy(is_on=False))),
]

NAMES = st.from_regex(MODEL_NAME, fullmatch=True)
POSITIVE = st.floats(min_value=1e-6, max_value=1e12)
TENANTS = st.builds(
    Tenant,
    NAMES,
    st.none() | POSITIVE,
    st.none() | st.integers(1, 10**6),
    st.none() | st.integers(1, 10**6),
    st.none() | POSITIVE,
    POSITIVE,
)
ROUTES = st.builds(
    Route, NAMES.map(lambda name: "r" + name[:200]), NAMES.map(lambda name: "m" + name[:200]), st.just("") | st.integers(0, 10**9).map(str)
)


def stored(value: StoredObject, body: Any = None) -> Stored:
    return Stored(KIND_OF[type(value)], name_of(value), 7, to_body(value) if body is None else body)


@pytest.mark.parametrize("value", ALL, ids=repr)
def test_what_is_written_is_read_the_same_through_json(value: StoredObject) -> None:
    assert from_stored(stored(value, json.loads(json.dumps(to_body(value))))) == value


@given(TENANTS | ROUTES)
def test_any_value_that_may_be_comes_back(value: StoredObject) -> None:
    assert from_stored(stored(value, json.loads(json.dumps(to_body(value))))) == value


def test_every_kind_can_be_written_and_read() -> None:
    assert {KIND_OF[type(value)] for value in ALL} == set(Kind)


def test_a_route_of_before_there_were_costs_is_read() -> None:
    body = to_body(ROUTE)
    del body["cache"]["min_cost_units"]
    assert from_stored(stored(ROUTE, body)) == replace(ROUTE, cache=replace(ROUTE.cache, min_cost_units=0.0))


def test_scopes_are_stored_as_people_write_them() -> None:
    assert to_body(KEY)["scopes"] == ["infer:text_*", "metrics"]


BAD = [
    (replace(KEY, id="0123456789AB"), "id must be 12 hexadecimal digits"),
    (replace(KEY, id=""), "id must be"),
    (replace(KEY, tenant=""), "tenant must be"),
    (replace(KEY, tenant="../x"), "tenant must be"),
    (replace(KEY, scopes=()), "a key without any may do nothing"),
    (replace(KEY, secret_sha256="no digest"), "secret_sha256 must be 64"),
    (replace(KEY, expires_s=float("nan")), "expires_s must be a finite number"),
    (replace(KEY, revoked_s=float("inf")), "revoked_s must be a finite number"),
    (replace(KEY, created_s=-1.0), "created_s must be at least 0"),
    (replace(KEY, description="x" * 1001), "description must have 1000 characters at most"),
    (replace(SECRET, id="x"), "id must be 12 hexadecimal digits"),
    (replace(SECRET, tenant="../x"), "tenant must be"),
    (replace(SECRET, secret="A" * 44), "secret must be whsec_ and"),
    (replace(SECRET, created_s=-1.0), "created_s must be at least 0"),
    (replace(TENANT, name=".hidden"), "name must be"),
    (replace(TENANT, name="a" * 256), "name must be"),
    (replace(TENANT, name="a\n"), "name must be"),
    (replace(TENANT, requests_per_s=0.0), "requests_per_s must be above 0"),
    (replace(TENANT, requests_per_s=float("inf")), "requests_per_s must be a finite"),
    (replace(TENANT, burst=0), "burst must be at least 1"),
    (replace(TENANT, concurrency=0), "concurrency must be at least 1"),
    (replace(TENANT, daily_compute_units=-1.0), "daily_compute_units must be at least 0"),
    (replace(TENANT, weight=0.0), "weight must be above 0"),
    (replace(TENANT, weight=-1.0), "weight must be above 0"),
    (replace(TENANT, priority=101), "priority must be from -100 to 100"),
    (replace(ROUTE, model="fast"), "model must be another name"),
    (replace(ROUTE, model="a/b"), "model must be 1-255"),
    (replace(ROUTE, name=""), "name must be"),
    (replace(ROUTE, version="1.0"), "version must be a number"),
    (replace(ROUTE, version="-1"), "version must be a number"),
    (replace(ROUTE, deadline_s=0.0), "deadline_s must be above 0"),
    (replace(ROUTE, tenants=("a b",)), "tenants must be"),
    (replace(ROUTE, cache=CachePolicy(ttl_s=0.0)), "cache.ttl_s must be above 0"),
    (replace(ROUTE, cache=CachePolicy(min_cost_units=-1.0)), "cache.min_cost_units must be at least 0"),
    (replace(ROUTE, cache=CachePolicy(min_cost_units=float("nan"))), "cache.min_cost_units must be a finite"),
    (replace(ROUTE, pool="a b"), "pool must be 1-63"),
    (replace(ROUTE, pool="a" * 64), "pool must be 1-63"),
    (replace(PURGE, model="**"), r"purge '\*\*': model must be"),
    (replace(PURGE, model=""), "model must be"),
    (replace(PURGE, generation=""), "generation must be 32 hexadecimal digits"),
    (replace(PURGE, generation="0123456789ABCDEF" * 2), "generation must be"),
    (replace(PRICE, per_unit=-0.1), "per_unit must be at least 0"),
    (replace(PRICE, per_unit=float("nan")), "per_unit must be a finite"),
    (replace(PRICE, currency="euro"), "currency must be three letters"),
    (replace(PRICE, models=""), "models must be a glob"),
    (replace(PRICE, tenant="a b"), "tenant must be"),
    (replace(ROLLOUT, model="fast"), "the route stands before the model"),
    (replace(ROLLOUT, model="text_encoder", version=""), "model must be another one than the route's own"),
    (replace(ROLLOUT, id="x"), "id must be 32 hexadecimal digits"),
    (replace(ROLLOUT, version="x"), "version must be a number"),
    (replace(ROLLOUT, steps=()), "there must be 1 to 20"),
    (replace(ROLLOUT, step=2), "step must be the number of a step"),
    (replace(ROLLOUT, steps=(Step(100, 1, 0.0), Step(100, 1, 0.0))), "steps.weight must rise"),
    (replace(ROLLOUT, steps=(Step(1, 1, 0.0), Step(10_000, 1, 0.0))), "what stays is what the next model is compared with"),
    (replace(ROLLOUT, steps=(Step(1, 0, 0.0), Step(2, 1, -1.0))), "samples must be at least 1; .*min_s must be at least 0"),
    (replace(ROLLOUT, slower_by=0.9), "slower_by must be at least 1"),
    (replace(ROLLOUT, alpha=0.0), "alpha must be above 0"),
    (replace(ROLLOUT, step=-1), "step must be the number of a step"),
    (replace(POLICY, name="a b"), "name must be"),
    (replace(POLICY, steps=()), "there must be 1 to 20"),
    (replace(POLICY, steps=(Step(2, 1, 0.0), Step(1, 1, 0.0))), "steps.weight must rise"),
    (replace(POLICY, steps=(Step(1, 1, 0.0, "a"), Step(2, 1, 0.0, "a"))), "no two steps may have the same"),
    (replace(POLICY, steps=(Step(1, 1, 0.0, "a b"),)), "steps.name must be"),
    (replace(POLICY, gates=GatePolicy(slower_by=0.5)), "slower_by must be at least 1"),
    (replace(POLICY, gates=GatePolicy(alpha=0.5)), "alpha must be above 0"),
    (replace(POLICY, gates=GatePolicy(agreement="a b")), "gates.agreement must be a kind"),
    (replace(POLICY, bake_s=float("inf")), "bake_s must be a finite"),
    (replace(ROUTE, targets=(Target("a b", 1),)), "targets.model must be"),
    (replace(ROUTE, targets=(Target("m", 1, "x"),)), "targets.version must be a number"),
    (replace(ROUTE, targets=(Target("m", 10_001),)), "targets.weight must be from 0 to 10000"),
    (replace(ROUTE, targets=(Target("m", -1),)), "targets.weight must be"),
    (replace(ROUTE, targets=(Target("m", 6000), Target("n", 4001))), "the weights together must be 10000 at most"),
    (replace(ROUTE, targets=(Target("m", 1), Target("m", 2))), "each model may be there once"),
    (replace(ROUTE, targets=(Target("text_encoder", 1, ROUTE.version),)), "not the route's own"),
    (replace(ROUTE, version="", targets=(Target("text_encoder", 1, "2"),)), "several versions of text_encoder need their numbers"),
    (replace(ROUTE, targets=(Target("m", 1, "1"), Target("m", 1))), "several versions of m need their numbers"),
    (replace(ROLLOUT, shadow=Step(0, 1, 1.0)), "shadow.weight must be from 1"),
    (replace(ROLLOUT, shadow=Step(10_001, 1, 1.0)), "shadow.weight must be from 1"),
    (replace(ROLLOUT, phase=Phase.SHADOW), "there is no shadow"),
    (replace(ROLLOUT, agreement=Agreement("Same Space")), "agreement.kind must be a word"),
    (replace(ROLLOUT, agreement=Agreement("exact", may_differ=0.0)), "agreement.may_differ must be between 0 and 1"),
    (replace(ROLLOUT, agreement=Agreement("exact", limit=float("nan"))), "agreement.limit must be a finite number"),
    (replace(ROLLOUT, bake_s=-1.0), "bake_s must be at least 0"),
    (replace(ROLLOUT, copies=0), "copies must be at least 1"),
    (replace(ROLLOUT, model="text_encoder", version="2", stable_version=""), "another version of it where both have their numbers"),
    (replace(ROUTE, targets=(Target("fast", 1),)), "targets.model, faster.model must be another name"),
    (replace(ROUTE, faster=(FasterModel("a b"),)), "faster.model must be"),
    (replace(ROUTE, faster=(FasterModel("m", "x"),)), "faster.version must be a number"),
    (replace(ROUTE, faster=(FasterModel("m"), FasterModel("m"))), "each model may be there once"),
    (replace(ROUTE, faster=(FasterModel("text_encoder_v3"),)), "each model may be there once"),
    (replace(ROUTE, faster=(FasterModel("fast"),)), "faster.model must be another name"),
    (replace(ROUTE, faster=tuple(FasterModel(f"m{number}") for number in range(9))), "faster: there may be 8 at most"),
    (replace(ROUTE, latency_budget_s=0.0), "latency_budget_s must be"),
    (replace(ROUTE, cost_budget_units=0.0), "cost_budget_units must be above 0"),
    (replace(ROUTE, cost_budget_units=float("nan")), "cost_budget_units must be a finite number"),
    (replace(ROUTE, mirror=Mirror("a b")), "mirror.model must be"),
    (replace(ROUTE, mirror=Mirror("m", "x")), "mirror.version must be a number"),
    (replace(ROUTE, mirror=Mirror("m", weight=10_001)), "mirror.weight must be from 0 to 10000"),
    (replace(ROUTE, mirror=Mirror("m", weight=-1)), "mirror.weight must be from 0 to 10000"),
    (replace(ROUTE, mirror=Mirror("fast")), "mirror.model must be another name"),
    (replace(ROUTE, mirror=Mirror("text_encoder")), "mirror.model must be none that the route's requests go to"),
    (replace(ROUTE, mirror=Mirror("text_encoder", "3")), "mirror.model must be none that the route's requests go to"),
    (replace(ROUTE, mirror=Mirror("text_encoder_v3", "3")), "mirror.model must be none that the route's requests go to"),
    (replace(ROUTE, mirror=Mirror("text_encoder_tiny", "2")), "mirror.model must be none that the route's requests go to"),
    (replace(ROUTE, targets=tuple(Target(f"m{number}", 1) for number in range(9))), "there may be 8 at most"),
    (replace(ROUTE, sticky="user"), "sticky must be tenant, key, sequence, header:NAME"),
    (replace(ROUTE, sticky="header:X-User"), "a name in lower case"),
    (replace(ROUTE, sticky="header:x-request-id"), "a header that differs with each request"),
    (replace(ROUTE, sticky="header:authorization"), "or is a secret"),
    (replace(ROUTE, salt="x" * 101), "salt must have 100 characters at most"),
]


@pytest.mark.parametrize(("value", "says"), BAD)
def test_a_value_that_is_not_allowed_is_not_written(value: StoredObject, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        to_body(value)


@pytest.mark.parametrize(("name", "value", "says"), [("requests_per_s", 0, "above 0"), ("weight", float("inf"), "finite")])
def test_a_value_that_is_not_allowed_is_not_read(name: str, value: float, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        from_stored(stored(TENANT, {**to_body(TENANT), name: value}))


def test_all_that_is_wrong_is_told() -> None:
    with pytest.raises(InvalidRequest, match=r"^tenant 'acme': burst .*; concurrency .*; weight "):
        to_body(replace(TENANT, burst=0, concurrency=0, weight=0.0))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        pytest.param({}, "cannot be read: created_s, id, scopes, secret_sha256, tenant", id="empty"),
        pytest.param({**to_body(KEY), "allowed_from": "10.0.0.0/8"}, "allowed_from", id="a field of a newer version"),
        pytest.param({**to_body(KEY), "scopes": "admin"}, "scopes", id="one text for a list"),
        pytest.param({**to_body(KEY), "scopes": ["everything"]}, "expected infer:GLOB", id="no scope"),
        pytest.param({**to_body(KEY), "scopes": [7]}, "expected infer:GLOB", id="a number for a scope"),
        pytest.param({**to_body(KEY), "scopes": None}, "scopes", id="none"),
        pytest.param({**to_body(KEY), "expires_s": "soon"}, "expires_s", id="no number"),
        pytest.param({**to_body(KEY), "id": "ba9876543210"}, "it holds another name", id="another's body"),
        pytest.param(None, "was deleted", id="a deleted one"),
    ],
)
def test_a_body_that_cannot_be_read_says_where_and_shows_nothing_of_it(body: dict[str, Any] | None, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as raised:
        from_stored(Stored(Kind.API_KEY, KEY.id, 7, body))
    assert KEY.secret_sha256 not in str(raised.value)


@given(st.dictionaries(st.sampled_from(["name", "model", "version", "tenants", "cache", "x"]), st.none() | st.text() | st.integers()))
def test_no_body_does_anything_but_be_read_or_refused(body: dict[str, Any]) -> None:
    with suppress(InvalidRequest):
        assert isinstance(from_stored(Stored(Kind.ROUTE, "fast", 1, body)), Route)

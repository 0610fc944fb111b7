from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.auth.domain.authorization import METRICS_NEED, Need, need_of_admin_call, need_of_call, refusal
from control_plane.core.action import Action
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.core.scope import Right, Scopes, parse_scope
from control_plane.objects.domain.route import Route

ALL_SCOPES = ("infer:text_*", "infer:*", "repository", "admin", "events", "metrics", "viewer", "operator")


def principal(*scopes: str, tenant: str = "acme") -> Principal:
    return Principal(tenant=tenant, key_id="k", scopes=Scopes(tuple(map(parse_scope, scopes))))


def let_in(need: Need | None) -> set[str]:
    """Return the scopes each of which alone is enough for a call."""
    return {scope for scope in ALL_SCOPES if refusal(principal(scope), need) is None}


CALLS = [
    (Action.LIVE, "", set(ALL_SCOPES)),
    (Action.READY, "", set(ALL_SCOPES)),
    (Action.OPTIONS, "", set(ALL_SCOPES)),
    (Action.INFER, "text_encoder", {"infer:text_*", "infer:*", "admin"}),
    (Action.INFER, "vision", {"infer:*", "admin"}),
    (Action.GENERATE, "text_llm", {"infer:text_*", "infer:*", "admin"}),
    (Action.GENERATE, "vision", {"infer:*", "admin"}),
    (Action.READ, "text_encoder", {"infer:text_*", "infer:*", "admin"}),
    (Action.READ, "vision", {"infer:*", "admin"}),
    (Action.READ, "", {"infer:text_*", "infer:*", "admin"}),
    (Action.MODEL_READY, "text_encoder", {"infer:text_*", "infer:*", "admin"}),
    (Action.COMPUTE_JOB, "vision", {"admin"}),
    (Action.STATISTICS, "vision", {"infer:*", "admin"}),
    (Action.STATISTICS, "", {"infer:text_*", "infer:*", "admin"}),
    (Action.INDEX, "", {"repository", "admin"}),
    (Action.EMBED, "", {"infer:text_*", "infer:*", "admin"}),
    (Action.COMPLETE, "", {"infer:text_*", "infer:*", "admin"}),
    (Action.CHAT, "", {"infer:text_*", "infer:*", "admin"}),
    (Action.LIST_MODELS, "", {"infer:text_*", "infer:*", "admin"}),
    (Action.SUBMIT_JOB, "vision", {"infer:*", "admin"}),
    (Action.LIST_JOBS, "", {"infer:text_*", "infer:*", "admin"}),
    (Action.READ_JOB, "", {"infer:text_*", "infer:*", "admin"}),
    (Action.JOB_EVENTS, "", {"infer:text_*", "infer:*", "admin"}),
    (Action.JOB_RESULT, "", {"infer:text_*", "infer:*", "admin"}),
    (Action.CANCEL_JOB, "", {"infer:text_*", "infer:*", "admin"}),
    (Action.EVENTS, "", {"events", "admin"}),
    (Action.FILES, "", {"infer:text_*", "infer:*", "admin"}),
    (Action.BATCHES, "", {"infer:text_*", "infer:*", "admin"}),
    (Action.LOAD, "text_encoder", {"repository", "admin"}),
    (Action.UNLOAD, "text_encoder", {"repository", "admin"}),
    (Action.ADMIN, "", {"repository", "admin"}),
    (Action.ADMIN, "text_encoder", {"repository", "admin"}),
    (Action.SHARED_MEMORY, "", {"repository", "admin"}),
]


@pytest.mark.parametrize(("action", "name", "enough"), CALLS)
def test_what_is_enough_for_a_call(action: Action, name: str, enough: set[str]) -> None:
    assert let_in(need_of_call(action, name)) == enough


def test_every_action_is_in_the_table() -> None:
    assert {action for action, _, _ in CALLS} == set(Action)


@pytest.mark.parametrize(("action", "name", "enough"), CALLS)
def test_without_scopes_only_what_needs_nothing(action: Action, name: str, enough: set[str]) -> None:
    is_open = need_of_call(action, name) is None
    assert (refusal(principal(), need_of_call(action, name)) is None) is is_open
    assert is_open is (action in {Action.LIVE, Action.READY, Action.OPTIONS})


VIEW, RUN, ONLY_ADMIN = {"viewer", "operator", "admin"}, {"operator", "admin"}, {"admin"}


@pytest.mark.parametrize(
    ("path", "to_read", "to_change"),
    [
        ("/health/live", set(ALL_SCOPES), set(ALL_SCOPES)),
        ("/version", set(ALL_SCOPES), set(ALL_SCOPES)),
        ("/models", VIEW | {"repository"}, RUN | {"repository"}),
        ("/models/text_encoder/load", VIEW | {"repository"}, RUN | {"repository"}),
        ("/fleet", VIEW | {"repository"}, ONLY_ADMIN),
        ("/rollouts/r/abort", VIEW, RUN),
        ("/objects/Model/m", VIEW, RUN),
        ("/objects/RolloutPolicy/p", VIEW, RUN),
        *((f"/objects/{kind}/x", VIEW, ONLY_ADMIN) for kind in ("Route", "Tenant", "Price", "model", "Modelx", "", "Model%2f")),
        *((path, VIEW, ONLY_ADMIN) for path in ("/keys", "/keys/0123/rotate", "/tenants/a", "/routes", "/usage", "/openapi.json")),
        *(
            (path, ONLY_ADMIN, ONLY_ADMIN)
            for path in ("/", "", "//health", "/Health/live", "/healthy", "/versions", "/modelsx", "/./health")
        ),
        ("/keys/../health", VIEW, ONLY_ADMIN),
        ("/objects/../health", VIEW, ONLY_ADMIN),
    ],
)
def test_what_is_enough_for_the_admin_api(path: str, to_read: set[str], to_change: set[str]) -> None:
    for method in ("GET", "HEAD"):
        assert let_in(need_of_admin_call(method, path)) == to_read, method
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "get", "BREW", ""):
        assert let_in(need_of_admin_call(method, path)) == to_change, method


def test_metrics() -> None:
    assert let_in(METRICS_NEED) == {"metrics", "admin"}


@pytest.mark.parametrize(
    ("scopes", "tenant", "tenants", "allowed"),
    [
        pytest.param(["infer:*"], "acme", None, True, id="open to all"),
        pytest.param(["infer:*"], "acme", ("acme", "other"), True, id="in the list"),
        pytest.param(["infer:*"], "acme", ("other",), False, id="not in the list"),
        pytest.param(["infer:*"], "acme", (), False, id="open to nobody"),
        pytest.param(["infer:x*"], "acme", ("acme",), False, id="the list does not replace a scope"),
        pytest.param(["admin"], "acme", ("other",), True, id="an administrator may open it anyway"),
        pytest.param(["repository", "metrics"], "acme", ("acme",), False, id="nor do other scopes"),
    ],
)
@pytest.mark.parametrize("action", [Action.INFER, Action.GENERATE, Action.READ])
def test_a_route_has_a_list_of_its_own(
    action: Action, scopes: Sequence[str], tenant: str, tenants: tuple[str, ...] | None, allowed: bool
) -> None:
    route = Route("fast", "text_encoder", tenants=tenants)
    assert (refusal(principal(*scopes, tenant=tenant), need_of_call(action, "fast"), route=route) is None) is allowed


def test_where_authentication_is_off_nothing_is_refused() -> None:
    closed = Route("fast", "text_encoder", tenants=())
    for action in Action:
        assert refusal(ANONYMOUS, need_of_call(action, "fast"), route=closed) is None
    assert refusal(ANONYMOUS, METRICS_NEED) is None
    assert refusal(ANONYMOUS, need_of_admin_call("POST", "/keys")) is None


@pytest.mark.parametrize(
    ("need", "says"),
    [
        (Need(Right.ADMIN), "this needs the scope admin"),
        (Need(Right.REPOSITORY), "this needs the scope repository"),
        (Need(Right.OPERATOR, also=(Right.REPOSITORY,)), "this needs the scope operator or repository"),
        (Need(Right.INFER), "a scope infer:GLOB"),
        (Need(Right.INFER, "vision"), "'vision' needs a scope that its name fits"),
    ],
)
def test_a_refusal_says_what_would_do(need: Need, says: str) -> None:
    reason = refusal(principal("infer:text_*") if need.name else principal("metrics"), need)
    assert reason is not None
    assert says in reason


@given(st.text(max_size=5000))
def test_a_refusal_is_short_and_printable_whatever_was_asked_for(name: str) -> None:
    reason = refusal(principal("repository"), need_of_call(Action.INFER, name))
    assert reason is not None
    assert reason.isprintable()
    assert len(reason) < 1200

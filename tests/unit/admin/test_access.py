from __future__ import annotations

from hashlib import sha256

import httpx
import pytest
from fastapi import FastAPI

from control_plane.admin.declared.kinds import KINDS
from control_plane.core.scope import Right
from tests.unit.admin.admin_bench import OWN, Bench, Clock, scope_of

SEE_MODELS, RUN_MODELS = "viewer or repository", "operator or repository"
NEEDS: dict[str, str | None] = {
    "GET /health/live": None,
    "GET /health/ready": None,
    "GET /version": None,
    "GET /whoami": SEE_MODELS,
    "GET /console": None,
    "HEAD /console": None,
    "GET /console/": None,
    "HEAD /console/": None,
    "GET /console/{name}": None,
    "HEAD /console/{name}": None,
    "GET /models": SEE_MODELS,
    "GET /fleet": SEE_MODELS,
    "GET /regions": SEE_MODELS,
    "GET /models/{name}": SEE_MODELS,
    "POST /models/{name}/load": RUN_MODELS,
    "POST /models/{name}/unload": RUN_MODELS,
    "POST /models/{name}/release": RUN_MODELS,
    "GET /keys": Right.VIEWER,
    "POST /keys": Right.ADMIN,
    "POST /keys/{id}/rotate": Right.ADMIN,
    "DELETE /keys/{id}": Right.ADMIN,
    "GET /tenants": Right.VIEWER,
    "GET /tenants/{name}": Right.VIEWER,
    "PUT /tenants/{name}": Right.ADMIN,
    "PATCH /tenants/{name}": Right.ADMIN,
    "DELETE /tenants/{name}": Right.ADMIN,
    "GET /routes": Right.VIEWER,
    "GET /routes/{name}": Right.VIEWER,
    "PUT /routes/{name}": Right.ADMIN,
    "PATCH /routes/{name}": Right.ADMIN,
    "DELETE /routes/{name}": Right.ADMIN,
    "GET /rollouts": Right.VIEWER,
    "GET /rollouts/{name}": Right.VIEWER,
    "POST /rollouts/{name}": Right.OPERATOR,
    "POST /rollouts/{name}/{verb}": Right.OPERATOR,
    "GET /dead-jobs": Right.VIEWER,
    "POST /dead-jobs/{job_id}/requeue": Right.OPERATOR,
    "DELETE /dead-jobs/{job_id}": Right.OPERATOR,
    "GET /webhook-secrets": Right.VIEWER,
    "POST /webhook-secrets": Right.ADMIN,
    "DELETE /webhook-secrets/{id}": Right.ADMIN,
    "GET /schema": Right.VIEWER,
    "GET /objects/{kind}": Right.VIEWER,
    "GET /objects/{kind}/{name}": Right.VIEWER,
    "PATCH /objects/{kind}/{name}": Right.ADMIN,
    "DELETE /objects/{kind}/{name}": Right.ADMIN,
    "GET /events": Right.VIEWER,
    "GET /events/{stream}": Right.VIEWER,
    "GET /audit": Right.VIEWER,
    "GET /prices": Right.VIEWER,
    "GET /prices/{name}": Right.VIEWER,
    "PUT /prices/{name}": Right.ADMIN,
    "PATCH /prices/{name}": Right.ADMIN,
    "DELETE /prices/{name}": Right.ADMIN,
    "DELETE /cache": Right.OPERATOR,
    "DELETE /cache/{name}": Right.OPERATOR,
    "GET /usage": Right.VIEWER,
    "GET /openapi.json": Right.VIEWER,
    "HEAD /openapi.json": Right.VIEWER,
}
"""What each call needs; a new one without a line here fails."""

SUFFICIENT: dict[str | None, set[Right]] = {
    None: set(Right),
    SEE_MODELS: {Right.VIEWER, Right.OPERATOR, Right.REPOSITORY, Right.ADMIN},
    RUN_MODELS: {Right.OPERATOR, Right.REPOSITORY, Right.ADMIN},
    Right.VIEWER: {Right.VIEWER, Right.OPERATOR, Right.ADMIN},
    Right.OPERATOR: {Right.OPERATOR, Right.ADMIN},
    Right.ADMIN: {Right.ADMIN},
}


def calls_of(app: FastAPI) -> set[str]:
    return {f"{method} {route.path}" for route in app.routes for method in route.methods}  # type: ignore[attr-defined]


def test_the_table_has_every_call_that_there_is() -> None:
    assert calls_of(Bench().app) == NEEDS.keys()


@pytest.fixture(scope="module")
def bench() -> Bench:
    """One bench for all tests of the module: they only ask whether a call was let in, and change nothing."""
    return Bench(authentication=True)


@pytest.fixture(scope="module")
def keys(bench: Bench) -> dict[str, str]:
    soon_s = bench.clock.now_s + 1
    made = {right.value: bench.make_key(scope_of(right)) for right in Right}
    made["expired"] = bench.make_key(expires_s=soon_s)
    made["revoked"] = bench.make_key(is_revoked=True)
    made["wrong"] = made["admin"][:-1] + ("A" if made["admin"][-1] != "A" else "B")
    bench.clock.now_s = soon_s
    return made


def answer_of(bench: Bench, call: str, **headers: str) -> httpx.Response:
    method, path = call.split()
    bench.clock.now_s += 61  # failed attempts are not slowed
    return bench.response(method, path.replace("{name}", "..%2e").replace("{id}", "nobody").replace("{stream}", "none"), **headers)


@pytest.mark.parametrize("call", NEEDS)
def test_who_may_call(bench: Bench, keys: dict[str, str], call: str) -> None:
    for shown in ("", "wrong", "expired", "revoked", "a token", *Right):
        require_right(bench, keys, call, shown)


def require_right(bench: Bench, keys: dict[str, str], call: str, shown: str) -> None:
    text = keys.get(shown, "eyJhbGciOiJub25lIn0.e30.")
    response = answer_of(bench, call, **({"authorization": f"Bearer {text}"} if shown else {}))
    is_key = shown in set(Right)
    if NEEDS[call] is None or (is_key and Right(shown) in SUFFICIENT[NEEDS[call]]):
        assert response.status_code not in (401, 403)
        return
    assert response.status_code == (403 if is_key else 401)
    assert response.headers.get("www-authenticate") == (None if is_key else "Bearer")
    if not call.startswith("HEAD"):
        assert response.json()["code"] == ("permission_denied" if is_key else "unauthenticated")
    assert text not in response.text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
def test_which_kinds_an_operator_may_declare(bench: Bench, keys: dict[str, str], kind: str, method: str) -> None:
    is_day_to_day = kind in ("Model", "RolloutPolicy")
    status = bench.ask(method, f"/objects/{kind}/x", body={}, authorization=f"Bearer {keys['operator']}")[0]
    assert (status != 403) is is_day_to_day
    assert bench.ask(method, f"/objects/{kind}/x", body={}, authorization=f"Bearer {keys['viewer']}")[0] == 403


@pytest.mark.parametrize("path", ["/keys", "/audit", "/openapi.json", "/tenants", "/objects/Tenant"])
def test_what_a_viewer_is_shown_has_no_secret(bench: Bench, keys: dict[str, str], path: str) -> None:
    response = bench.response("GET", path, authorization=f"Bearer {keys['viewer']}")
    assert response.status_code == 200
    for secret in (text.split("_", 2)[2] for text in keys.values()):
        assert secret not in response.text
        assert sha256(secret.encode()).hexdigest() not in response.text


@pytest.fixture(scope="module")
def open_bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("call", NEEDS)
def test_without_authentication_everything_is_open(open_bench: Bench, call: str) -> None:
    assert answer_of(open_bench, call).status_code not in (401, 403)


@pytest.mark.parametrize("path", ["/", "/nowhere", "//health", "/health%2f..%2fkeys", "/Version", "/%20version", "/keys/", "/healthy"])
def test_a_path_that_is_not_there_is_not_told_to_strangers(bench: Bench, path: str) -> None:
    status = 404 if path.startswith("/health%2f") else 401  # it is below /health, where there is nothing of that name
    assert bench.ask("GET", OWN + path)[0] == status


def test_a_key_as_x_api_key(bench: Bench, keys: dict[str, str]) -> None:
    assert bench.ask("GET", "/keys", x_api_key=keys["admin"])[0] == 200


async def test_two_fields_of_a_name_are_no_key(bench: Bench, keys: dict[str, str]) -> None:
    """A proxy in front may read the other of two equal headers."""

    async with httpx.AsyncClient(transport=httpx.ASGITransport(bench.app), base_url=OWN) as client:
        fields = [("authorization", f"Bearer {keys['admin']}"), ("authorization", f"Bearer {keys['infer']}")]
        assert (await client.get("/keys", headers=fields)).status_code == 401


def test_pages_of_other_sites_are_refused_with_a_valid_key_too(bench: Bench, keys: dict[str, str]) -> None:
    status, body = bench.ask("GET", "/keys", authorization=f"Bearer {keys['admin']}", origin="https://evil.example")
    assert (status, body["code"]) == (403, "foreign_origin")


def test_a_source_whose_attempts_fail_is_slowed_and_told_for_how_long() -> None:
    bench = Bench(authentication=True)
    admin = bench.make_key()
    refused = [bench.response("GET", "/keys", authorization="Bearer tg_wrong") for _ in range(11)]
    assert [response.status_code for response in refused] == [401] * 10 + [429]
    assert refused[-1].json()["retryable"] is True
    assert int(refused[-1].headers["retry-after"]) >= 1
    assert bench.ask("GET", "/version")[0] == 200
    bench.clock.now_s += 61
    assert bench.ask("GET", "/keys", authorization=f"Bearer {admin}")[0] == 200


def test_a_key_is_accepted_up_to_its_expiry() -> None:
    bench = Bench(authentication=True, clock=Clock(1000.0))
    text = bench.make_key(expires_s=1001.0)
    assert bench.ask("GET", "/keys", authorization=f"Bearer {text}")[0] == 200
    bench.clock.now_s = 1001.0
    status, body = bench.ask("GET", "/keys", authorization=f"Bearer {text}")
    assert (status, body["error"]) == (401, "the API key has expired")

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from control_plane.core.errors import (
    ControlPlaneError,
    DeadlineExceeded,
    ModelLoadFailed,
    StartupError,
    UpstreamFailed,
    UpstreamUnavailable,
)
from control_plane.core.model import NAME_RULE
from tests.aio import run
from tests.unit.admin.admin_bench import OWN, Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture(scope="module")
def unchanged() -> Bench:
    """One bench for all calls that change nothing: its API takes longer to make than they do."""
    return Bench()


NO_FLEET: dict[str, object] = {"tier": None, "servers": [], "variant": None, "variant_reason": None, "build": ""}
VIEW_A = {"name": "a", "state": "READY", "reason": "", "versions": ["1"], "memory_bytes": None, **NO_FLEET}
VIEW_B = {"name": "b", "state": "UNAVAILABLE", "reason": "", "versions": [], "memory_bytes": None, **NO_FLEET}


class TestModels:
    def test_list(self, bench: Bench) -> None:
        assert bench.ask("GET", "/models") == (200, [VIEW_A, VIEW_B])

    def test_get(self, bench: Bench) -> None:
        assert bench.ask("GET", "/models/b") == (200, VIEW_B)

    def test_which_variant_is_served_and_why(self, bench: Bench) -> None:
        bench.upstream.metrics = b'tidegate_served_variant{model="a",reason="the fastest",variant="int8",version="1"} 1\n'
        assert bench.ask("GET", "/models/a") == (200, VIEW_A | {"variant": "int8", "variant_reason": "the fastest"})

    def test_load(self, bench: Bench) -> None:
        assert bench.ask("POST", "/models/b/load") == (200, VIEW_B | {"state": "READY", "versions": ["1"]})
        assert bench.upstream.control.loads == ["b"]

    def test_unload(self, bench: Bench) -> None:
        assert bench.ask("POST", "/models/a/unload") == (200, VIEW_A | {"state": "UNAVAILABLE", "reason": "unloaded", "versions": []})

    def test_one_triton_releases_nothing(self, bench: Bench) -> None:
        status, body = bench.ask("POST", "/models/a/release")
        assert (status, body["code"]) == (404, "route_not_found")
        assert "runs no fleet" in body["error"]

    @pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
    @pytest.mark.parametrize("action", ["load", "unload", "release"])
    def test_only_post_changes_anything(self, unchanged: Bench, method: str, action: str) -> None:
        """An `<img>` on another site's page makes the browser send a GET without an Origin."""
        assert unchanged.ask(method, f"/models/a/{action}")[0] == 405
        assert (unchanged.upstream.control.loads, unchanged.upstream.control.unloads) == ([], [])

    @pytest.mark.parametrize("method", ["GET", "POST"])
    @pytest.mark.parametrize("name", ["a%20b", "%C3%A4", "a%0A", "x" * 256, "a%00"])
    def test_a_name_that_cannot_be_one_is_an_error_like_others(self, unchanged: Bench, method: str, name: str) -> None:
        status, body = unchanged.ask(method, f"/models/{name}" + ("/load" if method == "POST" else ""))
        assert (status, body["code"], body["retryable"]) == (400, "invalid_argument", False)
        assert f"path.name: must be {NAME_RULE}" in body["error"]

    @pytest.mark.parametrize(
        ("method", "path", "body", "said"),
        [
            pytest.param("DELETE", "/keys/nope", None, "path.id: must be an id of 12 hexadecimal digits, as the list shows it", id="key"),
            pytest.param("GET", "/usage?since=yesterday", None, "query.since: must be a date such as 2026-01-31, today, or 7d", id="day"),
            pytest.param("GET", "/usage?by=hour", None, "query.by: must be any of tenant, model and day", id="dimensions"),
            pytest.param("PATCH", "/routes/r", {"sticky": "moon"}, "body.sticky: must be tenant, key, sequence, header:NAME", id="sticky"),
        ],
    )
    def test_a_pattern_is_told_in_words(self, unchanged: Bench, method: str, path: str, body: dict[str, str] | None, said: str) -> None:
        status, answer = unchanged.ask(method, path, body=body)
        assert (status, said in answer["error"]) == (400, True), answer


LOAD_IS_LATE = "model 'b' was not loaded within 10 s (TIDEGATE_LOAD_TIMEOUT_S); that Triton goes on with it"


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "status", "code", "retryable"),
        [
            (ModelLoadFailed("bad weights"), 422, "load_failed", False),
            (DeadlineExceeded(LOAD_IS_LATE), 504, "deadline_exceeded", True),
            (UpstreamUnavailable("gone"), 503, "upstream_unavailable", True),
            (UpstreamFailed("odd"), 502, "upstream_failed", False),
            (StartupError("two of one name"), 500, "startup", False),
        ],
    )
    def test_each_is_told_in_one_form(self, bench: Bench, error: ControlPlaneError, status: int, code: str, retryable: bool) -> None:
        bench.upstream.control.failures["b"] = error
        response = run(bench.request("POST", "/models/b/load"))
        assert response.status_code == status
        assert response.json() == {"error": str(error), "code": code, "retryable": retryable}
        assert response.headers.get("retry-after") == ("1" if retryable else None)

    @pytest.mark.parametrize(("method", "path"), [("GET", "/models/nope"), ("POST", "/models/nope/load"), ("POST", "/models/nope/unload")])
    def test_an_unknown_model(self, bench: Bench, method: str, path: str) -> None:
        status, body = bench.ask(method, path)
        assert (status, body["code"]) == (404, "model_not_found")

    @pytest.mark.parametrize(
        ("method", "path"), [("GET", "/models"), ("GET", "/models/a"), ("POST", "/models/a/load"), ("POST", "/models/a/unload")]
    )
    def test_while_triton_is_down(self, bench: Bench, method: str, path: str) -> None:
        bench.servers.down("Triton is restarting")
        status, body = bench.ask(method, path)
        assert (status, body) == (
            503,
            {"error": "Triton is restarting; try again shortly", "code": "upstream_unavailable", "retryable": True},
        )


class TestProblemDetails:
    """RFC 9457, by the caller's Accept header."""

    @pytest.fixture
    def bench(self, unchanged: Bench) -> Bench:
        return unchanged

    @pytest.mark.parametrize(
        ("accept", "is_problem"),
        [
            ("application/problem+json", True),
            ("application/json, application/problem+json", True),
            ("Application/Problem+JSON; charset=utf-8", True),
            ("application/json;q=0.5, application/problem+json;q=0.9", True),
            ("application/json, application/problem+json;q=0.9", False),
            ("application/problem+json;q=0", False),
            ("application/problem+json;q=x", False),
            ("application/json", False),
            ("*/*", False),
            ("application/*", False),
            ("", False),
            (",;q=,,", False),
        ],
    )
    def test_who_gets_them(self, bench: Bench, accept: str, is_problem: bool) -> None:
        response = bench.response("GET", "/models/nope", accept=accept)
        assert response.headers["content-type"] == ("application/problem+json" if is_problem else "application/json")
        assert response.headers["vary"] == "Accept"
        body = response.json()
        assert (response.status_code, body["code"], body["retryable"]) == (404, "model_not_found", False)
        plain = bench.ask("GET", "/models/nope")[1]
        if is_problem:
            own = {"type": "urn:tidegate:error:model_not_found", "title": "model not found", "status": 404}
            assert body == {**own, "detail": plain["error"], "code": "model_not_found", "retryable": False}
        else:
            assert body == plain

    @pytest.mark.parametrize(
        ("method", "path", "headers", "status", "code"),
        [
            ("GET", "/nowhere", {}, 404, "route_not_found"),
            ("BREW", "/models", {}, 405, "method_not_allowed"),
            ("GET", "/usage?by=color", {}, 400, "invalid_argument"),
            ("GET", "/models", {"origin": "https://evil.example"}, 403, "foreign_origin"),
        ],
    )
    def test_every_kind_of_refusal(self, bench: Bench, method: str, path: str, headers: dict[str, str], status: int, code: str) -> None:
        response = bench.response(method, path, accept="application/problem+json", **headers)
        body = response.json()
        assert (response.status_code, body["status"], body["code"]) == (status, status, code)
        assert body["detail"]

    def test_advice_stays_in_the_headers(self) -> None:
        bench = Bench(authentication=True)
        response = bench.response("GET", "/keys", accept="application/problem+json")
        assert (response.status_code, response.headers["www-authenticate"], response.json()["code"]) == (401, "Bearer", "unauthenticated")

    def test_answers_that_are_no_errors_are_as_ever(self, bench: Bench) -> None:
        assert bench.response("GET", "/version", accept="application/problem+json").headers["content-type"] == "application/json"


class TestHealth:
    def test_told_to_stop_it_is_not_ready_and_still_administers(self, bench: Bench) -> None:
        bench.servers.is_stopping = True
        refused = bench.response("GET", "/health/ready")
        assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (503, "gateway_stopping", "1")
        assert bench.ask("GET", "/health/live")[0] == bench.ask("GET", "/models")[0] == 200

    def test_up(self, bench: Bench) -> None:
        assert bench.ask("GET", "/health/live") == (200, {"ready": True, "reason": ""})
        status, body = bench.ask("GET", "/health/ready")
        assert (status, body["ready"], body["reason"]) == (200, True, "")

    def test_a_state_store_that_is_away_is_told_and_does_not_make_it_unready(self, bench: Bench) -> None:
        assert bench.ask("GET", "/health/ready")[1]["state_store"] == {"is_current": False, "behind_s": None}
        run(bench.known.start())
        assert bench.ask("GET", "/health/ready")[1]["state_store"] == {"is_current": True, "behind_s": 0.0}
        bench.clock.now_s += 60
        assert bench.ask("GET", "/health/ready") == (
            200,
            {"ready": True, "reason": "", "state_store": {"is_current": False, "behind_s": 60.0}, "degraded": []},
        )

    def test_what_does_not_work_as_it_should_is_told_and_does_not_make_it_unready(self, bench: Bench) -> None:
        bench.degraded.append("the state store has come back empty")
        status, body = bench.ask("GET", "/health/ready")
        assert (status, body["ready"], body["degraded"]) == (200, True, ["the state store has come back empty"])

    def test_down_is_live_and_not_ready(self, bench: Bench) -> None:
        bench.servers.down("Triton is restarting")
        assert bench.ask("GET", "/health/live") == (200, {"ready": False, "reason": ""})
        assert bench.ask("GET", "/health/ready")[0] == 503

    def test_version(self, unchanged: Bench) -> None:
        assert unchanged.ask("GET", "/version") == (200, {"version": "1.2.3"})


class TestForeignPages:
    @pytest.mark.parametrize(
        ("origin", "host"),
        [
            pytest.param("https://evil.example", "127.0.0.1:8080", id="another site"),
            pytest.param("null", "127.0.0.1:8080", id="a sandboxed page or a file"),
            pytest.param("", "127.0.0.1:8080", id="an empty one"),
            pytest.param("http://127.0.0.1:9999", "127.0.0.1:8080", id="another port of this machine"),
            pytest.param("http://localhost:8080", "127.0.0.1:8080", id="another name of this machine"),
            pytest.param("http://127.0.0.1:8080.evil.example", "127.0.0.1:8080", id="a name that begins alike"),
            pytest.param("http://evil.example@127.0.0.1:8080", "127.0.0.1:8080", id="with a user"),
            pytest.param("http://evil.example:8080", "evil.example:8080", id="a site whose name leads here"),
            pytest.param("http://127.0.0.1.evil.example", "127.0.0.1.evil.example", id="and looks like an address"),
            pytest.param("http://[::1", "[::1", id="broken on both sides"),
            pytest.param("http://", "", id="nothing on both sides"),
        ],
    )
    @pytest.mark.parametrize(
        ("method", "path"), [("GET", "/models"), ("POST", "/models/b/load"), ("GET", "/openapi.json"), ("OPTIONS", "/models")]
    )
    def test_refused(self, unchanged: Bench, origin: str, host: str, method: str, path: str) -> None:
        status, body = unchanged.ask(method, path, origin=origin, host=host)
        assert (status, body["code"], body["retryable"]) == (403, "foreign_origin", False)
        assert unchanged.upstream.control.loads == []

    @pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "localhost", "[::1]:8080"])
    def test_our_own(self, bench: Bench, host: str) -> None:
        assert bench.ask("POST", "/models/b/load", origin=f"http://{host}", host=host)[0] == 200

    def test_no_answer_invites_other_sites(self, unchanged: Bench) -> None:
        response = run(unchanged.request("GET", "/models", origin=OWN))
        assert not [name for name in response.headers if name.startswith("access-control")]


class TestNoSuchCall:
    """Errors of FastAPI and Starlette have the form of ours."""

    @pytest.fixture
    def bench(self, unchanged: Bench) -> Bench:
        return unchanged

    @pytest.mark.parametrize(
        ("method", "path", "status", "code"),
        [
            ("GET", "/nowhere", 404, "route_not_found"),
            ("GET", "/models/", 404, "route_not_found"),
            ("GET", "/models/a/load/x", 404, "route_not_found"),
            ("GET", "//models", 404, "route_not_found"),
            ("DELETE", "/models", 405, "method_not_allowed"),
            ("HEAD", "/models", 405, ""),
            ("TRACE", "/tenants/a", 405, "method_not_allowed"),
        ],
    )
    def test_refused(self, bench: Bench, method: str, path: str, status: int, code: str) -> None:
        response = bench.response(method, OWN + path)
        assert response.status_code == status
        if code:
            assert response.json() | {"error": ""} == {"error": "", "code": code, "retryable": False}
        assert ("allow" in response.headers) is (status == 405)

    @pytest.mark.parametrize(
        ("path", "allowed"),
        [("/version", "GET"), ("/keys", "GET, POST"), ("/tenants/a", "DELETE, GET, PATCH, PUT"), ("/models/a/load", "POST")],
    )
    def test_all_methods_of_the_path_are_told(self, bench: Bench, path: str, allowed: str) -> None:
        assert bench.response("TRACE", path).headers["allow"] == allowed


ALWAYS = {"200", "403"}
STORED = ALWAYS | {"503"}
TRITON = STORED | {"500", "502", "504"}
MODEL = TRITON | {"400", "404"}


def documented(document: dict[str, Any]) -> dict[str, set[str]]:
    return {
        f"{method.upper()} {path}": set(operation["responses"])
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


STATUSES = {
    "GET /health/live": ALWAYS,
    "GET /health/ready": STORED,
    "GET /version": ALWAYS,
    "GET /whoami": ALWAYS,
    "GET /models": TRITON | {"400"},
    "GET /fleet": ALWAYS | {"404"},
    "GET /regions": ALWAYS | {"404"},
    "GET /models/{name}": MODEL,
    "POST /models/{name}/load": MODEL | {"409", "422", "501"},
    "POST /models/{name}/unload": MODEL | {"409", "422", "501"},
    "POST /models/{name}/release": MODEL | {"409", "422", "501"},
    "GET /keys": STORED | {"400"},
    "POST /keys": STORED - {"200"} | {"201", "400", "409", "413", "422"},
    "POST /keys/{id}/rotate": STORED - {"200"} | {"201", "400", "404", "409", "413", "422"},
    "DELETE /keys/{id}": STORED | {"400", "404", "409"},
    "GET /rollouts": STORED | {"400"},
    "GET /rollouts/{name}": STORED | {"400", "404"},
    "POST /rollouts/{name}": STORED - {"200"} | {"201", "400", "404", "409", "413", "422", "501", "502", "504"},
    "POST /rollouts/{name}/{verb}": STORED | {"400", "404", "409"},
    "DELETE /cache": STORED - {"200"} | {"204"},
    "DELETE /cache/{name}": STORED - {"200"} | {"204", "400"},
    "GET /dead-jobs": STORED | {"400", "404", "409"},
    "POST /dead-jobs/{job_id}/requeue": STORED - {"200"} | {"204", "400", "404", "409"},
    "DELETE /dead-jobs/{job_id}": STORED - {"200"} | {"204", "400", "404", "409"},
    "GET /webhook-secrets": STORED | {"400"},
    "POST /webhook-secrets": STORED - {"200"} | {"201", "400", "409", "413", "422"},
    "DELETE /webhook-secrets/{id}": STORED - {"200"} | {"204", "400", "404", "409"},
    "GET /schema": ALWAYS,
    "GET /objects/{kind}": STORED | {"400"},
    "GET /objects/{kind}/{name}": STORED | {"400", "404"},
    "PATCH /objects/{kind}/{name}": STORED | {"400", "404", "409", "413", "501"},
    "DELETE /objects/{kind}/{name}": STORED - {"200"} | {"204", "400", "404", "409"},
    "GET /events": ALWAYS | {"400", "503"},
    "GET /events/{stream}": ALWAYS | {"400", "503"},
    "GET /audit": STORED | {"400"},
    "GET /usage": STORED | {"400"},
} | {
    f"{method} /{kind}{path}": statuses
    for kind in ("tenants", "routes", "prices")
    for method, path, statuses in (
        ("GET", "", STORED | {"400"}),
        ("GET", "/{name}", STORED | {"400", "404"}),
        ("PUT", "/{name}", STORED | {"400", "409", "413"}),
        ("PATCH", "/{name}", STORED | {"400", "404", "409", "413"}),
        ("DELETE", "/{name}", STORED - {"200"} | {"204", "400", "404", "409"}),
    )
}


class TestOpenApi:
    @pytest.fixture
    def bench(self, unchanged: Bench) -> Bench:
        return unchanged

    def test_every_status_that_can_come_is_documented(self, bench: Bench) -> None:
        assert documented(bench.app.openapi()) == STATUSES

    def test_with_authentication_also_what_that_adds(self) -> None:
        document = Bench(authentication=True).app.openapi()
        is_open = {"GET /health/live", "GET /health/ready", "GET /version"}
        assert documented(document) == {
            call: statuses if call in is_open else statuses | {"401", "429"} for call, statuses in STATUSES.items()
        }
        schemes = set(document["components"]["securitySchemes"])
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                needed = {name for each in operation.get("security", []) for name in each}
                assert needed == (set() if f"{method.upper()} {path}" in is_open else schemes)

    def test_every_error_has_one_form(self, bench: Bench) -> None:
        for methods in bench.app.openapi()["paths"].values():
            for operation in methods.values():
                for status, response in operation["responses"].items():
                    schema = response.get("content", {}).get("application/json", {}).get("schema", {})
                    assert (schema.get("$ref") == "#/components/schemas/ErrorView") is (int(status) >= 400)

    def test_nothing_of_the_frameworks_own_errors_is_left(self, bench: Bench) -> None:
        assert "HTTPValidationError" not in str(bench.app.openapi())


def test_the_first_pydantic_is_not_imported() -> None:
    """FastAPI does it with the first path, for a question whose answer is no: 28 modules at each start."""
    program = """
import sys
from tests.unit.admin.admin_bench import Bench
print(Bench().ask("GET", "/models")[0], "pydantic.v1" in sys.modules)"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=True, cwd=Path(__file__).parents[3]
    )
    assert done.stdout == "200 False\n"

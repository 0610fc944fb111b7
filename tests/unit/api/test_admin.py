from __future__ import annotations

from typing import Any

import httpx
import pytest

from control_plane.api.admin import make_admin_api
from control_plane.domain.errors import (
    ControlPlaneError,
    DeadlineExceeded,
    ModelLoadFailed,
    StartupError,
    UpstreamFailed,
    UpstreamUnavailable,
)
from control_plane.domain.model import ModelState
from control_plane.services.models import ModelService
from control_plane.services.servers import Servers
from tests.aio import changing, run
from tests.fakes import FakeRepository, FakeUpstream

OWN = "http://127.0.0.1:8080"


class Bench:
    """The API over models a and b, of which a is loaded."""

    def __init__(self) -> None:
        self.upstream, self.servers = FakeUpstream(), Servers()
        self.upstream.control.states["a"] = ModelState.READY
        self.servers.up(self.upstream)
        self.repository = FakeRepository(models=["a", "b"])
        models = ModelService(servers=self.servers, repository=self.repository, load=[], load_timeout_s=10)
        self.app = make_admin_api(models=models, servers=self.servers, version="1.2.3")
        self.models = models

    def ask(self, method: str, path: str, **headers: str) -> tuple[int, Any]:
        response = run(self.request(method, path, **headers))
        return response.status_code, response.json()

    async def request(self, method: str, path: str, **headers: str) -> httpx.Response:
        async with (
            changing(self.models),
            httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=OWN) as client,
        ):
            return await client.request(method, path, headers=headers)


@pytest.fixture
def bench() -> Bench:
    return Bench()


VIEW_A = {"name": "a", "state": "READY", "reason": "", "versions": ["1"], "memory_bytes": None}
VIEW_B = {"name": "b", "state": "UNAVAILABLE", "reason": "", "versions": [], "memory_bytes": None}


class TestModels:
    def test_list(self, bench: Bench) -> None:
        assert bench.ask("GET", "/models") == (200, [VIEW_A, VIEW_B])

    def test_get(self, bench: Bench) -> None:
        assert bench.ask("GET", "/models/b") == (200, VIEW_B)

    def test_load(self, bench: Bench) -> None:
        assert bench.ask("POST", "/models/b/load") == (200, VIEW_B | {"state": "READY", "versions": ["1"]})
        assert bench.upstream.control.loads == ["b"]

    def test_unload(self, bench: Bench) -> None:
        assert bench.ask("POST", "/models/a/unload") == (200, VIEW_A | {"state": "UNAVAILABLE", "reason": "unloaded", "versions": []})

    @pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
    @pytest.mark.parametrize("action", ["load", "unload"])
    def test_only_post_changes_anything(self, bench: Bench, method: str, action: str) -> None:
        """An image tag of another site sends GETs without an Origin."""
        assert bench.ask(method, f"/models/a/{action}")[0] == 405
        assert (bench.upstream.control.loads, bench.upstream.control.unloads) == ([], [])

    @pytest.mark.parametrize("method", ["GET", "POST"])
    @pytest.mark.parametrize("name", ["a%20b", "%C3%A4", "a%0A", "x" * 256, "a%00"])
    def test_a_name_that_cannot_be_one_is_an_error_like_others(self, bench: Bench, method: str, name: str) -> None:
        status, body = bench.ask(method, f"/models/{name}" + ("/load" if method == "POST" else ""))
        assert (status, body["code"], body["retryable"]) == (400, "invalid_argument", False)
        assert "path.name" in body["error"]


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "status", "code", "retryable"),
        [
            (ModelLoadFailed("bad weights"), 422, "load_failed", False),
            (DeadlineExceeded("too slow"), 504, "deadline_exceeded", True),
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


class TestHealth:
    def test_up(self, bench: Bench) -> None:
        assert bench.ask("GET", "/health/live") == (200, {"ready": True, "reason": ""})
        assert bench.ask("GET", "/health/ready") == (200, {"ready": True, "reason": ""})

    def test_down_is_live_and_not_ready(self, bench: Bench) -> None:
        bench.servers.down("Triton is restarting")
        assert bench.ask("GET", "/health/live") == (200, {"ready": False, "reason": ""})
        assert bench.ask("GET", "/health/ready")[0] == 503

    def test_version(self, bench: Bench) -> None:
        assert bench.ask("GET", "/version") == (200, {"version": "1.2.3"})


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
    def test_refused(self, bench: Bench, origin: str, host: str, method: str, path: str) -> None:
        status, body = bench.ask(method, path, origin=origin, host=host)
        assert (status, body["code"], body["retryable"]) == (403, "foreign_origin", False)
        assert bench.upstream.control.loads == []

    @pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "localhost", "[::1]:8080"])
    def test_our_own(self, bench: Bench, host: str) -> None:
        assert bench.ask("POST", "/models/b/load", origin=f"http://{host}", host=host)[0] == 200

    def test_no_answer_invites_other_sites(self, bench: Bench) -> None:
        response = run(bench.request("GET", "/models", origin=OWN))
        assert not [name for name in response.headers if name.startswith("access-control")]


class TestOpenApi:
    def test_every_status_that_can_come_is_documented(self, bench: Bench) -> None:
        paths = bench.app.openapi()["paths"]
        documented = {
            (method, path): set(operation["responses"]) for path, methods in paths.items() for method, operation in methods.items()
        }
        assert documented == {
            ("get", "/health/live"): {"200", "403", "default"},
            ("get", "/health/ready"): {"200", "403", "503", "default"},
            ("get", "/version"): {"200", "403", "default"},
            ("get", "/models"): {"200", "403", "404", "502", "503", "504", "default"},
            ("get", "/models/{name}"): {"200", "403", "404", "502", "503", "504", "default"},
            ("post", "/models/{name}/load"): {"200", "403", "404", "422", "502", "503", "504", "default"},
            ("post", "/models/{name}/unload"): {"200", "403", "404", "422", "502", "503", "504", "default"},
        }

    def test_every_error_has_one_form(self, bench: Bench) -> None:
        for methods in bench.app.openapi()["paths"].values():
            for operation in methods.values():
                for status, response in operation["responses"].items():
                    schema = response["content"]["application/json"]["schema"]
                    assert (schema.get("$ref") == "#/components/schemas/ErrorView") is (status != "200")

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from control_plane.adapters.admin_server import AdminServer
from control_plane.adapters.listening import bind_tcp
from control_plane.api.admin_access import MAX_BODY_BYTES
from tests.unit.api.admin_bench import Bench
from tests.wire.admin import admin_server


@pytest.fixture
def bench() -> Bench:
    return Bench(authentication=True)


@pytest.fixture
def client(bench: Bench) -> Iterator[httpx.Client]:
    key = bench.make_key()
    with admin_server(bench) as url, httpx.Client(base_url=url, trust_env=False, headers={"authorization": f"Bearer {key}"}) as made:
        yield made


def test_a_caller_does_not_choose_its_address(client: httpx.Client) -> None:
    """Else nobody who guesses keys would ever be slowed: uvicorn on its own believes loopback's x-forwarded-for."""
    wrong = [{"authorization": "Bearer tg_wrong", "x-forwarded-for": f"192.0.2.{number}"} for number in range(11)]
    assert [client.get("/keys", headers=headers).status_code for headers in wrong] == [401] * 10 + [429]


def test_a_revocation_is_taken_up_by_itself(bench: Bench, client: httpx.Client) -> None:
    made = client.post("/keys", json={"tenant": "acme", "scopes": ["admin"]}).json()
    shown = {"authorization": f"Bearer {made['text']}"}
    client.delete(f"/keys/{made['id']}")
    ends_s = time.monotonic() + 100
    while client.get("/tenants", headers=shown).status_code != 401:
        assert time.monotonic() < ends_s
    assert client.get("/keys").status_code == 200


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_that_is_too_large_ends_the_connection(client: httpx.Client, announced: bool) -> None:
    body = b" " * (MAX_BODY_BYTES + 1)
    content = body if announced else iter([body[:1000], body[1000:]])
    response = client.put("/tenants/x", content=content, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["code"]) == (413, "payload_too_large")
    assert response.headers["connection"] == "close"
    assert client.get("/tenants/x").status_code == 404


def test_callers_may_connect_before_it_runs(bench: Bench) -> None:
    with bind_tcp("127.0.0.1", 0, setting="--admin-port") as bound:
        AdminServer(bench.app, bound).listen()
        socket.create_connection(bound.getsockname(), timeout=5).close()


def test_it_does_not_say_what_it_is_made_of(client: httpx.Client) -> None:
    assert "server" not in client.get("/version").headers

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import httpx
import pytest

from control_plane.admin.server import MAX_BODY_BYTES
from tests.unit.admin.admin_bench import Bench
from tests.wire.admin.admin import LIMITS, admin_server


@pytest.fixture
def bench() -> Bench:
    return Bench(authentication=True)


@pytest.fixture
def client(bench: Bench) -> Iterator[httpx.Client]:
    key = bench.make_key()
    with (
        admin_server(bench) as url,
        httpx.Client(base_url=url, verify=False, trust_env=False, headers={"authorization": f"Bearer {key}"}) as made,
    ):
        yield made


def raw(url: str, sent: bytes) -> bytes:
    """Send bytes; returns all that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20.0) as connection:
        connection.sendall(sent)
        received = b""
        while data := connection.recv(1 << 16):
            received += data
        return received


def test_a_caller_does_not_choose_its_address(client: httpx.Client) -> None:
    """Otherwise a client that guesses keys would never be slowed down."""
    wrong = [{"authorization": "Bearer tg_wrong", "x-forwarded-for": f"192.0.2.{number}"} for number in range(11)]
    assert [client.get("/keys", headers=headers).status_code for headers in wrong] == [401] * 10 + [429]
    assert client.get("/keys").status_code == 200, "a valid key is not slowed with them"


def test_a_revocation_is_taken_up_by_itself(bench: Bench, client: httpx.Client) -> None:
    made = client.post("/keys", json={"tenant": "acme", "scopes": ["admin"]}).json()
    shown = {"authorization": f"Bearer {made['text']}"}
    client.delete(f"/keys/{made['id']}")
    ends_s = time.monotonic() + 100
    while client.get("/tenants", headers=shown).status_code != 401:
        assert time.monotonic() < ends_s
    assert client.get("/keys").status_code == 200


def test_paths_queries_and_bodies_arrive_as_they_were_sent(client: httpx.Client) -> None:
    assert client.put("/tenants/a.b-c", json={"weight": 2}).status_code == 200
    assert client.get("/tenants/a%2Eb-c").json()["name"] == "a.b-c"
    assert client.get("/tenants/a%2Fb").status_code == 404
    answer = client.get("/usage", params={"format": "csv", "by": "tenant"})
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, "text/csv")
    assert client.delete("/tenants/a.b-c").status_code == 204
    assert client.get("/openapi.json").json()["info"]["title"] == "Tidegate admin API"
    head = client.head("/openapi.json")
    assert (head.status_code, head.content) == (200, b"")
    assert client.get("/health/live").status_code == 200, "the connection goes on"


def test_the_console_is_sent_once_and_asked_for_by_its_etag(client: httpx.Client) -> None:
    head, whole = client.head("/console"), client.get("/console")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(whole.content)))
    kept = client.get("/console", headers={"if-none-match": whole.headers["etag"]})
    assert (kept.status_code, kept.content) == (304, b"")
    assert "content-length" not in kept.headers, "it would be that of the file"
    assert client.get("/console/main.js").status_code == 200, "the connection goes on"


def test_nobody_on_the_way_keeps_what_a_key_was_shown_for(client: httpx.Client) -> None:
    client.put("/tenants/x", json={})
    for path in ("/whoami", "/tenants", "/tenants/x", "/usage", "/openapi.json", "/none"):
        assert client.get(path).headers["cache-control"] == "no-store"
    assert client.post("/keys", json={"tenant": "x", "scopes": ["viewer"]}).headers["cache-control"] == "no-store"
    assert client.get("/console").headers["cache-control"] == "no-cache", "holds nothing of a caller"


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_that_is_too_large_ends_the_connection(client: httpx.Client, announced: bool) -> None:
    body = b" " * (MAX_BODY_BYTES + 1)
    content = body if announced else iter([body[:1000], body[1000:]])
    response = client.put("/tenants/x", content=content, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["code"]) == (413, "payload_too_large")
    assert response.headers["connection"] == "close"
    assert client.get("/tenants/x").status_code == 404


def test_the_largest_body(client: httpx.Client) -> None:
    content = b"{}" + b" " * (MAX_BODY_BYTES - 2)
    assert client.put("/tenants/x", content=content, headers={"content-type": "application/json"}).status_code == 200


@pytest.mark.parametrize(
    "framing", [f"Content-Length: {MAX_BODY_BYTES}", "Transfer-Encoding: chunked", "Content-Length: 9\r\nExpect: 100-continue"]
)
def test_strangers_are_refused_before_any_of_a_larger_body_is_read(bench: Bench, framing: str) -> None:
    with admin_server(bench) as url:
        answer = raw(url, f"PUT /tenants/x HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b'"code":"unauthenticated"' in answer


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(b"GET /version HTTP/1.1\r\nHost: localhost\r\n" + b"x: y\r\n" * 101, 431, id="many fields"),
        pytest.param(b"GET /version HTTP/1.1\r\nHost: localhost\r\nx: " + b"y" * 20_000, 431, id="a field without end"),
        pytest.param(b"GET /" + b"y" * 20_000, 431, id="a target without end"),
        pytest.param(b"GET /version HTTP/1.1\r\nHost: localhost\r\n" + b"x: " + b"y" * 9000 + b"\r\n\r\n", 431, id="a long line"),
        pytest.param(b"GET /version HTTP/1.1\r\nHost: localhost\r\n", 408, id="a head that stops"),
        pytest.param(b"PUT /tenants/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{", 408, id="a body that stops"),
        pytest.param(b"nonsense\r\n\r\n", 400, id="nonsense"),
    ],
)
def test_limits_that_hold_before_anybody_says_who_he_is(bench: Bench, sent: bytes, status: int) -> None:
    with admin_server(bench, replace(LIMITS, header_timeout_s=0.5, body_timeout_s=0.5)) as url:
        answer = raw(url, sent)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert b'"code":' in answer, "in the form of the admin API"


def test_an_idle_connection_is_closed_and_so_is_one_too_many(bench: Bench) -> None:
    with admin_server(bench, replace(LIMITS, idle_timeout_s=0.5, max_connections=5)) as url:
        at = ("127.0.0.1", int(url.rpartition(":")[2]))
        held = [socket.create_connection(at, timeout=20) for _ in range(5)]
        held[0].sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert held[0].recv(1 << 16).startswith(b"HTTP/1.1 200")
        with socket.create_connection(at, timeout=20) as refused, suppress(ConnectionResetError):
            assert refused.recv(1) == b""
        for each in held:
            assert each.recv(1) == b"", "idle for too long"
            each.close()


def test_pipelined_requests_are_answered_in_their_order_beside_others(bench: Bench) -> None:
    with admin_server(bench) as url:
        one = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
        answer = raw(url, one * 200 + one.replace(b"Host", b"Connection: close\r\nHost"))
    assert answer.count(b"HTTP/1.1 200 ") == 201


@pytest.mark.parametrize("head", ["Host: evil.example", "Host: localhost\r\nSec-Fetch-Site: cross-site"])
def test_without_authentication_a_page_of_another_site_reads_nothing(head: str) -> None:
    with admin_server(Bench()) as url:
        answer = raw(url, f"GET /models HTTP/1.1\r\n{head}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b'"code":"permission_denied"' in answer


def test_it_does_not_say_what_it_is_made_of(client: httpx.Client) -> None:
    assert "server" not in client.get("/version").headers

"""`/events` on a real port: it streams, goes on after a broken connection, and ends with its reader's rights."""

from __future__ import annotations

import socket

import httpx
import pytest

from control_plane.admin.events.feed import MAX_READERS_OF_ONE
from tests.aio import run
from tests.unit.admin.admin_bench import Bench
from tests.wire.admin.admin_events_bench import events


def test_what_happens_comes_at_once_and_a_broken_stream_goes_on(served: tuple[Bench, httpx.Client, str]) -> None:
    bench, client, _ = served
    bench.publish("test.before")
    with client.stream("GET", "/events") as response:
        assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream")
        found = events(response)
        bench.publish("test.first", n=1)
        first = next(found)
        assert (first["event"], first["data"]["n"]) == ("test.first", 1)
    bench.publish("test.meanwhile")
    with client.stream("GET", "/events", headers={"last-event-id": first["id"]}) as response:
        assert next(events(response))["event"] == "test.meanwhile"
    with client.stream("GET", "/events", headers={"last-event-id": "00000000-9"}) as response:
        assert next(events(response))["event"] == "gap"


def test_the_events_that_are_kept_and_no_more(served: tuple[Bench, httpx.Client, str]) -> None:
    bench, client, _ = served
    bench.publish("test.one")
    response = client.get("/events?follow=false")
    assert [each["event"] for each in events(response)] == ["test.one"]


@pytest.mark.parametrize(("path", "other"), [("/events", "/events"), ("/events/usage", "/events/audit")])
def test_one_caller_has_so_many_and_a_closed_one_is_free_again(served: tuple[Bench, httpx.Client, str], path: str, other: str) -> None:
    _, client, _ = served
    opened = [client.send(client.build_request("GET", path), stream=True) for _ in range(MAX_READERS_OF_ONE)]
    refused = client.get(other)
    assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
    for response in opened:
        response.close()
    for _ in range(200):
        if client.get(f"{path}?follow=false").status_code == 200:
            break
    else:
        pytest.fail("streams whose reader has left are never given back")


@pytest.mark.parametrize("path", ["/events", "/events/usage"])
def test_a_stream_ends_when_its_key_is_revoked(served: tuple[Bench, httpx.Client, str], path: str) -> None:
    bench, client, key = served
    with client.stream("GET", path) as response:
        run(bench.keys.revoke(key.split("_")[1]))
        told = list(events(response))
    assert [each["data"] for each in told] == [{"error": "the API key is not valid"}]


def test_an_http_1_0_client_reads_until_the_end(served: tuple[Bench, httpx.Client, str]) -> None:
    bench, client, key = served
    bench.publish("test.one")
    with socket.create_connection((client.base_url.host, client.base_url.port or 0), timeout=20) as connection:
        connection.sendall(f"GET /events?follow=false HTTP/1.0\r\nauthorization: Bearer {key}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert body.startswith(b"retry: 2000\n\nid: ")

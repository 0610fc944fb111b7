"""Idempotency keys: a POST that creates is done once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from control_plane.admin import idempotency
from control_plane.admin.actor import PRINCIPAL
from control_plane.admin.idempotency import KEEP_S, Idempotency
from control_plane.core.principal import Principal
from control_plane.core.scope import EVERYTHING
from tests.unit.admin.admin_bench import Bench

KEY = {"tenant": "acme", "scopes": ["infer:*"]}


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.put_tenant()
    return made


def ids(bench: Bench) -> list[str]:
    return [each["id"] for each in bench.ask("GET", "/keys")[1]]


class TestOverTheApi:
    def test_a_second_time_the_answer_is_the_first_ones(self, bench: Bench) -> None:
        first = bench.response("POST", "/keys", body=KEY, idempotency_key="a-uuid")
        again = bench.response("POST", "/keys", body=KEY, idempotency_key='"a-uuid"')
        assert (first.status_code, first.json()) == (again.status_code, again.json())
        assert (first.headers.get("idempotency-replayed"), again.headers["idempotency-replayed"]) == (None, "true")
        assert ids(bench) == [first.json()["id"]]

    def test_another_request_with_the_same_key_is_refused(self, bench: Bench) -> None:
        made = bench.ask("POST", "/keys", body=KEY, idempotency_key="k")[1]
        for path, body in (("/keys", KEY | {"description": "another"}), (f"/keys/{made['id']}/rotate", KEY)):
            status, refused = bench.ask("POST", path, body=body, idempotency_key="k")
            assert (status, refused["code"]) == (422, "idempotency_key_reused")
        assert ids(bench) == [made["id"]]

    def test_what_was_refused_may_be_tried_again(self, bench: Bench) -> None:
        bench.store.is_away = True
        assert bench.ask("POST", "/keys", body=KEY, idempotency_key="k")[0] == 503
        bench.store.is_away = False
        assert bench.ask("POST", "/keys", body=KEY, idempotency_key="k")[0] == 201

    def test_without_a_key_or_with_another_each_is_done(self, bench: Bench) -> None:
        for headers in ({}, {}, {"idempotency_key": "1"}, {"idempotency_key": "2"}):
            assert bench.ask("POST", "/keys", body=KEY, **headers)[0] == 201
        assert len(ids(bench)) == 4

    @pytest.mark.parametrize("key", ["", " ", "a b", '""', "x" * 256, "\x7f"])
    def test_what_is_no_key_is_refused(self, bench: Bench, key: str) -> None:
        status, refused = bench.ask("POST", "/keys", body=KEY, idempotency_key=key)
        assert (status, refused["code"]) == (400, "invalid_argument")
        assert ids(bench) == []

    def test_a_stranger_gets_nobodys_answer(self) -> None:
        bench = Bench(authentication=True)
        mine, others = (f"Bearer {bench.make_key()}" for _ in range(2))
        made = bench.ask("POST", "/keys", body=KEY, idempotency_key="k", authorization=mine)[1]
        assert bench.ask("POST", "/keys", body=KEY, idempotency_key="k")[0] == 401
        assert bench.ask("POST", "/keys", body=KEY, idempotency_key="k", authorization=others)[1]["id"] != made["id"]
        assert bench.ask("POST", "/keys", body=KEY, idempotency_key="k", authorization=mine)[1] == made


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0


class Behind:
    """Application that counts its requests, and answers when it is told to."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.go = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests.append((await receive())["body"])
        await self.go.wait()
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"%d" % len(self.requests)})


def caller(under_test: Idempotency) -> Callable[..., Any]:
    async def call(key: str, body: bytes = b"", *, key_id: str = "me") -> tuple[int, bytes]:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/keys",
            "query_string": b"",
            "headers": [(b"idempotency-key", key.encode())],
            PRINCIPAL: Principal("t", key_id, EVERYTHING),
        }
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        await under_test(scope, receive, send)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])

    return call


async def test_while_the_first_is_under_way_a_second_is_told_so() -> None:
    behind = Behind()
    call = caller(Idempotency(behind))
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(call("k"))
        await asyncio.sleep(0)
        status, body = await call("k")
        assert (status, json.loads(body)["code"]) == (409, "conflict")
        behind.go.set()
    assert first.result() == (201, b"1") == await call("k")


async def test_of_one_that_was_cut_off_nobody_knows_and_it_is_not_done_again() -> None:
    behind = Behind()
    call = caller(Idempotency(behind))
    first = asyncio.ensure_future(call("k"))  # noqa: TID251 - ended here
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    behind.go.set()
    status, body = await call("k")
    assert (status, "may have been done" in json.loads(body)["error"], len(behind.requests)) == (409, True, 1)


async def test_they_are_forgotten_in_time_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "_MOST", 3)
    behind, clock = Behind(), Clock()
    behind.go.set()
    call = caller(Idempotency(behind, lambda: clock.now_s))
    for key in "abc":
        assert (await call(key))[0] == 201
    assert (await call("a"))[0] == 201
    status, body = await call("d")
    assert (status, json.loads(body)["code"], len(behind.requests)) == (503, "overloaded", 3), "none is forgotten before its time"
    clock.now_s = KEEP_S
    assert await call("a") == (201, b"4")

"""Idempotency keys: a POST that creates is done once."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from control_plane.admin.actor import PRINCIPAL
from control_plane.admin.idempotency.middleware import MAX_ANSWER_BYTES, Idempotency
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.core.scope import EVERYTHING
from tests.fakes.stores.idempotency_records import FakeIdempotencyRecords
from tests.unit.admin.admin_bench import Bench

UUID = "0b7ee8a2-8f2d-4f8b-8a3e-0d7a4c1f6b5d"
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
        first = bench.response("POST", "/keys", body=KEY, idempotency_key=UUID)
        again = bench.response("POST", "/keys", body=KEY, idempotency_key=f'"{UUID}"')
        assert (first.status_code, first.json()) == (again.status_code, again.json())
        assert (first.headers.get("idempotency-replayed"), again.headers["idempotency-replayed"]) == (None, "true")
        assert ids(bench) == [first.json()["id"]]

    def test_another_request_with_the_same_key_is_refused(self, bench: Bench) -> None:
        made = bench.ask("POST", "/keys", body=KEY, idempotency_key=UUID)[1]
        for path, body in (("/keys", KEY | {"description": "another"}), (f"/keys/{made['id']}/rotate", KEY)):
            status, refused = bench.ask("POST", path, body=body, idempotency_key=UUID)
            assert (status, refused["code"]) == (422, "idempotency_key_reused")
        assert ids(bench) == [made["id"]]

    def test_what_was_refused_may_be_tried_again(self, bench: Bench) -> None:
        bench.store.is_away = True
        assert bench.ask("POST", "/keys", body=KEY, idempotency_key=UUID)[0] == 503
        bench.store.is_away = False
        assert bench.ask("POST", "/keys", body=KEY, idempotency_key=UUID)[0] == 201

    def test_without_a_key_or_with_another_each_is_done(self, bench: Bench) -> None:
        for headers in ({}, {}, {"idempotency_key": "1" * 22}, {"idempotency_key": "2" * 22}):
            assert bench.ask("POST", "/keys", body=KEY, **headers)[0] == 201
        assert len(ids(bench)) == 4

    def test_every_gateway_answers_what_one_has_answered(self, bench: Bench) -> None:
        other = Bench(store=bench.store, records=bench.records)
        first = bench.response("POST", "/keys", body=KEY, idempotency_key=UUID)
        again = other.response("POST", "/keys", body=KEY, idempotency_key=UUID)
        assert (first.status_code, first.json()) == (again.status_code, again.json())
        assert again.headers["idempotency-replayed"] == "true"
        assert ids(other) == [first.json()["id"]]
        status, refused = other.ask("POST", "/keys", body=KEY | {"description": "another"}, idempotency_key=UUID)
        assert (status, refused["code"]) == (422, "idempotency_key_reused")

    @pytest.mark.parametrize("authentication", [False, True])
    def test_no_secret_is_kept_that_can_be_read(self, authentication: bool) -> None:
        bench = Bench(authentication=authentication)
        bench.put_tenant()
        shown = {"authorization": f"Bearer {bench.make_key()}"} if authentication else {}
        made = bench.ask("POST", "/keys", body=KEY, idempotency_key=UUID, **shown)[1]
        kept = repr(bench.records.records)
        assert len(bench.records.records) == 1
        for secret in (made["text"], made["text"].split("_", 2)[2], UUID, *shown.values()):
            assert secret not in kept

    def test_an_api_key_is_the_same_in_either_header(self) -> None:
        bench = Bench(authentication=True)
        mine = bench.make_key()
        answers = [
            bench.response("POST", "/keys", body=KEY, idempotency_key=UUID, **shown)
            for shown in ({"authorization": f"Bearer {mine}"}, {"x_api_key": mine})
        ]
        assert [each.status_code for each in answers] == [201, 201]
        assert answers[1].headers["idempotency-replayed"] == "true"

    def test_while_the_records_are_away_nothing_is_done(self, bench: Bench) -> None:
        bench.records.is_away = True
        assert bench.ask("POST", "/keys", body=KEY, idempotency_key=UUID)[0] == 503
        assert bench.ask("POST", "/keys", body=KEY)[0] == 201
        assert len(ids(bench)) == 1

    @pytest.mark.parametrize("key", ["", " ", "a b" * 10, '""', "k", "x" * 21, "x" * 256, "\x7f" * 30])
    def test_what_is_no_key_is_refused(self, bench: Bench, key: str) -> None:
        status, refused = bench.ask("POST", "/keys", body=KEY, idempotency_key=key)
        assert (status, refused["code"]) == (400, "invalid_argument")
        assert ids(bench) == []

    def test_a_stranger_gets_nobodys_answer(self) -> None:
        bench = Bench(authentication=True)
        mine, others = (f"Bearer {bench.make_key()}" for _ in range(2))
        made = bench.ask("POST", "/keys", body=KEY, idempotency_key=UUID, authorization=mine)[1]
        assert bench.ask("POST", "/keys", body=KEY, idempotency_key=UUID)[0] == 401
        assert bench.ask("POST", "/keys", body=KEY, idempotency_key=UUID, authorization=others)[1]["id"] != made["id"]
        assert bench.ask("POST", "/keys", body=KEY, idempotency_key=UUID, authorization=mine)[1] == made


class Behind:
    """Application that counts its requests, and answers when it is told to."""

    def __init__(self, size: int = 0) -> None:
        self.requests: list[bytes] = []
        self.go = asyncio.Event()
        self.status = 201
        self.size = size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests.append((await receive())["body"])
        await self.go.wait()
        await send({"type": "http.response.start", "status": self.status, "headers": [(b"etag", b'"\xfc"')]})
        await send({"type": "http.response.body", "body": b"%d" % len(self.requests), "more_body": True})
        await send({"type": "http.response.body", "body": b"x" * self.size})


def caller(under_test: Idempotency) -> Callable[..., Any]:
    async def call(
        key: str, body: bytes = b"", *, shows: str = "tg_mine", principal: Principal | None = None
    ) -> tuple[int, bytes, dict[bytes, bytes]]:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/keys",
            "query_string": b"",
            "headers": [(b"idempotency-key", key.encode()), (b"authorization", b"Bearer " + shows.encode())],
            PRINCIPAL: principal or Principal("t", "me", EVERYTHING, is_known=True),
        }
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        await under_test(scope, receive, send)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:]), dict(sent[0]["headers"])

    return call


async def test_while_the_first_is_under_way_a_second_at_another_gateway_is_told_so() -> None:
    behind, records = Behind(), FakeIdempotencyRecords()
    call, elsewhere = (caller(Idempotency(behind, records)) for _ in range(2))
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(call(UUID))
        await asyncio.sleep(0)
        for each in (call, elsewhere):
            status, body, _ = await each(UUID)
            assert (status, json.loads(body)["code"]) == (409, "conflict")
        behind.go.set()
    status, body, headers = await elsewhere(UUID)
    assert (status, body, headers) == (201, b"1", {b"etag": b'"\xfc"', b"idempotency-replayed": b"true"})
    assert first.result()[:2] == (201, b"1")


async def test_of_one_that_was_cut_off_nobody_knows_and_it_is_not_done_again() -> None:
    behind = Behind()
    call = caller(Idempotency(behind, FakeIdempotencyRecords()))
    first = asyncio.ensure_future(call(UUID))  # noqa: TID251 - ended here
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    behind.go.set()
    status, body, _ = await call(UUID)
    assert (status, "may have been done" in json.loads(body)["error"], len(behind.requests)) == (409, True, 1)


async def test_another_api_key_of_the_same_name_opens_nothing_and_nothing_is_done_twice() -> None:
    """A key that was rotated, say: who has the new one never had the answer."""
    behind = Behind()
    behind.go.set()
    call = caller(Idempotency(behind, FakeIdempotencyRecords()))
    assert (await call(UUID))[0] == 201
    status, body, _ = await call(UUID, shows="tg_rotated")
    assert (status, "only the API key" in json.loads(body)["error"], len(behind.requests)) == (409, True, 1)


async def test_a_token_may_be_renewed_between_the_first_and_the_second() -> None:
    behind = Behind()
    behind.go.set()
    call = caller(Idempotency(behind, FakeIdempotencyRecords()))
    subject = Principal("t", "somebody", EVERYTHING)
    for token in ("one", "another"):
        assert (await call(UUID, shows=token, principal=subject))[:2] == (201, b"1")
    assert (await call(UUID, principal=ANONYMOUS))[1] == b"2", "of another caller"


async def test_what_is_done_while_the_records_go_away_is_answered_and_never_done_again(caplog: pytest.LogCaptureFixture) -> None:
    behind, records = Behind(), FakeIdempotencyRecords()
    call = caller(Idempotency(behind, records))
    with caplog.at_level(logging.WARNING):
        first = asyncio.ensure_future(call(UUID))  # noqa: TID251 - awaited here
        await asyncio.sleep(0)
        records.is_away = True
        behind.go.set()
        assert (await first)[:2] == (201, b"1")
    assert "is not kept: the records are away" in caplog.text
    records.is_away = False
    assert ((await call(UUID))[0], len(behind.requests)) == (409, 1)


async def test_an_answer_that_is_too_large_is_not_kept() -> None:
    behind = Behind(size=MAX_ANSWER_BYTES)
    behind.go.set()
    call = caller(Idempotency(behind, FakeIdempotencyRecords()))
    assert [(await call(UUID))[0] for _ in range(2)] == [201, 409]
    assert len(behind.requests) == 1

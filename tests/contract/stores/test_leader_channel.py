"""What every `fleet/ports.LeaderChannel` does, and its fake."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from pydantic import SecretStr

from control_plane.core.errors import StoreUnavailable
from control_plane.fleet.adapters.redis_leader_requests import make_redis_leader_channel
from control_plane.fleet.domain.leadership.report import LoadReport, ReplicaUse, Wanted
from control_plane.fleet.ports import LeaderChannel
from tests.contract.stores.stores import Opening, empty_redis, handles
from tests.fakes.stores.leader_channel import FakeLeaderChannel
from tests.redis_server import RedisServer, redis_server

PATIENCE_S = 60.0


@pytest.fixture(params=["fake", "redis"])
def opening(request: pytest.FixtureRequest) -> Opening[LeaderChannel]:
    shared = FakeLeaderChannel()
    url = SecretStr(empty_redis(request).url) if request.param == "redis" else None

    async def open_one() -> LeaderChannel:
        return make_redis_leader_channel(url) if url is not None else shared

    return open_one


ONE = LoadReport(
    "one",
    {"a": 3},
    {"a": 0.25},
    {"[::1]:8001": {"a": ReplicaUse(2, 1), "b": ReplicaUse()}},
    (Wanted("b", 0), Wanted("b", 1, "long")),
    ("s:1",),
    (("s:1", "b"),),
)
OTHER = LoadReport("\u00e9", wanted=(Wanted("m\u2028", 2),))


async def test_what_is_told_is_taken_once_in_order(opening: Opening[LeaderChannel]) -> None:
    async with handles(opening, 3) as (one, other, leader):
        await one.report(ONE)
        await other.report(OTHER)
        await one.report(LoadReport("one"))
        assert await leader.receive(timeout_s=PATIENCE_S) == [ONE, OTHER, LoadReport("one")]
        assert await leader.receive(timeout_s=0.1) == []


async def test_who_waits_is_told_at_once(opening: Opening[LeaderChannel]) -> None:
    async with handles(opening, 2) as (one, leader):
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            taking = tasks.create_task(leader.receive(timeout_s=PATIENCE_S))
            await asyncio.sleep(0.2)
            await one.report(ONE)
        assert taking.result() == [ONE]
        assert time.monotonic() - began_s < PATIENCE_S


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="no JSON"),
        pytest.param(b"[]", id="another JSON"),
        pytest.param(b'{"uses": {"a": 1}}', id="of nobody"),
        pytest.param(b'{"process": "x", "uses": {"a": -1}}', id="less than nothing"),
        pytest.param(b'{"process": "x", "uses": {"a": "1"}}', id="a text for a number"),
        pytest.param(b'{"process": "x", "services": {"a": 1e300}}', id="a time that is none"),
        pytest.param(b'{"process": "x", "replicas": {"s:1": {"a": {"in_flight": 9999999999}}}}', id="more than there can be"),
        pytest.param(b'{"process": "x", "replicas": {"s:1": [1]}}', id="another form"),
        pytest.param(b'{"process": "x' + b"x" * 5_000_000 + b'"}', id="too much"),
    ],
)
async def test_what_is_no_report_is_ignored_and_said(redis: RedisServer, garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    line = make_redis_leader_channel(SecretStr(redis.url), fleet="f")
    redis.call("RPUSH", "tidegate:fleet-reports:f", garbage.decode())
    await line.report(ONE)
    assert await line.receive(timeout_s=PATIENCE_S) == [ONE]
    await line.close()
    assert "is not a report of a gateway's" in caplog.text
    assert len(caplog.text) < 1000


async def test_what_is_no_text_is_no_end(redis: RedisServer) -> None:
    line = make_redis_leader_channel(SecretStr(redis.url))
    async with line._link.calling():
        await line._link.client.rpush("tidegate:fleet-reports", b"\xff")
    with pytest.raises(StoreUnavailable, match="redis://"):
        await line.receive(timeout_s=PATIENCE_S)
    await line.report(ONE)
    assert await line.receive(timeout_s=PATIENCE_S) == [ONE]
    await line.close()


async def test_what_nobody_takes_is_bounded_and_forgotten(redis: RedisServer) -> None:
    line = make_redis_leader_channel(SecretStr(redis.url))
    for number in range(1010):
        await line.report(LoadReport(str(number)))
    found = await line.receive(timeout_s=PATIENCE_S)
    assert [each.process for each in found] == [str(number) for number in range(10, 1010)]
    await line.report(ONE)
    assert 0 < int(redis.call("TTL", "tidegate:fleet-reports")[1:]) <= 10
    await line.close()


async def test_a_redis_that_has_ended_is_unavailable(tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:
        line = make_redis_leader_channel(SecretStr(redis.url))
        await line.report(ONE)
    for call in (line.report(ONE), line.receive(timeout_s=0.1)):
        with pytest.raises(StoreUnavailable):
            await call
    await line.close()

"""What every `rollout/ports.EvidenceBoard` does, and its fake."""

from __future__ import annotations

import asyncio
import logging

import pytest
from pydantic import SecretStr

from control_plane.core.errors import StoreUnavailable
from control_plane.rollout.adapters.redis_evidence import MAX_PROCESSES, make_redis_evidence
from control_plane.rollout.domain.findings import GATES, Sums
from control_plane.rollout.domain.gate import Gate, GateSums
from control_plane.rollout.ports import EvidenceBoard
from tests.contract.stores.stores import Opening, empty_redis, handles
from tests.fakes.stores.evidence_board import FakeEvidenceBoard

LARGE = 2**64 - 1


def sums(bad: int = 1, *, step: int = 0) -> Sums:
    gate = Gate()
    gate.add_block(8, bad, 80, 3)
    return Sums(step, 8, {name: {0: gate.sums, 15: gate.sums} for name in GATES}, {0: 9, 15: 100})


@pytest.fixture(params=["fake", "redis"])
def opening(request: pytest.FixtureRequest) -> Opening[EvidenceBoard]:
    shared = FakeEvidenceBoard()
    url = SecretStr(empty_redis(request).url) if request.param == "redis" else None

    async def open_one() -> EvidenceBoard:
        return make_redis_evidence(url) if url is not None else shared

    return open_one


async def test_all_processes_read_what_each_has_written_last(opening: Opening[EvidenceBoard]) -> None:
    async with handles(opening, 2) as (one, other):
        assert await one.exchange("r", "a", None) == {}
        assert await one.exchange("r", "a", sums(1)) == {"a": sums(1)}
        assert await other.exchange("r", "b", sums(2)) == {"a": sums(1), "b": sums(2)}
        for _ in range(2):  # twice is as once
            assert await one.exchange("r", "a", sums(3, step=1)) == {"a": sums(3, step=1), "b": sums(2)}
        assert await other.exchange("another", "b", None) == {}


async def test_a_unit_is_one_processs_of_each_rollout(opening: Opening[EvidenceBoard]) -> None:
    async with handles(opening, 2) as (one, other):
        assert await one.claim("r", {0, 1, LARGE}) == (frozenset({0, 1, LARGE}), 3)
        assert await other.claim("r", {1, 2, LARGE}) == (frozenset({2}), 4)
        assert await one.claim("r", {2}) == (frozenset(), 4)
        assert await other.claim("another", {1}) == (frozenset({1}), 1)
        claims = await asyncio.gather(*(board.claim("r", range(100, 200)) for board in (one, other) for _ in range(4)))
        assert sorted(unit for fresh, _ in claims for unit in fresh) == list(range(100, 200))


async def test_processes_are_bounded_and_of_those_within_nothing_is_lost(opening: Opening[EvidenceBoard]) -> None:
    async with handles(opening, 1) as (board,):
        for number in range(MAX_PROCESSES + 5):
            found = await board.exchange("r", f"p{number}", sums())
        assert len(found) == MAX_PROCESSES
        assert (await board.exchange("r", "p0", sums(2)))["p0"] == sums(2)


class TestRedis:
    @pytest.mark.parametrize(
        "text",
        [
            pytest.param("no JSON", id="no JSON"),
            pytest.param("[]", id="a list"),
            pytest.param('{"step":0,"step_samples":1,"strata":{},"heard":{}}', id="no gates"),
            pytest.param('{"step":-1,"step_samples":1,"strata":%s,"heard":{}}', id="a negative step"),
            pytest.param('{"step":0,"step_samples":1.5,"strata":%s,"heard":{}}', id="half a sample"),
            pytest.param('{"step":0,"step_samples":1,"strata":%s,"heard":{"16":1}}', id="a stratum that there is not"),
            pytest.param('{"step":0,"step_samples":1,"strata":%s,"heard":{"1":-1}}', id="fewer units than none"),
            pytest.param('{"step":0,"step_samples":1,"gates":%s}', id="of the version before"),
        ],
    )
    async def test_what_cannot_be_read_does_not_count_and_is_told_once(
        self, request: pytest.FixtureRequest, text: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        server = empty_redis(request)
        gates = "{" + ",".join(f'"{name}":{{"3":[1,0,1,0,[0,0,0,0,0,0,0,0]]}}' for name in GATES) + "}"
        board = make_redis_evidence(SecretStr(server.url))
        server.call("HSET", "tidegate:rollout:r:sums", "x", text.replace("%s", gates))
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                assert await board.exchange("r", "a", sums()) == {"a": sums()}
        assert caplog.messages == ["rollout r: what 1 processes have found cannot be read, and does not count"]
        server.call("HSET", "tidegate:rollout:r:sums", "x", f'{{"step":0,"step_samples":1,"strata":{gates},"heard":{{"3":2}}}}')
        assert (await board.exchange("r", "a", sums()))["x"] == Sums(0, 1, {name: {3: GateSums(1, 0, 1, 0)} for name in GATES}, {3: 2})
        await board.close()

    @pytest.mark.parametrize("gate", ["[1,2,1,0,[0,0,0,0,0,0,0,0]]", "[1,0,1,0,[0]]", "[1,0,1,0,[0,0,0,0,0,0,0,1e999]]", "[1,0,1]"])
    async def test_sums_that_no_gate_has_do_not_count(self, request: pytest.FixtureRequest, gate: str) -> None:
        server = empty_redis(request)
        board = make_redis_evidence(SecretStr(server.url))
        gates = ",".join(f'"{name}":{{"0":{gate}}}' for name in GATES)
        server.call("HSET", "tidegate:rollout:r:sums", "x", f'{{"step":0,"step_samples":1,"strata":{{{gates}}},"heard":{{}}}}')
        assert await board.exchange("r", "a", None) == {}
        await board.close()

    async def test_what_nobody_asks_for_is_gone_a_day_later(self, request: pytest.FixtureRequest) -> None:
        server = empty_redis(request)
        board = make_redis_evidence(SecretStr(server.url))
        await board.exchange("r", "a", sums())
        await board.claim("r", {1})
        for key in ("sums", "units"):
            assert 80_000 < int(server.call("TTL", f"tidegate:rollout:r:{key}")[1:-2]) <= 86_400
        await board.close()

    async def test_one_that_is_not_there_is_unavailable(self) -> None:
        board = make_redis_evidence(SecretStr("redis://127.0.0.1:1/0"))
        with pytest.raises(StoreUnavailable):
            await board.claim("r", {1})
        with pytest.raises(StoreUnavailable):
            await board.exchange("r", "a", None)
        await board.close()

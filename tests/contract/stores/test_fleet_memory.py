"""What every `fleet/ports.FleetMemory` does, and its fake."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from pydantic import SecretStr

from control_plane.core.errors import StoreUnavailable
from control_plane.fleet.adapters.local_memory import LocalFleetMemory
from control_plane.fleet.adapters.redis_memory import make_redis_fleet_memory
from control_plane.fleet.domain.memory import DesiredState, Measured
from control_plane.fleet.ports import FleetMemory
from tests.contract.stores.stores import Opening, empty_redis, handles
from tests.fakes.stores.fleet_memory import FakeFleetMemory
from tests.redis_server import redis_server

KNOWN = Measured(123, 2**40, load_s=0.1 + 0.2, service_s=1e-5, failures=3, quarantined_until_s=1.7e9, why='no "ä"\n', answered="q1")
LOADED = Measured(5, load_s=2.0)
WISH = DesiredState(2, asked="q2")
GONE = DesiredState(is_suspended=True)


@pytest.fixture(params=["fake", "local", "redis"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Opening[FleetMemory]:
    """Opens the store anew, as another process does; the local one only after the one before was closed."""
    shared = FakeFleetMemory()
    url = SecretStr(empty_redis(request).url) if request.param == "redis" else None

    async def open_one() -> FleetMemory:
        if request.param == "local":
            return LocalFleetMemory(tmp_path / "new" / "memory.json")
        return make_redis_fleet_memory(url, fleet="f") if url is not None else shared

    return open_one


async def test_there_is_nothing_at_first(opening: Opening[FleetMemory]) -> None:
    async with handles(opening, 1) as (memory,):
        assert await memory.measured() == {}
        assert await memory.wishes() == {}
        await memory.measure({"a": None})
        await memory.wish({"a": None})
        assert await memory.measured() == await memory.wishes() == {}


async def test_what_is_remembered_outlives_who_wrote_it(opening: Opening[FleetMemory]) -> None:
    async with handles(opening, 1) as (memory,):
        await memory.measure({"a": KNOWN, "b": LOADED, "c": LOADED})
        await memory.wish({"a": WISH})
        await memory.wish({"z": GONE})
        await memory.measure({"b": None, "c": KNOWN})
        await memory.wish({"a": GONE})
        await memory.wish({"z": None})
    async with handles(opening, 1) as (memory,):
        assert await memory.measured() == {"a": KNOWN, "c": KNOWN}
        assert await memory.wishes() == {"a": GONE}


async def test_what_was_read_stays_as_it_was(opening: Opening[FleetMemory]) -> None:
    async with handles(opening, 1) as (memory,):
        await memory.measure({"a": KNOWN})
        await memory.wish({"a": WISH})
        measured, wishes = await memory.measured(), await memory.wishes()
        await memory.measure({"a": None, "b": LOADED})
        await memory.wish({"b": GONE})
        assert (measured, wishes) == ({"a": KNOWN}, {"a": WISH})
        assert (await memory.measured(), await memory.wishes()) == ({"b": LOADED}, {"a": WISH, "b": GONE})


async def test_changes_at_the_same_time_are_all_kept(opening: Opening[FleetMemory]) -> None:
    async with handles(opening, 1) as (memory,):
        await asyncio.gather(
            *(memory.wish({f"m{number}": WISH}) for number in range(20)),
            *(memory.measure({f"m{number}": LOADED}) for number in range(20)),
        )
    async with handles(opening, 1) as (memory,):
        assert len(await memory.wishes()) == len(await memory.measured()) == 20


class TestRedis:
    async def test_all_see_what_any_has_written_and_fleets_are_kept_apart(self, request: pytest.FixtureRequest) -> None:
        url = SecretStr(empty_redis(request).url)

        one, other, foreign = (make_redis_fleet_memory(url, fleet=name) for name in "aab")
        await one.measure({"a": LOADED})
        seen = await other.measured()
        assert seen == {"a": LOADED}
        async with other._link.calling():
            await other._link.client.hset("tidegate:fleet-memory:a:measured", "b", '{"file_bytes":1}')
        assert await other.measured() is seen  # of what did not change its token nothing is read again
        await one.measure({"a": KNOWN})
        await other.wish({"a": GONE})
        assert (await other.measured(), await one.wishes()) == ({"a": KNOWN, "b": Measured(1)}, {"a": GONE})
        assert (await foreign.measured(), await foreign.wishes()) == ({}, {})
        for each in (one, other, foreign):
            await each.close()

    async def test_what_the_store_has_lost_is_there_no_more(self, request: pytest.FixtureRequest) -> None:
        server = empty_redis(request)

        memory = make_redis_fleet_memory(SecretStr(server.url))
        await memory.measure({"a": LOADED})
        await memory.wish({"a": GONE, "b": WISH})
        await memory.wish({"b": None})
        assert await memory.measured() == {"a": LOADED}
        assert await memory.wishes() == {"a": GONE}
        server.call("FLUSHALL")
        assert await memory.measured() == {}
        for _ in range(2):
            assert await memory.wishes() is None
        await memory.wish({"a": GONE})
        assert await memory.wishes() == {"a": GONE}
        await memory.wish({"a": None})
        assert await memory.wishes() == {}
        await memory.close()

    @pytest.mark.parametrize(
        ("name", "line"), [("b", "no json"), ("b", "[1]"), ("b", '{"file_bytes":-1}'), ("b", "\udcff\udcfe"), ("..", '{"file_bytes":1}')]
    )
    async def test_garbage_is_left_out_and_said_once(
        self, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture, name: str, line: str
    ) -> None:
        server = empty_redis(request)

        memory = make_redis_fleet_memory(SecretStr(server.url))
        async with memory._link.calling():
            await memory._link.client.hset("tidegate:fleet-memory:measured", name, line.encode(errors="surrogateescape"))
        with caplog.at_level(logging.WARNING):
            for known in (LOADED, KNOWN):
                await memory.measure({"a": known})
                assert await memory.measured() == {"a": known}
        assert len(caplog.records) == 1
        await memory.close()

    async def test_one_that_has_ended_is_unavailable_and_comes_back_with_all(self, tmp_path: Path) -> None:
        with redis_server(tmp_path) as redis:
            memory = make_redis_fleet_memory(SecretStr(redis.url))
            await memory.measure({"a": KNOWN})
            redis.stop()
            for call in (memory.measured(), memory.wishes(), memory.measure({"b": KNOWN}), memory.wish({"a": GONE})):
                with pytest.raises(StoreUnavailable):
                    await call
            redis.start()
            assert (await memory.measured(), await memory.wishes()) == ({"a": KNOWN}, {})
            await memory.close()

"""What every `admission/ports.DemandBoard` does, and so does the fake that other tests trust."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from control_plane.admission.domain.demand import LIVE_S, Exchange
from control_plane.admission.ports import DemandBoard
from control_plane.app.stores import open_demand_board
from control_plane.core.errors import StoreUnavailable
from tests.contract.stores.stores import NAMES, Opening, address, empty_redis, handles
from tests.fakes.stores.demand_board import FakeDemand, FakeDemandBoard
from tests.redis_server import RedisServer, redis_server

SOON_S = 40.0
"""Far more than the second that a call may take, on a machine that is busy."""
LONG_S = 100.0
ANONYMOUS = Exchange({}, 1)

_TAKE_PART = """
import asyncio, sys
from pathlib import Path
from pydantic import SecretStr
from control_plane.app.stores import open_demand_board

async def main():
    url, folder, process = sys.argv[1:]
    board = await open_demand_board(SecretStr(url) if url else None, Path(folder))
    while True:
        await board.exchange(process, {"t": 1.5, process: 1.0})
        await asyncio.sleep(0.05)

asyncio.run(main())
"""


@pytest.fixture(params=NAMES)
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Opening[DemandBoard]:
    if request.param == "fake":
        demand = FakeDemand()

        async def open_fake() -> DemandBoard:
            return FakeDemandBoard(demand)

        return open_fake
    where = address(request.param, request, tmp_path)
    return lambda: open_demand_board(*where)


async def until(board: DemandBoard, expected: Exchange) -> float:
    """Exchange no demand as "asks" until all is as expected; how long that took."""
    now_s = asyncio.get_running_loop().time
    began_s = now_s()
    while (found := await board.exchange("asks", {})) != expected:
        assert now_s() - began_s < LONG_S, found
        await asyncio.sleep(0.05)
    return now_s() - began_s


async def test_each_hears_the_demand_of_all(opening: Opening[DemandBoard]) -> None:
    async with handles(opening, 2) as (one, other):
        assert await one.exchange("p1", {}) == ANONYMOUS
        assert await one.exchange("p1", {"a": 1.5, "b": 2.0}) == Exchange({"a": 1.5, "b": 2.0}, 1)
        assert await other.exchange("p2", {"a": 3.0, "c": 0.25}) == Exchange({"a": 4.5, "b": 2.0, "c": 0.25}, 2)
        assert await one.exchange("p3", {}) == Exchange({"a": 4.5, "b": 2.0, "c": 0.25}, 3)


async def test_what_it_tells_takes_the_place_of_what_it_told(opening: Opening[DemandBoard]) -> None:
    async with handles(opening, 2) as (one, other):
        await one.exchange("p1", {"a": 1.0, "b": 1.0})
        await other.exchange("p2", {"a": 1.0})
        assert await one.exchange("p1", {"b": 7.0}) == Exchange({"a": 1.0, "b": 7.0}, 2)
        assert await other.exchange("p2", {}) == Exchange({"b": 7.0}, 2)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("", id="empty"),
        pytest.param("a b\nc {}", id="white-space"),
        pytest.param("größe 名前 %s ' \" \\ \0", id="odd"),
        pytest.param("x" * 1000, id="long"),
    ],
)
async def test_names_and_numbers_come_back_whole(opening: Opening[DemandBoard], name: str) -> None:
    async with handles(opening, 2) as (one, other):
        await one.exchange("p1", {name: 0.1})
        assert await other.exchange("p2", {"z": 1e9 / 3}) == Exchange({name: 0.1, "z": 1e9 / 3}, 2)


async def test_who_leaves_counts_no_longer(opening: Opening[DemandBoard]) -> None:
    async with handles(opening, 2) as (one, other):
        await one.exchange("p1", {"a": 1.0})
        await other.exchange("p2", {"b": 1.0})
        await one.leave("p1")
        await one.leave("p1")
        await one.leave("was never there")
        assert await other.exchange("p2", {"b": 2.0}) == Exchange({"b": 2.0}, 1)
        assert await one.exchange("p1", {"a": 3.0}) == Exchange({"a": 3.0, "b": 2.0}, 2)


async def test_who_is_silent_counts_no_longer_and_may_come_back(opening: Opening[DemandBoard]) -> None:
    async with handles(opening, 2) as (one, other):
        await one.exchange("silent", {"a": 1.0})
        assert await other.exchange("asks", {}) == Exchange({"a": 1.0}, 2)
        assert LIVE_S - 1.0 < await until(other, ANONYMOUS) < LIVE_S + SOON_S
        assert await one.exchange("silent", {"a": 2.0}) == Exchange({"a": 2.0}, 2)


async def test_many_at_once_are_all_heard(opening: Opening[DemandBoard]) -> None:
    async with handles(opening, 4) as boards:
        for told in (1.0, 2.0):
            found = await asyncio.gather(*(boards[n % 4].exchange(f"p{n}", {"a": told, f"t{n}": told}) for n in range(16)))
        assert {exchange.processes for exchange in found} == {16}
        assert (await boards[0].exchange("p0", {"a": 2.0})).demand == {"a": 32.0} | {f"t{n}": 2.0 for n in range(1, 16)}


async def test_closing_one_is_no_bother_to_another(opening: Opening[DemandBoard]) -> None:
    async with handles(opening, 2) as (one, other):
        await one.exchange("p1", {"a": 1.0})
        await one.close()
        await one.close()
        assert await other.exchange("p2", {}) == Exchange({"a": 1.0}, 2)


@pytest.mark.parametrize("name", ["sqlite", "redis"])
async def test_processes_hear_each_other(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url, folder = address(name, request, tmp_path)
    words = [sys.executable, "-c", _TAKE_PART, url.get_secret_value() if url else "", str(folder)]
    others = [subprocess.Popen([*words, f"p{number}"]) for number in range(3)]
    try:
        async with handles(lambda: open_demand_board(url, folder), 1) as (board,):
            await until(board, Exchange({"t": 4.5, "p0": 1.0, "p1": 1.0, "p2": 1.0}, 4))
    finally:
        for other in others:
            other.kill()
            other.wait()


async def test_redis_keeps_nothing_when_nobody_is_left(request: pytest.FixtureRequest) -> None:
    server = empty_redis(request)

    async with handles(lambda: _open(server), 1) as (board,):
        await board.exchange("p1", {"a": 1.0})
        assert server.call("KEYS", "*") == b"*1\r\n$15\r\ntidegate:demand\r\n"
        assert 0 < int(server.call("PTTL", "tidegate:demand")[1:]) <= LIVE_S * 1000
        await board.leave("p1")
        assert server.call("KEYS", "*") == b"*0\r\n"


async def test_redis_passes_over_what_was_told_before_its_clock_was_put_back(request: pytest.FixtureRequest) -> None:
    server = empty_redis(request)
    server.call("HSET", "tidegate:demand", "p1", '9999999999999 {"a":1.0}')
    async with handles(lambda: _open(server), 1) as (board,):
        assert await board.exchange("p2", {}) == ANONYMOUS
    assert server.call("HLEN", "tidegate:demand") == b":1\r\n"


async def test_a_redis_that_has_ended_is_told_of_soon_and_comes_back(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        now_s = asyncio.get_running_loop().time
        async with handles(lambda: _open(server), 1) as (board,):
            await board.exchange("p1", {"a": 1.0})
            server.stop()
            try:
                for call in (board.exchange("p1", {}), board.leave("p1")):
                    began_s = now_s()
                    with pytest.raises(StoreUnavailable, match=f"redis://127.0.0.1:{server.port}/0"):
                        await call
                    assert now_s() - began_s < SOON_S
            finally:
                server.start()
            assert (await board.exchange("p2", {"b": 1.0})).demand["b"] == 1.0


async def _open(server: RedisServer) -> DemandBoard:
    return await open_demand_board(SecretStr(server.url), Path())

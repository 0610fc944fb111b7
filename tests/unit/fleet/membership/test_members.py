from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from control_plane.core.endpoints import ListedServer, TritonEndpoints
from control_plane.core.errors import StartupError
from control_plane.fleet.membership.members import FleetMembers
from control_plane.triton.servers import Servers
from tests.fakes import FakeUpstream
from tests.unit.fleet.membership.fake_server_list import FakeServerList

pytestmark = pytest.mark.virtual_time

SOON_S = 2.5
"""A change is seen within a second."""


def at(port: int, name: str = "", **said: object) -> ListedServer:
    return replace(ListedServer(name or f"h:{port}", TritonEndpoints("h", port, port + 1, port + 2)), **said)  # type: ignore[arg-type]


A, B, C = at(1, "a"), at(11, "b"), at(21, "c")


@dataclass
class Bench:
    """Servers that come up at once; `told` is what the fleet has been called with, in order."""

    listed: FakeServerList
    servers: Servers = field(default_factory=lambda: Servers(None, ()))
    told: list[str] = field(default_factory=list)
    live: dict[str, TritonEndpoints] = field(default_factory=dict)
    starts: list[str] = field(default_factory=list)
    sees_off_s: float = 10.0
    comes_up: bool = True
    refuses: str = ""
    """The server that cannot be joined."""

    def __post_init__(self) -> None:
        self.members = FleetMembers(self.listed, self.servers, self, self.join, first=self.listed.read(), start_timeout_s=60.0)

    def join(self, listed: ListedServer) -> Unit:
        if listed.name == self.refuses:
            raise StartupError("--triton-ca: No such file")
        self.told.append(f"join {listed.name}")
        self.servers.add(listed.name, is_needed=False)
        return Unit(listed, self)

    def change(self, listed: ListedServer) -> None:
        self.told.append(f"change {listed.name} {listed.pool}{dict(listed.labels) or ''}{listed.memory_budget or ''}")

    async def drain(self, name: str) -> None:
        self.told.append(f"see off {name}")
        assert name in self.live
        await asyncio.sleep(self.sees_off_s)

    def forget(self, name: str) -> None:
        assert name not in self.live
        self.told.append(f"forget {name}")
        self.servers.remove(name)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        self.told.clear()
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.members.run())
            await self.servers.wait_until_up()
            yield task
            assert not task.done()
            task.cancel()
        assert self.live == {}


@dataclass
class Unit:
    listed: ListedServer
    bench: Bench

    async def run(self) -> None:
        bench, name = self.bench, self.listed.name
        if not bench.comes_up:
            await asyncio.sleep(1e9)
        assert self.listed.endpoints not in bench.live.values(), "one Triton as two servers"
        bench.live[name] = self.listed.endpoints
        bench.starts.append(name)
        bench.servers.members[name].up(FakeUpstream())
        try:
            await asyncio.sleep(1e9)
        finally:
            bench.servers.members[name].down("the gateway is stopping")
            await asyncio.sleep(0)
            del bench.live[name]


async def test_those_that_are_listed_at_first_are_known_before_anything_runs() -> None:
    bench = Bench(FakeServerList([A, B]))
    assert list(bench.servers.members) == ["a", "b"]
    async with bench.running():
        assert sorted(bench.live) == ["a", "b"]
        await asyncio.sleep(100.0)
        assert bench.told == []
        assert bench.listed.reads == 1


async def test_one_that_is_added_joins_and_the_others_are_not_disturbed() -> None:
    bench = Bench(FakeServerList([A]))
    async with bench.running():
        bench.listed.write(A, B)
        await asyncio.sleep(SOON_S)
        assert bench.told == ["join b"]
        assert bench.servers.members["b"].is_up
        assert bench.starts == ["a", "b"]


async def test_one_that_is_gone_is_seen_off_while_its_connections_last() -> None:
    bench = Bench(FakeServerList([A, B]))
    async with bench.running():
        bench.listed.write(B)
        await asyncio.sleep(SOON_S)
        assert bench.told == ["see off a"]
        assert bench.servers.members["a"].is_up
        await asyncio.sleep(bench.sees_off_s)
        assert bench.told == ["see off a", "forget a"]
        assert list(bench.servers.members) == ["b"]
        assert bench.starts == ["a", "b"]


async def test_one_whose_url_is_another_leaves_and_then_joins_as_another() -> None:
    bench = Bench(FakeServerList([A, B]))
    async with bench.running():
        bench.listed.write(at(31, "a"), B)
        await asyncio.sleep(SOON_S + bench.sees_off_s + SOON_S)
        assert bench.told == ["see off a", "forget a", "join a"]
        assert bench.live == {"a": at(31).endpoints, "b": B.endpoints}


async def test_a_triton_under_another_name_is_not_two_servers_at_a_time() -> None:
    bench = Bench(FakeServerList([A, B]))
    async with bench.running():
        bench.listed.write(replace(A, name="z"), B)
        await asyncio.sleep(SOON_S + bench.sees_off_s + SOON_S)
        assert bench.told == ["see off a", "forget a", "join z"]
        assert sorted(bench.live) == ["b", "z"]


async def test_two_that_change_names_do_so_one_after_the_other() -> None:
    bench = Bench(FakeServerList([A, B, C]))
    async with bench.running():
        bench.listed.write(replace(A, name="b"), replace(B, name="a"), C)
        await asyncio.sleep(SOON_S + bench.sees_off_s + SOON_S)
        assert bench.live == {"a": B.endpoints, "b": A.endpoints, "c": C.endpoints}


async def test_pool_labels_and_budget_are_changed_in_place() -> None:
    bench = Bench(FakeServerList([A, B]))
    async with bench.running():
        bench.listed.write(A, at(11, "b", pool="long", labels={"zone": "x"}, memory_budget=7))
        await asyncio.sleep(SOON_S)
        assert bench.told == ["change b long{'zone': 'x'}7"]
        bench.listed.write(B, A)
        await asyncio.sleep(SOON_S)
        assert bench.told[1:] == ["change b "]
        assert bench.starts == ["a", "b"]


async def test_one_that_comes_back_while_it_leaves_joins_when_it_has_left() -> None:
    bench = Bench(FakeServerList([A, B]))
    async with bench.running():
        bench.listed.write(B)
        await asyncio.sleep(SOON_S)
        bench.listed.write(at(1, "a", pool="long"), B)
        await asyncio.sleep(SOON_S + bench.sees_off_s)
        assert bench.told == ["see off a", "forget a", "join a"]
        assert sorted(bench.live) == ["a", "b"]


async def test_a_list_that_cannot_be_used_changes_nothing_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        bench = Bench(FakeServerList([A, B]))
        async with bench.running():
            bench.listed.servers, bench.listed.changed = StartupError("entry 2: url is missing"), True
            await asyncio.sleep(60.0)
            assert bench.told == []
            assert sorted(bench.live) == ["a", "b"]
            bench.listed.changed = True  # it is tried again, and wrong for the same reason
            await asyncio.sleep(60.0)
            assert bench.listed.reads == 3
            bench.listed.write(A)
            await asyncio.sleep(SOON_S)
            assert bench.told == ["see off b"]
    assert caplog.text.count("the servers stay as they are: entry 2: url is missing") == 1


async def test_with_none_up_in_time_there_is_no_start() -> None:
    bench = Bench(FakeServerList([A, B]), comes_up=False)
    with pytest.raises(ExceptionGroup) as caught:
        await bench.members.run()
    assert caught.group_contains(StartupError, match=r"no server of the list answered within 60 s .*do they run there\?")
    assert asyncio.get_running_loop().time() == pytest.approx(60.0)


async def test_once_one_has_been_up_it_waits_for_ever() -> None:
    bench = Bench(FakeServerList([A]))
    async with bench.running():
        await asyncio.sleep(1.0)
        bench.servers.members["a"].down("it crashed")
        await asyncio.sleep(3600.0)
        assert bench.told == []


async def test_who_stops_while_one_leaves_waits_for_nothing() -> None:
    bench = Bench(FakeServerList([A, B]), sees_off_s=1e6)
    async with bench.running():
        bench.listed.write(A)
        await asyncio.sleep(SOON_S)
        assert bench.told == ["see off b"]
    assert asyncio.get_running_loop().time() < 10.0


async def test_one_that_cannot_join_is_tried_again_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(FakeServerList([A]))
    async with bench.running():
        bench.refuses = "b"
        bench.listed.write(A, B)
        await asyncio.sleep(10.0)
        assert bench.told == []
        assert caplog.text.count("server b cannot join the fleet: --triton-ca: No such file") == 1
        bench.refuses = ""
        await asyncio.sleep(10.0)
        assert bench.told == ["join b"]

"""What every `objects/ports.StateStore` does, and so does the fake that other tests trust."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from control_plane.app.stores import open_state_store
from control_plane.core.errors import Conflict, ObjectNotFound, StoreUnavailable
from control_plane.objects.domain.stored import Kind, Stored
from control_plane.objects.ports import StateStore
from tests.aio import run
from tests.contract.stores.stores import NAMES, Opening, address, empty_redis, handles
from tests.fakes.stores.state_store import FakeState, FakeStateStore

LONG_S = 100.0

_WATCH = """
import asyncio, sys
from pathlib import Path
from pydantic import SecretStr
from control_plane.app.stores import open_state_store

async def main():
    url, folder = sys.argv[1:]
    store = await open_state_store(SecretStr(url) if url else None, Path(folder))
    print("watching", flush=True)
    found = await store.changes(0, timeout_s=30.0)
    print([(stored.name, stored.body) for stored in found], flush=True)
    await store.close()

asyncio.run(main())
"""


@pytest.fixture(params=NAMES)
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Opening[StateStore]:
    if request.param == "fake":
        state = FakeState()

        async def open_fake() -> StateStore:
            return FakeStateStore(state)

        return open_fake
    where = address(request.param, request, tmp_path)
    return lambda: open_state_store(*where)


def content(found: list[Stored]) -> list[tuple[Kind, str, object]]:
    return [(stored.kind, stored.name, stored.body) for stored in found]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a", id="plain"),
        pytest.param("a/b", id="slash"),
        pytest.param("tenant/a", id="looks-like-a-kind"),
        pytest.param("größe 名前 %s ' \" \\", id="odd"),
        pytest.param("x" * 1000, id="long"),
    ],
)
async def test_an_object_comes_back_whole(opening: Opening[StateStore], name: str) -> None:
    body = {"text": "größe\n\0'", "number": 0.1, "whole": 2**53, "none": None, "list": [1, [], {}], "": {"a": True}}

    async with handles(opening, 2) as (one, other):
        put = await one.put(Kind.TENANT, name, body)
        assert (put.kind, put.name, put.body) == (Kind.TENANT, name, body)
        assert put.resource_version > 0
        assert await other.get(Kind.TENANT, name) == put
        assert await other.list_all(Kind.TENANT) == [put]
        assert await other.changes(0, timeout_s=0) == [put]


async def test_kinds_are_apart_and_lists_are_by_name(opening: Opening[StateStore]) -> None:
    async with handles(opening, 1) as (store,):
        for name in ("b", "a", "Z", "é", "c"):
            await store.put(Kind.TENANT, name, {"of": name})
        await store.put(Kind.ROUTE, "a", {})
        await store.delete(Kind.TENANT, "c")
        assert [stored.name for stored in await store.list_all(Kind.TENANT)] == ["Z", "a", "b", "é"]
        assert content(await store.list_all(Kind.ROUTE)) == [(Kind.ROUTE, "a", {})]
        assert await store.list_all(Kind.PRICE) == []
        assert await store.get(Kind.ROUTE, "b") is None
        assert await store.get(Kind.API_KEY, "a") is None


async def test_changes_come_in_order_each_object_once_and_newest(opening: Opening[StateStore]) -> None:
    async with handles(opening, 2) as (one, other):
        first = await one.put(Kind.TENANT, "a", {"n": 1})
        second = await other.put(Kind.ROUTE, "b", {"n": 2})
        third = await one.put(Kind.TENANT, "a", {"n": 3})
        fourth = await other.put(Kind.API_KEY, "c", {"n": 4})
        versions = [stored.resource_version for stored in (first, second, third, fourth)]
        assert versions == sorted(set(versions))
        assert await other.changes(0, timeout_s=0) == [second, third, fourth]
        assert await other.changes(first.resource_version, timeout_s=0) == [second, third, fourth]
        assert await one.changes(second.resource_version, timeout_s=0) == [third, fourth]
        assert await one.changes(fourth.resource_version, timeout_s=0) == []


async def test_a_deleted_object_is_a_change_without_a_body(opening: Opening[StateStore]) -> None:
    async with handles(opening, 2) as (one, other):
        put = await one.put(Kind.TENANT, "a", {})
        await other.delete(Kind.TENANT, "a", expected=put.resource_version)
        assert await one.get(Kind.TENANT, "a") is None
        assert await one.list_all(Kind.TENANT) == []
        (gone,) = await one.changes(put.resource_version, timeout_s=0)
        assert (gone.kind, gone.name, gone.body) == (Kind.TENANT, "a", None)
        assert await one.changes(0, timeout_s=0) == [gone]
        again = await one.put(Kind.TENANT, "a", {"new": True}, expected=0)
        assert again.resource_version > gone.resource_version > put.resource_version
        assert await other.changes(put.resource_version, timeout_s=0) == [again]


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        pytest.param(0, "tenant 'a' exists already", id="must-not-exist"),
        pytest.param(1, "was to have resource_version 1, and it has 2", id="stale"),
        pytest.param(99, "was to have resource_version 99, and it has 2", id="ahead"),
    ],
)
async def test_a_write_to_another_form_is_refused_and_changes_nothing(opening: Opening[StateStore], expected: int, says: str) -> None:
    async with handles(opening, 1) as (store,):
        await store.put(Kind.TENANT, "a", {"n": 1})
        put = await store.put(Kind.TENANT, "a", {"n": 2}, expected=1)
        with pytest.raises(Conflict, match=says):
            await store.put(Kind.TENANT, "a", {"n": 3}, expected=expected)
        with pytest.raises(Conflict, match=says):
            await store.delete(Kind.TENANT, "a", expected=expected)
        assert await store.changes(0, timeout_s=0) == [put]


@pytest.mark.parametrize("was_there", [False, True])
async def test_what_is_not_there_is_neither_deleted_nor_replaced(opening: Opening[StateStore], was_there: bool) -> None:
    async with handles(opening, 1) as (store,):
        if was_there:
            await store.put(Kind.TENANT, "a", {})
            await store.delete(Kind.TENANT, "a")
        before = await store.changes(0, timeout_s=0)
        for expected in (None, 0, 1, 2):
            with pytest.raises(ObjectNotFound, match="there is no tenant 'a'"):
                await store.delete(Kind.TENANT, "a", expected=expected)
        with pytest.raises(ObjectNotFound, match="there is no webhook secret 'a'"):
            await store.delete(Kind.WEBHOOK_SECRET, "a")
        for expected in (1, 2):
            with pytest.raises(Conflict, match="there is none of that name"):
                await store.put(Kind.TENANT, "a", {}, expected=expected)
        assert await store.changes(0, timeout_s=0) == before


async def test_of_many_writers_at_once_one_wins_each_version(opening: Opening[StateStore]) -> None:
    writers, each = 8, 5
    replaced: list[int] = []

    async def count_up(store: StateStore) -> None:
        done = 0
        while done < each:
            found = await store.get(Kind.TENANT, "a")
            assert found is not None
            assert found.body is not None
            try:
                await store.put(Kind.TENANT, "a", {"n": found.body["n"] + 1}, expected=found.resource_version)
            except Conflict:
                continue
            replaced.append(found.resource_version)
            done += 1

    async with handles(opening, 2) as stores:
        await stores[0].put(Kind.TENANT, "a", {"n": 0}, expected=0)
        async with asyncio.TaskGroup() as tasks:
            for number in range(writers):
                tasks.create_task(count_up(stores[number % 2]))
        found = await stores[1].get(Kind.TENANT, "a")
        assert found is not None
        assert found.body == {"n": writers * each}
    assert len(set(replaced)) == len(replaced) == writers * each


async def test_of_many_that_make_it_at_once_one_does(opening: Opening[StateStore]) -> None:
    async with handles(opening, 2) as stores:
        puts = [stores[n % 2].put(Kind.TENANT, "a", {"by": n}, expected=0) for n in range(12)]
        answers = await asyncio.gather(*puts, return_exceptions=True)
        (won,) = [answer for answer in answers if isinstance(answer, Stored)]
        assert sum(isinstance(answer, Conflict) for answer in answers) == 11
        assert await stores[0].changes(0, timeout_s=0) == [won]


async def test_who_waits_is_woken_by_another_handle(opening: Opening[StateStore]) -> None:
    async with handles(opening, 2) as (one, other):
        first = await one.put(Kind.TENANT, "a", {})
        async with asyncio.TaskGroup() as tasks:
            waits = [tasks.create_task(store.changes(first.resource_version, timeout_s=LONG_S)) for store in (one, other, other)]
            await asyncio.sleep(0.3)
            assert not any(wait.done() for wait in waits)
            began_s = asyncio.get_running_loop().time()
            second = await one.put(Kind.TENANT, "b", {})
        assert [wait.result() for wait in waits] == [[second]] * 3
        assert asyncio.get_running_loop().time() - began_s < LONG_S / 2


@pytest.mark.parametrize("timeout_s", [0, 0.3])
async def test_without_a_change_it_is_empty_in_time(opening: Opening[StateStore], timeout_s: float) -> None:
    async with handles(opening, 1) as (store,):
        assert await store.changes(0, timeout_s=timeout_s) == []
        put = await store.put(Kind.TENANT, "a", {})
        assert await store.changes(put.resource_version, timeout_s=timeout_s) == []


async def test_one_who_stops_waiting_is_no_bother(opening: Opening[StateStore]) -> None:
    async with handles(opening, 1) as (store,):
        for _ in range(20):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await store.changes(0, timeout_s=LONG_S)
        put = await store.put(Kind.TENANT, "a", {})
        assert await store.changes(0, timeout_s=LONG_S) == [put]


async def test_a_store_that_has_less_than_was_read_before_says_so(opening: Opening[StateStore]) -> None:
    async with handles(opening, 1) as (store,):
        for since in (1, 1000):
            with pytest.raises(StoreUnavailable, match=f"last change is 0, and {since} was read from it before"):
                await store.changes(since, timeout_s=LONG_S)
        put = await store.put(Kind.TENANT, "a", {})
        with pytest.raises(StoreUnavailable, match="it has lost changes"):
            await store.changes(put.resource_version + 1, timeout_s=LONG_S)


async def test_after_a_restore_it_holds_that_and_nothing_else(opening: Opening[StateStore]) -> None:
    async with handles(opening, 2) as (one, other):
        for name in ("stays", "goes"):
            await one.put(Kind.TENANT, name, {"old": True})
        await one.put(Kind.ROUTE, "gone", {})
        await one.delete(Kind.ROUTE, "gone")
        last = (await one.changes(0, timeout_s=0))[-1].resource_version
        await one.restore([Stored(Kind.TENANT, "stays", 1, {"old": False}), Stored(Kind.PRICE, "new", 7, {"n": 1})])
        assert content(await other.list_all(Kind.TENANT)) == [(Kind.TENANT, "stays", {"old": False})]
        assert content(await other.list_all(Kind.PRICE)) == [(Kind.PRICE, "new", {"n": 1})]
        changed = await other.changes(last, timeout_s=0)
        assert sorted(content(changed), key=str) == [
            (Kind.PRICE, "new", {"n": 1}),
            (Kind.TENANT, "goes", None),
            (Kind.TENANT, "stays", {"old": False}),
        ]
        versions = [stored.resource_version for stored in changed]
        assert versions == sorted(set(versions))
        assert versions[0] > last
        await other.restore([])
        assert [stored for stored in await one.changes(0, timeout_s=0) if stored.body is not None] == []


async def test_nobody_sees_half_of_a_restore(opening: Opening[StateStore]) -> None:
    new = [Stored(Kind.TENANT, f"new-{number}", 1, {"n": number}) for number in range(200)]

    async with handles(opening, 2) as (one, other):
        last = 0
        for number in range(50):
            last = (await one.put(Kind.TENANT, f"old-{number}", {})).resource_version
        async with asyncio.TaskGroup() as tasks:
            wait = tasks.create_task(other.changes(last, timeout_s=LONG_S))
            await asyncio.sleep(0.2)
            await one.restore(new)
        assert len(wait.result()) == 250
        assert {stored.name for stored in wait.result() if stored.body is not None} == {stored.name for stored in new}


async def test_closing_one_is_no_bother_to_another(opening: Opening[StateStore]) -> None:
    async with handles(opening, 2) as (one, other):
        put = await one.put(Kind.TENANT, "a", {})
        await one.close()
        await one.close()
        assert await other.get(Kind.TENANT, "a") == put


@pytest.mark.parametrize("name", ["sqlite", "redis"])
def test_who_waits_in_another_process_is_woken(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url, folder = address(name, request, tmp_path)
    words = [sys.executable, "-c", _WATCH, url.get_secret_value() if url else "", str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as watcher:
        try:
            assert watcher.stdout is not None
            assert watcher.stdout.readline() == "watching\n"

            async def main(url: SecretStr | None) -> None:
                async with handles(lambda: open_state_store(url, folder), 1) as (store,):
                    await store.put(Kind.TENANT, "a", {"n": 1})

            run(main(url))
            assert watcher.stdout.readline() == "[('a', {'n': 1})]\n"
            assert watcher.wait(timeout=LONG_S) == 0
        finally:
            watcher.kill()


async def test_a_list_reads_nothing_of_other_kinds(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """With 100,000 keys that would hold up requests whenever tenants or routes are listed."""
    server, where = empty_redis(request), address("redis", request, tmp_path)
    async with handles(lambda: open_state_store(*where), 1) as (store,):
        await store.put(Kind.API_KEY, "k", {})
        route = await store.put(Kind.ROUTE, "a", {})
        server.call("HSET", "tidegate:state:objects", "api_key/k", "no JSON, so whoever read it would fail")
        assert await store.list_all(Kind.ROUTE) == [route]

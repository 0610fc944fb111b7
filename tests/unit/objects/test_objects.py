from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from control_plane.core.errors import Conflict, ControlPlaneError, InvalidRequest, ObjectNotFound, StoreUnavailable
from control_plane.core.scope import Right, Scope
from control_plane.objects.domain.api_key import ApiKey
from control_plane.objects.domain.price import Price
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.stored import Kind
from control_plane.objects.domain.stored_objects import StoredObject, to_body
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.objects import Objects, Part, Versioned
from tests.aio import run
from tests.fakes.stores.state_store import FakeStateStore

KEY = ApiKey("0123456789ab", "acme", (Scope(Right.INFER, "*"),), "ab" * 32, 1.0)
NOW_S = 1000.0
EACH: list[Tenant | Route | Price] = [Tenant("x", burst=2, requests_per_s=1.0), Route("x", "m"), Price("x", 0.0, 0.1, "EUR")]


def make() -> tuple[FakeStateStore, Objects]:
    store = FakeStateStore()
    return store, Objects(store, now_s=lambda: NOW_S)


@pytest.mark.parametrize("value", EACH, ids=lambda value: type(value).__name__)
async def test_the_life_of_each(value: Tenant | Route | Price) -> None:
    _, objects = make()
    type_ = type(value)
    assert await objects.list_all(type_) == []
    assert await objects.put(value, 0) == Versioned(value, 1)
    assert await objects.get(type_, "x") == Versioned(value, 1)
    assert await objects.put(replace(value, name="y")) == Versioned(replace(value, name="y"), 2)
    assert [held.value.name for held in await objects.list_all(type_)] == ["x", "y"]
    await objects.delete(type_, "x")
    with pytest.raises(ObjectNotFound, match="'x'"):
        await objects.get(type_, "x")
    with pytest.raises(ObjectNotFound, match="'x'"):
        await objects.delete(type_, "x")
    assert [held.value.name for held in await objects.list_all(type_)] == ["y"]


@pytest.mark.parametrize(
    ("expected", "refused"), [(None, False), (2, False), (1, True), (0, True), (3, True)], ids=["any", "as it is", "older", "none", "newer"]
)
def test_a_change_is_made_to_what_was_seen(expected: int | None, refused: bool) -> None:
    async def attempt(change: str) -> ControlPlaneError | None:
        _, objects = make()
        await objects.put(Tenant("acme"))
        await objects.put(Tenant("acme", concurrency=1))
        try:
            if change == "put":
                await objects.put(Tenant("acme", concurrency=2), expected)
            else:
                await objects.delete(Tenant, "acme", expected)
        except Conflict as exc:
            assert (await objects.get(Tenant, "acme")).value == Tenant("acme", concurrency=1)
            return exc
        return None

    assert (run(attempt("put")) is not None) is refused
    assert (run(attempt("delete")) is not None) is refused


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (Route("m", "m"), "model must be another name"),
        (Route("a/b", "m"), "name must be"),
        (Tenant(""), "name must be"),
        (Tenant("acme", burst=0), "burst must be at least 1"),
        (Price("p", 0.0, -1.0, "EUR"), "per_unit"),
        (Price("p", 0.0, 1.0, "EUR", per_input_token=-1.0), "per_input_token"),
        (Price("p", 0.0, 1.0, "EUR", per_output_token=float("inf")), "per_output_token"),
    ],
)
async def test_what_may_not_be_is_not_written(value: Tenant | Route | Price, says: str) -> None:
    store, objects = make()
    with pytest.raises(InvalidRequest, match=says):
        await objects.put(value)
    assert store.state.last == 0


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        pytest.param([], None, id="no keys"),
        pytest.param([KEY], "keys that are valid: 0123456789ab; revoke", id="a key"),
        pytest.param([replace(KEY, tenant="other")], None, id="another's key"),
        pytest.param([replace(KEY, revoked_s=NOW_S)], None, id="a revoked one"),
        pytest.param([replace(KEY, expires_s=NOW_S)], None, id="an expired one"),
        pytest.param([replace(KEY, revoked_s=NOW_S + 1)], "0123456789ab", id="one that will be revoked"),
        pytest.param([replace(KEY, id=f"00000000000{n}") for n in range(5)], "000000000002 and 2 more", id="many"),
    ],
)
async def test_a_tenant_with_keys_that_are_valid_stays(keys: list[ApiKey], says: str | None) -> None:
    store, objects = make()
    await objects.put(Tenant("acme"))
    for key in keys:
        await store.put(Kind.API_KEY, key.id, to_body(key))
    if says is None:
        await objects.delete(Tenant, "acme")
        assert await objects.list_all(Tenant) == []
    else:
        with pytest.raises(Conflict, match=says):
            await objects.delete(Tenant, "acme")
        assert await objects.list_all(Tenant) != []


async def test_keys_do_not_keep_a_route_of_the_tenants_name() -> None:
    store, objects = make()
    await store.put(Kind.API_KEY, KEY.id, to_body(KEY))
    await objects.put(Route("acme", "m"))
    await objects.delete(Route, "acme")


async def test_what_cannot_be_read_is_left_out_of_lists_and_refused_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    store, objects = make()
    await objects.put(Tenant("good"))
    await store.put(Kind.TENANT, "bad", {"weight": 1})
    assert [held.value.name for held in await objects.list_all(Tenant)] == ["good"]
    with pytest.raises(InvalidRequest, match="tenant 'bad': cannot be read: name"):
        await objects.get(Tenant, "bad")
    await objects.delete(Tenant, "bad")
    assert "tenant 'bad': cannot be read" in caplog.text


@pytest.mark.parametrize("call", ["put", "get", "list_all", "delete"])
async def test_a_store_that_is_away_is_told(call: str) -> None:
    store, objects = make()
    store.is_away = True
    calls = {
        "put": lambda: objects.put(Tenant("acme")),
        "get": lambda: objects.get(Tenant, "acme"),
        "list_all": lambda: objects.list_all(Tenant),
        "delete": lambda: objects.delete(Tenant, "acme"),
    }
    with pytest.raises(StoreUnavailable):
        await calls[call]()


async def test_names_of_any_length_do_not_swell_an_error() -> None:
    _, objects = make()
    bad: list[StoredObject] = [Tenant("/" * 10**6), Route("r", "/" * 10**6)]
    for value in bad:
        with pytest.raises(InvalidRequest) as raised:
            await objects.put(value)
        assert len(str(raised.value)) < 500


class TestPatch:
    async def test_two_at_a_time_lose_neither_change(self) -> None:
        store, objects = make()
        await objects.put(Tenant("acme"))

        def change(tenant: Tenant) -> Tenant:
            if tenant.concurrency is None:  # another comes between
                store.state.write(Kind.TENANT, "acme", to_body(replace(tenant, concurrency=3)))
            return replace(tenant, burst=2)

        assert (await objects.patch(Tenant, "acme", change)).value == Tenant("acme", burst=2, concurrency=3)

    async def test_one_that_others_change_all_the_time_is_given_up(self) -> None:
        store, objects = make()
        await objects.put(Tenant("acme"))

        def change(tenant: Tenant) -> Tenant:
            store.state.write(Kind.TENANT, "acme", to_body(replace(tenant, priority=tenant.priority + 1)))
            return replace(tenant, burst=2)

        with pytest.raises(Conflict, match="5 times in a row"):
            await objects.patch(Tenant, "acme", change)
        with pytest.raises(ObjectNotFound):
            await objects.patch(Tenant, "nobody", change)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        pytest.param(Part(), "bdfh", id="all"),
        pytest.param(Part(most=2), "bd", id="the first"),
        pytest.param(Part("b", 2), "df", id="the next"),
        pytest.param(Part("c", 1), "d", id="after one that is gone"),
        pytest.param(Part("h", 2), "", id="after the last"),
        pytest.param(Part("d"), "fh", id="the rest"),
    ],
)
async def test_a_part_of_a_list(part: Part, expected: str) -> None:
    _, objects = make()
    for name in "hfdb":
        await objects.put(Tenant(name))
    assert [held.value.name for held in await objects.list_all(Tenant, part)] == list(expected)


async def test_only_what_is_in_the_part_is_decoded_and_counts(caplog: pytest.LogCaptureFixture) -> None:
    store, objects = make()
    for name in "ace":
        await objects.put(Tenant(name))
    for name in "bd":
        await store.put(Kind.TENANT, name, {"weight": 1})
    assert [held.value.name for held in await objects.list_all(Tenant, Part("a", 1))] == ["c"]
    assert "tenant 'b': cannot be read" in caplog.text
    assert "tenant 'd'" not in caplog.text


async def test_others_get_their_turn_while_a_long_list_is_read() -> None:
    store, objects = make()
    for number in range(250):
        store.state.write(Kind.TENANT, f"t{number:03}", to_body(Tenant(f"t{number:03}")))
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(objects.list_all(Tenant))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
    assert len(reading.result()) == 250
    assert turns >= 3

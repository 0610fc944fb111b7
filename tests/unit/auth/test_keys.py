from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from random import Random
from typing import Any

import pytest

from control_plane.auth.keys import Keys
from control_plane.core.errors import Conflict, ControlPlaneError, InvalidRequest, ObjectNotFound, StoreUnavailable
from control_plane.core.scope import Right, Scope
from control_plane.objects.domain.api_key import ApiKey
from control_plane.objects.domain.stored import Kind, Stored
from control_plane.objects.domain.stored_objects import to_body
from control_plane.objects.domain.tenant import Tenant
from tests.fakes.stores.state_store import FakeStateStore

SCOPES = (Scope(Right.INFER, "text_*"), Scope(Right.METRICS))


@dataclass
class RefusingStore(FakeStateStore):
    """Store that answers some writes of existing objects with a Conflict, as if another administrator had
    been faster.
    """

    conflicts: int = 0
    tries: int = 0

    async def put(self, kind: Kind, name: str, body: Mapping[str, Any], *, expected: int | None = None) -> Stored:
        if expected:
            self.tries += 1
        if expected and self.tries <= self.conflicts:
            raise Conflict("changed meanwhile")
        return await super().put(kind, name, body, expected=expected)


@dataclass
class Bench:
    store: FakeStateStore = field(default_factory=FakeStateStore)
    now_s: float = 1000.0
    random: Random = field(default_factory=lambda: Random(7))

    async def start(self) -> Keys:
        await self.store.put(Kind.TENANT, "acme", to_body(Tenant("acme")))
        return Keys(self.store, now_s=lambda: self.now_s, random=self.random.randbytes)


async def test_what_is_made() -> None:
    keys = await Bench().start()
    key, text = await keys.create("acme", SCOPES, expires_s=2000.0, description="ci")
    match = re.fullmatch(r"tg_([0-9a-f]{12})_([A-Za-z0-9_-]{43})", text)
    assert match is not None
    digest = sha256(match[2].encode()).hexdigest()
    assert key == ApiKey(match[1], "acme", SCOPES, digest, 1000.0, 2000.0, None, "ci")
    assert await keys.list_all() == [key]


async def test_the_text_is_nowhere_but_in_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        bench = Bench()
        keys = await bench.start()
        for key, text in [made := await keys.create("acme", SCOPES), await keys.rotate(made[0].id, overlap_s=0)]:
            secret = text.rpartition(key.id + "_")[2]
            assert len(secret) == 43
            assert secret not in repr(key)
            assert secret not in repr(bench.store.state)
            assert secret not in caplog.text


async def test_two_keys_have_nothing_in_common() -> None:
    keys = Keys((bench := Bench()).store)  # with real randomness
    await bench.start()
    made = [await keys.create("acme", SCOPES) for _ in range(50)]
    assert len({key.id for key, _ in made}) == len({key.secret_sha256 for key, _ in made}) == len({text for _, text in made}) == 50


async def test_an_id_that_exists_already_is_never_written_over() -> None:
    bench = Bench()
    await bench.start()
    keys = Keys(bench.store, random=lambda count: b"\x07" * count)
    first, _ = await keys.create("acme", SCOPES)
    with pytest.raises(Conflict):
        await keys.create("acme", SCOPES[:1])
    assert await keys.list_all() == [first]


@pytest.mark.parametrize(
    ("tenant", "scopes", "expires_s", "description", "says"),
    [
        pytest.param("other", SCOPES, None, "", "no tenant 'other'; make it before", id="a tenant that does not exist"),
        pytest.param("", SCOPES, None, "", "no tenant", id="no tenant"),
        pytest.param("acme", (), None, "", "a key without any may do nothing", id="no scopes"),
        pytest.param("acme", SCOPES, 1000.0, "", "expires_s is in the past", id="expired already"),
        pytest.param("acme", SCOPES, float("nan"), "", "expires_s must be a finite", id="not a number"),
        pytest.param("acme", SCOPES, None, "x" * 1001, "description", id="a long description"),
    ],
)
async def test_what_cannot_be_made(tenant: str, scopes: tuple[Scope, ...], expires_s: float | None, description: str, says: str) -> None:
    keys = await Bench().start()
    with pytest.raises(InvalidRequest, match=says):
        await keys.create(tenant, scopes, expires_s=expires_s, description=description)
    assert await keys.list_all() == []


@pytest.mark.parametrize("overlap_s", [0.0, 60.0])
async def test_rotating(overlap_s: float) -> None:
    bench = Bench()
    keys = await bench.start()
    old, old_text = await keys.create("acme", SCOPES, expires_s=5000.0, description="ci")
    bench.now_s = 3000.0
    new, text = await keys.rotate(old.id, overlap_s=overlap_s)
    assert text != old_text
    assert new == replace(old, id=new.id, secret_sha256=new.secret_sha256, created_s=3000.0, expires_s=7000.0)
    assert new.id != old.id
    assert new.secret_sha256 != old.secret_sha256
    revoked = replace(old, revoked_s=3000.0 + overlap_s)
    assert sorted(await keys.list_all(), key=lambda key: key.created_s) == [revoked, new]


async def test_rotating_again_in_the_overlap_does_not_lengthen_it() -> None:
    bench = Bench()
    keys = await bench.start()
    old, _ = await keys.create("acme", SCOPES)
    await keys.rotate(old.id, overlap_s=60.0)
    await keys.rotate(old.id, overlap_s=3600.0)
    assert {key.id: key.revoked_s for key in await keys.list_all()}[old.id] == 1060.0
    await keys.rotate(old.id, overlap_s=5.0)
    assert {key.id: key.revoked_s for key in await keys.list_all()}[old.id] == 1005.0


@pytest.mark.parametrize(
    ("situation", "overlap_s", "error"),
    [
        ("unknown", 0.0, ObjectNotFound),
        ("revoked", 0.0, Conflict),
        ("expired", 0.0, Conflict),
        ("valid", -1.0, InvalidRequest),
        ("valid", float("inf"), InvalidRequest),
        ("valid", float("nan"), InvalidRequest),
    ],
)
async def test_what_cannot_be_rotated_stays_alone(situation: str, overlap_s: float, error: type[ControlPlaneError]) -> None:
    bench = Bench()
    keys = await bench.start()
    old, _ = await keys.create("acme", SCOPES, expires_s=2000.0)
    if situation == "revoked":
        old = await keys.revoke(old.id)
    if situation == "expired":
        bench.now_s = 2000.0
    with pytest.raises(error):
        await keys.rotate("ffffffffffff" if situation == "unknown" else old.id, overlap_s=overlap_s)
    assert await keys.list_all() == [old]


async def test_a_key_that_is_revoked_while_it_is_rotated_has_no_successor() -> None:
    bench = Bench(RefusingStore(conflicts=1))
    keys = await bench.start()
    old, _ = await keys.create("acme", SCOPES)
    with pytest.raises(Conflict):
        await keys.rotate(old.id, overlap_s=0)
    assert await keys.list_all() == [old]


async def test_revoking_is_idempotent_and_keeps_the_first_moment() -> None:
    bench = Bench()
    keys = await bench.start()
    key, _ = await keys.create("acme", SCOPES)
    assert await keys.revoke(key.id) == replace(key, revoked_s=1000.0, is_revoked=True)
    bench.now_s, writes = 2000.0, bench.store.state.last
    assert await keys.revoke(key.id) == replace(key, revoked_s=1000.0, is_revoked=True)
    assert bench.store.state.last == writes
    assert await keys.list_all() == [replace(key, revoked_s=1000.0, is_revoked=True)]


async def test_revoking_ends_an_overlap() -> None:
    keys = await Bench().start()
    key, _ = await keys.create("acme", SCOPES)
    await keys.rotate(key.id, overlap_s=3600.0)
    assert (await keys.revoke(key.id)).revoked_s == 1000.0


async def test_revoking_what_is_not_there() -> None:
    keys = await Bench().start()
    with pytest.raises(ObjectNotFound, match="no api key 'ffffffffffff'"):
        await keys.revoke("ffffffffffff")


@pytest.mark.parametrize(("conflicts", "succeeds"), [(1, True), (4, True), (5, False)])
async def test_revoking_prevails_over_others_who_change_the_key(conflicts: int, succeeds: bool) -> None:
    bench = Bench(RefusingStore(conflicts=conflicts))
    keys = await bench.start()
    key, _ = await keys.create("acme", SCOPES)
    if succeeds:
        assert (await keys.revoke(key.id)).revoked_s == 1000.0
    else:
        with pytest.raises(Conflict):
            await keys.revoke(key.id)


@pytest.mark.parametrize("call", ["create", "list_all", "rotate", "revoke"])
async def test_a_store_that_is_away_is_told(call: str) -> None:
    bench = Bench()
    keys = await bench.start()
    key, _ = await keys.create("acme", SCOPES)
    bench.store.is_away = True
    calls = {
        "create": lambda: keys.create("acme", SCOPES),
        "list_all": keys.list_all,
        "rotate": lambda: keys.rotate(key.id, overlap_s=0),
        "revoke": lambda: keys.revoke(key.id),
    }
    with pytest.raises(StoreUnavailable):
        await calls[call]()

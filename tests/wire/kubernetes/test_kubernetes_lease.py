"""A fleet's lease as a Lease of Kubernetes, at a scripted API server of the real wire form; what every lease store does is
in `tests/contract/stores/test_lease_store.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from control_plane.core.errors import StartupError, StoreUnavailable
from control_plane.fleet.adapters.kubernetes.lease import KubernetesLease, make_kubernetes_lease
from control_plane.fleet.domain.leadership.election import LeaseLimits
from control_plane.fleet.domain.leadership.lease import Lease
from control_plane.fleet.leadership.election import LeaderElection
from tests.kubernetes_api import ScriptedApi, client, rules_of, scripted_api, write_account

RIGHTS = "components/lease/rights.yaml"
TTL_S = 6.0


@dataclass
class Bench:
    api: ScriptedApi
    folder: Path

    def store(self, *, wall_s: float = 0.0) -> KubernetesLease:
        api = client(self.api, write_account(self.folder))
        return KubernetesLease(api, namespace="tidegate", name="tidegate", wall_s=lambda: wall_s)

    @property
    def object(self) -> dict[str, Any]:
        return self.api.objects["tidegate"]

    def label(self, **labels: str) -> None:
        """Somebody else changes the object, as `kubectl label` does."""
        self.api.apply({**self.object, "metadata": {**self.object["metadata"], "labels": labels}})


@asynccontextmanager
async def bench(folder: Path) -> AsyncIterator[Bench]:
    async with scripted_api() as api:
        yield Bench(api, folder)


async def taken(store: KubernetesLease, seen: Lease | None = None, *, holder: str = "p1") -> Lease:
    lease = await store.acquire(seen, holder=holder, ttl_s=TTL_S)
    assert lease is not None
    return lease


async def test_the_object_is_what_kubectl_and_others_read(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        store = it.store()
        mine = await taken(store)
        assert it.object["spec"].keys() == {"holderIdentity", "leaseDurationSeconds", "leaseTransitions", "acquireTime", "renewTime"}
        assert (it.object["spec"]["holderIdentity"], it.object["spec"]["leaseDurationSeconds"]) == ("p1", 6)
        acquired = it.object["spec"]["acquireTime"]
        assert acquired.endswith("Z")
        assert len(acquired) == len("2026-11-23T20:24:07.123456Z"), "a MicroTime"
        await store.renew(mine)
        assert it.object["spec"]["acquireTime"] == acquired < it.object["spec"]["renewTime"]
        await store.release(mine)
        assert it.object["spec"]["holderIdentity"] == "", "client-go's own form of a Lease that nobody holds"


async def test_a_renewal_is_one_write(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        store = it.store()
        mine = await taken(store)
        it.api.log.clear()
        await store.renew(mine)
        await store.renew(mine)
        assert it.api.log == ["update tidegate", "update tidegate"]


async def test_what_others_change_in_the_object_stays_and_is_no_renewal(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        one, other = it.store(), it.store()
        mine = await taken(one)
        it.label(team="serving")
        assert await other.read() == mine, "whoever waits for it goes on waiting"
        assert await one.renew(mine) == replace(mine, beat=1)
        assert it.object["metadata"]["labels"] == {"team": "serving"}


async def test_a_take_over_between_the_read_and_the_write_wins(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        one, other = it.store(), it.store()
        mine = await taken(one)
        writes = 0

        def before(body: dict[str, Any]) -> None:
            nonlocal writes
            writes += 1
            if writes == 1:
                spec = {**it.object["spec"], "holderIdentity": "p3", "leaseTransitions": 2}
                it.api.apply({**it.object, "spec": spec})

        it.api.before_write = before
        assert await other.acquire(mine, holder="p2", ttl_s=TTL_S) is None
        assert await one.renew(mine) is None
        assert it.object["spec"]["holderIdentity"] == "p3"


async def test_a_label_between_the_read_and_the_write_costs_one_more_try(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        store = it.store()
        mine = await taken(store)
        labels = iter("ab")

        def before(body: dict[str, Any]) -> None:
            if (label := next(labels, None)) is not None:
                it.label(team=label)

        it.api.before_write = before
        assert await store.renew(mine) == replace(mine, beat=1)
        assert it.object["metadata"]["labels"] == {"team": "b"}


async def test_one_whom_others_always_overtake_gives_up(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        store = it.store()
        mine = await taken(store)
        it.api.before_write = lambda body: it.label(team=str(it.api.version))
        with pytest.raises(StoreUnavailable, match="others change it without an end"):
            await store.renew(mine)


async def test_a_server_that_says_nothing_is_told_of_while_the_lease_lasts(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        store = it.store()
        mine = await taken(store)
        it.api.is_deaf = True
        began_s = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"the Lease tidegate/tidegate: .* does not answer within"):
            await store.renew(mine)
        await store.release(mine)  # as it stops: nobody waits for what nobody answers
        assert time.monotonic() - began_s < TTL_S
        it.api.is_deaf = False
        assert await store.renew(mine) == replace(mine, beat=1)
        await store.close()


async def test_a_renewal_whose_answer_was_lost_is_made_up_for(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        store = it.store()
        mine = await taken(store)

        def before(body: dict[str, Any]) -> None:
            it.api.apply({**body})  # it is written, and the connection breaks before the answer
            it.api.before_write = lambda body: None
            raise ConnectionResetError

        it.api.before_write = before
        with pytest.raises(StoreUnavailable):
            await store.renew(mine)
        assert await store.renew(mine) == replace(mine, beat=2)


async def test_tokens_grow_when_the_lease_was_deleted(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        store = it.store()
        lease = await taken(store, await taken(store))
        it.api.delete("tidegate")
        assert await store.renew(lease) is None
        assert await store.read() is None
        assert (await taken(store)).token == 3


async def test_tokens_grow_when_the_lease_was_deleted_and_nobody_has_seen_it(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        began_s = time.time()
        lease = await taken(it.store(wall_s=began_s))
        it.api.delete("tidegate")
        theirs = await taken(it.store(wall_s=began_s + 60.0))
        assert lease.token < theirs.token < 2**31, "a Lease's leaseTransitions has 32 bits"


async def test_another_programs_lease_is_left_alone(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        spec = {"holderIdentity": "kube-scheduler", "leaseDurationSeconds": 15, "leaseTransitions": 4}
        it.api.apply({"kind": "Lease", "metadata": {"name": "tidegate"}, "spec": spec})
        store = it.store()
        with pytest.raises(StoreUnavailable, match="another program's"):
            await store.read()
        with pytest.raises(StoreUnavailable, match="another program's"):
            await store.acquire(None, holder="p1", ttl_s=TTL_S)
        assert it.object["spec"] == spec


@pytest.mark.parametrize("renewed", ["1970-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"])
async def test_a_clock_that_is_wrong_moves_nothing(tmp_path: Path, renewed: str) -> None:
    async with bench(tmp_path) as it:
        one, other = it.store(), it.store()
        mine = await taken(one)
        it.api.apply({**it.object, "spec": {**it.object["spec"], "renewTime": renewed}})
        assert await other.read() == mine == await one.read()


VERBS = [verb for rule in rules_of(RIGHTS) for verb in rule["verbs"]]


@pytest.mark.parametrize("dropped", ["", *VERBS])
async def test_each_verb_of_the_role_is_needed(tmp_path: Path, dropped: str, caplog: pytest.LogCaptureFixture) -> None:
    async with bench(tmp_path) as it:
        it.api.rules = rules_of(RIGHTS, without=dropped)
        election = LeaderElection(it.store(), holder="p1", limits=LeaseLimits(ttl_s=1.2, margin_s=0.15))
        running = asyncio.get_running_loop().create_task(election.run())
        async with asyncio.timeout(30.0):
            while not (f"cannot {dropped}" in caplog.text if dropped else it.api.asked("update tidegate") >= 2):
                await asyncio.sleep(0.01)
        assert ("cannot" in caplog.text) == bool(dropped)
        running.cancel()
        await asyncio.wait([running])


def test_a_lease_of_another_name_is_out_of_reach() -> None:
    api = ScriptedApi(rules=rules_of(RIGHTS))
    may = {name: api._may("coordination.k8s.io", "leases", "update", name) for name in ("tidegate", "kube-scheduler")}
    assert may == {"tidegate": True, "kube-scheduler": False}


def test_outside_a_pod_the_setting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="--kubernetes-lease asks the Kubernetes API server, and this is not running in a pod"):
        make_kubernetes_lease("tidegate", {}, tmp_path)

"""Model resources at a scripted API server of the real wire form: what `kubectl apply` makes reaches the fleet, and its
status comes back, through whatever happens to the API server and the connections to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from control_plane.admin.declared.service import Declared
from control_plane.audit.domain.entry import Actor
from control_plane.audit.trail import AuditTrail
from control_plane.objects.objects import Objects
from control_plane.operator import controller as controllers
from control_plane.operator.adapters.kubernetes import KubernetesModels
from control_plane.operator.controller import OWNER, ModelController
from tests.fakes.stores.audit_log import FakeAuditLog
from tests.fakes.stores.state_store import FakeStateStore
from tests.kubernetes_api import ScriptedApi, client, model_resource, rules_of, scripted_api, write_account
from tests.unit.fleet.fleet_bench import FleetBench, running

RIGHTS = "components/model-resources/rights.yaml"
SOON_S = 30.0
"""Within which the state is right again, whatever happens; the limits of watches are shorter here than in production."""
LOOK_S = 0.3
"""Between two looks at the fleet, which are seconds apart in production."""


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controllers, "_LOOK_S", LOOK_S)


@dataclass
class Bench:
    api: ScriptedApi
    fleet: FleetBench
    log: FakeAuditLog
    is_leader: bool = True

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON_S):
            while not is_so():
                await asyncio.sleep(0.01)

    async def wants(self, **replicas: int) -> None:
        """Wait until the fleet is to have exactly these models."""
        await self.until(lambda: {name: each.min_replicas for name, each in self.fleet.models.desired.items()} == replicas)

    def reasons(self, name: str) -> list[str]:
        return [each["reason"] for each in (self.api.objects[name].get("status") or {}).get("conditions", ())]

    @property
    def statuses_written(self) -> int:
        return sum(line.startswith("update") for line in self.api.log)


@asynccontextmanager
async def bench(folder: Path, *resources: dict[str, Any], without: str = "") -> AsyncIterator[Bench]:
    async with scripted_api() as api:
        api.rules = rules_of(RIGHTS, without=without)
        for each in resources:
            api.apply(each)
        it = Bench(api, FleetBench(), FakeAuditLog())
        declared = Declared(Objects(FakeStateStore()), it.fleet.models, AuditTrail(it.log), Actor(OWNER))
        models = KubernetesModels(client(api, write_account(folder / "account")), namespace="tidegate")
        controller = ModelController(models, declared, it.fleet.models, is_leader=lambda: it.is_leader, now=lambda: "2026-11-23T20:00:00Z")
        async with running(it.fleet, reconciles=True, remembers=True):
            task = asyncio.get_running_loop().create_task(controller.run())
            try:
                yield it
                assert not task.done()
            finally:
                task.cancel()
                await asyncio.wait([task])


A, B = model_resource("a", min_replicas=1), model_resource("b", min_replicas=0)


async def test_what_is_applied_reaches_the_fleet_and_its_status_comes_back(tmp_path: Path) -> None:
    async with bench(tmp_path, A) as it:
        await it.until(lambda: it.api.objects["a"].get("status") is not None and it.reasons("a") == ["Applied", "Loaded"])
        assert it.fleet.said == ["load a"]
        spec, generation = it.api.objects["a"]["spec"], it.api.objects["a"]["metadata"]["generation"]
        assert (spec, generation) == ({"min_replicas": 1}, 1), "the status subresource only"
        it.api.apply(B)
        await it.wants(a=1, b=0)
        it.api.delete("a")
        await it.wants(b=0)
        assert it.api.asked("list") == 1, "changes come by the watch"


async def test_a_status_that_has_not_changed_is_not_written(tmp_path: Path) -> None:
    async with bench(tmp_path, A, B) as it:
        await it.until(lambda: it.reasons("a") == ["Applied", "Loaded"] and it.reasons("b") == ["Applied", "OnDemand"])
        written = it.statuses_written
        await asyncio.sleep(3 * LOOK_S)
        assert it.statuses_written == written
        it.api.apply({**A, "metadata": {**A["metadata"], "labels": {"team": "search"}}, "status": it.api.objects["a"]["status"]})
        await asyncio.sleep(3 * LOOK_S)
        assert it.statuses_written == written


async def test_a_bookmark_and_a_watch_that_goes_on_repeat_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path, A) as it:
        await it.until(lambda: it.reasons("a") == ["Applied", "Loaded"])
        it.api.bookmark()
        told = f"watch {it.api.version}"
        await it.until(lambda: told in it.api.log)
        it.api.apply(B)
        await it.wants(a=1, b=0)
        assert it.api.asked("list") == 1
        assert [each.change.name for each in it.log.entries] == ["a", "b"]


@pytest.mark.parametrize("in_stream", [False, True])
async def test_what_was_missed_is_made_up_for_after_410(tmp_path: Path, in_stream: bool) -> None:
    async with bench(tmp_path, A, B) as it:
        await it.until(lambda: it.reasons("a") == ["Applied", "Loaded"] and it.reasons("b") == ["Applied", "OnDemand"])
        # Changes that no watch shows: one is gone, one is new.
        del it.api.objects["a"]
        it.api.objects["c"] = model_resource("c", min_replicas=1)
        it.api.objects["c"]["metadata"] |= {"resourceVersion": "150", "generation": 1}
        it.api.forget()
        if in_stream:
            it.api.fail(410, "Expired")
        await it.wants(b=0, c=1)


async def test_while_the_server_is_away_all_stays_and_then_all_is_right(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with bench(tmp_path, A) as it:
        await it.wants(a=1)
        await it.api.stop()
        await it.until(lambda: "which Models there are, they stay as they are" in caplog.text)
        await asyncio.sleep(1.0)
        assert set(it.fleet.models.desired) == {"a"}
        assert await it.fleet.use("a") == "s0"
        del it.api.objects["a"]
        it.api.apply(B)
        it.api.forget()
        await it.api.start()
        await it.wants(b=0)
        await it.until(lambda: it.reasons("b") == ["Applied", "OnDemand"])


async def test_a_connection_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    async with bench(tmp_path, A) as it:
        await it.wants(a=1)
        await it.until(lambda: it.api.asked("watch") >= 1)
        it.api.is_silent = True
        it.api.apply(B)
        await it.wants(a=1, b=0)
        it.api.is_silent = False


async def test_a_kind_that_is_not_there_yet_or_any_more_deletes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with bench(tmp_path) as it:
        it.api.unknown = {("tidegate.io", "models")}
        it.api.apply(A)
        await it.until(lambda: "404" in caplog.text)
        it.api.unknown = set()
        await it.wants(a=1)
        it.api.unknown = {("tidegate.io", "models")}
        it.api.fail(410, "Expired")
        await it.until(lambda: it.api.asked("list") >= 4)
        assert set(it.fleet.models.desired) == {"a"}


async def test_a_specification_that_changes_under_a_status_wins(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:

        def before(body: dict[str, Any]) -> None:
            it.api.before_write = lambda body: None
            it.api.apply({**it.api.objects["a"], "spec": {"min_replicas": 0}})

        it.api.before_write = before
        it.api.apply(A)
        await it.wants(a=0)
        await it.until(lambda: it.reasons("a") == ["Applied", "OnDemand"])
        assert it.api.objects["a"]["status"]["observedGeneration"] == 2


async def test_a_status_that_breaks_a_rule_holds_up_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with bench(tmp_path) as it:
        it.api.invalid = {"a"}
        it.api.apply(A)
        await it.until(lambda: "422" in caplog.text)
        it.api.apply(B)
        await it.until(lambda: it.reasons("b") == ["Applied", "OnDemand"])
        it.api.invalid = set()
        await it.until(lambda: it.reasons("a") == ["Applied", "Loaded"])


async def test_who_does_not_lead_writes_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        it.is_leader = False
        it.api.apply(A)
        await asyncio.sleep(3 * LOOK_S)
        assert (it.statuses_written, set(it.fleet.models.desired)) == (0, set())
        it.is_leader = True
        await it.wants(a=1)


VERBS = [verb for rule in rules_of(RIGHTS) for verb in rule["verbs"]]


@pytest.mark.parametrize("dropped", ["", *VERBS])
async def test_each_verb_of_the_role_is_needed(tmp_path: Path, dropped: str, caplog: pytest.LogCaptureFixture) -> None:
    async with bench(tmp_path, A, without=dropped) as it:
        if dropped:
            await it.until(lambda: f"cannot {dropped}" in caplog.text)
        else:
            await it.until(lambda: it.reasons("a") == ["Applied", "Loaded"] and it.api.asked("watch") >= 2)
            assert "cannot" not in caplog.text

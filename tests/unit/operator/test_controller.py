"""The controller over a fleet with fake Tritons, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from control_plane.fleet.domain.memory import EVERYWHERE, DesiredState
from control_plane.operator.controller import OWNER
from tests.unit.operator.bench import MODEL, bench

pytestmark = pytest.mark.virtual_time

SOON_S, RESYNC_S = 5.0, 31.0


async def test_a_resource_is_applied_its_model_loaded_and_its_status_written() -> None:
    async with bench() as it:
        it.resources.apply("a", min_replicas=2)
        it.resources.apply("the-other", model="b", everywhere=True)
        await asyncio.sleep(SOON_S)
        assert dict(it.desired) == {"a": DesiredState(min_replicas=2), "b": DesiredState(min_replicas=EVERYWHERE)}
        await asyncio.sleep(60.0)
        assert it.resources.conditions("a") == {"Accepted": "Applied", "Ready": "Loaded"}
        assert it.resources.conditions("the-other") == {"Accepted": "Applied", "Ready": "Loaded"}
        assert it.resources.objects is not None
        assert it.resources.objects["a"]["status"]["replicas"] == 2
        live = await it.declared("me").get(MODEL, "b")
        assert (live.owner, live.spec["everywhere"]) == (OWNER, True)
        assert it.changes == [(OWNER, "create", "a"), (OWNER, "create", "b")]


async def test_while_nothing_changes_nothing_is_written() -> None:
    async with bench() as it:
        it.resources.apply("a", min_replicas=1)
        it.resources.apply("b", model="a", min_replicas=2)
        it.resources.apply("c", min_replicas="many")
        await asyncio.sleep(60.0)
        written, changes, version = len(it.resources.written), list(it.changes), it.store.state.last
        await asyncio.sleep(600.0)
        assert (len(it.resources.written), it.changes, it.store.state.last) == (written, changes, version)


async def test_a_change_is_taken_up_and_a_deletion_takes_back() -> None:
    async with bench() as it:
        it.resources.apply("a", min_replicas=2)
        await asyncio.sleep(60.0)
        it.resources.apply("a", is_suspended=True)
        await asyncio.sleep(60.0)
        assert it.resources.conditions("a") == {"Accepted": "Applied", "Ready": "Suspended"}
        assert it.fleet.said.count("unload a") == 2
        it.resources.delete("a")
        await asyncio.sleep(SOON_S)
        assert dict(it.desired) == {}
        assert it.changes[-1] == (OWNER, "delete", "a")
        it.resources.apply("a", everywhere=True)
        await asyncio.sleep(SOON_S)
        assert it.desired["a"].min_replicas == EVERYWHERE


async def test_one_that_names_another_model_lets_the_first_one_go() -> None:
    async with bench() as it:
        it.resources.apply("x", model="a", min_replicas=1)
        await asyncio.sleep(SOON_S)
        it.resources.apply("x", model="b", min_replicas=1)
        await asyncio.sleep(SOON_S)
        assert set(it.desired) == {"b"}


async def test_what_another_owner_applies_is_left_alone_and_said() -> None:
    async with bench() as it:
        await it.apply_as("ci", "a", min_replicas=1)
        it.resources.apply("a", min_replicas=2)
        await asyncio.sleep(SOON_S)
        assert it.desired["a"].min_replicas == 1
        assert it.resources.conditions("a") == {"Accepted": "Conflict", "Ready": "NotAccepted"}
        assert "owner 'ci' applies it" in it.resources.message("a")
        it.resources.delete("a")
        await asyncio.sleep(RESYNC_S)
        assert it.desired["a"].min_replicas == 1, "it was never ours"
        it.resources.apply("a", min_replicas=2)
        await asyncio.sleep(SOON_S)
        await it.declared("ci").delete(MODEL, "a")  # which the message asks for
        await asyncio.sleep(RESYNC_S)
        assert it.desired["a"].min_replicas == 2
        assert it.resources.conditions("a")["Accepted"] == "Applied"


async def test_of_two_for_one_model_the_older_counts_until_it_goes() -> None:
    async with bench() as it:
        it.resources.apply("first", model="a", min_replicas=1)
        it.resources.apply("second", model="a", min_replicas=2)
        await asyncio.sleep(SOON_S)
        assert it.desired["a"].min_replicas == 1
        assert it.resources.conditions("second")["Accepted"] == "Duplicate"
        it.resources.delete("first")
        await asyncio.sleep(SOON_S)
        assert it.desired["a"].min_replicas == 2
        assert it.resources.conditions("second")["Accepted"] == "Applied"


async def test_what_cannot_be_applied_says_why_and_what_was_applied_before_stays() -> None:
    async with bench() as it:
        it.resources.apply("a", min_replicas=1)
        it.resources.apply("unknown", min_replicas=1)
        it.resources.apply("b", model="../etc", min_replicas=1)
        it.resources.apply("c", min_replicas=1, everywhere=True)
        it.resources.apply("d", minreplicas=1)
        await asyncio.sleep(SOON_S)
        assert {name: it.resources.conditions(name)["Accepted"] for name in ("a", "unknown", "b", "c", "d")} == {
            "a": "Applied",
            "unknown": "NoSuchModel",
            "b": "Invalid",
            "c": "Invalid",
            "d": "Invalid",
        }
        assert "did you mean 'min_replicas'" in it.resources.message("d")
        it.resources.apply("a", min_replicas=-1)
        await asyncio.sleep(SOON_S)
        assert it.resources.conditions("a") == {"Accepted": "Invalid", "Ready": "NotAccepted"}
        assert it.desired["a"].min_replicas == 1


async def test_what_was_changed_by_hand_is_set_back() -> None:
    async with bench() as it:
        it.resources.apply("a", min_replicas=1)
        await asyncio.sleep(SOON_S)
        await it.fleet.models.set_desired("a", DesiredState(min_replicas=0, is_suspended=True))
        await asyncio.sleep(RESYNC_S)
        assert it.desired["a"] == DesiredState(min_replicas=1)
        await it.fleet.models.set_desired("a", None)
        await asyncio.sleep(RESYNC_S)
        assert it.desired["a"] == DesiredState(min_replicas=1)


async def test_only_the_leader_acts_and_the_next_one_makes_up_for_what_was_missed() -> None:
    async with bench() as it:
        it.resources.apply("a", min_replicas=1)
        await asyncio.sleep(SOON_S)
        it.is_leader = False
        it.resources.apply("b", min_replicas=1)
        it.resources.delete("a")
        written, changes = len(it.resources.written), list(it.changes)
        await asyncio.sleep(RESYNC_S)
        assert (len(it.resources.written), it.changes) == (written, changes)
        it.is_leader = True
        await asyncio.sleep(SOON_S)
        assert set(it.desired) == {"b"}


async def test_who_leads_no_more_in_the_midst_of_a_turn_stops_there() -> None:
    async with bench() as it:
        put = it.store.put

        async def put_and_lose(*args: Any, **kwargs: Any) -> Any:
            it.is_leader = False
            return await put(*args, **kwargs)

        it.store.put = put_and_lose  # type: ignore[method-assign]
        for name in "abc":
            it.resources.apply(name, min_replicas=1)
        await asyncio.sleep(SOON_S)
        assert len(it.changes) == 1
        assert it.resources.written == []


async def test_before_the_resources_are_known_nothing_is_deleted() -> None:
    async with bench() as it:
        it.resources.objects = None
        await it.apply_as(OWNER, "a", min_replicas=1)
        await asyncio.sleep(RESYNC_S)
        assert set(it.desired) == {"a"}
        it.resources.objects = {}
        await asyncio.sleep(SOON_S)
        assert set(it.desired) == set()


async def test_stores_that_are_away_are_waited_for() -> None:
    async with bench() as it:
        it.store.is_away = it.resources.is_away = True
        it.resources.apply("a", min_replicas=1)
        await asyncio.sleep(RESYNC_S)
        assert not it.desired
        it.store.is_away = False
        await asyncio.sleep(10.0)
        assert set(it.desired) == {"a"}
        assert it.resources.written == []
        it.resources.is_away = False
        await asyncio.sleep(10.0)
        assert it.resources.conditions("a") == {"Accepted": "Applied", "Ready": "Loaded"}
        assert it.changes == [(OWNER, "create", "a")]


async def test_a_status_that_somebody_overtakes_is_written_by_the_next_turn() -> None:
    async with bench() as it:
        it.resources.changes_meanwhile = True
        it.resources.apply("a", min_replicas=1)
        await asyncio.sleep(60.0)
        it.resources.changes_meanwhile = False
        await asyncio.sleep(SOON_S)
        assert it.resources.conditions("a")["Ready"] == "Loaded"


async def test_a_status_that_is_not_taken_holds_up_no_other_and_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async with bench() as it:
        it.resources.rejects = "a"
        it.resources.apply("a", min_replicas=1)
        it.resources.apply("b", min_replicas=0)
        await asyncio.sleep(60.0)
        assert it.resources.conditions("b") == {"Accepted": "Applied", "Ready": "OnDemand"}
        assert set(it.desired) == {"a", "b"}
        assert [each.message for each in caplog.records if "does not take" in each.message] == [
            "the API server does not take the status of Model a: 422 spec is of before"
        ]
        it.resources.rejects = ""
        await asyncio.sleep(SOON_S)
        assert it.resources.conditions("a") == {"Accepted": "Applied", "Ready": "Loaded"}


async def test_a_defect_ends_no_gateway() -> None:
    async with bench() as it:
        it.resources.apply("a", min_replicas=1)
        assert it.resources.objects is not None
        it.resources.objects["broken"] = {"metadata": {"generation": "no number"}}
        await asyncio.sleep(SOON_S)
        del it.resources.objects["broken"]
        await asyncio.sleep(RESYNC_S + SOON_S)
        assert set(it.desired) == {"a"}


async def test_between_a_few_resources_requests_get_their_turn() -> None:
    names = [f"m{number}" for number in range(500)]
    async with bench(*names) as it:
        for name in names:
            it.resources.apply(name, min_replicas=0)
        await asyncio.sleep(SOON_S)
        assert (set(it.desired), {name for name, _ in it.resources.written}) == (set(names), set(names))
        assert 0 < it.turns.most <= 20, "so many, while others waited"


async def test_changes_that_come_one_by_one_are_looked_at_together() -> None:
    """A turn that takes 0.1 s for each of 2,000 changes would be 200 s of the gateway's time."""
    async with bench(turn_s=0.1) as it:
        it.resources.apply("a", min_replicas=0)
        await asyncio.sleep(SOON_S)
        before = it.resources.looks
        for number in range(2000):
            it.resources.apply("a", min_replicas=number % 2)
            await asyncio.sleep(0.01)
        assert it.resources.looks - before <= 2000 * 0.01 / 0.4 + 1
        await asyncio.sleep(SOON_S)
        assert it.desired == {"a": DesiredState(min_replicas=1)}, "the last one counts"


def nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        pytest.param({"model": "../../etc/passwd"}, "Invalid", id="a path"),
        pytest.param({"model": "http://169.254.169.254/latest"}, "Invalid", id="a URL"),
        pytest.param({"model": "a\nERROR: the fleet is lost"}, "Invalid", id="two lines"),
        pytest.param({"model": "a\0"}, "Invalid", id="NUL"),
        pytest.param({"model": "x" * 1_000_000}, "Invalid", id="a megabyte"),
        pytest.param({"min_replicas": 10**400}, "Invalid", id="a number of no computer"),
        pytest.param({"k" * 100_000: 1}, "Invalid", id="a field of no end"),
        pytest.param({"min_replicas": nested(3000)}, "Failed", id="nested until a parser gives up"),
    ],
)
async def test_whatever_one_says_the_others_are_applied(spec: dict[str, Any], reason: str) -> None:
    """The API server lets few of these through, and none where the definition is this one."""
    async with bench() as it:
        it.resources.apply("hostile", **{"min_replicas": 1, **spec})
        it.resources.apply("a", min_replicas=1)
        await asyncio.sleep(40.0)
        assert dict(it.desired) == {"a": DesiredState(min_replicas=1)}
        assert it.resources.conditions("a") == {"Accepted": "Applied", "Ready": "Loaded"}
        assert it.resources.conditions("hostile") == {"Accepted": reason, "Ready": "NotAccepted"}
        assert 0 < len(it.resources.message("hostile")) <= 1024

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from itertools import permutations

import pytest

from control_plane.core.model import ModelState, ModelVersion
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.fleet.domain.fleet import Replica
from control_plane.fleet.domain.memory import Measured
from control_plane.models.domain.description import DescribedModel, ModelSpec, Tier
from tests.aio import settle
from tests.fakes import FakeUpstream
from tests.unit.fleet.fleet_bench import LOADING, READY, UNLOADING, model
from tests.unit.fleet.view.state_bench import State

MIB = 2**20


class Counted(list[ModelVersion]):
    """An index that counts how often it is gone through."""

    times = 0

    def __iter__(self) -> Iterator[ModelVersion]:
        self.times += 1
        return super().__iter__()


@pytest.fixture
def state() -> State:
    return State()


class TestObserve:
    def test_an_index_that_says_the_same_is_gone_through_once_and_brings_back_what_was_dropped(self, state: State) -> None:
        index = Counted([ModelVersion("a", "1", READY, ""), ModelVersion("b", "1", ModelState.UNAVAILABLE, "")])
        for _ in range(2):
            state.observe("s0", index)
            state.drop(state.fleet.servers["s0"], state.replicas["a"])
        state.observe("s0", index)
        assert list(state.replicas) == ["a"]
        assert state.listed() == {"a", "b"}
        assert index.times == 1

    def test_finds_what_others_have_loaded(self, state: State) -> None:
        state.see(a=READY, foreign=READY)
        assert {name: replica.state for name, replica in state.replicas.items()} == {"a": READY, "foreign": READY}
        assert state.replicas["a"].bytes == 40
        assert state.replicas["foreign"].bytes > 0
        assert state.fleet.holders.keys() == {"a", "foreign"}

    def test_drops_what_is_gone(self, state: State) -> None:
        state.see(a=READY, b=READY)
        state.see(b=READY)
        assert state.replicas.keys() == state.fleet.holders.keys() == {"b"}
        assert state.fleet.servers["s0"].held_bytes == 40

    def test_keeps_a_replica_and_its_requests_while_its_state_changes(self, state: State) -> None:
        state.see(a=READY)
        replica, claim = state.replicas["a"], state.take("a")
        state.at_s += 5
        state.see(a=UNLOADING)
        assert state.replicas["a"] is replica is claim.replica
        assert (replica.state, replica.since_s, replica.in_flight) == (UNLOADING, 105.0, 1)
        state.at_s += 5
        state.see(a=UNLOADING)
        assert replica.since_s == 105.0

    def test_keeps_what_is_announced_until_it_is_seen_and_drops_it_when_it_vanishes_then(self, state: State) -> None:
        server = state.fleet.servers["s0"]
        announced = Replica("a", LOADING, 0, 100.0, 107.0)
        state.fleet.put_replica(server, announced)
        state.see(b=READY)
        assert state.replicas["a"] is announced
        state.see(a=LOADING)
        assert state.replicas["a"] is not announced
        assert (state.replicas["a"].bytes, state.replicas["a"].ready_s) == (40, 107.0)
        state.see()
        assert not state.replicas

    def test_what_settles_is_loading_whatever_the_index_says(self, state: State) -> None:
        state.awaiting_fingerprint.add(("s0", "a"))
        state.see(a=READY, b=READY)
        assert state.reserve("a", "s0") is None
        assert state.reserve("b", "s0") is not None
        state.awaiting_fingerprint.clear()
        state.see(a=READY, b=READY)
        assert state.reserve("a", "s0") is not None


class TestEnsembles:
    def test_steps_count_once_and_cannot_go_alone(self, state: State) -> None:
        state.see(a=READY, b=READY)
        assert state.fleet.servers["s0"].held_bytes == 80
        state.see(a=READY, b=READY, both=READY)
        assert state.fleet.servers["s0"].held_bytes == 100
        assert {name: replica.is_step for name, replica in state.replicas.items()} == {"a": True, "b": True, "both": False}
        state.see(a=READY, b=READY)
        assert state.fleet.servers["s0"].held_bytes == 80
        assert not any(replica.is_step for replica in state.replicas.values())

    def test_a_step_that_loads_is_no_announcement(self, state: State) -> None:
        state.see(a=LOADING, both=LOADING)
        assert state.replicas["a"].bytes == 0
        state.see(both=LOADING)
        assert "a" not in state.replicas

    def test_take_their_steps_along_unless_another_needs_one(self, state: State) -> None:
        state.see(a=READY, b=READY, both=READY)
        assert state.specs.steps_are_its_own("s0", "both")
        assert not state.specs.steps_are_its_own("s0", "a")
        state.see(a=READY, b=READY, both=READY, other=READY)
        assert not state.specs.steps_are_its_own("s0", "both")
        assert not state.specs.steps_are_its_own("s0", "nonesuch")


class TestClaims:
    @pytest.mark.parametrize("order", list(permutations(range(3))))
    def test_give_back_their_place_whatever_order_they_end_in(self, state: State, order: Sequence[int]) -> None:
        state.see(a=READY, b=READY)
        state.fleet.models["b"].service_s = 0.3
        claims = [state.take("a"), state.take("b"), state.take("a")]
        server = state.fleet.servers["s0"]
        assert (state.replicas["a"].in_flight, state.replicas["b"].in_flight) == (2, 1)
        assert server.work_s == pytest.approx(0.32)
        left_s = [0.01, 0.3, 0.01]
        for number in order:
            assert server.work_s == pytest.approx(sum(left_s))
            state.at_s += 1.0
            claims[number].release(answered=False)
            left_s[number] = 0.0
        assert (state.replicas["a"].in_flight, state.replicas["b"].in_flight, server.work_s) == (0, 0, 0.0)

    def test_what_a_request_takes_by_itself_is_learned(self, state: State) -> None:
        state.see(a=READY)
        facts = state.fleet.models["a"]
        before_s = facts.service_s
        claim = state.take("a")
        state.at_s += 1.0
        claim.release(answered=True)
        assert before_s < facts.service_s < 1.0

    def test_one_that_failed_teaches_nothing_nor_does_who_was_behind_it(self, state: State) -> None:
        state.see(a=READY)
        facts = state.fleet.models["a"]
        before_s = facts.service_s
        first, second = state.take("a"), state.take("a")
        state.at_s += 1.0
        first.release(answered=False)
        state.at_s += 1.0
        second.release(answered=True)
        assert facts.service_s == before_s

    @pytest.mark.parametrize("seen", [{}, {"a": LOADING}, {"a": UNLOADING}])
    def test_there_are_none_where_nothing_is_ready(self, state: State, seen: dict[str, object]) -> None:
        state.see(**seen)
        assert state.reserve("a", "s0") is None

    def test_are_given_back_to_a_replica_that_is_gone_meanwhile(self, state: State) -> None:
        state.see(a=READY, b=READY)
        gone, stays = state.take("a"), state.take("b")
        state.see(b=READY)
        gone.release(answered=True)
        stays.release(answered=True)
        assert (gone.replica.in_flight, stays.replica.in_flight, state.fleet.servers["s0"].work_s) == (0, 0, 0.0)


class TestServers:
    def test_one_that_goes_down_takes_its_replicas_along_and_comes_back_empty(self, state: State) -> None:
        state.see(a=READY)
        claim = state.take("a")
        state.members.down("it crashed")
        assert state.reserve("a", "s0") is None
        assert (state.replicas, state.fleet.holders) == ({}, {})
        assert not state.fleet.servers["s0"].is_up
        claim.release(answered=False)
        state.members.up(FakeUpstream())
        assert not state.fleet.servers["s0"].is_up, "what is there is not known yet"
        state.see()
        assert state.fleet.servers["s0"].is_up
        assert state.fleet.servers["s0"].work_s == 0.0

    def test_one_that_is_lost_is_an_event_with_what_it_took_along_and_another_when_it_is_back(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        state = State(*(model(f"m{number}") for number in range(8)), logs=True)
        state.see(**{f"m{number}": READY for number in range(7)}, m7=LOADING)
        state.members.lost("Triton was killed by SIGKILL and is being restarted")
        state.members.down("it is still starting")
        state.at_s += 2.5
        with caplog.at_level("INFO"):
            state.members.up(FakeUpstream())
        told = [(event.kind, event.model, event.server, event.reason, event.seconds) for event in state.events.latest]
        why = "Triton was killed by SIGKILL and is being restarted; with it m0, m1, m2, m3, m4 and 2 more"
        assert told == [(FleetEventKind.DOWN, "", "s0", why, 0.0), (FleetEventKind.UP, "", "s0", "", 2.5)]
        assert state.counts.events == {FleetEventKind.DOWN: 1, FleetEventKind.UP: 1, FleetEventKind.LOST: 7}
        assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
            ("WARNING", f"server s0 is down: {why}"),
            ("INFO", "server s0 is up after 2.5 s"),
        ]

    def test_one_that_is_to_go_down_is_no_event(self, state: State) -> None:
        state.see(a=READY)
        state.members.down("the gateway is stopping")
        state.members.up(FakeUpstream())
        assert list(state.events.latest) == []
        assert not state.counts.events


class TestDescribe:
    def test_what_is_not_declared_is_estimated_until_it_is_measured(self) -> None:
        told = DescribedModel(ModelSpec("told", 7 * MIB), file_bytes=10 * MIB)
        guessed = DescribedModel(ModelSpec("guessed"), file_bytes=10 * MIB)
        state = State(told, guessed)
        assert state.fleet.models["told"].resident_bytes == 7 * MIB
        assert 10 * MIB < state.fleet.models["guessed"].resident_bytes < 100 * MIB
        for name in ("told", "guessed"):
            state.measurements.loaded(name, 3.0, 33 * MIB)
        state.specs.describe({"told": told, "guessed": guessed})
        assert (state.fleet.models["told"].resident_bytes, state.fleet.models["guessed"].resident_bytes) == (7 * MIB, 33 * MIB)

    @pytest.mark.parametrize("more", [None, 0, -5])
    def test_what_says_nothing_is_no_measurement(self, more: int | None) -> None:
        state = State(DescribedModel(ModelSpec("a"), file_bytes=10 * MIB))
        before = state.fleet.models["a"].resident_bytes
        state.measurements.loaded("a", 3.0, more)
        assert state.fleet.models["a"].resident_bytes == before

    def test_the_first_load_says_how_long_they_take_and_the_next_ones_a_little(self, state: State) -> None:
        state.measurements.loaded("a", 10.0, None)
        assert state.fleet.models["a"].load_s == 10.0
        state.measurements.loaded("a", 20.0, None)
        assert 10.0 < state.fleet.models["a"].load_s < 15.0
        state.specs.describe(state.specs.described)
        assert 10.0 < state.fleet.models["a"].load_s < 15.0

    def test_pins_and_what_was_measured_survive(self, state: State) -> None:
        state.specs.pin("a", 2)
        state.fleet.models["a"].service_s = 0.5
        state.specs.describe({"a": model("a", min_replicas=1), "b": model("b", min_replicas=1)})
        assert (state.fleet.models["a"].spec.min_replicas, state.fleet.models["b"].spec.min_replicas) == (2, 1)
        assert state.fleet.models["a"].service_s == 0.5

    def test_one_that_is_found_later_is_known_from_before(self) -> None:
        state = State()
        state.specs.recall({"late": Measured(5, 33, 7.0, 0.5, failures=1, quarantined_until_s=time.time() + 60, why="no weights")})
        state.specs.describe({"late": DescribedModel(ModelSpec("late"), 5)})
        facts = state.fleet.models["late"]
        assert (facts.resident_bytes, facts.load_s, facts.service_s) == (33, 7.0, 0.5)
        assert state.measurements.why_quarantined("late") == "no weights"

    def test_what_has_no_folder_any_more_is_known_while_it_is_loaded(self, state: State) -> None:
        state.see(a=READY)
        state.specs.describe({})
        assert state.fleet.models.keys() == {"a"}
        state.see()
        state.specs.describe({})
        assert not state.fleet.models

    def test_what_has_sequences_has_one_replica(self) -> None:
        state = State(
            DescribedModel(ModelSpec("s", 1), 1, has_sequences=True),
            DescribedModel(ModelSpec("t", 1, max_replicas=3), 1, has_sequences=True),
        )
        assert {name: facts.spec.max_replicas for name, facts in state.fleet.models.items()} == {"s": 1, "t": 3}
        assert state.fleet.models["s"].tier is Tier.WARM


@pytest.mark.virtual_time
async def test_waiters_wake_when_something_changes_and_when_their_time_is_over() -> None:
    state = State()
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(state.wait_for_change(60.0)) for _ in range(3)]
        tasks.create_task(state.wait_for_change(1.0))
        await asyncio.sleep(2.0)
        assert not any(each.done() for each in waiting)
        state.changed()
        await settle()
        assert all(each.done() for each in waiting)
        loads, room = tasks.create_task(state.wait_for_change(60.0)), tasks.create_task(state.wait_for_change(60.0, for_room=True))
        await settle()
        state.released()
        await settle()
        assert (loads.done(), room.done()) == (False, True)
        state.changed()
    assert loop.time() == 2.0


class TestLoads:
    def test_one_that_is_planned_counts_in_time_but_not_in_memory(self, state: State) -> None:
        server = state.fleet.servers["s0"]
        state.announce(server, Replica("a", LOADING, 0, 100.0, 107.0))
        assert state.fleet.is_loading("a")
        assert (server.loads_until_s, server.held_bytes) == (107.0, 0)
        state.announce(server, Replica("b", LOADING, 0, 100.0, 103.0))
        assert server.loads_until_s == 107.0, "the later one counts"

    def test_they_run_one_after_the_other_in_the_order_in_which_they_were_planned(self, state: State) -> None:
        server = state.fleet.servers["s0"]
        later, sooner = Replica("a", LOADING, 0, 100.0, 150.0), Replica("b", LOADING, 0, 100.0, 120.0)
        state.announce(server, later)
        state.announce(server, sooner)
        state.fleet.models["a"].load_s, state.fleet.models["b"].load_s = 3.0, 4.0
        state.reschedule_loads(server)
        assert (sooner.ready_s, later.ready_s, server.loads_until_s) == (104.0, 107.0, 107.0)

    def test_a_dead_one_is_loading_until_it_has_been_loaded_anew(self, state: State) -> None:
        state.see(a=READY)
        state.mark_loading(state.fleet.servers["s0"], state.replicas["a"])
        state.see(a=READY)
        assert state.replicas["a"].state is LOADING
        state.awaiting_fingerprint.clear()
        state.see(a=READY)
        assert state.replicas["a"].state is READY

    def test_one_that_is_gone_is_dropped_but_not_another_in_its_place(self, state: State) -> None:
        state.see(a=READY)
        gone = state.replicas["a"]
        state.see()
        state.see(a=READY)
        state.drop(state.fleet.servers["s0"], gone)
        assert "a" in state.replicas
        state.drop(state.fleet.servers["s0"], state.replicas["a"])
        assert state.fleet.replicas("a") == []


class TestMembership:
    def test_one_that_changes_keeps_what_is_there(self, state: State) -> None:
        state.see(a=READY)
        state.change("s0", pool="long", labels={"zone": "b"}, budget_bytes=7)
        server = state.fleet.servers["s0"]
        assert (server.pool, server.labels, server.budget_bytes) == ("long", {"zone": "b"}, 7)
        assert (state.fleet.pools["long"], state.fleet.replicas("a")) == ({"s0": server}, [(server, server.replicas["a"])])

    def test_one_that_drains_is_open_no_more(self, state: State) -> None:
        server = state.fleet.servers["s0"]
        state.see()
        assert server.is_open
        state.drain(server)
        assert not server.is_open
        assert not server.is_staying

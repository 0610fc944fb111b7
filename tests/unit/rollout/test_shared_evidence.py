"""Gateways that add up what they have seen of a rollout."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.inference.domain.observation import Observation
from control_plane.objects.domain.rollout import Phase
from control_plane.rollout.domain.findings import FAULTS
from control_plane.rollout.shared_evidence import FRESH_S, MAX_HELD, UNITS_PER_HALVING
from tests.fakes.stores.evidence_board import FakeEvidenceBoard
from tests.unit.rollout.rollout_bench import Process, process, world

pytestmark = pytest.mark.usefixtures("known_thresholds")


async def gateways(count: int, *, leader: int = 0) -> list[Process]:
    """So many of one rollout, of which one leads."""
    state, clock, board = world(), [1000.0], FakeEvidenceBoard()
    made = [
        process(state=state, clock=clock, board=board, name=f"p{number}", token=7 if number == leader else None) for number in range(count)
    ]
    await made[0].start()
    for each in made:
        await each.known.start()
    return made


async def exchanged(*processes: Process) -> None:
    """What was observed is taken, and is known to all."""
    for each in processes:
        await each.known.start()
        await each.rollouts.tick()
    for _ in range(2):
        for each in processes:
            assert each.shared is not None
            await each.shared.exchange()


def observe(process: Process, units: range, *, bad: bool = False, stable: bool = False) -> None:
    rollout_id = process.rollout.id
    process.seen += [Observation("r", rollout_id, stable, unit, bad, 0.01) for unit in units]


def faults(process: Process) -> tuple[int, int, int, int]:
    gate = process.rollouts.status(process.rollout).gates[0]
    assert gate.name == FAULTS
    return gate.canary, gate.canary_bad, gate.stable, gate.stable_bad


async def test_what_no_gateway_could_tell_alone_rolls_back() -> None:
    all_of_them = await gateways(4)
    for number, each in enumerate(all_of_them):
        observe(each, range(100 * number, 100 * number + 2), bad=True)
        observe(each, range(100 * number + 50, 100 * number + 90), stable=True)
    for each in all_of_them:
        await each.rollouts.tick()
        assert each.rollout.is_under_way, "by what it has seen itself"
    await exchanged(*all_of_them)
    assert {faults(each) for each in all_of_them} == {(8, 8, 160, 0)}
    await all_of_them[3].rollouts.tick()
    await all_of_them[3].known.start()
    assert (all_of_them[3].rollout.phase, all_of_them[3].rollout.reason) == (
        Phase.ROLLED_BACK,
        "faults: 8 of 8 requests, stable 0 of 160",
    )


async def test_a_step_is_over_by_the_samples_of_all() -> None:
    leader, *others = all_of_them = await gateways(3)
    leader.clock[0] += 60.0
    for number, each in enumerate(others):
        observe(each, range(100 * number, 100 * number + 9))
    await exchanged(*all_of_them)
    status = leader.rollouts.status(leader.rollout)
    assert status.step_samples == 18
    assert status.left_s == pytest.approx(2 * 60.0 / 18)
    observe(others[0], range(300, 302))
    await exchanged(*all_of_them)
    await leader.rollouts.tick()
    await exchanged(*all_of_them)
    assert (leader.rollout.step, leader.rollouts.status(leader.rollout).step_samples) == (1, 0)


async def test_a_caller_who_always_fails_is_one_sample_however_many_gateways_serve_it() -> None:
    all_of_them = await gateways(5)
    for number, each in enumerate(all_of_them):
        observe(each, range(7, 8), bad=True)
        observe(each, range(100 * (1 + number), 100 * (1 + number) + 40), stable=True)
        await exchanged(*all_of_them)
        await each.rollouts.tick()
    assert faults(all_of_them[0])[:2] == (1, 1)
    assert all_of_them[0].rollout.is_under_way


async def test_a_gateway_that_restarts_goes_on_with_what_it_had_found_and_counts_nothing_twice() -> None:
    (one, other) = await gateways(2)
    observe(one, range(3), bad=True)
    observe(one, range(100, 104), stable=True)
    await exchanged(one, other)
    again = process(state=one.state, clock=one.clock, board=one.board, name="p0 again")
    await again.known.start()
    observe(again, range(3), bad=True)  # those callers go on
    observe(again, range(100, 104), stable=True)
    await exchanged(again, other)
    assert faults(again) == faults(other) == (3, 3, 4, 0)
    observe(again, range(3, 5))
    observe(again, range(104, 106), stable=True)
    await exchanged(again, other)
    assert faults(again) == faults(other) == (5, 3, 6, 0)
    assert again.rollouts.status(again.rollout).step_samples == 2, "what has failed says nothing of how slow it is"


async def test_a_new_leader_goes_on_with_the_samples_of_the_one_that_ended() -> None:
    leader, other = await gateways(2)
    leader.clock[0] += 60.0
    observe(leader, range(25))
    assert leader.shared is not None
    await leader.rollouts.tick()
    await leader.shared.exchange()
    del leader
    other.token = 8
    await other.rollouts.tick()
    assert other.rollout.step == 0, "it has not heard of the others' samples yet"
    await exchanged(other)
    await other.rollouts.tick()
    await other.known.start()
    assert other.rollout.step == 1


async def test_sums_that_come_twice_or_out_of_a_backup_count_once_and_as_they_were() -> None:
    one, other = await gateways(2)
    observe(one, range(3), bad=True)
    observe(one, range(100, 104), stable=True)
    await exchanged(one, other)
    rollout_id, board = one.rollout.id, one.board
    assert board is not None
    old = dict(board.sums[rollout_id])
    observe(one, range(3, 4), bad=True)
    observe(one, range(200, 204), stable=True)
    await exchanged(one, other)
    await exchanged(one, other)
    assert faults(other) == (4, 4, 8, 0)
    board.sums[rollout_id] = old
    assert other.shared is not None
    await other.shared.exchange()
    assert faults(other) == (4, 4, 8, 0)


async def test_what_was_found_of_a_rollout_of_before_does_not_count() -> None:
    one, other = await gateways(2)
    board = one.board
    assert board is not None
    observe(one, range(30), bad=True)
    observe(one, range(100, 140), stable=True)
    await exchanged(one, other)
    await one.rollouts.tick()
    await one.known.start()
    assert one.rollout.phase is Phase.ROLLED_BACK
    before = one.rollout.id
    assert faults(one)[:2] == (30, 30), "what was found is shown until the next one begins"
    await one.start()
    await exchanged(one, other)
    assert one.rollout.id != before
    assert faults(one) == faults(other) == (0, 0, 0, 0)
    observe(other, range(1))
    await exchanged(one, other)
    assert board.units[one.rollout.id] == {0}, "units of before may count again"


async def test_while_the_store_is_away_each_rolls_back_by_what_it_has_seen_itself_and_no_step_is_over() -> None:
    one, other = await gateways(2)
    assert one.board is not None
    assert one.shared is not None
    observe(other, range(50))
    await exchanged(one, other)
    one.board.is_away = True
    await one.shared.exchange()
    assert one.shared.findings(one.rollout) is None
    one.clock[0] += 60.0
    observe(one, range(100, 200))
    await one.rollouts.tick()
    assert one.rollout.step == 0, "by its own samples it could be"
    observe(one, range(400, 440), stable=True)
    observe(one, range(300, 330), bad=True)
    await one.rollouts.tick()
    await one.known.start()
    assert one.rollout.phase is Phase.ROLLED_BACK


async def test_a_store_that_says_nothing_is_one_that_is_away() -> None:
    one, other = await gateways(2)
    await exchanged(one, other)
    assert one.shared is not None
    assert one.shared.findings(one.rollout) is not None
    one.clock[0] += FRESH_S + 0.1
    assert one.shared.findings(one.rollout) is None


async def test_after_an_outage_all_add_up_again_and_what_was_seen_in_between_is_no_ones_twice() -> None:
    one, other = await gateways(2)
    assert one.board is not None
    one.board.is_away = True
    observe(one, range(3), bad=True)
    await exchanged(one, other)
    one.board.is_away = False
    observe(one, range(3), bad=True)
    observe(other, range(3), bad=True)
    observe(other, range(100, 104), stable=True)
    await exchanged(other, one)
    assert faults(one) == faults(other) == (3, 3, 4, 0)


async def test_what_is_held_and_what_is_claimed_is_bounded() -> None:
    (one,) = await gateways(1)
    board, shared, rollout_id = one.board, one.shared, one.rollout.id
    assert board is not None
    assert shared is not None
    observe(one, range(MAX_HELD + 100))
    await exchanged(one)
    assert len(board.units[rollout_id]) == MAX_HELD
    board.units[rollout_id] |= set(range(10**6, 10**6 + 2 * UNITS_PER_HALVING))
    observe(one, range(20_000, 20_001))
    await exchanged(one)
    held = len(board.units[rollout_id])
    spread = range(0, 2**64, 2**64 // 400)
    one.seen += [Observation("r", rollout_id, False, digest, False, 0.01) for digest in spread]
    await exchanged(one)
    assert len(board.units[rollout_id]) - held == pytest.approx(100, abs=2)


@pytest.mark.virtual_time
async def test_a_defect_ends_nothing_and_leaves_each_with_its_own_evidence(caplog: pytest.LogCaptureFixture) -> None:
    (one,) = await gateways(1)
    assert one.board is not None
    assert one.shared is not None
    await exchanged(one)
    one.board.sums = None  # type: ignore[assignment]
    running = asyncio.get_running_loop().create_task(one.shared.run())
    await asyncio.sleep(0.9)
    assert caplog.messages == ["the evidence of rollouts is not added up for 5 s"]
    assert one.shared.findings(one.rollout) is None
    one.board.sums = {}
    await asyncio.sleep(6.0)
    assert one.shared.findings(one.rollout) is not None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

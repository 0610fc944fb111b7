from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from control_plane.frontends.common.read_scheduler import MOST_BEGUN, ReadScheduler


@dataclass
class Clock:
    """Clock that advances only while a connection reads."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(eq=False)
class Flooding:
    """Fake connection that reads pieces, each of which takes a fixed time, until its time is over."""

    clock: Clock
    left: int
    takes_s: float = 0.00001
    reads: list[int] = field(default_factory=list)
    """The number of pieces read in each call."""
    is_over: bool = False

    def read_backlog(self, until_s: float) -> bool:
        self.reads.append(0)
        while self.left:
            self.clock.now_s += self.takes_s
            self.left -= 1
            self.reads[-1] += 1
            if self.clock() >= until_s:
                break
        return self.left > 0


async def turns_until(done: Callable[[], bool]) -> int:
    turns = 0
    while not done():
        await asyncio.sleep(0)
        turns += 1
        assert turns < 100_000
    return turns


async def test_one_that_is_behind_reads_a_little_in_each_turn_until_it_is_done() -> None:
    clock = Clock()
    scheduler, flooding = ReadScheduler(clock), Flooding(clock, left=1_000)
    scheduler.add(flooding)
    await turns_until(lambda: flooding.left == 0)
    assert max(flooding.reads) <= 21
    assert len(flooding.reads) >= 1_000 / 21
    await turns_until(lambda: not scheduler._is_running)
    scheduler.add(flooding)
    await turns_until(lambda: not scheduler._is_running)
    assert flooding.reads[-1] == 0


@pytest.mark.parametrize("takes_s", [pytest.param(0.00001, id="little"), pytest.param(0.01, id="long")])
@pytest.mark.parametrize("count", [2, 10, 16, 50, 500])
async def test_many_share_the_time_that_one_would_get(count: int, takes_s: float) -> None:
    clock = Clock()
    scheduler = ReadScheduler(clock)
    flooding = [Flooding(clock, left=40, takes_s=takes_s) for _ in range(count)]
    for each in flooding:
        scheduler.add(each)
    for _ in range(100_000):
        before = sum(sum(each.reads) for each in flooding)
        await asyncio.sleep(0)
        assert sum(sum(each.reads) for each in flooding) - before <= 21
        spread = [each.left for each in flooding]
        if not any(spread):
            break
        assert count > 16 or max(spread) - min(spread) <= 21
    assert not any(each.left for each in flooding)


async def test_they_take_turns() -> None:
    clock = Clock()
    scheduler, order = ReadScheduler(clock), list[int]()

    class Told(Flooding):
        def read_backlog(self, until_s: float) -> bool:
            order.append(flooding.index(self))
            return super().read_backlog(until_s)

    flooding = [Told(clock, left=3, takes_s=1.0) for _ in range(40)]
    for each in (*flooding, *flooding):
        scheduler.add(each)
    await turns_until(lambda: not any(each.left for each in flooding))
    assert order == list(range(40)) * 3


async def test_one_that_has_closed_reads_no_more_even_if_another_closes_it() -> None:
    clock = Clock()
    scheduler = ReadScheduler(clock)

    class Closing(Flooding):
        def read_backlog(self, until_s: float) -> bool:
            scheduler.remove(others[0])
            return super().read_backlog(until_s)

    others = [Flooding(clock, left=5)]
    first = Closing(clock, left=5)
    scheduler.add(first)
    scheduler.add(others[0])
    await turns_until(lambda: first.left == 0)
    scheduler.remove(first)
    await asyncio.sleep(0)
    assert others[0].left == 5


async def test_whoever_comes_meanwhile_gets_its_turn_of_the_loop() -> None:
    clock = Clock()
    scheduler, flooding = ReadScheduler(clock), Flooding(clock, left=100_000)
    scheduler.add(flooding)
    for _ in range(50):
        before = sum(flooding.reads)
        await asyncio.sleep(0)
        assert sum(flooding.reads) - before <= 21
    assert flooding.left > 90_000
    scheduler.remove(flooding)


async def _read_in_a_turn(kept_up: Flooding | None) -> int:
    """The pieces that a flood of 1,000 reads in each turn while that connection keeps up."""
    clock = Clock()
    scheduler, flooding = ReadScheduler(clock), Flooding(clock, left=1_000)
    scheduler.add(flooding)
    while flooding.left:
        scheduler.kept_up = kept_up or flooding
        await asyncio.sleep(0)
    return max(flooding.reads)


async def test_while_others_keep_up_one_that_is_behind_reads_less() -> None:
    assert await _read_in_a_turn(Flooding(Clock(), left=0)) <= 6
    assert await _read_in_a_turn(None) >= 20


async def test_while_others_keep_up_many_that_are_behind_read_no_more_than_one_and_none_starves() -> None:
    """Each of them took at least as long as it takes to look at the clock."""
    clock = Clock()
    scheduler, other = ReadScheduler(clock), Flooding(clock, left=0)
    flooding = [Flooding(clock, left=40, takes_s=0.00005) for _ in range(50)]
    for each in flooding:
        scheduler.add(each)
    while any(each.left for each in flooding):
        scheduler.kept_up, before = other, sum(each.left for each in flooding)
        await asyncio.sleep(0)
        assert before - sum(each.left for each in flooding) <= 1
        assert max(each.left for each in flooding) - min(each.left for each in flooding) <= 1


async def _turns_of_reading(turns: int, *, turn_s: float = 0.0, keeps_up: bool = True) -> list[int]:
    """The turns, of so many that take so long by the work of others, in which a flood reads."""
    clock = Clock()
    scheduler, flooding, read_in = ReadScheduler(clock), Flooding(clock, left=1_000_000), list[int]()
    scheduler.add(flooding)
    for turn in range(turns):
        if keeps_up:
            scheduler.kept_up = Flooding(clock, left=0)
        before = len(flooding.reads)
        await asyncio.sleep(0)
        clock.now_s += turn_s
        if len(flooding.reads) > before:
            read_in.append(turn)
    scheduler.remove(flooding)
    return read_in


async def test_while_others_keep_up_most_turns_are_theirs_alone() -> None:
    assert await _turns_of_reading(12) == [0, 4, 8]
    assert await _turns_of_reading(12, keeps_up=False) == list(range(12))


async def test_where_turns_are_long_those_that_are_behind_do_not_wait_for_several() -> None:
    assert await _turns_of_reading(6, turn_s=0.0004) == [0, 3]
    assert await _turns_of_reading(6, turn_s=0.002) == list(range(6))


@dataclass(eq=False)
class Large:
    """Fake connection that has paused after a large read, and does so after each."""

    scheduler: ReadScheduler
    read: list[Large]
    left: int = 3

    def read_socket(self) -> None:
        self.read.append(self)
        self.left -= 1
        if self.left:
            self.scheduler.put_off(self)


async def test_of_sockets_that_have_large_bodies_one_is_read_in_a_turn_and_each_in_its_turn() -> None:
    scheduler, read = ReadScheduler(Clock()), list[Large]()
    large = [Large(scheduler, read) for _ in range(5)]
    gone = Large(scheduler, read)
    for each in (*large, gone, *large):
        scheduler.put_off(each)
    scheduler.remove(gone)
    for turn in range(15):
        assert len(read) == turn
        await asyncio.sleep(0)
    assert read == large * 3
    await asyncio.sleep(0)
    assert not scheduler._is_running


async def test_where_turns_are_long_a_few_such_sockets_are_read_in_one() -> None:
    clock = Clock()
    scheduler, read = ReadScheduler(clock), list[Large]()
    for each in [Large(scheduler, read) for _ in range(10)]:
        scheduler.put_off(each)
    for turn in range(3):
        assert len(read) == 4 * turn
        clock.now_s += 0.002
        await asyncio.sleep(0)


async def test_a_while_after_the_others_it_reads_as_much_as_before_and_none_is_kept_alive() -> None:
    clock = Clock()
    scheduler, flooding, other = ReadScheduler(clock), Flooding(clock, left=40_000), Flooding(clock, left=0)
    scheduler.kept_up = other
    scheduler.add(flooding)
    await turns_until(lambda: flooding.left == 0)
    assert max(flooding.reads[:100]) <= 6
    assert max(flooding.reads) >= 20
    assert scheduler.kept_up is None
    scheduler.kept_up = other
    scheduler.remove(other)
    assert scheduler.kept_up is None


@dataclass(eq=False)
class Request:
    """Fake request that notes when it begins."""

    begun: list[Request]

    def begin(self) -> None:
        self.begun.append(self)


async def test_a_few_requests_begin_at_once_and_the_rest_of_many_in_the_turns_after_it_in_their_order() -> None:
    scheduler, begun = ReadScheduler(Clock()), list[Request]()
    requests = [Request(begun) for _ in range(2 * MOST_BEGUN + 5)]
    for each in requests:
        scheduler.begin(each)
    assert begun == requests[:MOST_BEGUN]
    for count in (2 * MOST_BEGUN, len(requests)):
        await asyncio.sleep(0)
        assert begun == requests[:count]
    scheduler.begin(late := Request(begun))
    assert begun[-1] is late


async def test_after_a_long_turn_more_begin_so_that_a_process_that_is_not_run_keeps_up() -> None:
    clock = Clock()
    scheduler, begun = ReadScheduler(clock), list[Request]()
    for _ in range(500):
        scheduler.begin(Request(begun))
    for _ in range(3):
        clock.now_s += 0.0101
        before = len(begun)
        await asyncio.sleep(0)
        assert len(begun) - before == MOST_BEGUN + 40
    before = len(begun)
    await asyncio.sleep(0)
    assert len(begun) - before == MOST_BEGUN


async def test_after_a_turn_without_requests_as_many_begin_at_once() -> None:
    scheduler, begun = ReadScheduler(Clock()), list[Request]()
    for _ in range(3):
        before = len(begun)
        for _ in range(MOST_BEGUN):
            scheduler.begin(Request(begun))
        assert len(begun) - before == MOST_BEGUN
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_none_that_waits_is_passed() -> None:
    scheduler, begun = ReadScheduler(Clock()), list[Request]()
    requests = [Request(begun) for _ in range(2 * MOST_BEGUN + 5)]
    for each in requests[: 2 * MOST_BEGUN]:
        scheduler.begin(each)
    await asyncio.sleep(0)
    for each in requests[2 * MOST_BEGUN :]:
        scheduler.begin(each)
    assert begun == requests[: 2 * MOST_BEGUN]
    await asyncio.sleep(0)
    assert begun == requests


@pytest.mark.parametrize(
    ("came", "begins", "read"),
    [
        pytest.param(9, True, 9, id="few"),
        pytest.param(500, True, MOST_BEGUN + 20, id="more than begin in a turn"),
        pytest.param(9, False, 36, id="what does not begin costs little"),
    ],
)
async def test_where_turns_are_long_those_that_are_behind_read_as_many_requests_as_come_from_others(
    came: int, begins: bool, read: int
) -> None:
    clock = Clock()
    scheduler, begun = ReadScheduler(clock), list[Request]()

    class Beginning(Flooding):
        def read_backlog(self, until_s: float) -> bool:
            if begins:
                scheduler.begin(Request(begun))
            return super().read_backlog(until_s)

    flooding = [Beginning(clock, left=500, takes_s=0.0), Beginning(clock, left=500, takes_s=0.0)]
    for each in flooding:
        scheduler.add(each)
    for turn in range(4):
        before = sum(each.left for each in flooding)
        scheduler.kept_up = Flooding(clock, left=0)
        for _ in range(came):
            scheduler.begin(Request(begun))
        clock.now_s += 0.00501
        await asyncio.sleep(0)
        assert before - sum(each.left for each in flooding) == read or turn == 0
        assert abs(flooding[0].left - flooding[1].left) <= 1
    for each in flooding:
        scheduler.remove(each)


@pytest.mark.parametrize(("took_s", "reads_s"), [(0.00801, 0.002), (0.1, 0.005)])
async def test_where_turns_are_long_reading_takes_a_part_of_one_however_little_begins(took_s: float, reads_s: float) -> None:
    clock = Clock()
    scheduler = ReadScheduler(clock)
    flooding = Flooding(clock, left=500, takes_s=0.0005)
    scheduler.add(flooding)
    for turn in range(3):
        before = flooding.left
        scheduler.kept_up = Flooding(clock, left=0)
        for _ in range(20):
            scheduler.begin(Request([]))
        clock.now_s += took_s
        await asyncio.sleep(0)
        assert (before - flooding.left) * 0.0005 == pytest.approx(reads_s, abs=0.0006) or turn == 0
    scheduler.remove(flooding)


async def test_where_turns_are_long_one_client_that_has_left_has_its_calls_cancelled_in_each() -> None:
    clock = Clock()
    scheduler = ReadScheduler(clock)
    ended = [Flooding(clock, left=50, takes_s=0.0, is_over=True) for _ in range(9)]
    behind = Flooding(clock, left=500, takes_s=0.0)
    for each in (*ended, behind):
        scheduler.add(each)
    for turn in range(3):
        before, read = sum(each.left for each in ended), behind.left
        scheduler.kept_up = Flooding(clock, left=0)
        for _ in range(20):
            scheduler.begin(Request([]))
        clock.now_s += 0.01
        await asyncio.sleep(0)
        assert turn == 0 or (before - sum(each.left for each in ended), behind.left < read) == (1, True)
    for each in (*ended, behind):
        scheduler.remove(each)


async def test_whether_a_request_has_begun_is_told() -> None:
    scheduler = ReadScheduler(Clock())
    assert all(scheduler.begin(Request([])) for _ in range(MOST_BEGUN))
    assert not scheduler.begin(Request([]))

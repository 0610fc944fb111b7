"""What a dispatcher is told of the end of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from control_plane.core.errors import DeadlineExceeded, QueryOfDeath, UpstreamFailed, UpstreamUnavailable
from control_plane.inference.dispatch.held_stream import HeldStream
from control_plane.inference.domain.queries_of_death import REMEMBERED_S
from control_plane.inference.retries.faults import Fault
from control_plane.inference.retries.queries_of_death import QueriesOfDeath
from tests.fakes import FakeHttpStream
from tests.unit.fleet.fleet_bench import call
from tests.unit.fleet.routing.dispatch_bench import Request

pytestmark = pytest.mark.virtual_time

EVENT = (
    b"data: {\"error\":\"Failed to process the request(s) for model instance 'a_0_0', message: Stub process 'a_0_0' is not healthy.\"}\n\n"
)
OWN_EVENT = b'data: {"error":"the prompt is too long"}\n\n'


@dataclass
class Ending:
    """Port to a dispatcher that remembers what it is told."""

    dies: bool = True
    failed: list[Fault] = field(default_factory=list)
    ends: list[Fault | None] = field(default_factory=list)

    async def is_death(self, fault: Fault, came: Exception | bytes) -> bool:
        self.failed.append(fault)
        return self.dies

    def closed(self, fault: Fault | None) -> None:
        self.ends.append(fault)


def hold(stream: FakeHttpStream, ending: Ending, deaths: QueriesOfDeath | None = None) -> HeldStream:
    deaths = deaths or QueriesOfDeath(now_s=asyncio.get_running_loop().time)
    return HeldStream(stream, deaths.stream_begins(Request(text="poison"), call("a"), "s0", None), ending)


async def read(held: HeldStream) -> list[bytes]:
    pieces = []
    try:
        while (piece := await held.receive()) is not None:
            pieces.append(piece)
    finally:
        held.close()
        held.close()
    return pieces


@pytest.mark.parametrize(
    ("pieces", "fault"),
    [
        ((b"x", b"y", None), None),
        ((b"x", OWN_EVENT, None), None),
        ((b"x", UpstreamUnavailable("Triton closed the connection")), Fault.CONNECTION_LOST),
        ((b"x", UpstreamFailed("Stub process 'a_0_0' is not healthy.")), Fault.DEAD_STUB),
        ((b"x", UpstreamFailed("the prompt is too long")), Fault.OTHER),
    ],
)
async def test_its_end_is_told_once(pieces: tuple[bytes | None], fault: Fault | None) -> None:
    ending, stream = Ending(dies=False), FakeHttpStream().put(*pieces)
    with suppress(UpstreamUnavailable, UpstreamFailed):
        assert await read(hold(stream, ending)) == list(pieces[:-1])
    assert stream.closed.is_set()
    assert ending.ends == [fault]
    assert ending.failed == ([] if fault is None else [fault])


async def test_an_event_that_says_that_the_stub_has_died_is_a_fault_and_is_sent_on() -> None:
    ending = Ending(dies=False)
    assert await read(hold(FakeHttpStream().put(b"x", EVENT, None), ending)) == [b"x", EVENT]
    assert ending.failed == [Fault.DEAD_STUB]


@pytest.mark.parametrize(("waits_s", "fault"), [(0.2, Fault.CANCELLED), (3.0, Fault.TIMED_OUT)])
async def test_who_leaves_has_given_the_model_up_only_if_he_has_waited_in_vain(waits_s: float, fault: Fault) -> None:
    ending, stream = Ending(), FakeHttpStream().put(b"x")
    stream.heard_s = asyncio.get_running_loop().time()
    with suppress(TimeoutError):
        async with asyncio.timeout(waits_s):
            await read(hold(stream, ending))
    assert ending.ends == [fault]


@pytest.mark.parametrize(("heard", "fault"), [(lambda now_s: now_s, Fault.CANCELLED), (lambda now_s: now_s - 9.0, Fault.TIMED_OUT)])
async def test_a_deadline_that_passes_while_something_comes_says_nothing_of_the_model(
    heard: Callable[[float], float], fault: Fault
) -> None:
    ending, stream = Ending(), FakeHttpStream()
    held, now_s = hold(stream, ending), asyncio.get_running_loop().time

    async def late() -> None:
        await asyncio.sleep(10.0)
        stream.heard_s = heard(now_s())
        stream.put(DeadlineExceeded("late"))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(late())
        with pytest.raises(DeadlineExceeded):
            await read(held)
    assert ending.ends == [fault]
    assert not ending.failed


async def test_who_leaves_between_two_pieces_has_not_failed() -> None:
    ending, stream = Ending(), FakeHttpStream().put(b"x")
    held = hold(stream, ending)
    await held.receive()
    held.close()
    assert ending.ends == [Fault.CANCELLED]


async def test_the_request_is_suspect_after_a_death_and_guilty_after_another() -> None:
    deaths = QueriesOfDeath(now_s=asyncio.get_running_loop().time)
    with pytest.raises(UpstreamUnavailable):
        await read(hold(FakeHttpStream().put(UpstreamUnavailable("closed")), Ending(), deaths))
    assert deaths.watches("a")
    request = Request(text="poison")
    async with deaths.turn(request, call("a"), timeout_s=1.0) as suspect:
        held = HeldStream(FakeHttpStream().put(EVENT), deaths.stream_begins(request, call("a"), "s1", suspect), Ending())
    with pytest.raises(QueryOfDeath, match=r"2 processes died under it \(servers s0, s1"):
        await read(held)
    with pytest.raises(QueryOfDeath):
        async with deaths.turn(request, call("a"), timeout_s=1.0):
            pass


async def test_a_suspect_keeps_its_turn_until_its_end_or_for_two_seconds_which_clear_it() -> None:
    now_s = asyncio.get_running_loop().time
    deaths = QueriesOfDeath(now_s=now_s)
    prompts = [Request(text=text) for text in ("long", "left", "short", "last")]
    for prompt in prompts:
        await deaths.died(prompt, call("a"), "s0", suspect=None, is_stub=True)

    async def begin(request: Request, *pieces: bytes | None) -> HeldStream:
        async with deaths.turn(request, call("a"), timeout_s=30.0) as suspect:
            return HeldStream(FakeHttpStream().put(*pieces), deaths.stream_begins(request, call("a"), "s0", suspect), Ending())

    async def is_suspect(request: Request) -> bool:
        async with deaths.turn(request, call("a"), timeout_s=5.0) as suspect:
            return suspect is not None

    began_s = now_s()
    await begin(prompts[0], b"x")
    left = await begin(prompts[1], b"x")
    assert now_s() - began_s == pytest.approx(2.0)
    left.close()
    assert await read(await begin(prompts[2], b"x", None)) == [b"x"]
    await begin(prompts[3], b"x")
    assert now_s() - began_s == pytest.approx(2.0)
    assert [await is_suspect(each) for each in prompts[:3]] == [False, True, False], "who leaves before the end clears nothing"


async def test_who_waits_for_a_turn_goes_on_once_he_is_suspect_no_more() -> None:
    now_s = asyncio.get_running_loop().time
    deaths = QueriesOfDeath(now_s=now_s)
    slow, other = Request(text="slow"), Request(text="other")
    for each in (slow, other):
        await deaths.died(each, call("a"), "s0", suspect=None, is_stub=True)
    async with deaths.turn(slow, call("a"), timeout_s=1000.0):
        with pytest.raises(DeadlineExceeded, match="its turn did not come in time"):
            async with deaths.turn(other, call("a"), timeout_s=10.0):
                pass
        async with deaths.turn(other, call("a"), timeout_s=1000.0) as suspect:
            assert suspect is None
            assert now_s() == pytest.approx(REMEMBERED_S, abs=0.1)


async def test_a_stream_that_has_lived_for_longer_is_not_what_its_process_died_of() -> None:
    deaths = QueriesOfDeath(now_s=asyncio.get_running_loop().time)
    stream = FakeHttpStream()
    held = hold(stream, Ending(), deaths)
    await asyncio.sleep(2.1)
    stream.put(UpstreamUnavailable("closed"))
    with pytest.raises(UpstreamUnavailable):
        await read(held)
    assert not deaths.watches("a")


async def test_a_guilty_one_stays_so_when_its_turn_would_have_ended() -> None:
    deaths, request = QueriesOfDeath(now_s=asyncio.get_running_loop().time), Request(text="poison")
    await deaths.died(request, call("a"), "s0", suspect=None, is_stub=True)
    async with deaths.turn(request, call("a"), timeout_s=1.0) as suspect:
        held = HeldStream(FakeHttpStream().put(EVENT), deaths.stream_begins(request, call("a"), "s1", suspect), Ending())
    with pytest.raises(QueryOfDeath):
        await read(held)
    await asyncio.sleep(5.0)
    with pytest.raises(QueryOfDeath):
        async with deaths.turn(request, call("a"), timeout_s=1.0):
            pass

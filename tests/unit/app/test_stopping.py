from __future__ import annotations

import asyncio
import signal
from contextlib import suppress

import pytest

from control_plane.app.stopping import DrainOrder, StopSignals, drain_until, stop_serving
from control_plane.core.errors import StartupError

pytestmark = pytest.mark.virtual_time


class Ports:
    """Fake data ports with a request in flight that ends at `ends_s`; they note what is done when."""

    def __init__(self, ends_s: float = 0.0) -> None:
        self.done: list[tuple[str, float]] = []
        self._ends_s = ends_s
        self._cut = asyncio.Event()

    def announce_drain(self) -> None:
        self._note("announced")

    async def drain(self, timeout_s: float) -> None:
        if not timeout_s:
            self._cut.set()
        else:
            self._note("draining")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._cut.wait(), min(timeout_s, max(0.0, self._ends_s - now_s())))
            self._note("drained")

    def _note(self, what: str) -> None:
        self.done.append((what, now_s()))


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def stopped(ports: Ports, *told: tuple[int, float]) -> list[tuple[str, float]]:
    """What is done when these signals come at these times, with a pause of 5 s and a drain of 30 s."""
    signals = StopSignals()
    for number, at_s in told:
        asyncio.get_running_loop().call_at(at_s, signals.receive, number)
    await signals.wait()
    await stop_serving(ports, signals, pause_s=5.0, drain_s=30.0)
    return ports.done


async def test_readiness_says_no_a_pause_before_the_drain() -> None:
    done = await stopped(Ports(ends_s=12.0), (signal.SIGTERM, 1.0))
    assert done == [("announced", 1.0), ("draining", 6.0), ("drained", 12.0)]


async def test_requests_get_no_longer_than_the_drain() -> None:
    done = await stopped(Ports(ends_s=1000.0), (signal.SIGTERM, 1.0))
    assert done[-1] == ("drained", 36.0)


async def test_a_terminal_is_not_kept_waiting() -> None:
    done = await stopped(Ports(ends_s=3.0), (signal.SIGINT, 1.0))
    assert done == [("announced", 1.0), ("draining", 1.0), ("drained", 3.0)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_the_pause_and_the_drain(number: int) -> None:
    done = await stopped(Ports(ends_s=1000.0), (signal.SIGTERM, 1.0), (number, 3.0), (number, 4.0))
    assert done == [("announced", 1.0), ("draining", 3.0), ("drained", 3.0)]


async def test_a_second_signal_within_the_drain_cuts_it_short() -> None:
    done = await stopped(Ports(ends_s=1000.0), (signal.SIGTERM, 1.0), (signal.SIGINT, 20.0))
    assert done == [("announced", 1.0), ("draining", 6.0), ("drained", 20.0)]


async def test_a_drain_that_nobody_cuts_short_leaves_nothing_behind() -> None:
    ports = Ports(ends_s=2.0)
    await drain_until(ports, 30.0, asyncio.Event())
    assert ports.done == [("draining", 0.0), ("drained", 2.0)]


async def test_what_a_start_waits_for_is_given_up_at_a_signal() -> None:
    signals = StopSignals()
    assert await signals.finishes_first(asyncio.sleep(5.0))
    asyncio.get_running_loop().call_later(2.0, signals.receive, signal.SIGTERM)
    assert not await signals.finishes_first(asyncio.sleep(50.0))
    assert asyncio.get_running_loop().time() == 7.0


async def test_what_fails_meanwhile_is_said() -> None:
    async def fail() -> None:
        raise StartupError("why")

    with pytest.raises(ExceptionGroup) as caught:
        await StopSignals().finishes_first(fail())
    assert caught.group_contains(StartupError, match="why")


async def test_signals_of_the_process_are_followed() -> None:
    signals = StopSignals()
    signals.follow()
    try:
        signal.raise_signal(signal.SIGINT)
        await signals.wait()
        assert (signals.is_interactive, signals.second.is_set()) == (True, False)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)


@pytest.mark.parametrize(
    ("later", "drained_s"),
    [
        pytest.param((), 40.0, id="none"),
        pytest.param((2.0, 30.0), 40.0, id="one that gives no less time"),
        pytest.param((2.0, 5.0), 17.0, id="one that gives less"),
        pytest.param((2.0, 0.0), 12.0, id="one that gives none"),
    ],
)
async def test_a_second_order_only_shortens_a_drain(later: tuple[float, ...], drained_s: float) -> None:
    """A worker that was frozen drains already when its parent stops, and one that gets the parent's signal, too."""
    order, ports, loop = DrainOrder(), Ports(ends_s=1000.0), asyncio.get_running_loop()
    loop.call_at(10.0, order.give, 30.0)
    if later:
        after_s, timeout_s = later
        loop.call_at(10.0 + after_s, order.give, timeout_s)
    await order.carry_out(ports)
    assert ports.done == [("draining", 10.0), ("drained", drained_s)]

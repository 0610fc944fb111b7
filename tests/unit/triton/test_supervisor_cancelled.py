"""The supervisor cancelled at each of its steps: Triton has ended in its time, and nothing is left."""

from __future__ import annotations

import asyncio
import logging

import pytest

from control_plane.core.errors import UpstreamUnavailable
from control_plane.triton.ports import Upstream
from control_plane.triton.supervisor import CLOSE_TIMEOUT_S, STOP_GRACE_S
from tests.unit.triton.supervisor_lab import ORDERLY_END, SOURCE, Lab, cancelled_after, run


def test_cancelled_while_it_is_started() -> None:
    async def scenario() -> None:
        lab = Lab()
        lab.start_takes_s = 5.0
        assert await cancelled_after(lab, lambda: asyncio.sleep(1.0)) == pytest.approx(0.0)
        assert lab.events == []

    run(scenario)


@pytest.mark.parametrize("after_s", [0.5, 1.2], ids=["while it is not live", "while models are loaded"])
def test_cancelled_before_it_is_up(after_s: float) -> None:
    async def scenario() -> None:
        lab = Lab()
        await cancelled_after(lab, lambda: asyncio.sleep(after_s))
        assert lab.events == ["started", *ORDERLY_END]

    run(scenario)


def test_cancelled_between_two_lives() -> None:
    async def scenario() -> None:
        lab = Lab()

        async def ended() -> None:
            await lab.until("up")
            lab.lives[-1].end("ended")
            await lab.until("gone")
            await asyncio.sleep(0.05)

        assert await cancelled_after(lab, ended) == pytest.approx(0.0)
        assert lab.events[-1] == "gone"
        assert len(lab.lives) == 1

    run(scenario)


async def _break(upstream: Upstream) -> None:
    raise UpstreamUnavailable("connection reset")


@pytest.mark.parametrize("cause", ["not live", "not restored"])
def test_cancelled_while_an_end_is_tidied_up_sees_that_through(cause: str) -> None:
    async def scenario() -> None:
        lab = Lab()
        lab.stop_takes_s = 2.0
        if cause == "not live":
            lab.live_after_s = 11.0
        else:
            lab.restore = _break

        async def stopping() -> None:
            await lab.until("stop within 4 s")
            await asyncio.sleep(1.0)

        await cancelled_after(lab, stopping)
        assert lab.events[-1] == "gone"

    run(scenario)


def test_cancelled_while_connections_close_still_ends_triton() -> None:
    async def scenario() -> None:
        lab = Lab()
        lab.close_takes_s = 0.8

        async def closing() -> None:
            await lab.until("up")
            lab.lives[-1].end("ended")
            await asyncio.sleep(0.5)

        await cancelled_after(lab, closing)
        assert "closed" not in lab.events
        assert lab.events[-1] == "gone"

    run(scenario)


def test_the_end_takes_no_longer_than_its_budget(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        lab = Lab()
        lab.close_takes_s, lab.stop_takes_s = 100.0, STOP_GRACE_S
        with caplog.at_level(logging.WARNING, logger=SOURCE):
            took_s = await cancelled_after(lab, lambda: lab.until("up"))
        assert took_s <= 5.0 + 0.01
        assert lab.events[-2:] == ["stop within 4 s", "gone"]
        assert f"did not close within {CLOSE_TIMEOUT_S} s" in caplog.text

    run(scenario)

"""A Triton that is there and says nothing: one that pauses is kept, one that hangs is replaced."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.unit.triton.supervisor_lab import ORDERLY_END, SOURCE, Lab, cancelled_after, now_s, run

BOUND_S = 30.0
LIFE = ["started", "restored", "up"]
LOST = "lost: Triton has said nothing for 30 s (TIDEGATE_SILENCE_TIMEOUT_S) and is being restarted"
STOP = ["stop within 4 s", "gone"]


def test_one_that_hangs_is_ended_and_another_one_started(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        lab = Lab()
        lab.silence_timeout_s = BOUND_S

        async def hang() -> None:
            await lab.until("up")
            hung_s, lab.is_frozen = now_s(), True
            await lab.until("gone")
            assert BOUND_S <= now_s() - hung_s <= BOUND_S + 2.0
            lab.is_frozen = False
            await lab.until("up", times=2)

        with caplog.at_level(logging.ERROR, logger=SOURCE):
            await cancelled_after(lab, hang)
        assert lab.events == [*LIFE, "silent", LOST, "closed", *STOP, *STOP, *LIFE, *ORDERLY_END]
        assert "Triton is restarted in 0.2 s: Triton has said nothing for 30 s (TIDEGATE_SILENCE_TIMEOUT_S); Triton ended" in caplog.text
        assert "last line" in caplog.text

    run(scenario)


@pytest.mark.parametrize("pause_s", [5.0, BOUND_S - 2.0])
def test_one_that_pauses_is_kept_however_often(pause_s: float) -> None:
    async def scenario() -> None:
        lab = Lab()
        lab.silence_timeout_s = BOUND_S

        async def pause_and_go_on() -> None:
            await lab.until("up")
            for times in range(1, 11):
                lab.is_frozen = True
                await asyncio.sleep(pause_s)
                lab.is_frozen = False
                await lab.until("heard", times=times)

        await cancelled_after(lab, pause_and_go_on)
        assert lab.events == [*LIFE, *["silent", "heard"] * 10, *ORDERLY_END]

    run(scenario)


def test_one_that_takes_long_to_load_its_models_is_left_to_it() -> None:
    async def scenario() -> None:
        lab = Lab()
        lab.silence_timeout_s, lab.restore_takes_s = BOUND_S, 600.0
        await cancelled_after(lab, lambda: lab.until("up"))
        assert lab.events == [*LIFE, *ORDERLY_END]

    run(scenario)


def test_one_that_hangs_while_it_loads_its_models_is_replaced_too() -> None:
    async def scenario() -> None:
        lab = Lab()
        lab.silence_timeout_s, lab.restore_takes_s = BOUND_S, 600.0

        async def hang() -> None:
            await lab.until("started")
            await asyncio.sleep(5.0)
            lab.is_frozen = True
            await lab.until("gone")
            assert now_s() <= BOUND_S + 10.0
            lab.is_frozen, lab.restore_takes_s = False, 0.5
            await lab.until("up")

        await cancelled_after(lab, hang)
        assert len(lab.lives) == 2

    run(scenario)


def test_one_that_always_hangs_is_replaced_with_growing_delays() -> None:
    async def scenario() -> None:
        lab = Lab()
        lab.silence_timeout_s = BOUND_S
        lab.is_frozen = True
        lab.live_after_s = lab.restore_takes_s = 0.0
        await cancelled_after(lab, lambda: lab.until("up", times=6))
        lives_s = [later - earlier for earlier, later in zip(lab.started_s, lab.started_s[1:], strict=False)]
        assert lives_s == sorted(lives_s)
        assert lives_s[-1] - lives_s[0] == pytest.approx(3.0, abs=0.3)

    run(scenario)


def test_one_that_others_run_is_never_given_up() -> None:
    async def scenario() -> None:
        lab = Lab()

        async def freeze() -> None:
            await lab.until("up")
            lab.is_frozen = True
            await asyncio.sleep(20 * BOUND_S)

        await cancelled_after(lab, freeze)
        assert lab.events == [*LIFE, "silent", *ORDERLY_END]

    run(scenario)

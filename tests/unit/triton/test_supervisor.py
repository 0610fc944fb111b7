from __future__ import annotations

import asyncio
import logging
from math import inf

import pytest

from control_plane.core.errors import StartupError, UpstreamUnavailable
from control_plane.triton.http_opening import OPENS_WITHIN_S
from control_plane.triton.ports import Upstream
from tests.unit.triton.supervisor_lab import (
    LOST,
    ORDERLY_END,
    RESTARTING,
    SOURCE,
    Lab,
    cancelled_after,
    now_s,
    run,
)


def test_start_live_restore_up_and_an_orderly_end() -> None:
    async def scenario() -> None:
        lab = Lab()
        await cancelled_after(lab, lambda: lab.until("up"))
        assert lab.events == ["started", "restored", "up", *ORDERLY_END]

    run(scenario)


def test_a_freeze_is_noticed_and_its_end_too_and_the_process_stays() -> None:
    async def scenario() -> None:
        lab = Lab()

        async def freeze_and_thaw() -> None:
            await lab.until("up")
            frozen_s, lab.is_frozen = now_s(), True
            await lab.until("silent")
            assert now_s() - frozen_s <= 0.8
            await asyncio.sleep(600.0)
            thawed_s, lab.is_frozen = now_s(), False
            await lab.until("heard")
            assert now_s() - thawed_s <= 1.5

        await cancelled_after(lab, freeze_and_thaw)
        assert lab.events == ["started", "restored", "up", "silent", "heard", *ORDERLY_END]

    run(scenario)


def test_one_that_ends_while_it_is_silent_is_restarted() -> None:
    async def scenario() -> None:
        lab = Lab()

        async def freeze_and_end() -> None:
            await lab.until("up")
            lab.is_frozen = True
            await lab.until("silent")
            lab.lives[0].end("ended")
            await lab.until("up", times=2)

        await cancelled_after(lab, freeze_and_end)
        assert lab.events[3:8] == ["silent", LOST, "closed", "stop within 4 s", "gone"]

    run(scenario)


def test_it_is_not_up_before_it_is_live_and_restored() -> None:
    async def scenario() -> None:
        lab = Lab()
        lab.live_after_s, lab.restore_takes_s = 3.0, 2.0
        await cancelled_after(lab, lambda: lab.until("up"))
        assert 5.0 <= now_s() < 5.2

    run(scenario)


@pytest.mark.parametrize(("opens_after_s", "is_up_after_s"), [(0.4, 1.9), (inf, 1.5 + OPENS_WITHIN_S)], ids=["later", "never"])
def test_http_that_opens_after_grpc_is_waited_for_for_a_while(opens_after_s: float, is_up_after_s: float) -> None:
    async def scenario() -> None:
        lab = Lab()
        lab.http_opens_after_s = opens_after_s
        await cancelled_after(lab, lambda: lab.until("up"))
        assert is_up_after_s <= now_s() < is_up_after_s + 0.3

    run(scenario)


def test_an_end_is_reported_logged_with_its_log_and_followed_by_another_life(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        lab = Lab()

        async def one_life_and_a_second() -> None:
            await lab.until("up")
            lab.lives[0].end("Triton was killed by SIGSEGV; the end of the log:\nlast line")
            await lab.until("up", times=2)

        with caplog.at_level(logging.ERROR, logger=SOURCE):
            await cancelled_after(lab, one_life_and_a_second)
        life = ["started", "restored", "up"]
        lost = "lost: Triton was killed by SIGSEGV and is being restarted"
        assert lab.events == [*life, lost, "closed", "stop within 4 s", "gone", *life, *ORDERLY_END]
        assert "killed by SIGSEGV; the end of the log:\nlast line" in caplog.text
        assert "last line" not in "".join(lab.events)

    run(scenario)


def test_short_lives_are_followed_by_growing_delays_and_a_long_one_resets_them() -> None:
    async def scenario() -> None:
        lab = Lab()
        lab.live_after_s = lab.restore_takes_s = 0.0
        ended_s: list[float] = []

        async def lives_of(*lengths_s: float) -> None:
            for number, length_s in enumerate(lengths_s, 1):
                await lab.until("up", times=number)
                await asyncio.sleep(length_s)
                ended_s.append(now_s())
                lab.lives[-1].end("ended")
            await lab.until("up", times=len(lengths_s) + 1)

        await cancelled_after(lab, lambda: lives_of(1, 1, 1, 100, 1))
        delays_s = [started_s - ended for ended, started_s in zip(ended_s, lab.started_s[1:], strict=True)]
        assert delays_s == pytest.approx([0.2, 0.4, 0.8, 0.2, 0.4], abs=0.05)

    run(scenario)


def test_deaths_of_a_known_cause_do_not_count_as_long_as_they_are_few() -> None:
    async def scenario() -> None:
        lab = Lab()
        lab.live_after_s = lab.restore_takes_s = 0.0
        supervisor = lab.supervisor()
        lab.supervisor = lambda: supervisor  # type: ignore[method-assign]
        ended_s: list[float] = []

        async def lives(count: int) -> None:
            for number in range(1, count + 1):
                await lab.until("up", times=number)
                await asyncio.sleep(1.0)
                ended_s.append(now_s())
                lab.lives[-1].end("ended")
                await asyncio.sleep(0.05)
                supervisor.explain_death()
            await lab.until("up", times=count + 1)

        await cancelled_after(lab, lambda: lives(24))
        delays_s = [started_s - ended for ended, started_s in zip(ended_s, lab.started_s[1:], strict=True)]
        assert delays_s == pytest.approx([0.2] * 21 + [0.4, 0.8, 1.6], abs=0.05)

    run(scenario)


def test_a_wait_ends_sooner_once_the_cause_is_known() -> None:
    async def scenario() -> None:
        lab = Lab()
        lab.live_after_s = lab.restore_takes_s = 0.0
        supervisor = lab.supervisor()
        lab.supervisor = lambda: supervisor  # type: ignore[method-assign]

        async def lives() -> None:
            for number in range(1, 7):
                await lab.until("up", times=number)
                lab.lives[-1].end("ended")
            await asyncio.sleep(1.0)
            for _ in range(6):
                supervisor.explain_death()
            explained_s = now_s()
            await lab.until("up", times=7)
            assert now_s() - explained_s < 0.1, "instead of 5.4 s"

        await cancelled_after(lab, lives)

    run(scenario)


def test_once_up_it_is_tried_for_ever() -> None:
    async def scenario() -> None:
        lab = Lab()

        async def many_failures() -> None:
            await lab.until("up")
            lab.fail_to_start = [StartupError("no space left")] * 20
            lab.lives[-1].end("ended")
            await lab.until("up", times=2)

        await cancelled_after(lab, many_failures)
        assert len(lab.started_s) == 22

    run(scenario)


async def startup_error(lab: Lab) -> str:
    with pytest.raises(StartupError) as caught:
        await lab.supervisor().run()
    return str(caught.value)


def test_a_first_start_that_cannot_be_made_is_told_at_once() -> None:
    async def scenario() -> None:
        lab = Lab()
        lab.fail_to_start = [StartupError("run `make setup`")]
        assert await startup_error(lab) == "run `make setup`"
        assert lab.events == []
        assert now_s() == 0.0

    run(scenario)


def test_a_first_start_that_ends_before_it_is_live_has_one_more_attempt() -> None:
    async def scenario() -> None:
        lab = Lab()

        async def the_first_ends_soon() -> None:
            await lab.until("started")
            lab.lives[0].end("a port is taken")
            await lab.until("up")

        await cancelled_after(lab, the_first_ends_soon)
        assert len(lab.lives) == 2

    run(scenario)


@pytest.mark.parametrize("after_s", [0.1, 100.0], ids=["soon", "after long loads"])
def test_a_first_start_that_ends_twice_is_told_with_its_log(after_s: float) -> None:
    async def scenario() -> None:
        lab = Lab()
        lab.restore_takes_s = 1000.0

        async def both_end() -> None:
            for number in (1, 2):
                await lab.until("started", times=number)
                await asyncio.sleep(after_s)
                lab.lives[-1].end(f"ended {number}; the end of the log:\nlast line")

        async with asyncio.TaskGroup() as group:
            group.create_task(both_end())
            assert await startup_error(lab) == "ended 2; the end of the log:\nlast line"
        assert lab.events.count("gone") == 2
        assert "up" not in lab.events

    run(scenario)


def test_a_first_start_that_does_not_become_live_is_ended_and_told_with_its_log() -> None:
    async def scenario() -> None:
        lab = Lab()
        lab.live_after_s = 11.0
        assert await startup_error(lab) == (
            "Triton was not live within 10 s (TIDEGATE_START_TIMEOUT_S); Triton ended with exit status 0; the end of the log:\nlast line"
        )
        assert lab.events[:4] == ["started", RESTARTING, "closed", "stop within 4 s"]
        assert lab.events[-1] == "gone"
        assert 10.0 <= now_s() < 10.2

    run(scenario)


def test_a_later_start_that_does_not_become_live_is_ended_and_tried_again() -> None:
    async def scenario() -> None:
        lab = Lab()

        async def slow_once() -> None:
            await lab.until("up")
            lab.live_after_s = 11.0
            lab.lives[-1].end("ended")
            await lab.until("started", times=3)
            lab.live_after_s = 1.0
            await lab.until("up", times=2)

        await cancelled_after(lab, slow_once)
        assert len(lab.lives) == 3
        assert [event for event in lab.events if event.startswith(("down", "lost"))][:2] == [LOST, RESTARTING], "it is lost once"

    run(scenario)


def test_an_end_while_models_are_loaded_cancels_that_and_counts_as_an_end() -> None:
    async def scenario() -> None:
        lab = Lab()
        lab.restore_takes_s = 100.0

        async def ends_while_loading() -> None:
            await lab.until("started")
            await asyncio.sleep(2.0)
            lab.restore_takes_s = 0.0
            lab.lives[0].end("killed by a model")
            await lab.until("up")

        await cancelled_after(lab, ends_while_loading)
        assert lab.events.count("restored") == 1
        assert now_s() < 10.0

    run(scenario)


def test_models_that_cannot_be_restored_at_the_first_start_end_it_when_nothing_else_helps() -> None:
    async def scenario() -> None:
        lab = Lab()

        async def refuse(upstream: Upstream) -> None:
            raise StartupError("two models are called 'echo'")

        lab.restore = refuse
        assert await startup_error(lab) == "two models are called 'echo'"
        assert lab.events[-1] == "gone"
        assert len(lab.lives) == 1

    run(scenario)


def test_a_connection_that_breaks_while_models_are_restored_is_another_attempt() -> None:
    async def scenario() -> None:
        lab = Lab()

        async def break_once(upstream: Upstream) -> None:
            lab.restore = lab._restore
            raise UpstreamUnavailable("connection reset")

        lab.restore = break_once
        await cancelled_after(lab, lambda: lab.until("up"))
        assert len(lab.lives) == 2

    run(scenario)


def test_a_defect_in_restoring_is_not_retried_and_leaves_nothing() -> None:
    async def scenario() -> None:
        lab = Lab()

        async def defect(upstream: Upstream) -> None:
            raise ZeroDivisionError

        lab.restore = defect
        with pytest.raises(ExceptionGroup) as caught:
            await lab.supervisor().run()
        assert caught.group_contains(ZeroDivisionError)
        assert lab.events[-2:] == ["stop within 4 s", "gone"]

    run(scenario)

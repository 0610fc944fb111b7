"""When a copy of a model counts as hung, by how requests to it end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from math import inf
from typing import Any

import pytest

from control_plane.core.endpoints import ONLY
from control_plane.core.errors import DeadlineExceeded, UpstreamUnavailable
from control_plane.core.infer_call import SendFailure
from control_plane.protocols.grpc import GrpcStatus, status_answer
from control_plane.triton.copy_silence import CopySilence
from control_plane.triton.silence_watch import SilenceWatch


def served(*, took_s: float = 0.01) -> CopySilence:
    """A copy whose last answer came at 10.0."""
    silence = CopySilence()
    silence.answered(10.0 - took_s, 10.0)
    return silence


def gives_up(silence: CopySilence, *, until_s: float, oldest_s: float = inf, from_s: float = 10.0) -> float | None:
    """A request is sent every tenth of a second and gives up after three; when the copy counted as hung."""
    for tenth in range(int(from_s * 10), int(until_s * 10)):
        if silence.gave_up(tenth / 10, tenth / 10 + 0.3, oldest_s=oldest_s) is not None:
            return tenth / 10 + 0.3
    return None


def test_one_that_has_answered_quickly_hangs_when_nothing_comes_any_more() -> None:
    assert gives_up(served(), until_s=100.0) == pytest.approx(11.5, abs=0.11)


def test_one_that_was_seen_to_take_long_is_given_three_times_as_much() -> None:
    assert gives_up(served(took_s=5.0), until_s=24.0) is None
    assert gives_up(served(took_s=5.0), until_s=100.0) == pytest.approx(25.0, abs=0.2)


def test_one_that_has_answered_nothing_yet_has_a_minute() -> None:
    assert gives_up(CopySilence(), until_s=69.0) is None
    assert gives_up(CopySilence(), until_s=100.0) == pytest.approx(70.0, abs=0.2)


def test_while_somebody_waits_for_a_request_of_before_it_is_let_compute() -> None:
    assert gives_up(served(), until_s=69.0, oldest_s=9.9) is None
    assert gives_up(served(), until_s=90.0, oldest_s=9.9) == pytest.approx(70.0, abs=0.2), "but not for ever"
    assert gives_up(served(), until_s=90.0, oldest_s=10.2) is not None, "that one waits behind what nobody waits for"


def test_any_answer_begins_it_anew() -> None:
    silence = served()
    for second in range(10, 60):
        assert gives_up(silence, from_s=second, until_s=second + 0.9) is None
        silence.answered(second + 0.8, second + 1.0)


def test_an_answer_to_what_was_sent_before_is_no_sign_that_it_is_done_with_what_was_given_up() -> None:
    silence = served()
    assert silence.gave_up(10.5, 10.8, oldest_s=10.2) is None
    silence.answered(10.4, 11.0)
    assert silence.gave_up(10.6, 12.7, oldest_s=inf) is None, "silent since 11.0 only"
    assert silence.gave_up(10.7, 12.9, oldest_s=inf) == 10.5


def test_a_single_request_says_nothing_however_long_it_waited() -> None:
    silence = served()
    for second in range(20, 2000, 100):
        assert silence.gave_up(second, second + 30.0, oldest_s=inf) is None


def test_who_cancels_at_once_time_and_again_says_nothing() -> None:
    silence = served()
    assert [silence.gave_up(tenth / 10, tenth / 10 + 0.02, oldest_s=inf) for tenth in range(100, 900)] == [None] * 800


def test_it_is_said_once_and_again_after_as_long() -> None:
    silence = served()
    first_s = gives_up(silence, until_s=100.0)
    assert first_s is not None
    again_s = gives_up(silence, from_s=first_s, until_s=100.0)
    assert again_s is not None
    assert again_s - first_s >= 1.5


class TestOfAnOnlyServer:
    async def test_each_model_is_watched_by_its_own_requests(self) -> None:
        now_s, told = 0.0, list[tuple[str, str, float]]()
        watch = SilenceWatch(lambda: now_s)

        def tell(*suspected: Any) -> None:
            told.append(suspected)

        async def answer(value: object, *, after_s: float = 0.0) -> object:
            nonlocal now_s
            now_s += after_s
            if isinstance(value, BaseException):
                raise value
            return value

        overdue = (DeadlineExceeded("late"), status_answer(GrpcStatus.DEADLINE_EXCEEDED, "late", loss=SendFailure.TIMED_OUT))
        for model in "ab":
            await watch.watch(model, answer("an answer"), tell)
        for value in overdue * 4:
            await watch.watch("b", answer("an answer"), tell)
            with suppress(DeadlineExceeded):
                await watch.watch("a", answer(value, after_s=0.4), tell)
        assert told[0] == (ONLY, "a", 0.0)
        assert {model for _, model, _ in told} == {"a"}

    async def test_what_its_callers_wait_for_and_lost_connections_do_not_count(self) -> None:
        now_s, told = 0.0, list[tuple[str, str, float]]()
        watch = SilenceWatch(lambda: now_s)

        def tell(*suspected: Any) -> None:
            told.append(suspected)

        never = asyncio.get_running_loop().create_future()

        async def fail(error: Exception) -> object:
            raise error

        await watch.watch("a", asyncio.sleep(0), tell)
        async with asyncio.TaskGroup() as tasks:
            patient = tasks.create_task(watch.watch("a", never, tell))
            await asyncio.sleep(0)
            assert list(watch.awaited()) == []
            for error in [DeadlineExceeded("late")] * 20 + [UpstreamUnavailable("gone")] * 20:
                now_s += 0.5
                with pytest.raises(type(error)):
                    await watch.watch("a", fail(error), tell)
            assert list(watch.awaited()) == [(ONLY, "a", 0.0)]
            never.set_result(None)
        assert patient.done()
        assert told == []

    async def test_names_that_callers_make_up_are_bounded(self) -> None:
        watch = SilenceWatch(lambda: 0.0)
        for number in range(2500):
            await watch.watch(f"m{number}", asyncio.sleep(0), print)
        assert len(watch._models) <= 1000

    async def test_such_names_hide_nothing_that_is_under_way(self) -> None:
        watch = SilenceWatch(asyncio.get_running_loop().time)
        async with asyncio.TaskGroup() as tasks:
            lost = tasks.create_task(_taken_back(watch, "a"))
            await asyncio.sleep(0)
            for number in range(2500):
                await watch.watch(f"m{number}", asyncio.sleep(0), print)
            watch.died(["a"])
        assert "the Python process of 'a'" in str(lost.result())


async def _taken_back(watch: SilenceWatch, model: str) -> UpstreamUnavailable:
    with pytest.raises(UpstreamUnavailable) as caught:
        await watch.watch(model, asyncio.sleep(5.0), print, may_be_sent_again=True)
    return caught.value

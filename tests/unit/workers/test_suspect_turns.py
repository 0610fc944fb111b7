"""Suspects' turns over workers: one at a time, whoever asks, and nobody keeps one that has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

import pytest

from control_plane.inference.domain.queries_of_death import Finding, Record, Verdict
from control_plane.workers.messages.from_workers import AskTurn, EndTurn
from control_plane.workers.messages.to_workers import TurnGiven
from control_plane.workers.suspect_turns import RemoteTurns, WorkersTurns
from tests.aio import settle

pytestmark = pytest.mark.virtual_time


class Scene:
    """Two workers and their parent, over links that deliver at once while they are not `cut`."""

    def __init__(self, *, is_stub: bool = True) -> None:
        self.parent = WorkersTurns(now_s=asyncio.get_running_loop().time)
        self.parent.found(Finding(("m", b"x"), Record(("s0",), inf, Verdict.SUSPECT), is_stub))
        self.cut: set[int] = set()
        self.workers = [self._worker(number) for number in range(2)]
        self.sent: list[int] = []

    def _worker(self, number: int) -> tuple[RemoteTurns, Callable[[TurnGiven], None]]:
        def to_worker(message: TurnGiven) -> None:
            if number not in self.cut:
                worker.given(message)

        def to_parent(message: AskTurn | EndTurn) -> None:
            if number not in self.cut:
                self.parent.take(message, to_worker)

        worker = RemoteTurns(to_parent)
        return worker, to_worker

    async def send(self, number: int, *, takes_s: float = 1.0) -> None:
        worker, _ = self.workers[number]
        turn = await worker.acquire("m")
        self.sent.append(number)
        await asyncio.sleep(takes_s)
        worker.end(turn, was_answered=True)


async def test_one_is_sent_at_a_time_in_the_order_in_which_they_have_asked() -> None:
    scene = Scene()
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(scene.send(number)) for number in (0, 1, 1, 0)]
    for sent in range(1, 5):
        await settle()
        assert scene.sent == [0, 1, 1, 0][:sent]
        await asyncio.sleep(1.0)
    await asyncio.gather(*tasks)


async def test_after_a_servers_death_answers_to_any_worker_widen_the_lane() -> None:
    scene, began_s = Scene(is_stub=False), asyncio.get_running_loop().time()
    await asyncio.gather(*(scene.send(number % 2) for number in range(15)))
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(4.0), "1, 2, 4 and 8 at a time"


async def test_who_gives_up_and_who_dies_hold_nobody_up() -> None:
    scene, loop = Scene(), asyncio.get_running_loop()
    hung = loop.create_task(scene.send(0, takes_s=3600.0))
    await settle()
    impatient, behind = loop.create_task(scene.send(1)), loop.create_task(scene.send(1))
    await settle()
    impatient.cancel()
    await settle()
    scene.cut.add(0)
    assert scene.sent == [0]
    scene.parent.left(scene.workers[0][1])
    await settle()
    assert scene.sent == [0, 1]
    await behind
    scene.cut.clear()  # it comes back, and ends what was ended for it
    hung.cancel()
    await scene.send(0)
    assert scene.sent == [0, 1, 0]

from __future__ import annotations

import asyncio

import pytest

from control_plane.workers.messages.from_workers import FingerprintsAcknowledged
from control_plane.workers.messages.to_workers import FingerprintsChanged, Listen
from control_plane.workers.parent.workers import Workers
from tests.aio import settle
from tests.fakes import FakeWorkers
from tests.unit.workers.workers_bench import KNOWN, opened

pytestmark = pytest.mark.virtual_time


async def test_fingerprints_are_published_when_all_that_answer_go_by_them() -> None:
    async with opened() as bench, asyncio.TaskGroup() as tasks:
        for worker in bench.started:
            worker.takes_note = False
        publishing = tasks.create_task(bench.workers.fingerprints.publish({"a": KNOWN, "b": None}))
        await settle()
        told = FingerprintsChanged(1, {"a": (KNOWN.digest, True, True, False), "b": None})
        assert [worker.told[-1] for worker in bench.started] == [told, told]
        bench.started[0].say(FingerprintsAcknowledged(1))
        bench.started[1].say(FingerprintsAcknowledged(0))
        await settle()
        assert not publishing.done()
        bench.started[1].say(FingerprintsAcknowledged(1))
        await publishing
        assert not any(worker.is_killed for worker in bench.started)


async def test_a_worker_that_does_not_take_note_is_killed_and_its_next_life_knows() -> None:
    async with opened() as bench:
        deaf, well = bench.started
        deaf.takes_note = False
        began_s = asyncio.get_running_loop().time()
        await bench.workers.fingerprints.publish({"a": KNOWN})
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(5.0, abs=0.1)
        assert (deaf.is_killed, well.is_killed) == (True, False)
        await asyncio.sleep(1.5)
        assert bench.started[2].messages_of(FingerprintsChanged) == [FingerprintsChanged(1, {"a": (KNOWN.digest, True, True, False)})]


async def test_a_worker_that_dies_is_not_waited_for() -> None:
    async with opened(1) as bench, asyncio.TaskGroup() as tasks:
        bench.started[0].takes_note = False
        publishing = tasks.create_task(bench.workers.fingerprints.publish({"a": None}))
        await settle()
        bench.started[0].end()
        began_s = asyncio.get_running_loop().time()
        await publishing
        assert asyncio.get_running_loop().time() - began_s < 1


async def test_a_worker_that_does_not_listen_yet_is_not_waited_for_and_listens_once_it_knows() -> None:
    async with opened(1) as bench:
        bench.started[0].end()
        await asyncio.sleep(0.5)
        bench.launcher.take_note = False
        await asyncio.sleep(1)
        again = bench.started[1]
        await bench.workers.fingerprints.publish({"a": KNOWN})
        assert (again.messages_of(Listen), again.is_killed) == ([], False)
        again.say(FingerprintsAcknowledged(0))
        await settle()
        assert [type(message) for message in again.told[-2:]] == [FingerprintsChanged, Listen]


async def test_fingerprints_are_forgotten_with_triton() -> None:
    async with opened(1) as bench:
        await bench.workers.fingerprints.publish({"a": KNOWN})
        bench.workers.upstream.down("Triton has ended")
        bench.started[0].end()
        await asyncio.sleep(1.5)
        assert bench.started[1].messages_of(FingerprintsChanged) == [FingerprintsChanged(1, {})]


async def test_without_workers_they_are_published_at_once() -> None:
    now_s = asyncio.get_running_loop().time
    began_s = now_s()
    await Workers(count=1, launcher=FakeWorkers()).fingerprints.publish({"a": KNOWN})
    assert now_s() == began_s, "nobody was waited for"

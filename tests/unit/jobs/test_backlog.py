from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.adapters.metrics import JobMetrics
from control_plane.jobs.backlog import BacklogReader
from control_plane.jobs.ports import Backlog

pytestmark = pytest.mark.virtual_time


class FakeStore:
    def __init__(self) -> None:
        self.found, self.takes_s, self.is_away = Backlog(3, 2, 1, 940.0), 0.0, False

    async def backlog(self) -> Backlog:
        await asyncio.sleep(self.takes_s)
        if self.is_away:
            raise StoreUnavailable("away")
        return self.found


def page(reader: BacklogReader) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(JobMetrics(lambda: reader.latest, today_s=lambda: 1000.0))
    lines = generate_latest(registry).decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}


async def test_what_is_in_the_store_is_shown_and_how_long_the_oldest_waits() -> None:
    reader = BacklogReader(FakeStore())  # type: ignore[arg-type]  # what is asked of it
    await reader.read()
    assert page(reader) == {
        'tidegate_jobs{state="queued"}': 3.0,
        'tidegate_jobs{state="running"}': 2.0,
        'tidegate_jobs{state="dead"}': 1.0,
        "tidegate_jobs_oldest_waiting_seconds": 60.0,
    }


@pytest.mark.parametrize("oldest_s", [pytest.param(None, id="none waits"), pytest.param(1000.5, id="of a clock that is ahead")])
async def test_what_waits_has_no_negative_age(oldest_s: float | None) -> None:
    store = FakeStore()
    store.found = Backlog(0, 0, 0, oldest_s)
    reader = BacklogReader(store)  # type: ignore[arg-type]  # what is asked of it
    await reader.read()
    assert page(reader)["tidegate_jobs_oldest_waiting_seconds"] == 0.0


@pytest.mark.parametrize("takes_s", [pytest.param(0.0, id="away"), pytest.param(60.0, id="hanging")])
async def test_of_a_store_that_is_away_nothing_is_shown_and_the_page_hardly_waits(takes_s: float) -> None:
    store = FakeStore()
    reader = BacklogReader(store)  # type: ignore[arg-type]  # what is asked of it
    await reader.read()
    store.is_away, store.takes_s = True, takes_s
    began_s = asyncio.get_running_loop().time()
    await reader.read()
    assert (page(reader), asyncio.get_running_loop().time() - began_s <= 1.0) == ({}, True)

"""Counters of a fleet: what happens is counted where it happens."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from control_plane.core.errors import ModelLoadFailed, Overloaded
from control_plane.fleet.domain.counts import LOADING as BEING_LOADED
from control_plane.fleet.domain.event import FleetEventKind
from control_plane.models.domain.description import Tier
from tests.fakes.triton.model_store import FakeModelStore
from tests.unit.fleet.fleet_bench import FleetBench, model, running
from tests.unit.models.tiers import tiers_bench

WARM_TO_HOT, HOT_TO_WARM = (Tier.WARM, Tier.HOT), (Tier.HOT, Tier.WARM)


@pytest.mark.virtual_time
async def test_loads_waits_and_evictions() -> None:
    async with running(FleetBench(model("a", 90), model("b", 90))) as bench:
        for name in ("a", "a", "b"):
            await bench.use(name)
            await asyncio.sleep(10.0)
        counts = bench.state.counts
        assert counts.events == {FleetEventKind.LOADED: 2, FleetEventKind.EVICTED: 1}
        assert (sum(counts.waits.buckets), sum(counts.loads.buckets)) == (2, 2), "one found it there"
        assert counts.waits.seconds == pytest.approx(2.4, abs=0.5)
        into, out = counts.moves[WARM_TO_HOT], counts.moves[HOT_TO_WARM]
        assert (into.count, into.failed, into.bytes, out.count, out.bytes) == (2, 0, 180, 1, 90)
        assert into.seconds == pytest.approx(2.0, abs=0.1)
        assert 0.2 <= out.seconds < 1.0, "until its memory was free"


@pytest.mark.virtual_time
async def test_a_load_that_fails_is_a_move_that_failed() -> None:
    async with running(FleetBench(model("a"))) as bench:
        bench.tritons["s0"].failures["a"] = ModelLoadFailed("no weights")
        with pytest.raises(Overloaded):
            await bench.use("a", 2.5)
        counts = bench.state.counts
        assert counts.events == {FleetEventKind.FAILED: 1}
        assert (counts.moves[WARM_TO_HOT].count, counts.moves[WARM_TO_HOT].failed) == (0, 1)
        assert counts.refused == {"quarantined": 1}
        assert sum(counts.waits.buckets) == 0


@pytest.mark.virtual_time
async def test_what_stood_in_the_way_of_requests_that_were_refused() -> None:
    async with running(FleetBench(model("a", 90), model("b", 90), model("huge", 101))) as bench:
        claim = await bench.claim("a")
        for name in ("huge", "b"):
            with pytest.raises(Overloaded):
                await bench.use(name, 0.001)
        claim.release(answered=True)
        await asyncio.sleep(10.0)
        with pytest.raises(Overloaded, match="is being loaded"):
            await bench.use("b", 0.1)
        assert bench.state.counts.refused == {"too_large": 1, "in_use": 1, BEING_LOADED: 1}


async def test_a_fetch_that_fails_is_one_too_and_what_is_cold_says_how_large_it_is(tmp_path: Path) -> None:
    content = b"w" * 100
    sums = f"{hashlib.sha256(content).hexdigest()}  1/model.onnx\n".encode()
    store = FakeModelStore({"m": {"SHA256SUMS": sums, "1/model.onnx": content[:-1] + b"x"}})
    async with tiers_bench.bench(tmp_path, store) as lab:
        assert (lab.tiers.bytes_to_fetch("m"), lab.tiers.bytes_to_fetch("local")) == (100 + len(sums), 0)
        with pytest.raises(ModelLoadFailed):
            await lab.warm("m")
        assert (lab.moves.seen, lab.moves.failed) == ([], [("m", "cold to warm")])
        store.models["m"]["1/model.onnx"] = content
        await lab.warm("m")
        assert [way for _, way, _ in lab.moves.seen] == ["cold to warm"]
        assert lab.tiers.bytes_to_fetch("m") == 0

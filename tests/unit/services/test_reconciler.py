from __future__ import annotations

import asyncio

from control_plane.domain.errors import UpstreamFailed
from tests.unit.services.fleet_bench import READY, FleetBench, model, play, running


def test_what_is_to_be_there_is_loaded_without_a_request() -> None:
    async def main() -> None:
        async with running(FleetBench(model("a", min_copies=1), model("b")), reconciles=True) as bench:
            await asyncio.sleep(2.0)
            assert bench.said == ["load a"]
            assert bench.residency.ready() == {"a"}

    play(main)


def test_each_copy_is_on_a_server_of_its_own() -> None:
    async def main() -> None:
        async with running(FleetBench(model("a", min_copies=2), servers=3), reconciles=True) as bench:
            await asyncio.sleep(5.0)
            assert bench.said == ["load a", "load a"]
            assert len(bench.state.fleet.holders["a"]) == 2

    play(main)


def test_only_the_owner_begins_anything() -> None:
    async def main() -> None:
        bench = FleetBench(model("a", min_copies=1), model("b"))
        bench.is_owner = False
        async with running(bench, reconciles=True):
            bench.tritons["s0"].states["b"] = READY
            await asyncio.sleep(5.0)
            assert not bench.said
            assert bench.state.fleet.models["a"].quarantined_until_s < 0, "nor has it tried"
            assert bench.server().copies.keys() == {"b"}, "but it looks"
            bench.is_owner = True
            await asyncio.sleep(2.0)
            assert bench.said == ["load a"]

    play(main)


def test_what_others_load_and_unload_is_found_within_a_tick() -> None:
    async def main() -> None:
        async with running(FleetBench(), reconciles=True) as bench:
            bench.tritons["s0"].states["a"] = READY
            await asyncio.sleep(0.6)
            assert await bench.use("a", 0.001) == "s0"
            bench.tritons["s0"].states.clear()
            await asyncio.sleep(0.6)
            assert not bench.server().copies

    play(main)


def test_what_was_on_a_server_that_dies_is_loaded_elsewhere_and_again_there_is_room() -> None:
    async def main() -> None:
        async with running(FleetBench(model("a", min_copies=1), servers=2), reconciles=True) as bench:
            await asyncio.sleep(3.0)
            (first,) = bench.state.fleet.holders["a"]
            bench.kill(first)
            await asyncio.sleep(3.0)
            (second,) = bench.state.fleet.holders["a"]
            assert second != first
            bench.bring_up(first)
            await asyncio.sleep(3.0)
            assert bench.said == ["load a", "load a"]

    play(main)


def test_folders_that_come_and_go_are_known_within_seconds() -> None:
    async def main() -> None:
        async with running(FleetBench(model("a")), reconciles=True) as bench:
            await asyncio.sleep(1.0)
            bench.described.models = {"new": model("new", min_copies=1)}
            await asyncio.sleep(8.0)
            assert bench.state.fleet.models.keys() == {"new"}
            assert bench.residency.ready() == {"new"}

    play(main)


def test_a_server_that_says_nothing_keeps_nobody_from_the_others() -> None:
    async def main() -> None:
        async with running(FleetBench(servers=2), reconciles=True) as bench:
            bench.tritons["s0"].failures["index"] = UpstreamFailed("odd")
            bench.tritons["s1"].states["a"] = READY
            await asyncio.sleep(0.6)
            assert await bench.use("a", 0.001) == "s1"

    play(main)

"""Which calls tell their model how much time they have left."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.inference.model_configuration.time_left import TimeLeft
from tests.aio import settle
from tests.unit.embeddings.embeddings_bench import Bench, with_bench


@pytest.mark.parametrize(("wants", "tells"), [("true", True), ("false", False)])
def test_a_model_that_is_known_to_want_that_is_told(wants: str, tells: bool) -> None:
    async def test(bench: Bench) -> None:
        bench.triton.config = {**bench.triton._config(), "parameters": {"time_left": {"string_value": wants}}}
        now_s = asyncio.get_running_loop().time
        time_left = TimeLeft(bench.inference.dispatch, bench.fingerprints, is_loaded=lambda name: True, now_s=now_s)
        bench.inference.time_left = time_left

        async with asyncio.TaskGroup() as tasks:
            asks = tasks.create_task(time_left.run())
            for text in (b"a", b"b"):
                await settle()
                await bench.embed(text)
            asks.cancel()

        http = bench.upstream.http
        slots = [slot for sent, slot in zip(http.requests, http.slots, strict=True) if sent.target.endswith(b"/infer")]
        assert [(slot or pytest.fail("no slot")).tells_time_left for slot in slots] == [False, tells]

    with_bench(test)

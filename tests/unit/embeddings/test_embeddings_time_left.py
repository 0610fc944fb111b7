"""Which calls tell their model how much time they have left."""

from __future__ import annotations

import asyncio

import pytest

from control_plane.inference.model_configuration.time_left import TimeLeft
from tests.unit.embeddings.embeddings_bench import Bench, with_bench


@pytest.mark.parametrize(("wants", "tells"), [("true", True), ("false", False)])
def test_a_model_that_wants_to_know_is_told(wants: str, tells: bool) -> None:
    async def test(bench: Bench) -> None:
        bench.triton.config = {**bench.triton._config(), "parameters": {"time_left": {"string_value": wants}}}
        now_s = asyncio.get_running_loop().time
        bench.inference.time_left = TimeLeft(bench.inference.dispatch, bench.fingerprints, is_loaded=lambda name: True, now_s=now_s)

        await bench.embed(b"a")

        http = bench.upstream.http
        (slot,) = (slot for sent, slot in zip(http.requests, http.slots, strict=True) if sent.target.endswith(b"/infer"))
        assert (slot or pytest.fail("no slot")).tells_time_left is tells

    with_bench(test)

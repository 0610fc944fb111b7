from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from control_plane.core.held_memory import HeldMemory
from control_plane.core.model import ModelState, ModelVersion
from perf.fleet import alone


class FakeTriton:
    """Its one model takes 100 bytes when it is loaded and 40 more once it has been asked; empty it holds 10."""

    url = "http://there"

    def __init__(self) -> None:
        self.process: Any = SimpleNamespace(held_memory=lambda: HeldMemory(self.held))
        self.upstream: Any = SimpleNamespace(control=self)
        self.held = 10
        self.requests = 0
        self._polls_left = 2

    async def load(self, name: str, *, timeout_s: float) -> None:
        self.held += 100

    async def unload(self, name: str, *, timeout_s: float) -> None:
        assert self.requests > 50

    async def index(self) -> list[ModelVersion]:
        self._polls_left -= 1
        if self._polls_left:
            return [ModelVersion("m", "1", ModelState.UNLOADING, "")]
        self.held = 10
        return [ModelVersion("m", "1", ModelState.UNAVAILABLE, "unloaded"), ModelVersion("other", "1", ModelState.READY, "")]

    def answer(self, request: httpx.Request) -> httpx.Response:
        assert self.held in (110, 150), "asked while it is not there"
        assert json.loads(request.content)["inputs"]
        self.requests += 1
        self.held = 150
        return httpx.Response(200, json={"outputs": [{"name": "EMBEDDING"}]})


def measure(triton: FakeTriton, answer: Any) -> alone.Alone:
    async def main() -> alone.Alone:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as session:
            return await alone.measure_one(triton, "m", session)  # type: ignore[arg-type]

    return asyncio.run(main())


def test_a_model_takes_what_it_holds_after_requests() -> None:
    triton = FakeTriton()
    alone = measure(triton, triton.answer)
    assert alone.resident_bytes == 140
    assert 0 <= alone.load_s < 60
    assert 0.02 <= alone.unload_s < 60, "until the index says that it is gone"
    assert 0 < alone.service_s < 60


def test_one_that_does_not_answer_is_no_measure() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        measure(FakeTriton(), lambda request: httpx.Response(500, text="broken"))
    assert "m: 500 broken" in str(raised.value.exceptions[0])

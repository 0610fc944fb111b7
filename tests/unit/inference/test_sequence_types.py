"""Requests in sequences whose ids Triton would copy beyond their place."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest

from control_plane.core.errors import ControlPlaneError, InvalidRequest, ModelNotFound, UpstreamFailed
from control_plane.core.infer_call import InferCall
from control_plane.inference.sequence_types import SequenceTypes
from control_plane.inference.single_server import SingleServerDispatch
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.triton.servers import Servers
from tests.aio import settle
from tests.fakes import FakeHttp, FakeUpstream
from tests.unit.inference.governed_bench import Bench, Request

TEXT = InferCall("m", "", "", (), sequence_id="seven", sequence_is_text=True)
NUMBER = InferCall("m", "", "", (), sequence_id="7")
START = {"name": "START", "control": [{"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1], "data_type": "TYPE_INVALID"}]}


def taking(*types: str) -> dict[str, Any]:
    """The configuration of a model whose control input CORRID is of this type, if it has one."""
    inputs = [{"name": "ID", "control": [{"kind": "CONTROL_SEQUENCE_CORRID", "data_type": each}]} for each in types]
    return {"name": "m", "sequence_batching": {"control_input": [START, *inputs]}}


def ensemble(*steps: tuple[str, int]) -> dict[str, Any]:
    return {"ensemble_scheduling": {"step": [{"model_name": name, "model_version": version} for name, version in steps]}}


def types_of(**configs: Any) -> SequenceTypes:
    """The guard of a Triton with these models; a name with `_2` at its end is that of version 2."""

    def answer(request: HttpRequest) -> HttpAnswer:
        name = request.target.decode().removeprefix("/v2/models/").removesuffix("/config").replace("/versions/", "_")
        return make_answer(200, orjson.dumps(configs[name])) if name in configs else make_answer(404)

    servers = Servers()
    servers.up(FakeUpstream(http=FakeHttp(answer=answer)))
    return SequenceTypes(SingleServerDispatch(servers))


@pytest.mark.parametrize(
    ("call", "configs"),
    [
        pytest.param(NUMBER, {"m": taking("TYPE_UINT64")}, id="number"),
        pytest.param(NUMBER, {"m": taking("TYPE_INT32")}, id="number of 32 bits"),
        pytest.param(TEXT, {"m": taking("TYPE_STRING")}, id="string"),
        pytest.param(TEXT, {"m": taking()}, id="a model that is not told the id"),
        pytest.param(TEXT, {"m": {"sequence_batching": {}}}, id="a model without control inputs"),
        pytest.param(TEXT, {"m": {"sequence_batching": None}}, id="a model without sequences"),
        pytest.param(TEXT, {"m": ensemble(("a", -1), ("b", 2)), "a": {}, "b_2": taking("TYPE_STRING")}, id="an ensemble"),
        pytest.param(NUMBER, {"m": ensemble(("a", -1)), "a": ensemble(("m", -1))}, id="ensembles in a circle"),
    ],
)
async def test_ids_of_the_models_type_may_be_sent(call: InferCall, configs: dict[str, Any]) -> None:
    assert 0.0 < await types_of(**configs).require(call, timeout_s=1.0) <= 1.0


@pytest.mark.parametrize(
    ("call", "configs", "said"),
    [
        pytest.param(TEXT, {"m": taking("TYPE_UINT64")}, "'m' .*must be a number", id="string"),
        pytest.param(TEXT, {"m": taking("TYPE_INT32")}, "'m' .*must be a number", id="string for 32 bits"),
        pytest.param(NUMBER, {"m": taking("TYPE_STRING")}, "'m' .*must be a string", id="number"),
        pytest.param(TEXT, {"m": ensemble(("a", -1), ("b", 2)), "a": {}, "b_2": taking("TYPE_INT64")}, "'b' .*number", id="a step"),
        pytest.param(
            TEXT, {"m": ensemble(("a", -1)), "a": ensemble(("b", -1)), "b": taking("TYPE_UINT64")}, "'b' .*number", id="a step's step"
        ),
    ],
)
async def test_ids_of_another_type_are_refused(call: InferCall, configs: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        await types_of(**configs).require(call, timeout_s=1.0)


@pytest.mark.parametrize(
    ("configs", "error"),
    [
        pytest.param({}, ModelNotFound, id="no model"),
        pytest.param({"m": [7]}, UpstreamFailed, id="no configuration"),
        pytest.param({"m": {"sequence_batching": {"control_input": [{"name": "ID"}]}}}, UpstreamFailed, id="an input of another kind"),
        pytest.param({"m": ensemble(("a", -1))}, ModelNotFound, id="no step"),
    ],
)
async def test_where_the_type_is_not_known_nothing_goes_on(configs: dict[str, Any], error: type[ControlPlaneError]) -> None:
    with pytest.raises(error):
        await types_of(**configs).require(TEXT, timeout_s=1.0)


@pytest.mark.parametrize(
    ("call", "configs", "goes_on"),
    [
        pytest.param(NUMBER, {"m": taking("TYPE_UINT64")}, True, id="a later request"),
        pytest.param(NUMBER, {"m": {"sequence_batching": {}}}, True, id="a model without control inputs"),
        pytest.param(replace(NUMBER, ends_sequence=True), {"m": taking("TYPE_UINT64")}, True, id="the last"),
        pytest.param(replace(NUMBER, starts_sequence=True), {"m": taking("TYPE_UINT64")}, False, id="the first"),
        pytest.param(NUMBER, {"m": {}}, False, id="a model without sequences"),
        pytest.param(NUMBER, {"m": ensemble(("a", -1)), "a": taking()}, True, id="a step"),
        pytest.param(NUMBER, {"m": ensemble(("a", -1)), "a": {}}, False, id="steps without sequences"),
        pytest.param(NUMBER, {}, False, id="no model"),
        pytest.param(NUMBER, {"m": [7]}, False, id="no configuration"),
    ],
)
async def test_a_call_goes_on_where_its_model_has_sequences_and_it_starts_none(
    call: InferCall, configs: dict[str, Any], goes_on: bool
) -> None:
    assert await types_of(**configs).goes_on(call, timeout_s=1.0) is goes_on


class _InSequence(Request):
    def read_at_once(self) -> InferCall:  # type: ignore[override]
        return TEXT


async def test_a_request_that_would_write_into_tritons_memory_is_not_sent() -> None:
    bench, request = Bench(), _InSequence()
    bench.service.sequence_types = types_of(m=taking("TYPE_UINT64"))

    with pytest.raises(InvalidRequest, match="must be a number"):
        await bench.service.infer(request)
    assert request.timeouts_s == []


class _Step(Request):
    """A request of a sequence that Triton answers when it `may_answer`."""

    def __init__(self, *, starts: bool = False) -> None:
        super().__init__()
        self._starts = starts
        self.may_answer.clear()

    def read_at_once(self) -> InferCall:  # type: ignore[override]
        return replace(NUMBER, starts_sequence=self._starts)


@pytest.mark.parametrize(
    ("config", "sent"), [pytest.param(taking(), 1, id="sequences"), pytest.param({}, 0, id="a model that takes no notice of the id")]
)
async def test_a_sequence_under_way_does_not_wait_behind_starts(config: dict[str, Any], sent: int) -> None:
    bench = Bench(max_in_flight_per_model=4)
    bench.service.sequence_types = types_of(m=config)
    starts, later = [_Step(starts=True) for _ in range(5)], _Step()
    async with asyncio.TaskGroup() as tasks:
        for request in (*starts, later):
            tasks.create_task(bench.service.infer(request))
            await settle()
        assert [len(request.timeouts_s) for request in starts] == [1, 1, 1, 1, 0]
        assert len(later.timeouts_s) == sent
        for request in (*starts, later):
            request.may_answer.set()


async def test_a_flood_of_later_requests_waits_for_slots_of_its_own() -> None:
    bench = Bench(max_in_flight_per_model=4)
    bench.service.sequence_types = types_of(m=taking())
    flood, start = [_Step() for _ in range(9)], _Step(starts=True)
    async with asyncio.TaskGroup() as tasks:
        for request in (*flood, start):
            tasks.create_task(bench.service.infer(request))
            await settle()
        assert sum(len(request.timeouts_s) for request in flood) == 4
        assert len(start.timeouts_s) == 1
        for request in (*flood, start):
            request.may_answer.set()
    assert all(len(request.timeouts_s) == 1 for request in flood), "each has its turn"
    admission = bench.service._governance.admission
    assert admission.slots("m").are_idle
    assert admission.slots("m", continues_sequence=True).are_idle

"""Requests in sequences whose ids Triton would copy beyond their place."""

from __future__ import annotations

from typing import Any

import pytest

from control_plane.core.errors import ControlPlaneError, InvalidRequest, ModelNotFound, UpstreamFailed
from control_plane.core.infer_call import InferCall
from tests.unit.inference.governed_bench import Bench, Request
from tests.unit.inference.model_configuration.sequence_types_bench import NUMBER, ensemble, taking, types_of

TEXT = InferCall("m", "", "", (), sequence_id="seven", sequence_is_text=True)


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
    await types_of(**configs).require(call, timeout_s=1.0)


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
    ("configs", "batching"),
    [
        pytest.param({"m": taking("TYPE_UINT64")}, ["m"], id="a model"),
        pytest.param({"m": {"sequence_batching": {}}}, ["m"], id="a model without control inputs"),
        pytest.param({"m": {}}, [], id="a model without sequences"),
        pytest.param({"m": ensemble(("a", -1), ("b", -1)), "a": taking(), "b": {}}, ["a"], id="a step"),
    ],
)
async def test_the_models_that_batch_by_sequences_are_named(configs: dict[str, Any], batching: list[str]) -> None:
    assert await types_of(**configs).require(NUMBER, timeout_s=1.0) == batching


class _InSequence(Request):
    def read_at_once(self) -> InferCall:  # type: ignore[override]
        return TEXT


async def test_a_request_that_would_write_into_tritons_memory_is_not_sent() -> None:
    bench, request = Bench(), _InSequence()
    bench.service.sequence_types = types_of(m=taking("TYPE_UINT64"))

    with pytest.raises(InvalidRequest, match="must be a number"):
        await bench.service.infer(request)
    assert request.timeouts_s == []

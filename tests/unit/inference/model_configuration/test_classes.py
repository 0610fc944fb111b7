"""Requests for the classes of outputs, under some of which Triton ends."""

from __future__ import annotations

import orjson
import pytest

from control_plane.core.errors import ControlPlaneError, InvalidRequest, ModelNotFound, UpstreamFailed
from control_plane.core.infer_call import InferCall
from control_plane.core.tensor import Tensor
from control_plane.inference.dispatch.single_server import SingleServerDispatch
from control_plane.inference.model_configuration.classes import Classes
from control_plane.protocols.http1 import make_answer
from control_plane.triton.servers import Servers
from tests.fakes import FakeUpstream
from tests.unit.inference.governed_bench import Bench, Request

OUTPUTS = [
    {"name": "SCORES", "data_type": "TYPE_FP32", "dims": ["4"]},
    {"name": "NAMES", "data_type": "TYPE_STRING", "dims": ["4"]},
    {"name": "BOXES", "data_type": "TYPE_FP32", "dims": ["-1", "6"]},
]
CONFIG = orjson.dumps({"output": OUTPUTS})


def asking(*outputs: str, shape: tuple[int, ...] = (1, 4)) -> InferCall:
    return InferCall("m", "", "", (Tensor("X", "FP32", shape),), classified=outputs)


def dispatch(config: bytes = CONFIG, status: int = 200) -> SingleServerDispatch:
    servers, upstream = Servers(), FakeUpstream()
    servers.up(upstream)
    upstream.http.answer = lambda request: make_answer(status, config)
    return SingleServerDispatch(servers)


async def require(call: InferCall, *, config: bytes = CONFIG, status: int = 200) -> None:
    await Classes(dispatch(config, status)).require(call, timeout_s=1.0)


async def test_classes_of_numbers_may_be_asked_for() -> None:
    await require(asking("SCORES"))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        pytest.param(asking("NAMES"), "no output 'NAMES' of numbers", id="strings"),
        pytest.param(asking("SCORES", "NAMES"), "no output 'NAMES' of numbers", id="strings beside numbers"),
        pytest.param(asking("NAMES\0SCORES"), "of numbers", id="strings, as Triton reads the name"),
        pytest.param(asking(""), "no output '' of numbers", id="a name that was cut as too long"),
        pytest.param(asking("SCORES", shape=(0, 4)), "an empty input has no classes", id="empty"),
        pytest.param(asking("BOXES"), "no output 'BOXES' of numbers and of one size", id="what may be empty"),
    ],
)
async def test_what_ends_triton_is_refused(call: InferCall, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        await require(call)


def saying(value: str) -> bytes:
    return orjson.dumps({"output": OUTPUTS, "parameters": {"classes": {"string_value": value}}})


async def test_that_an_output_of_any_size_is_never_empty_the_configuration_may_say() -> None:
    await require(asking("BOXES"), config=saying("true"))


@pytest.mark.parametrize(("output", "value"), [("BOXES", "false"), ("NAMES", "true")])
async def test_it_must_say_yes_and_strings_have_no_classes_whatever_it_says(output: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match="of numbers"):
        await require(asking(output), config=saying(value))


@pytest.mark.parametrize(
    ("config", "status", "error"),
    [
        pytest.param(b"{}", 404, ModelNotFound, id="no model"),
        pytest.param(b"{}", 200, UpstreamFailed, id="no outputs"),
        pytest.param(b'{"output": [7]}', 200, UpstreamFailed, id="outputs of another kind"),
        pytest.param(b"<html>", 200, UpstreamFailed, id="no JSON"),
    ],
)
async def test_where_the_outputs_are_not_known_nothing_goes_on(config: bytes, status: int, error: type[ControlPlaneError]) -> None:
    with pytest.raises(error):
        await require(asking("SCORES"), config=config, status=status)


class _Classified(Request):
    def read_at_once(self) -> InferCall:  # type: ignore[override]
        return asking("NAMES")


async def test_a_request_that_would_end_triton_is_not_sent() -> None:
    bench, request = Bench(), _Classified()
    bench.service.classes = Classes(dispatch())

    with pytest.raises(InvalidRequest, match="of numbers"):
        await bench.service.infer(request)
    assert request.timeouts_s == []

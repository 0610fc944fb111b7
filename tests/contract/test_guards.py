"""What ends this Triton, or has it hang, when it is sent straight: through the gateway it gets an answer and Triton lives.

Nothing here is sent straight. The suite's fixtures prove after each case that Triton is the process that it was.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.contract.conftest import BothWays, served
from tests.contract.grpc.grpc_streams import add, fails, repeat, same, say
from tests.contract.grpc.grpc_wire import Call, Stream, call, channel, infer, talk
from tests.contract.http.http_extensions import added
from tests.contract.http.http_tensors import bare, strings, typed
from tests.contract.http.http_wire import Answer, Talk, hold, request

DEEP = b"[" * 60_000
LONG_ID = "x" * 128

_ASKED = ("accumulate", "accumulate_text", "classify", "fails", "repeat", "say", "types")


@pytest.fixture(scope="module")
def frontends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BothWays]:
    """A Triton of their own: one that did not survive would take the comparisons with it."""
    with served(tmp_path_factory.mktemp("guards"), _ASKED) as frontends:
        yield frontends


def http_infer(body: bytes | dict[str, object], model: str = "types", *fields: tuple[str, str]) -> bytes:
    return request("POST", f"/v2/models/{model}/infer", body, *fields)


def classified(name: str, datatype: str, data: list[object]) -> dict[str, object]:
    """Ask the model `types` for the classes of what it gives back."""
    tensor = {"name": datatype, "shape": [len(data)], "datatype": datatype, "data": data}
    return {"inputs": [tensor], "outputs": [{"name": name, "parameters": {"classification": 1}}]}


def with_data(header: dict[str, object], data: bytes) -> bytes:
    encoded = json.dumps(header).encode()
    return http_infer(encoded + data, "types", ("Inference-Header-Content-Length", str(len(encoded))))


def sized(header: dict[str, object], size: int) -> dict[str, object]:
    header["inputs"][0]["parameters"] = {"binary_data_size": size}  # type: ignore[index]
    return header


HTTP = [
    pytest.param(http_infer(typed("INT32", [1], [2**32, 2**32])), id="a shape whose product is 2^64"),
    pytest.param(http_infer(typed("INT32", [1], [2**63 - 1, 3])), id="a shape whose product wraps"),
    pytest.param(http_infer(typed("INT32", [1], [2**64])), id="a dimension beyond 64 bits"),
    pytest.param(http_infer(typed("INT32", [1], [10**400])), id="a dimension of 400 digits"),
    pytest.param(http_infer(typed("INT32", [1], [2**40])), id="a shape of a terabyte"),
    pytest.param(http_infer(typed("INT32", [], [0, 2**33, 2**33])), id="an overflow behind an empty dimension"),
    pytest.param(http_infer({"inputs": [{"name": "IN", "shape": [0, 0], "datatype": "FP32", "data": []}]}, "classify"), id="empty twice"),
    pytest.param(http_infer(DEEP), id="JSON nested too deep"),
    pytest.param(http_infer(b'{"inputs":[],"x":' + DEEP), id="JSON nested too deep in a member that nobody reads"),
    pytest.param(request("POST", "/v2/repository/index", DEEP), id="a deep index"),
    pytest.param(request("POST", "/v2/repository/models/spare/load", DEEP), id="a deep load"),
    pytest.param(request("POST", "/v2/repository/models/spare/unload", DEEP), id="a deep unload"),
    pytest.param(request("POST", "/v2/trace/setting", DEEP), id="deep trace settings"),
    pytest.param(request("POST", "/v2/models/types/trace/setting", DEEP), id="deep trace settings of a model"),
    pytest.param(request("POST", "/v2/logging", DEEP), id="deep log settings"),
    pytest.param(request("POST", "/v2/systemsharedmemory/region/x/register", DEEP), id="a deep registration"),
    pytest.param(request("POST", "/v2/cudasharedmemory/region/x/register", DEEP), id="a deep CUDA registration"),
    pytest.param(request("POST", "/v2/models/say/generate", DEEP), id="a deep generate"),
    pytest.param(request("POST", "/v2/models/say/generate_stream", b'{"text_input":"a","x":' + DEEP), id="a deep generate_stream"),
    pytest.param(with_data(sized(bare("BYTES", [1]), 4), struct.pack("<I", 2**31)), id="a string of 2 GB in four bytes"),
    pytest.param(with_data(sized(bare("BYTES", [2]), 8), struct.pack("<II", 0xFFFFFFFF, 0xFFFFFFFF)), id="string lengths that wrap"),
    pytest.param(with_data(sized(bare("BYTES", [1]), 2), b"ab"), id="a string's length cut off"),
    pytest.param(with_data(sized(bare("INT32", [2]), 2**63 - 1), b"12345678"), id="a binary size near 2^63"),
    pytest.param(with_data(sized(bare("INT32", [2]), 2**64), b"12345678"), id="a binary size beyond 64 bits"),
    pytest.param(http_infer(struct.pack("<I", 2**31), "fails", ("Inference-Header-Content-Length", "0")), id="a raw string of 2 GB"),
    pytest.param(http_infer(b"ab", "fails", ("Inference-Header-Content-Length", "0")), id="a raw string cut off"),
    pytest.param(http_infer(b"\0" * 7, "types", ("Inference-Header-Content-Length", "99999999999999999999")),
        id="a header length that wraps"),
    pytest.param(http_infer(classified("OUT_BYTES", "BYTES", ["a"])), id="classes of strings"),
    pytest.param(http_infer(classified("OUT_BYTES\0x", "BYTES", ["a"])), id="classes of strings by a name with NUL"),
    pytest.param(http_infer(classified("OUT_FP32", "FP32", [])), id="classes of nothing"),
    pytest.param(http_infer(added(1, LONG_ID, sequence_start=True), "accumulate"), id="a string as the id of a sequence of numbers"),
    pytest.param(request("POST", "/v2/repository/models/../load"), id="load .."),
    pytest.param(request("POST", "/v2/repository/models/..%2f..%2fx/load"), id="load a path"),
    pytest.param(
        request("POST", "/v2/repository/models/spare/load", {"parameters": {"config": "{}", "file:../../../x": "YQ=="}}),
        id="a file outside"
    ),
    pytest.param(
        request("POST", "/v2/systemsharedmemory/region/x/register", {"key": "/x", "offset": 2**64 - 8, "byte_size": 16}),
        id="a region that wraps"
    ),
]  # fmt: skip


@pytest.mark.parametrize("data", HTTP)
def test_over_http_it_is_refused(frontends: BothWays, data: bytes) -> None:
    answer, end = hold(frontends.gateway_http, Talk("guard", (data,)))
    assert isinstance(answer, Answer)
    assert 400 <= answer.status < 600, answer
    assert answer.status != 502
    assert answer.status != 503, "it reached Triton, and that answered no more"
    assert json.loads(answer.body)["error"]
    assert end == "open"


def with_classes(asked: pb.ModelInferRequest, output: str) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest.FromString(asked.SerializeToString())
    message.outputs.add(name=output).parameters["classification"].int64_param = 1
    return message


STRINGS = infer("types", ("BYTES", "BYTES", [1], strings(b"a")), key="a")
CALLS = [
    Call("classes of strings", "ModelInfer", with_classes(STRINGS, "OUT_BYTES")),
    Call("classes of nothing", "ModelInfer", with_classes(infer("types", ("FP32", "FP32", [0], b"")), "OUT_FP32")),
    Call("a string as the id of a sequence of numbers", "ModelInfer", add(1, LONG_ID, sequence_start=True)),
    Call("a shape whose product is 2^64", "ModelInfer", infer("types", ("INT32", "INT32", [2**32, 2**32], b""))),
    Call("a shape whose product wraps", "ModelInfer", infer("types", ("INT32", "INT32", [2**62, 4], b"1234"))),
    Call("a shape of a terabyte", "ModelInfer", infer("types", ("INT32", "INT32", [2**40], b"1234"))),
    Call("a negative dimension", "ModelInfer", infer("types", ("INT32", "INT32", [-1], b"1234"))),
    Call("empty twice", "ModelInfer", infer("classify", ("IN", "FP32", [0, 0], b""))),
    Call("a string of 2 GB in four bytes", "ModelInfer", infer("types", ("BYTES", "BYTES", [1], struct.pack("<I", 2**31)))),
    Call("a string's length cut off", "ModelInfer", infer("types", ("BYTES", "BYTES", [1], b"ab"))),
    Call("a message that is none", "ModelInfer", b"\x0a\xff\xff\xff\xff\x0f"),
]


@pytest.mark.parametrize("what", [pytest.param(each, id=each.name) for each in CALLS])
def test_over_grpc_it_is_refused(frontends: BothWays, what: Call) -> None:
    with channel(frontends.gateway_grpc) as over:
        assert call(over, what).code in ("INVALID_ARGUMENT", "INTERNAL", "UNKNOWN")


STREAMS = [
    Stream("classes of strings", (with_classes(STRINGS, "OUT_BYTES"), same(1, key="b"))),
    Stream("classes of a decoupled model's strings", (with_classes(say("x", 2, "a"), "text_output"), same(1, key="b"))),
    Stream("a string as the id of a sequence of numbers", (add(1, LONG_ID, key="a", sequence_start=True), same(1, key="b"))),
    Stream("ordinary and decoupled requests", tuple(each for number in range(20) for each in (repeat(1, 2, key=f"d{number}"), same(1,
        key=f"o{number}")))),
    Stream("decoupled requests, an ordinary one, more of them",
        (say("x", 3, "a"), same(1, key="b"), repeat(1, 2, 3, key="c"), say("y", 2, "d"))),
    Stream("a string cut off", (infer("types", ("BYTES", "BYTES", [1], b"\x09\0\0\0a"), key="a"), same(1, key="b"))),
    Stream("an overflow", (infer("types", ("INT32", "INT32", [2**32, 2**32], b""), key="a"), same(1, key="b"))),
    Stream("a half message", (b"\x0a\xff\x01x", same(1, key="b"))),
    Stream("strings of another model", (infer("say", ("text_input", "BYTES", [1], strings(b"a")[:-1]), key="a"), say("x", 2, "b"))),
]  # fmt: skip


@pytest.mark.parametrize("what", [pytest.param(each, id=each.name) for each in STREAMS])
def test_over_a_stream_it_is_refused_or_kept_apart(frontends: BothWays, what: Stream) -> None:
    with channel(frontends.gateway_grpc) as over:
        for _ in range(3):  # the mixed ones take Triton a few tries
            assert talk(over, what).code in ("OK", "INVALID_ARGUMENT", "UNIMPLEMENTED", "INTERNAL")
        assert call(over, Call("", "ModelInfer", same(1))).code == "OK"


def test_an_error_of_a_decoupled_model_as_status_ends_the_stream_and_not_triton(frontends: BothWays) -> None:
    """Straight, every second such stream ends Triton 24.10: it answers on into a stream that it has closed.

    Triton's status would be INVALID_ARGUMENT; the gateway has Triton send errors as messages, so that it lives, and gets their
    text only.
    """
    with channel(frontends.gateway_grpc) as over:
        for _ in range(10):
            seen = talk(over, Stream("", (repeat(1, -2, 3, key="a"),), metadata=(("triton_grpc_error", "true"),)))
            assert seen.code == "INTERNAL"
            assert seen.details == "the element -2 is negative"
            assert len(seen.messages) <= 1
        assert call(over, Call("", "ModelInfer", same(1))).code == "OK"


@pytest.mark.parametrize(
    ("code", "status"),
    [("UNAVAILABLE", "UNAVAILABLE"), ("NOT_FOUND", "NOT_FOUND"), ("INVALID_ARG", "INVALID_ARGUMENT"), ("INTERNAL", "INTERNAL")],
)
def test_an_error_of_an_ordinary_model_as_status_is_tritons_own(frontends: BothWays, code: str, status: str) -> None:
    """Status and text as Triton gives them straight, where it does not die of it."""
    with channel(frontends.gateway_grpc) as over:
        seen = talk(over, Stream("", (fails(code, key="a"),), metadata=(("triton_grpc_error", "true"),)))
        assert (seen.code, seen.details, seen.messages) == (status, f'said "{code}" ä \n', ())


@pytest.mark.timeout(60)
def test_clients_of_both_kinds_of_models_at_once(frontends: BothWays) -> None:
    """Straight, streams to ordinary models beside streams to decoupled ones end Triton 24.10, most times within a hundred."""

    def client(number: int) -> None:
        kind = (lambda key: repeat(1, 2, key=key)) if number % 2 else (lambda key: same(1, key=key))
        requests = tuple(kind(str(each)) for each in range(20))
        with channel(frontends.gateway_grpc) as over:
            for _ in range(25):
                seen = talk(over, Stream("", requests))
                assert seen.code == "OK"
                assert len(seen.messages) == (40 if number % 2 else 20)

    with ThreadPoolExecutor() as clients:
        list(clients.map(client, range(4)))


@pytest.mark.timeout(60)
def test_errors_as_status_beside_answers(frontends: BothWays) -> None:
    """Such a stream ends for its client while Triton is still sending; cancelling it at once ended Triton every 250 times."""

    def client(number: int) -> None:
        with channel(frontends.gateway_grpc) as over:
            for _ in range(100):
                if number % 2:
                    assert talk(over, Stream("", (repeat(1, 2),))).code == "OK"
                else:
                    assert talk(over, Stream("", (repeat(1, -2, 3),), metadata=(("triton_grpc_error", "true"),))).code == "INTERNAL"

    with ThreadPoolExecutor() as clients:
        list(clients.map(client, range(4)))


def test_a_message_beyond_the_limit_is_refused(frontends: BothWays) -> None:
    with channel(frontends.gateway_grpc) as over:
        over_limit = 129 << 20
        seen = call(over, Call("", "ModelInfer", infer("types", ("UINT8", "UINT8", [over_limit], bytes(over_limit)))))
        assert seen.code == grpc.StatusCode.RESOURCE_EXHAUSTED.name

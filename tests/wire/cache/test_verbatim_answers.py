"""The verbatim cache gives the answers of the ordinary path, byte for byte, whatever each request has of its own.

Each request goes to two gateways; that with a request log has no verbatim cache.
"""

from __future__ import annotations

import json
from typing import Any

from hpack import Encoder
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from control_plane.core.infer_call import Outcome
from control_plane.protocols.grpc import GrpcAnswer, frame_message, message_answer
from control_plane.protocols.header_forwarding import HeaderForwarding
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.protocols.http2.headers import NO_TABLE
from control_plane.triton.ports import GrpcCall
from tests.aio import run
from tests.fakes import FakeGrpc, FakeHttp, FakeUpstream
from tests.fakes.cache import keeping
from tests.fakes.governance import FakeMeter, governance, known_state
from tests.fakes.spans import Spans
from tests.wire.gateway import Gateway, gateway, infer_request
from tests.wire.grpc_frontend import Bench, frontend
from tests.wire.h2_calls import RAW_HEAD, Field, WholeCaller

FORWARDING = HeaderForwarding.of("^x-request-id$|^x-seen$")
"""Models see this request id, so answers may depend on it."""


def as_triton(request: HttpRequest) -> HttpAnswer:
    """As Triton: the JSON begins with the request's id, binary outputs follow the JSON, and the model sees what is
    forwarded."""
    length = request.header(b"inference-header-content-length")
    body = bytes(request.body)
    asked = json.loads(body if length is None else body[: int(length)])
    given_id = {"id": asked["id"]} if asked.get("id") else {}
    text = json.dumps({**given_id, "model_name": request.request_id, "outputs": asked["inputs"]}, separators=(",", ":")).encode()
    if length is None:
        return make_answer(200, text)
    return make_answer(200, text + body[int(length) :], headers=[(b"Inference-Header-Content-Length", b"%d" % len(text))])


def as_triton_over_grpc(call: GrpcCall) -> GrpcAnswer:
    asked = service_pb2.ModelInferRequest.FromString(bytes(call.frame[5:]))
    answer = service_pb2.ModelInferResponse(model_name=call.head.request_id, id=asked.id, raw_output_contents=asked.raw_input_contents)
    return message_answer(answer.SerializeToString())


IDS = st.one_of(
    st.none(),
    st.sampled_from(["", "1", "2", "22", "a-b", 'quo"te', "back\\slash", "\u00e9", "\t", "x" * 128, "y" * 129]),
    st.uuids().map(str),
)
TRACES = st.one_of(st.just(b""), st.integers(0, 2**128 - 1).map(lambda number: b"00-%032x-%016x-01" % (number, number % 2**64)))
LINES = st.one_of(
    TRACES.map(lambda value: b"traceparent: %b\r\n" % value),
    TRACES.map(lambda value: b"TraceState:%b\r\n" % value),
    st.sampled_from([b"X-Correlation-Id: 7\r\n", b"X-Correlation-Id: a b\r\n", b"X-Correlation-Id: \xe9\r\n", b"baggage: \t\r\n"]),
    st.sampled_from([b"X-Request-Id: 1\r\n", b"X-Request-Id: 2\r\n", b"x-seen: 1\r\n", b"Cache-Control: no-cache\r\n"]),
)


@st.composite
def http_requests(draw: st.DrawFn) -> bytes:
    lines = b"".join(draw(st.permutations(draw(st.lists(LINES, max_size=3)))))
    request_id, is_binary, is_first = draw(IDS), draw(st.booleans()), draw(st.integers(0, 3)) > 0
    tensor: dict[str, Any] = {"name": draw(st.sampled_from(["X", "id"])), "datatype": "FP32", "shape": [1]}
    tensor |= {"parameters": {"binary_data_size": 4}} if is_binary else {"data": [1]}
    named = {} if request_id is None else {"id": request_id}
    rest = {"inputs": [tensor]}
    compact = (",", ":") if draw(st.booleans()) else (", ", ": ")
    is_ascii = draw(st.booleans())
    text = json.dumps({**named, **rest} if is_first else {**rest, **named}, separators=compact, ensure_ascii=is_ascii).encode()
    if is_binary:
        lines += b"Inference-Header-Content-Length: %d\r\n" % len(text)
    return infer_request(text + b"abcd" if is_binary else text, headers=lines)


def two_meters() -> list[FakeMeter]:
    return [FakeMeter(has_log=False), FakeMeter(has_log=True)]


def named_id(request_id: bytes) -> bytes:
    """A request whose input has the name `id` too, so that it is not certain which member is the id."""
    return infer_request(b'{"id":"%b","inputs":[{"name":"id","datatype":"FP32","shape":[1],"data":[1]}]}' % request_id)


@settings(max_examples=40)
@given(requests=st.lists(http_requests(), min_size=1, max_size=4))
@example(requests=[named_id(b"1"), named_id(b"1"), named_id(b"2")])
@example(requests=[infer_request(headers=b"X-Request-Id: 1\r\n"), infer_request(headers=b"X-Request-Id: 2\r\n")])
def test_http_answers_are_those_of_the_ordinary_path(requests: list[bytes]) -> None:
    async def answers(meter: FakeMeter) -> list[tuple[bytes, bytes]]:
        upstream = FakeUpstream(http=FakeHttp(answer=as_triton))
        governed = governance(known_state(), meter=meter)
        async with gateway(upstream, cached=keeping("m"), governed=governed, forwarding=FORWARDING) as running:
            client = await running.connect()
            return [(answer.head, answer.body) for answer in [await client.ask(request) for _ in range(3) for request in requests]]

    fast, slow = [run(answers(meter)) for meter in two_meters()]
    assert fast == slow


H2_FIELDS = st.lists(
    st.one_of(
        TRACES.map(lambda value: (b"traceparent", value)),
        st.integers(1, 99_999_999).map(lambda number: (b"grpc-timeout", b"%du" % number)),
        st.sampled_from(
            [(b"x-correlation-id", b"7"), (b"x-request-id", b"1"), (b"x-request-id", b"2"), (b"x-seen", b"1"), (b"tracestate", b"\xe9")]
        ),
        st.sampled_from([(b"cache-control", b"no-cache"), (b"grpc-timeout", b"soon")]),
    ),
    max_size=3,
)


@st.composite
def grpc_calls(draw: st.DrawFn) -> tuple[list[tuple[bytes, bytes]], bool, bytes]:
    request_id = draw(IDS.filter(lambda each: each is not None))
    request = service_pb2.ModelInferRequest(model_name="m", id=request_id, raw_input_contents=[b"abcd"])
    request.inputs.add(name="X", datatype="FP32", shape=[1])
    message = request.SerializeToString()
    if draw(st.integers(0, 3)) == 0:  # the last of two ids holds
        message += service_pb2.ModelInferRequest(id=draw(st.sampled_from(["1", "2"]))).SerializeToString()
    return draw(H2_FIELDS), draw(st.booleans()), frame_message(message)


async def call(caller: WholeCaller, fields: list[Field], data: bytes, *, is_coded: bool = False) -> list[list[Field] | bytes]:
    """Make a call whose header block may be Huffman-coded."""
    encoder = Encoder()
    encoder.header_table_size = 0
    return await caller.call(encoder.encode([*RAW_HEAD, *fields], huffman=is_coded).removeprefix(NO_TABLE), data)


@settings(max_examples=40)
@given(calls=st.lists(grpc_calls(), min_size=1, max_size=4))
def test_grpc_answers_are_those_of_the_ordinary_path(calls: list[tuple[list[tuple[bytes, bytes]], bool, bytes]]) -> None:
    async def answers(meter: FakeMeter) -> list[list[object]]:
        governed = governance(known_state(), meter=meter)
        async with frontend(FakeGrpc(answer=as_triton_over_grpc), cached=keeping("m"), governed=governed, forwarding=FORWARDING) as bench:
            caller = WholeCaller(await bench.connect())
            return [await call(caller, fields, message, is_coded=coded) for _ in range(3) for fields, coded, message in calls]

    fast, slow = [run(answers(meter)) for meter in two_meters()]
    assert fast == slow


def unread(running: Gateway | Bench) -> int:
    """How many requests were answered from the verbatim cache, which alone takes no time."""
    running.inference.verbatim.flush_counts()
    assert set(running.recorder.outcomes) == {Outcome.ANSWERED}
    return sum(each.duration_s == 0.0 for each in running.recorder.records)


async def test_http_requests_with_a_trace_and_an_id_of_their_own_are_answered_unread() -> None:
    governed = governance(known_state(), meter=FakeMeter(has_log=False))
    async with gateway(FakeUpstream(http=FakeHttp(answer=as_triton)), cached=keeping("m"), governed=governed) as running:
        client = await running.connect()
        for number in range(20):
            text = b'{"id":"%d","inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[1]}]}' % (number % 2 + 10)
            lines = b"traceparent: 00-%032x-%016x-01\r\nX-Request-ID: %d\r\n" % (number, number, number)
            answer = await client.ask(infer_request(text, headers=lines))
            assert json.loads(answer.body)["id"] == str(number % 2 + 10)
        assert unread(running) == 18
        assert len(running.upstream.http.requests) == 1


async def test_requests_of_different_sizes_are_answered_unread() -> None:
    governed = governance(known_state(), meter=FakeMeter(has_log=False))
    async with gateway(FakeUpstream(http=FakeHttp(answer=as_triton)), cached=keeping("m"), governed=governed) as running:
        client = await running.connect()
        bodies = [b'{"inputs":[{"name":"X","datatype":"BYTES","shape":[1],"data":["%b"]}]}' % (b"x" * size) for size in (1, 20, 300)]
        for _ in range(5):
            for each in bodies:
                await client.ask(infer_request(each))
        assert unread(running) == 9


async def test_grpc_calls_with_a_trace_and_an_id_of_their_own_are_answered_unread() -> None:
    governed = governance(known_state(), meter=FakeMeter(has_log=False))
    async with frontend(FakeGrpc(answer=as_triton_over_grpc), cached=keeping("m"), governed=governed) as bench:
        caller = WholeCaller(await bench.connect())
        for number in range(20):
            request = service_pb2.ModelInferRequest(model_name="m", id=str(number % 2 + 10), raw_input_contents=[b"abcd"])
            request.inputs.add(name="X", datatype="FP32", shape=[1])
            fields = [(b"grpc-timeout", b"%dm" % (number + 9000)), (b"traceparent", b"00-%032x-%016x-01" % (number, number))]
            _, data, _ = await call(caller, fields, frame_message(request.SerializeToString()), is_coded=True)
            assert isinstance(data, bytes)
            assert service_pb2.ModelInferResponse.FromString(data[5:]).id == request.id
        assert unread(bench) >= 17


# In turn: computed; a hit, which is kept; not sampled; sampled; not sampled.
TRACEPARENTS = (b"", b"", b"", b"-00", b"-00", b"-01", b"-01", b"-00", b"-00")


def traced_line(flags: bytes) -> bytes:
    return b"00-%032x-%016x%b" % (7, 8, flags)


async def test_http_requests_that_are_sampled_are_read_where_they_are_traced() -> None:
    spans, governed = Spans(ratio=0.0), governance(known_state(), meter=FakeMeter(has_log=False))
    upstream = FakeUpstream(http=FakeHttp(answer=as_triton))
    async with gateway(upstream, cached=keeping("m"), governed=governed, tracer=spans.tracer) as running:
        client = await running.connect()
        for flags in TRACEPARENTS:
            headers = b"traceparent: %b\r\n" % traced_line(flags) if flags else b""
            assert (await client.ask(infer_request(headers=headers))).status == 200
        assert (unread(running), len(upstream.http.requests)) == (3, 1), "the first of another form is read"
    assert [(dict(each.attributes or {})["tidegate.cache"], each.parent and each.parent.span_id) for each in spans.all()] == [
        ("hit", 8)
    ] * 2


async def test_grpc_calls_that_are_sampled_are_read_where_they_are_traced() -> None:
    spans, governed = Spans(ratio=0.0), governance(known_state(), meter=FakeMeter(has_log=False))
    async with frontend(FakeGrpc(answer=as_triton_over_grpc), cached=keeping("m"), governed=governed, tracer=spans.tracer) as bench:
        caller = WholeCaller(await bench.connect())
        request = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[b"abcd"])
        request.inputs.add(name="X", datatype="FP32", shape=[1])
        await call(caller, [], frame_message(request.SerializeToString()))  # the first of a connection is never unread
        for flags in TRACEPARENTS[1:]:
            fields = [(b"traceparent", traced_line(flags))] if flags else []
            await call(caller, fields, frame_message(request.SerializeToString()), is_coded=True)
        assert unread(bench) == 5
    assert [(dict(each.attributes or {})["tidegate.cache"], each.parent and each.parent.span_id) for each in spans.all()] == [
        ("hit", 8)
    ] * 2

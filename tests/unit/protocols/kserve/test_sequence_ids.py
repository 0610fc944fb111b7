"""Sequence ids of tenants: what Triton gets in their place, and that nothing else of a request changes."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from control_plane.core.algorithms.steps import finish
from control_plane.core.errors import InvalidRequest
from control_plane.core.infer_call import InferCall
from control_plane.protocols.kserve.sequence_ids import MOVED_BYTES, own_body_steps, own_call, own_field

NUMBER = InferCall("m", "", "", (), sequence_id="7", starts_sequence=True)
TEXT = replace(NUMBER, sequence_is_text=True)
KEY, OTHER = b"k" * 32, b"o" * 32
STEP_BYTES = 16 * 1024


def test_of_each_tenant_and_id_there_is_one() -> None:
    calls = [replace(call, sequence_id=id_) for call in (NUMBER, TEXT) for id_ in ("7", "8")]
    assert len({own_call(call, key).sequence_id for call in calls for key in (KEY, OTHER)}) == 8
    assert own_call(NUMBER, KEY) == own_call(NUMBER, KEY)


@pytest.mark.parametrize("call", [NUMBER, TEXT], ids=["number", "text"])
def test_nothing_else_of_the_call_changes(call: InferCall) -> None:
    assert replace(own_call(call, KEY), sequence_id="7") == call


@given(st.integers(-(2**63), 2**64 - 1), st.binary(max_size=64))
def test_a_number_stays_one_that_triton_takes_over_both_protocols(number: int, key: bytes) -> None:
    assert 1 <= int(own_call(replace(NUMBER, sequence_id=str(number)), key).sequence_id) < 2**63


def test_the_upper_half_of_the_numbers_is_negative_over_grpc() -> None:
    assert own_call(replace(NUMBER, sequence_id="-1"), KEY) == own_call(replace(NUMBER, sequence_id=str(2**64 - 1)), KEY)


@given(st.text())
def test_a_string_stays_a_short_one(text: str) -> None:
    own = own_call(replace(TEXT, sequence_id=text), KEY).sequence_id
    assert (len(own), own.isascii(), own.isalnum()) == (32, True, True)


@pytest.mark.parametrize("id_", ["True", "1.5", "1e+20", "[1]", "{'a': 1}", str(2**64), str(-(2**63) - 1), "9" * 30])
def test_what_is_no_number_of_64_bits_is_refused(id_: str) -> None:
    with pytest.raises(InvalidRequest, match="sequence_id"):
        own_call(replace(NUMBER, sequence_id=id_), KEY)


def with_own(text: bytes, data: bytes, call: InferCall) -> tuple[Any, bytes]:
    """The JSON and the data after it, with the tenant's own id."""
    body, json_bytes = finish(own_body_steps(text + data, len(text), call, own_call(call, KEY)))
    return json.loads(body[:json_bytes]), bytes(body[json_bytes:])


@pytest.mark.parametrize(
    ("text", "call"),
    [
        pytest.param(rb'{"parameters":{"sequence_id":7},"inputs":[]}', NUMBER, id="number"),
        pytest.param(rb'{"parameters":{"sequence_id":"7"},"inputs":[]}', TEXT, id="text"),
        pytest.param(rb'{"parameters":{"sequence_id":"\u0037"},"inputs":[]}', TEXT, id="text with escapes"),
        pytest.param(b'{"parameters":{"a":1,\n"sequence_id"\t:\r\n 7 ,"b":2},"inputs":[]}', NUMBER, id="blanks"),
        pytest.param(rb'{"parameters":{"sequence\u005Fid":7},"inputs":[]}', NUMBER, id="a name with escapes"),
        pytest.param(rb'{"parameters":{"\u0073equence_i\u0064":7},"inputs":[]}', NUMBER, id="a name with more escapes"),
        pytest.param(rb'{"inputs":[{"name":"sequence_id"}],"parameters":{"sequence_id":7}}', NUMBER, id="a tensor of that name"),
        pytest.param(rb'{"inputs":["sequence_id" , "sequence_id"],"parameters":{"sequence_id":7}}', NUMBER, id="elements"),
        pytest.param(rb'{"x":"\"sequence_id\":9","parameters":{"sequence_id":7}}', NUMBER, id="within a string"),
        pytest.param(rb'{"x":"\\u0073equence_id","parameters":{"sequence_id":7}}', NUMBER, id="an escape that is none"),
        pytest.param(rb'{"x\"sequence_id":9,"parameters":{"sequence_id":7}}', NUMBER, id="a name that ends so"),
        pytest.param(rb'{"sequence_id_":9,"a sequence_id":9,"parameters":{"sequence_id":7}}', NUMBER, id="longer names"),
    ],
)
def test_the_id_alone_changes_in_the_json(text: bytes, call: InferCall) -> None:
    wanted = json.loads(text)
    own = own_call(call, KEY).sequence_id
    wanted["parameters"]["sequence_id"] = own if call.sequence_is_text else int(own)
    data = b'"sequence_id":9'
    assert with_own(text, data, call) == (wanted, data)


NAMES = st.sampled_from(["sequence_id", "parameters", "x", 'a"sequence_id', "sequence_id\\"])
MEMBERS = st.dictionaries(
    NAMES,
    st.recursive(NAMES | st.none(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8),
)


SEPARATORS = st.sampled_from([(",", ":"), (" ,\n", "\t: ")])


@given(MEMBERS, st.integers(1, 2**64 - 1) | st.text(min_size=1, max_size=20), st.booleans(), SEPARATORS)
def test_in_any_json_the_right_one_changes_or_it_is_refused(
    members: dict[str, Any], id_: int | str, is_ascii: bool, separators: tuple[str, str]
) -> None:
    members["parameters"] = {"sequence_id": id_}
    call = replace(NUMBER, sequence_id=str(id_), sequence_is_text=isinstance(id_, str))
    text = json.dumps(members, ensure_ascii=is_ascii, separators=separators).encode()
    try:
        told, _ = with_own(text, b"", call)
    except InvalidRequest:
        assert text.count(b'"sequence_id"') > 1
    else:
        own = own_call(call, KEY).sequence_id
        assert told == {**members, "parameters": {"sequence_id": own if call.sequence_is_text else int(own)}}


@pytest.mark.parametrize("before", range(STEP_BYTES - 60, STEP_BYTES + 5, 3))
def test_it_is_found_once_wherever_it_stands(before: int) -> None:
    text = b'{"x":"%b","parameters":{"sequence_id":7}}' % (b"a" * before)
    told, _ = with_own(text, b"", NUMBER)
    assert told["parameters"] == {"sequence_id": int(own_call(NUMBER, KEY).sequence_id)}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(rb'{"inputs":[{"parameters":{"sequence_id":7}}],"parameters":{"sequence_id":7}}', id="twice"),
        pytest.param(rb'{"inputs":[{"parameters":{"sequence_id":7}}],"parameters":{"sequence\u005fid":7}}', id="twice, one with escapes"),
        pytest.param(b'{"parameters":{"sequence_id"' + b" " * 3000 + b":7}}", id="many blanks"),
        pytest.param(b'{"parameters":{"sequence_id":"' + b"a" * 3000 + b'"}}', id="a long string"),
        pytest.param(rb'{"parameters":{"sequence_id":7.0}}', id="a fraction"),
        pytest.param(rb'{"parameters":{"sequence_id":7e0}}', id="an exponent"),
        pytest.param(rb'{"parameters":{"sequence_id":-7}}', id="negative"),
        pytest.param(rb'{"parameters":{"sequence_id":true}}', id="true"),
        pytest.param(rb'{"parameters":{"sequence_id":8}}', id="another than was read"),
        pytest.param(rb'{"parameters":{}}', id="none"),
    ],
)
def test_where_it_is_not_certain_which_value_triton_takes_it_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest, match="sequence_id"):
        with_own(text, b"", NUMBER)


def test_a_large_body_is_searched_and_copied_in_steps() -> None:
    text = b'{"x":"%b","parameters":{"sequence_id":7}}' % (b"a" * 2**20)
    data = bytes(8 * 2**20)
    assert sum(1 for _ in own_body_steps(text + data, len(text), NUMBER, own_call(NUMBER, KEY))) >= 2**20 // STEP_BYTES + 8


@pytest.mark.parametrize("call", [replace(NUMBER, sequence_id="18446744073709551615"), NUMBER, replace(TEXT, sequence_id="s" * 90)])
@pytest.mark.parametrize("data_bytes", [0, 5, MOVED_BYTES - 1, 2 * MOVED_BYTES + 7])
def test_a_body_that_came_in_pieces_is_changed_in_place(call: InferCall, data_bytes: int) -> None:
    id_ = f'"{call.sequence_id}"' if call.sequence_is_text else call.sequence_id
    text, data, own = f'{{"parameters":{{"sequence_id":{id_}}}}}'.encode(), Random(7).randbytes(data_bytes), own_call(call, KEY)
    body = bytearray(text + data)
    changed, json_bytes = finish(own_body_steps(body, len(text), call, own))
    assert changed is body
    assert (bytes(body), json_bytes) == finish(own_body_steps(text + data, len(text), call, own))
    assert body[json_bytes:] == data


def put_id(request: service_pb2.ModelInferRequest, call: InferCall) -> None:
    if call.sequence_is_text:
        request.parameters["sequence_id"].string_param = call.sequence_id
    else:
        request.parameters["sequence_id"].int64_param = int(call.sequence_id)


@pytest.mark.parametrize("call", [NUMBER, TEXT], ids=["number", "text"])
def test_the_id_alone_changes_in_a_grpc_message(call: InferCall) -> None:
    request = service_pb2.ModelInferRequest(model_name="m", id="i", raw_input_contents=[b"1234"])
    request.parameters["sequence_start"].bool_param = True
    put_id(request, call)
    own = own_call(call, KEY)
    message = request.SerializeToString() + own_field(own)
    put_id(request, own)
    assert service_pb2.ModelInferRequest.FromString(message) == request

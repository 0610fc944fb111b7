from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from control_plane.core.algorithms.steps import finish
from control_plane.core.errors import InvalidRequest, UnparsableRequest
from control_plane.core.infer_call import InferCall
from control_plane.core.tensor import element_count
from control_plane.protocols.kserve.requests.infer_json import infer_request_steps, parse_json_object
from tests.unit.protocols.kserve.infer_requests import Sent, requests

_KEYS = st.sampled_from(["a", "b", "inputs", "a:", ""])
_VALUES: st.SearchStrategy[str] = st.recursive(
    st.sampled_from(["1", "null", '":"', '"\\u003a"', "NaN", "1e5", "[]", "{}"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda values: f"[{','.join(values)}]"),
        st.lists(st.tuples(_KEYS, st.booleans(), inner), max_size=3).map(
            lambda pairs: "{" + ",".join(_pair(*pair) for pair in pairs) + "}"
        ),
    ),
    max_leaves=8,
)


def _pair(key: str, is_escaped: bool, value: str) -> str:
    written = "".join(f"\\u{ord(char):04x}" for char in key) if is_escaped else key
    return f'"{written}":{value}'


def _repeats_a_key(text: str) -> bool:
    """Whether a key repeats, by a parser that shows every pair of every object."""
    found = False

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal found
        found = found or len({name for name, _ in pairs}) != len(pairs)

    json.loads(text, object_pairs_hook=look)
    return found


@given(sent=requests())
def test_a_valid_request_is_accepted_and_declares_its_tensors(sent: Sent) -> None:
    call = finish(infer_request_steps(sent.body, sent.header_length, model_name="m", model_version=""))
    assert call == InferCall(
        "m", "", sent.request_id, sent.tensors, text_bytes=sent.text_bytes, elements=sum(element_count(each.shape) for each in sent.tensors)
    )


@given(sent=requests(), data=st.data())
def test_a_changed_byte_never_ends_in_anything_but_an_answer(sent: Sent, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(sent.body) - 1))
    changed = sent.body[:at] + data.draw(st.binary(max_size=3)) + sent.body[at + data.draw(st.integers(0, 2)) :]
    _read_or_refuse(changed, sent.header_length)


@given(
    body=st.binary(max_size=200), header_length=st.one_of(st.none(), st.binary(max_size=4), st.integers(0, 200).map(lambda n: b"%d" % n))
)
@example(body=b'{"inputs":null}', header_length=None)
def test_any_bytes_end_in_an_answer(body: bytes, header_length: bytes | None) -> None:
    _read_or_refuse(body, header_length)


@given(value=_VALUES)
@example(value='{"a":":","a":1}')
@example(value='{"a":[1,{"b":1,"b":2}]}')
def test_what_is_accepted_repeats_no_key_and_what_repeats_none_is_accepted(value: str) -> None:
    text = '{"x":' + value + "}"
    try:
        found = parse_json_object(text.encode())
    except UnparsableRequest:
        assert _repeats_a_key(text)
    else:
        assert not _repeats_a_key(text)
        assert repr(found) == repr(json.loads(text))  # repr, for NaN equals nothing


def _read_or_refuse(body: bytes, header_length: bytes | None) -> None:
    try:
        assert isinstance(finish(infer_request_steps(body, header_length, model_name="m", model_version="")), InferCall)
    except (InvalidRequest, UnparsableRequest) as exc:
        str(exc).encode()  # it can be told to the caller

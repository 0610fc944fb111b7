from __future__ import annotations

import json
from base64 import b64encode

import pytest

from control_plane.core.errors import InvalidRequest, UnparsableRequest
from control_plane.core.model import ModelOverride
from control_plane.protocols.kserve.model_control import read_index_request, read_load_request, read_unload_request

CONTENT = b"\x00\xffmodel"
FILE = {"file:1/model.onnx": b64encode(CONTENT).decode()}


@pytest.mark.parametrize(
    ("parameters", "override"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({"config": "{}"}, ModelOverride("{}"), id="a config"),
        pytest.param({"config": "{}", **FILE}, ModelOverride("{}", {"file:1/model.onnx": CONTENT}), id="a config and a file"),
        pytest.param(FILE, ModelOverride(None, {"file:1/model.onnx": CONTENT}), id="a file, which Triton refuses"),
    ],
)
def test_a_load_brings_its_parameters(parameters: dict[str, str], override: ModelOverride | None) -> None:
    assert read_load_request(json.dumps({"parameters": parameters}).encode()) == override


@pytest.mark.parametrize("body", [b"", b"{}", b'{"parameters":{}}', bytearray(b"{}")])
def test_a_plain_load_brings_none(body: bytes) -> None:
    assert read_load_request(body) is None
    assert read_unload_request(body) is False


@pytest.mark.parametrize(
    ("body", "error"),
    [
        pytest.param(b"{", UnparsableRequest, id="not JSON"),
        pytest.param(b"[]", UnparsableRequest, id="no object"),
        pytest.param(b'{"parameters":3}', UnparsableRequest, id="parameters of another kind"),
        pytest.param(b'{"parameters":{"config":3}}', UnparsableRequest, id="a config that is no text"),
        pytest.param(b'{"parameters":{"file:1/m":3}}', UnparsableRequest, id="a file that is no text"),
        pytest.param(b'{"parameters":{"file:1/m":"$$$"}}', InvalidRequest, id="a file that is no base64"),
        pytest.param(b'{"parameters":{"file:1/m":"\\u00e9"}}', InvalidRequest, id="a file beyond ASCII"),
        pytest.param(b'{"parameters":{"confg":"{}"}}', InvalidRequest, id="a misspelt parameter"),
        pytest.param(b'{"parameters":{"config":"{}","config":"[]"}}', UnparsableRequest, id="a key twice"),
    ],
)
def test_other_loads_are_refused(body: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        read_load_request(body)


@pytest.mark.parametrize("value", [True, False])
def test_an_unload_says_whether_dependents_go_too(value: bool) -> None:
    assert read_unload_request(json.dumps({"parameters": {"unload_dependents": value}}).encode()) is value


@pytest.mark.parametrize("body", [b"{", b'{"parameters":[]}', b'{"parameters":{"unload_dependents":"yes"}}'])
def test_other_unloads_are_refused(body: bytes) -> None:
    with pytest.raises(UnparsableRequest):
        read_unload_request(body)


@pytest.mark.parametrize(
    ("body", "only_ready"), [(b"", False), (b"{}", False), (b'{"ready":true}', True), (b'{"ready":false,"other":1}', False)]
)
def test_an_index_may_be_of_what_is_ready(body: bytes, only_ready: bool) -> None:
    assert read_index_request(body) is only_ready


@pytest.mark.parametrize("body", [b'{"ready":1}', b'{"ready":null}', b'{"ready":', b"[true]"])
def test_an_index_that_cannot_be_read_is_no_index_of_everything(body: bytes) -> None:
    with pytest.raises(UnparsableRequest):
        read_index_request(body)

"""JSON of requests so large that it is read in steps."""

from __future__ import annotations

import pytest

from control_plane.core.algorithms.steps import finish
from control_plane.core.errors import InvalidRequest, PayloadTooLarge, UnparsableRequest
from control_plane.core.infer_call import InferCall
from control_plane.core.tensor import Tensor
from control_plane.protocols.kserve.requests.infer_json import infer_request_steps, small_infer_request


def read(body: bytes, header_length: bytes | None = None) -> InferCall:
    return finish(infer_request_steps(body, header_length, model_name="m", model_version="3"))


class TestLarge:
    """JSON so large that it is outlined before it is parsed."""

    DATA = "[" + ",".join(["1.5"] * 200_000) + "]"

    def large(self, **changes: str) -> bytes:
        fields = {"name": '"X"', "datatype": '"FP32"', "shape": "[200000]", "data": self.DATA, **changes}
        inner = ",".join(f'"{name}":{value}' for name, value in fields.items())
        return f'{{"id":"7","inputs":[{{{inner}}}]}}'.encode()

    def test_says_what_it_says_when_small(self) -> None:
        call = read(self.large())
        assert (call.request_id, call.inputs, call.uses_shared_memory) == ("7", (Tensor("X", "FP32", (200_000,)),), False)

    def test_is_read_in_steps(self) -> None:
        assert sum(1 for _ in infer_request_steps(self.large(), None, model_name="m", model_version="")) >= 2

    def test_before_binary_data_too(self) -> None:
        text = self.large()[:-2] + b',{"name":"B","datatype":"UINT8","shape":[3],"parameters":{"binary_data_size":3}}]}'
        assert [tensor.name for tensor in read(text + b"abc", b"%d" % len(text)).inputs] == ["X", "B"]
        with pytest.raises(InvalidRequest, match="additional input data"):
            read(text + b"abcd", b"%d" % len(text))

    @pytest.mark.parametrize(
        "changes",
        [
            pytest.param({"shape": "[" + ",".join(["1"] * 2000) + "]"}, id="a shape that is passed over"),
            pytest.param({"data": '"' + "\\ud800" * 10, "shape": "[1]"}, id="a string without an end"),
            pytest.param({"data": "[" * 200_000}, id="nested too deep"),
            pytest.param({"data": "[" * 1001 + DATA}, id="data nested too deep"),
            pytest.param({"name": '"X","name":"Y"'}, id="a key twice"),
            pytest.param({"data": DATA[:-1] + ',{"a":1}]'}, id="an object within data"),
            pytest.param({"data": DATA + DATA}, id="not JSON"),
        ],
    )
    def test_is_refused_when_it_cannot_be_read(self, changes: dict[str, str]) -> None:
        with pytest.raises(UnparsableRequest):
            read(self.large(**changes))

    @pytest.mark.parametrize(("keys", "says"), [(200_000, "exceeds 1048576 bytes"), (20_000, "more than 16384 keys")])
    def test_is_refused_when_it_is_large_without_its_data(self, keys: int, says: str) -> None:
        with pytest.raises(PayloadTooLarge, match=says):
            read(self.large(parameters="{" + ",".join(f'"p{number}":1' for number in range(keys)) + "}"))


class TestOfManyLists:
    """JSON of medium size whose many lists would take the parser long."""

    ROWS = b"[" + b",".join([b'["a"]'] * 9_000) + b"]"

    def of(self, data: bytes, more: bytes = b"") -> bytes:
        return b'{"inputs":[{"name":"X","datatype":"BYTES","shape":[9000,1],"data":%b}]%b}' % (data, more)

    def test_says_what_it_says_when_short_but_for_the_size_of_its_texts_and_is_not_read_at_once(self) -> None:
        body = self.of(self.ROWS)
        assert small_infer_request(body, None, model_name="m", model_version="3") is None
        call = read(body)
        assert (call.inputs, call.elements, call.text_bytes) == ((Tensor("X", "BYTES", (9_000, 1)),), 9_000, len(body))

    def test_its_elements_are_counted(self) -> None:
        with pytest.raises(InvalidRequest, match="takes 9000 elements, got 9001"):
            read(self.of(self.ROWS[:-1] + b',["a"]]'))

    def test_an_id_of_a_sequence_that_is_passed_over_is_none(self) -> None:
        with pytest.raises(InvalidRequest, match="sequence_id"):
            read(self.of(self.ROWS, b',"parameters":{"sequence_id":"%b"}' % (b"x" * 2_000)))

    @pytest.mark.parametrize("each", [b"{}", b'{"a":[[],[],[]]}'])
    def test_very_many_objects_are_refused(self, each: bytes) -> None:
        with pytest.raises(PayloadTooLarge, match="more than 4096 lists and objects"):
            read(b'{"inputs":[],"x":[%b]}' % b",".join([each] * 9_000))


def test_bytes_of_many_elements_are_walked_in_steps() -> None:
    text = b'{"inputs":[{"name":"X","datatype":"BYTES","shape":[100000],"parameters":{"binary_data_size":400000}}]}'
    steps = infer_request_steps(text + bytes(400_000), b"%d" % len(text), model_name="m", model_version="")
    assert sum(1 for _ in steps) >= 10

"""Building engines: what the builder is told, on a TensorRT that only writes it down, and what is said where
there is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto

from python_backends.export.recipe import BuildError
from python_backends.export.variants import tensorrt_engine
from python_backends.export.variants.tensorrt_engine import Profile, build_engine, interface_of, missing_for_gpu
from python_backends.runtime.interface import TensorSpec, read_interface
from tests.unit.python_backends import fake_tensorrt, tiny_encoder, tiny_onnx
from tests.unit.python_backends.tiny_encoder import HIDDEN, VOCABULARY

SHORT, LONG = Profile((1, 1), (1, 16), (8, 32)), Profile((1, 1), (32, 64), (64, 256))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make this machine look as if it had everything a build needs."""
    monkeypatch.setattr(tensorrt_engine, "gpu_name", lambda: "NVIDIA H200")
    with fake_tensorrt.installed():
        yield


@pytest.fixture(scope="module")
def encoder() -> bytes:
    return tiny_encoder.onnx_of(tiny_encoder.encoder())


def built(model: bytes, directory: Path, **changes: Any) -> dict[str, Any]:
    path = build_engine(model, directory / "model.plan", **{"precision": "bf16", "profiles": [SHORT, LONG], **changes})
    document: dict[str, Any] = json.loads(path.read_bytes())
    return document


@pytest.mark.parametrize(("precision", "flags"), [("fp32", []), ("fp16", ["FP16"]), ("bf16", ["BF16"])])
@pytest.mark.usefixtures("gpu")
def test_the_precision_is_a_flag(tmp_path: Path, encoder: bytes, precision: str, flags: list[str]) -> None:
    assert built(encoder, tmp_path, precision=precision)["flags"] == flags


@pytest.mark.usefixtures("gpu")
def test_every_profile_holds_for_every_input_in_order(tmp_path: Path, encoder: bytes) -> None:
    short, long = built(encoder, tmp_path)["profiles"]

    assert short == {key: [[1, 1], [1, 16], [8, 32]] for key in ("INPUT_IDS", "ATTENTION_MASK")}
    assert long == {key: [[1, 1], [32, 64], [64, 256]] for key in ("INPUT_IDS", "ATTENTION_MASK")}


@pytest.mark.usefixtures("gpu")
def test_the_interface_is_beside_it_with_the_limits_that_tensorrt_does_not_know(tmp_path: Path, encoder: bytes) -> None:
    built(encoder, tmp_path)

    interface = read_interface(tmp_path)
    assert interface.inputs[0] == TensorSpec("INPUT_IDS", "TYPE_INT64", ("batch", "length"), below=VOCABULARY)
    assert interface.inputs[1].below is None
    assert interface.outputs == (TensorSpec("EMBEDDING", "TYPE_FP32", ("batch", HIDDEN)),)
    assert interface.maximum == {"batch": 64, "length": 256}


@pytest.mark.parametrize(
    ("shape", "element_type", "message"),
    [
        pytest.param(
            ["batch", 3], TensorProto.FLOAT, r"all inputs must be \[batch, length\], both dynamic, not \[\['batch', 3\]\]", id="fixed"
        ),
        pytest.param(["batch"], TensorProto.FLOAT, r"not \[\['batch'\]\]", id="rank"),
        pytest.param(["batch", "length"], TensorProto.DOUBLE, "'X' of the ONNX file is float64, which is not supported", id="data-type"),
    ],
)
def test_other_files_than_encoders_are_refused(shape: list[int | str], element_type: int, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        interface_of(tiny_onnx.identity(element_type, shape).SerializeToString(), [SHORT])


def test_an_input_that_is_no_index_has_no_limit() -> None:
    bag = tiny_onnx.bag_of_tokens(vocabulary=50).SerializeToString()

    assert [spec.below for spec in interface_of(bag, [SHORT]).inputs] == [50, None]


@pytest.mark.usefixtures("gpu")
def test_what_tensorrt_cannot_read_or_build_is_no_engine(tmp_path: Path, encoder: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    # An unknown field at the end, which protobuf skips.
    unbuildable = encoder + b"\xfa\x7f\x0bunbuildable"
    onnx.load_from_string(unbuildable)

    with pytest.raises(BuildError, match=r"TensorRT 10\.3\.0 cannot build the engine, see its log above"):
        built(unbuildable, tmp_path)
    monkeypatch.setattr(tensorrt_engine, "interface_of", lambda model, profiles: interface_of(encoder, profiles))
    with pytest.raises(BuildError, match=r"TensorRT 10\.3\.0 cannot read the ONNX file: error 0; error 1"):
        built(b"bad", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("gpu")
def test_a_profile_out_of_order_is_refused(tmp_path: Path, encoder: bytes) -> None:
    with pytest.raises(BuildError, match=r"TensorRT refuses the profile .*: least <= best <= most must hold in each dimension"):
        built(encoder, tmp_path, profiles=[Profile((1, 1), (9, 16), (8, 32))])


@pytest.mark.usefixtures("gpu")
def test_unknown_precisions_are_refused_also_by_a_later_tensorrt(tmp_path: Path, encoder: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BuildError, match="unknown precision 'int4', known are: fp32, fp16, bf16"):
        built(encoder, tmp_path, precision="int4")

    import tensorrt

    monkeypatch.setattr(tensorrt, "BuilderFlag", object())
    with pytest.raises(BuildError, match="has no flag for bf16: it needs TensorRT 10"):
        built(encoder, tmp_path)


def test_without_a_gpu_it_says_which_machine_it_needs(tmp_path: Path, encoder: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_engine, "gpu_name", lambda: None)

    assert str(missing_for_gpu()).startswith("it needs an NVIDIA GPU, of the kind that will serve it, and the Python packages tensorrt")
    with pytest.raises(BuildError, match="it needs an NVIDIA GPU"):
        built(encoder, tmp_path)


def test_with_a_gpu_it_says_which_packages_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_engine, "gpu_name", lambda: "NVIDIA H200")

    with fake_tensorrt.installed(with_cuda=False):
        assert str(missing_for_gpu()).endswith("of which cuda cannot be found")
    with fake_tensorrt.installed():
        assert missing_for_gpu() is None

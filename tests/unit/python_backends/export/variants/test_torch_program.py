"""Exporting to a PyTorch program; what it computes is in runtime/test_runtimes.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from python_backends.export.encoders.sentence_encoder import SentenceEncoder
from python_backends.export.recipe import BuildError
from python_backends.export.variants.torch_program import MODE_ENTRY, export_program, missing_for_gpu
from python_backends.runtime.engines import torch_runtime
from python_backends.runtime.interface import Interface, TensorSpec, read_interface
from tests.unit.python_backends import tiny_encoder
from tests.unit.python_backends.tiny_encoder import HIDDEN, LONGEST, VOCABULARY


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    return tiny_encoder.encoder()


@pytest.mark.parametrize(("precision", "dtype", "mode"), [("fp32", torch.float32, "compiled_cuda_graphs"), ("bf16", torch.bfloat16, "")])
def test_weights_have_the_precision_beside_them_is_the_interface_and_the_mode_travels_with_them(
    tmp_path: Path, encoder: SentenceEncoder, precision: str, dtype: torch.dtype, mode: str
) -> None:
    path = export_program(encoder, tmp_path, precision=precision, mode=mode)

    extra_files = {torch_runtime.MODE_ENTRY: ""}
    program = torch.export.load(path, extra_files=extra_files)
    assert path == tmp_path / "model.pt2"
    assert {weight.dtype for weight in program.state_dict.values() if weight.is_floating_point()} == {dtype}
    assert {weight.dtype for weight in encoder.parameters()} == {torch.float32}, "the encoder keeps its own"
    assert encoder.bert.config._attn_implementation == "eager"
    assert not mode or extra_files[MODE_ENTRY] in (mode, mode.encode()), "under the name that the runtime reads"
    assert read_interface(tmp_path) == Interface(
        inputs=(
            TensorSpec("INPUT_IDS", "TYPE_INT64", ("batch", "length"), below=VOCABULARY),
            TensorSpec("ATTENTION_MASK", "TYPE_INT64", ("batch", "length")),
        ),
        outputs=(TensorSpec("EMBEDDING", "TYPE_FP32", ("batch", HIDDEN)),),
        maximum={"length": LONGEST},
    )


def test_an_unknown_precision_is_refused(tmp_path: Path, encoder: SentenceEncoder) -> None:
    with pytest.raises(BuildError, match="unknown precision 'fp8', known are: fp32, bf16"):
        export_program(encoder, tmp_path, precision="fp8")


def test_what_cannot_be_exported_is_a_build_error(tmp_path: Path) -> None:
    broken = tiny_encoder.encoder()
    # The tracer must choose one side of what depends on values.
    broken.forward = lambda ids, mask: ids if bool(ids.sum() > 3) else mask  # type: ignore[method-assign]

    with pytest.raises(BuildError, match=r"PyTorch .* cannot export the encoder"):
        export_program(broken, tmp_path, precision="fp32")
    assert list(tmp_path.iterdir()) == []


def test_without_a_gpu_it_says_which_machine_it_needs() -> None:
    if torch.cuda.is_available():
        assert missing_for_gpu() is None
    else:
        assert missing_for_gpu() == f"it needs an NVIDIA GPU and a CUDA build of PyTorch (this is {torch.__version__})"

"""The shipped model configurations: they parse, every profile keeps the model's face, and the ensemble's steps fit together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from python_backends.runtime.execution_providers import execution_providers
from python_backends.runtime.model_config import ModelConfig, parse_model_config
from python_backends.runtime.signature import OnnxTensor, Signature, check_signature
from tests.unit.python_backends.configs import config_json

PROJECT = Path(__file__).resolve().parents[3]
MODELS = PROJECT / "model_repository"
ENSEMBLE = PROJECT / "ensembles" / "text_embedding"
CONFIGS = sorted([*MODELS.glob("*/config.pbtxt"), *MODELS.glob("*/configs/*.pbtxt"), ENSEMBLE / "config.pbtxt"])

# What model_repository/text_encoder/build.py exports.
ENCODER = Signature(
    inputs=tuple(OnnxTensor(name, "TYPE_INT64", (-1, -1)) for name in ("INPUT_IDS", "ATTENTION_MASK")),
    outputs=(OnnxTensor("EMBEDDING", "TYPE_FP32", (-1, 384)),),
)


def read(path: Path) -> model_config_pb2.ModelConfig:
    return text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())


def parsed(path: Path) -> ModelConfig:
    return parse_model_config(config_json(**json_format.MessageToDict(read(path), preserving_proto_field_name=True)))


def face(config: model_config_pb2.ModelConfig) -> dict[str, tuple[int, list[int]]]:
    return {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in (*config.input, *config.output)}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(PROJECT)))
def test_no_configuration_turns_off_prefetching(path: Path) -> None:
    # Triton 24.10 then lets a request sleep for 500 ms next to an idle instance: text_encoder/config.pbtxt.
    batching = read(path).dynamic_batching

    assert not batching.HasField("default_queue_policy")
    assert (batching.priority_levels, len(batching.priority_queue_policy)) == (0, 0)


@pytest.mark.parametrize("model", ["text_tokenizer", "text_encoder"])
@pytest.mark.parametrize("profile", ["gpu", "nvidia"])
def test_every_profile_of_a_model_looks_the_same_from_outside(model: str, profile: str) -> None:
    assert face(read(MODELS / model / "configs" / f"{profile}.pbtxt")) == face(read(MODELS / model / "config.pbtxt"))


@pytest.mark.parametrize("path", sorted(MODELS.glob("text_encoder/**/*.pbtxt")), ids=lambda path: path.name)
def test_the_encoders_configurations_fit_the_file_that_its_recipe_exports(path: Path) -> None:
    check_signature(parsed(path), ENCODER)


def test_the_encoders_accelerators_are_ones_that_exist() -> None:
    available = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]

    providers = execution_providers(
        parsed(MODELS / "text_encoder" / "configs" / "nvidia.pbtxt"), kind="GPU", device_id=0, available=available
    )

    assert [name for name, _ in providers] == available
    assert providers[0][1]["trt_fp16_enable"] == "True"


def test_padding_in_nvidias_profile_meets_the_engines_smallest_and_largest_shape() -> None:
    tokenizer = parsed(MODELS / "text_tokenizer" / "configs" / "nvidia.pbtxt")
    (tensorrt, _) = parsed(MODELS / "text_encoder" / "configs" / "nvidia.pbtxt").gpu_accelerators
    multiple, longest = tokenizer.integer("pad_to_multiple_of", 1), tokenizer.integer("max_tokens", 0)

    assert tensorrt.parameters["trt_profile_min_shapes"].startswith(f"INPUT_IDS:1x{multiple},")
    assert tensorrt.parameters["trt_profile_max_shapes"].startswith(f"INPUT_IDS:{tokenizer.max_batch_size}x{longest},")


def test_the_ensembles_steps_fit_together() -> None:
    ensemble = read(ENSEMBLE / "config.pbtxt")
    # Name in the ensemble -> type and dims.
    known = {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in ensemble.input}
    for step in ensemble.ensemble_scheduling.step:
        composing = read(MODELS / step.model_name / "config.pbtxt")
        assert composing.max_batch_size >= ensemble.max_batch_size
        for name, source in step.input_map.items():
            assert face(composing)[name] == known[source]
        known |= {target: face(composing)[name] for name, target in step.output_map.items()}

    assert {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in ensemble.output}.items() <= known.items()


def test_samples_are_requests_to_the_ensemble_with_an_answer_per_text() -> None:
    samples = json.loads((ENSEMBLE / "samples.json").read_text())

    assert 0 < samples["tolerance"] <= 0.01
    for sample in samples["samples"]:
        texts, expected = sample["inputs"]["TEXT"], sample["outputs"]["EMBEDDING"]
        assert expected["shape"] == [len(texts), 384]
        assert len(expected["first_values"]) == len(texts)

"""The shipped model configurations: they parse, every profile keeps the model's face, and the ensemble's steps fit together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from python_backends.export.discovery import load_targets
from python_backends.runtime.engines.execution_providers import execution_providers
from python_backends.runtime.model_config import ModelConfig, parse_model_config
from python_backends.runtime.signature import Signature, TensorSignature, check_signature
from python_backends.text_tokenizer.token_count import without_count
from tests.unit.python_backends.configs import config_json

PROJECT = Path(__file__).resolve().parents[3]
MODELS = PROJECT / "model_repository"
ENSEMBLE = PROJECT / "ensembles" / "text_embedding"
CONFIGS = sorted([*MODELS.glob("*/config.pbtxt"), *MODELS.glob("*/configs/*.pbtxt"), *ENSEMBLE.rglob("*.pbtxt")])

# What model_repository/text_encoder/build.py exports.
ENCODER = Signature(
    inputs=tuple(TensorSignature(name, "TYPE_INT64", (-1, -1)) for name in ("INPUT_IDS", "ATTENTION_MASK")),
    outputs=(TensorSignature("EMBEDDING", "TYPE_FP32", (-1, 384)),),
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


@pytest.mark.parametrize("profile", [path for path in CONFIGS if path.parent.name == "configs"], ids=lambda path: "/".join(path.parts[-3:]))
def test_every_profile_of_a_model_looks_the_same_from_outside(profile: Path) -> None:
    shown, plain = face(read(profile)), face(read(profile.parents[1] / "config.pbtxt"))
    if profile.parts[-3:] == ("text_encoder", "configs", "nvidia.pbtxt"):
        # The native backend takes tokens only, and does not count them.
        del plain["TEXT"], plain["TOKENS"]

    assert shown == plain
    assert read(profile).response_cache.enable == read(profile.parents[1] / "config.pbtxt").response_cache.enable


def tokens_of(config: ModelConfig) -> ModelConfig:
    """What the encoder asks of its file: its tokens, which may not be missing there, and no count of them."""
    inputs = tuple(replace(tensor, optional=False) for tensor in config.inputs if tensor.name != "TEXT")
    return without_count(replace(config, inputs=inputs))


@pytest.mark.parametrize("path", sorted(MODELS.glob("text_encoder/**/*.pbtxt")), ids=lambda path: path.name)
def test_the_encoders_configurations_fit_the_file_that_its_recipe_exports(path: Path) -> None:
    check_signature(tokens_of(parsed(path)), ENCODER)


@pytest.mark.parametrize("profile", ["config.pbtxt", "configs/gpu.pbtxt"])
def test_our_encoder_finds_the_tokenizer_and_cuts_texts_as_that_model_does(profile: str) -> None:
    encoder, tokenizer = parsed(MODELS / "text_encoder" / profile), parsed(MODELS / "text_tokenizer" / "config.pbtxt")

    assert (MODELS / "text_encoder" / "1" / encoder.parameters["tokenizer"]).resolve() == MODELS / "text_tokenizer" / "1" / "tokenizer.json"
    assert encoder.parameters["max_tokens"] == tokenizer.parameters["max_tokens"]


@pytest.mark.parametrize("profile", ["config.pbtxt", "configs/gpu.pbtxt"])
def test_our_encoder_chooses_its_variant_and_bounds_what_waits(profile: str) -> None:
    config = parsed(MODELS / "text_encoder" / profile)

    assert config.parameters["variant"] == "auto"
    assert config.integer("max_waiting", 0) >= config.max_batch_size
    # With one lane a sentence would wait for a page, as on a GPU, where batches take turns, it does with any.
    assert config.integer("lanes", 0) == 1 if "gpu" in profile else config.integer("lanes", 0) >= 2
    # Without it the batcher closes the batch at each change of length, and nothing is left to plan.
    assert all(tensor.allow_ragged_batch for tensor in tokens_of(config).inputs)


def test_our_encoder_does_not_spin_for_long_on_a_cpu_that_it_shares() -> None:
    assert parsed(MODELS / "text_encoder" / "config.pbtxt").integer("session.intra_op.spin_duration_us", 1000) <= 20


def test_nvidias_own_backend_serves_the_exact_variant() -> None:
    assert parsed(MODELS / "text_encoder" / "configs" / "nvidia.pbtxt").default_model_filename == "fp32/model.onnx"


def test_latencies_are_measured_with_the_parameters_that_are_served() -> None:
    (settings,) = (target.recipe.settings for target in load_targets(MODELS / "text_encoder") if target.variant == "int8")
    measured = {key: value for key, value in settings.items() if key.startswith("session.")}

    assert measured
    assert measured.items() <= parsed(MODELS / "text_encoder" / "config.pbtxt").parameters.items()


def test_the_fused_graph_is_not_given_to_tensorrt() -> None:
    config = parsed(MODELS / "text_encoder" / "configs" / "nvidia.pbtxt")
    available = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]

    providers = execution_providers(config, kind="GPU", device_id=0, available=available)

    assert [name for name, _ in providers] == ["CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.mark.parametrize("profile", ["config.pbtxt", "configs/nvidia.pbtxt"])
def test_the_ensembles_steps_fit_together(profile: str) -> None:
    ensemble = read(ENSEMBLE / profile)
    # Name in the ensemble -> type and dims.
    known = {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in ensemble.input}
    for step in ensemble.ensemble_scheduling.step:
        composing = read(MODELS / step.model_name / profile)
        assert composing.max_batch_size >= ensemble.max_batch_size
        for name, source in step.input_map.items():
            assert face(composing)[name] == known[source]
        assert {tensor.name for tensor in composing.input if not tensor.optional} <= step.input_map.keys()
        known |= {target: face(composing)[name] for name, target in step.output_map.items()}

    assert {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in ensemble.output}.items() <= known.items()


def test_samples_are_requests_to_the_ensemble_with_an_answer_per_text() -> None:
    samples = json.loads((ENSEMBLE / "samples.json").read_text())

    assert 0 < samples["tolerance"] <= 0.01
    for sample in samples["samples"]:
        texts, expected = sample["inputs"]["TEXT"], sample["outputs"]["EMBEDDING"]
        assert expected["shape"] == [len(texts), 384]
        assert len(expected["first_values"]) == len(texts)

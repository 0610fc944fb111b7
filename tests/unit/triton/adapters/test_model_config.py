from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from control_plane.core.errors import ModelLoadFailed
from control_plane.triton.adapters.model_config import composing_models, config_file, is_ensemble, with_parameters
from control_plane.triton.config_name import config_name_in_force

ENSEMBLE = """
# the two steps
platform: "ensemble"
max_batch_size: 8
ensemble_scheduling {
  step [
    { model_name: "tokenizer" model_version: -1 input_map { key: "TEXT" value: "TEXT" } },
    { model_name: "encoder" model_version: -1 },
    { model_name: "tokenizer" model_version: 2 }
  ]
}
"""


def model(folder: Path, config: str | bytes | None = None, **custom: str) -> Path:
    """Make a model folder with this `config.pbtxt`, and these files under `configs/`."""
    if config is not None:
        (folder / "config.pbtxt").write_bytes(config.encode() if isinstance(config, str) else config)
    for name, text in custom.items():
        (folder / "configs").mkdir(exist_ok=True)
        (folder / "configs" / f"{name}.pbtxt").write_text(text)
    return folder


@pytest.mark.parametrize(("setting", "name"), [("auto", ""), ("nvidia", "nvidia"), ("", "")])
def test_config_name_in_force(setting: str, name: str) -> None:
    assert config_name_in_force(setting) == name


def test_the_custom_config_is_in_force_where_the_model_has_it(tmp_path: Path) -> None:
    model(tmp_path, "", gpu="")
    assert config_file(tmp_path, "gpu") == tmp_path / "configs/gpu.pbtxt"
    assert config_file(tmp_path, "h100") == tmp_path / "config.pbtxt"
    assert config_file(tmp_path, "") == tmp_path / "config.pbtxt"


def test_composing_models_are_the_steps_each_once_in_their_order(tmp_path: Path) -> None:
    assert composing_models(model(tmp_path, ENSEMBLE), "") == ["tokenizer", "encoder"]


def test_steps_that_cannot_be_parsed_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match=r"config\.pbtxt:1:"):
        composing_models(model(tmp_path, "ensemble_scheduling { step 1 }"), "")


def test_only_ensembles_are_parsed_for_steps(tmp_path: Path) -> None:
    """Parsing is what takes the time at a start with 1,000 models."""
    assert composing_models(model(tmp_path, "this cannot be parsed"), "") == []


def test_composing_models_are_those_of_the_config_in_force(tmp_path: Path) -> None:
    model(tmp_path, ENSEMBLE, gpu=ENSEMBLE.replace("encoder", "encoder_trt"))
    assert composing_models(tmp_path, "gpu") == ["tokenizer", "encoder_trt"]
    assert composing_models(tmp_path, "") == ["tokenizer", "encoder"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param(ENSEMBLE, True, id="both"),
        pytest.param('platform: "ensemble"', True, id="by platform"),
        pytest.param('ensemble_scheduling { step { model_name: "a" } }', True, id="by its steps"),
        pytest.param('backend: "onnxruntime"', False, id="another backend"),
        pytest.param(None, False, id="no config: Triton completes it"),
    ],
)
def test_is_ensemble(tmp_path: Path, config: str | None, expected: bool) -> None:
    assert is_ensemble(model(tmp_path, config), "") is expected


@pytest.mark.parametrize(
    ("config", "line", "text"),
    [
        pytest.param('platform: "ensemble"\nmax_batch_sise: 8\n', 2, "max_batch_sise", id="unknown field"),
        pytest.param("max_batch_size: 8\ninput [\n{ name: 4 }\n]", 3, "name|string", id="wrong type"),
        pytest.param('\n\nplatform: "ensemble\n', 3, "", id="open string"),
        pytest.param("input [ {\n", 1, "Expected", id="open bracket"),
    ],
)
def test_a_config_that_cannot_be_parsed_is_named_with_its_line(tmp_path: Path, config: str, line: int, text: str) -> None:
    with pytest.raises(ModelLoadFailed, match=rf"^{tmp_path}/config\.pbtxt:{line}:.*({text})"):
        is_ensemble(model(tmp_path, config), "")


def test_a_custom_config_that_cannot_be_parsed_is_the_one_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match=r"configs/gpu\.pbtxt:1:"):
        is_ensemble(model(tmp_path, "", gpu="nonsense"), "gpu")


def test_a_config_that_is_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match=r"config\.pbtxt cannot be read: .*utf-8"):
        is_ensemble(model(tmp_path, b"\xff\xfe"), "")


def test_parameters_are_set_over_its_own(tmp_path: Path) -> None:
    text = 'name: "a" parameters { key: "kept" value: { string_value: "1" } } parameters { key: "variant" value: { string_value: "auto" } }'
    model(tmp_path, text, gpu='backend: "x"')

    (tmp_path / "config.pbtxt").write_text(with_parameters(tmp_path, "", {"variant": "fp32", "new": 'a "b"'}))

    config = text_format.Parse((tmp_path / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    assert config.name == "a"
    assert {key: value.string_value for key, value in config.parameters.items()} == {"kept": "1", "variant": "fp32", "new": 'a "b"'}
    assert 'backend: "x"' in with_parameters(tmp_path, "gpu", {"k": "v"})


def test_parameters_of_a_model_without_a_configuration_are_all_of_it(tmp_path: Path) -> None:
    assert text_format.Parse(with_parameters(tmp_path, "", {"k": "v"}), model_config_pb2.ModelConfig()).parameters["k"].string_value == "v"

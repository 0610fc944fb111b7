"""Models for a scenario: files linked, one parameter set, whatever was set before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perf.servers.variants import bare_file, place_encoder, place_ensemble, variant_folder, with_parameter

SET = """backend: "x"
parameters { key: "a" value: { string_value: "1" } }
parameters {
  key: "variant"
  value: { string_value: "auto" }
}
"""


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    folder = tmp_path / "encoder" / "1" / "int8"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"file": "it.onnx"}))
    return tmp_path / "encoder"


def test_a_parameter_that_is_set_is_changed_and_no_other() -> None:
    assert with_parameter(SET, "variant", "int8") == SET.replace('"auto"', '"int8"')


def test_a_parameter_that_is_not_set_is_added() -> None:
    assert with_parameter(SET, "pad_to", "256") == SET + '\nparameters { key: "pad_to" value: { string_value: "256" } }\n'


def test_an_encoder_is_a_copy_of_the_shipped_one_with_its_variant(tmp_path: Path, encoder: Path) -> None:
    place_encoder(tmp_path / "repository", "mine", "int8", encoder=encoder)
    model = tmp_path / "repository" / "mine"
    config = (model / "config.pbtxt").read_text()
    assert 'backend: "text_encoder"' in config
    assert 'key: "variant"' in config
    assert 'string_value: "int8"' in config
    assert (model / "1").resolve() == encoder / "1"


def test_an_ensemble_has_all_that_it_needs(tmp_path: Path, encoder: Path) -> None:
    (tmp_path / "repository").mkdir()
    place_ensemble(tmp_path / "repository", "int8", encoder=encoder)
    models = {path.name for path in (tmp_path / "repository").iterdir() if (path / "config.pbtxt").exists()}
    assert models == {"text_embedding", "text_encoder", "text_tokenizer"}


@pytest.mark.parametrize(
    ("served", "file"),
    [
        pytest.param(["int8"], "int8/it.onnx", id="what is served"),
        pytest.param(["bf16", "int8"], "int8/it.onnx", id="the first that ONNX Runtime runs"),
        pytest.param(["bf16"], "fp32/model.onnx", id="else the reference"),
        pytest.param([], "fp32/model.onnx", id="nothing is served"),
    ],
)
def test_bare_onnx_runtime_runs_what_is_served(encoder: Path, served: list[str], file: str) -> None:
    for variant, name in (("bf16", "model.pt2"), ("fp32", "model.onnx")):
        (encoder / "1" / variant).mkdir()
        (encoder / "1" / variant / "manifest.json").write_text(json.dumps({"file": name}))
    assert bare_file(served, encoder) == encoder / "1" / file


def test_a_variant_that_is_not_built_says_what_to_do(encoder: Path) -> None:
    with pytest.raises(SystemExit, match=r"variant fp32 .* is not built: run `tidegate models build encoder --variant fp32`"):
        variant_folder(encoder, "fp32")

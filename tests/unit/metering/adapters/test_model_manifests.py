from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from control_plane.metering.adapters.model_manifests import ModelManifests
from control_plane.metering.domain.compute_units import ModelCost, UnitTable

BATCHED = "max_batch_size: 8\n"
ENSEMBLE = """platform: "ensemble"
max_batch_size: 8
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
ensemble_scheduling { step [ { model_name: "tokenizer" model_version: -1 }, { model_name: "encoder" model_version: -1 } ] }
"""


def table(ms: float) -> UnitTable:
    return UnitTable((8,), (ms,))


class Repository:
    def __init__(self, path: Path) -> None:
        self.path = path

    def model(self, name: str, config: str = BATCHED) -> Path:
        folder = self.path / name
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(config)
        return folder

    def variant(self, model: str, name: str, ms: float, *, version: int = 1, **changes: Any) -> Path:
        folder = self.path / model / str(version) / name
        folder.mkdir(parents=True, exist_ok=True)
        document = {
            "format_version": 3,
            "file": "model.onnx",
            "latency_table": {"batches": [1], "lengths": [8], "ms": [[ms]]},
            **changes,
        }
        (folder / "manifest.json").write_text(json.dumps(document))
        (folder / "model.onnx").touch()
        return folder

    def costs(self, config_name: str = "", **parameters: dict[str, str]) -> dict[str, ModelCost]:
        return ModelManifests([self.path], config_name=config_name, parameters=parameters).read_now()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


class TestVariants:
    def test_where_the_backend_chooses_every_table_counts_and_the_references_until_it_has(self, repository: Repository) -> None:
        repository.model("m")
        repository.variant("m", "fp32", 9.0)
        repository.variant("m", "int8", 4.0)
        assert repository.costs() == {"m": ModelCost(table(9.0), by_variant={"fp32": table(9.0), "int8": table(4.0)})}

    def test_one_that_is_named_counts_alone_and_the_command_line_before_the_configuration(self, repository: Repository) -> None:
        repository.model("m", BATCHED + 'parameters { key: "variant" value: { string_value: "fp32" } }')
        repository.variant("m", "fp32", 9.0)
        repository.variant("m", "pruned", 3.0)
        assert repository.costs() == {"m": ModelCost(table(9.0))}
        assert repository.costs(m={"variant": "pruned"}) == {"m": ModelCost(table(3.0))}
        assert repository.costs(m={"variant": "auto"})["m"].by_variant == {"fp32": table(9.0), "pruned": table(3.0)}
        assert repository.costs(m={"variant": "none such"})["m"].table is None

    def test_the_newest_version_counts(self, repository: Repository) -> None:
        repository.model("m")
        for version, ms in ((2, 2.0), (10, 10.0), (9, 9.0)):
            repository.variant("m", "int8", ms, version=version)
        assert repository.costs()["m"].by_variant == {"int8": table(10.0)}

    @pytest.mark.parametrize(
        "changes",
        [
            pytest.param({"format_version": 2}, id="of another format"),
            pytest.param({"file": "missing.onnx"}, id="without its file"),
            pytest.param({"latency_table": None}, id="without a table"),
            pytest.param({"latency_table": {"batches": [1], "lengths": [8], "ms": []}}, id="with half a table"),
            pytest.param({"latency_table": [1]}, id="with a list for an object"),
        ],
    )
    def test_one_that_cannot_be_used_is_left_out(self, repository: Repository, changes: dict[str, Any]) -> None:
        repository.model("m")
        repository.variant("m", "fp32", 9.0)
        repository.variant("m", "int8", 4.0, **changes)
        assert repository.costs()["m"].by_variant == {"fp32": table(9.0)}

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff"])
    def test_what_is_no_manifest_is_none(self, repository: Repository, text: str) -> None:
        repository.model("m")
        folder = repository.variant("m", "int8", 4.0)
        (folder / "manifest.json").write_bytes(text.encode("latin-1"))
        assert repository.costs() == {"m": ModelCost()}


class TestModels:
    def test_an_ensemble_has_its_steps(self, repository: Repository) -> None:
        repository.model("e", ENSEMBLE)
        assert repository.costs()["e"] == ModelCost(steps=("tokenizer", "encoder"))

    @pytest.mark.parametrize(
        ("config", "is_batched"),
        [
            pytest.param(BATCHED, True, id="with a batch size"),
            pytest.param("", True, id="that Triton completes"),
            pytest.param('input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]', False, id="without one"),
        ],
    )
    def test_whether_a_model_is_batched(self, repository: Repository, config: str, is_batched: bool) -> None:
        repository.model("m", config)
        assert repository.costs()["m"].is_batched is is_batched

    def test_one_without_a_configuration_is_batched_and_has_no_table(self, repository: Repository) -> None:
        (repository.model("m") / "config.pbtxt").unlink()
        (repository.path / ".git").mkdir()
        (repository.path / "README").touch()
        assert repository.costs() == {"m": ModelCost()}

    def test_what_cannot_be_read_is_told_and_the_rest_is_there(self, repository: Repository, caplog: pytest.LogCaptureFixture) -> None:
        repository.model("bad", "max_batch_size: many")
        repository.model("good")
        manifests = ModelManifests([repository.path / "none", repository.path], config_name="")
        with caplog.at_level(logging.WARNING):
            assert manifests.read_now() == {"good": ModelCost()}
        assert len(caplog.messages) == 2
        assert "the cost of model bad is not known" in caplog.messages[1]


class TestAgain:
    def test_only_what_has_changed_is_read_again(self, repository: Repository, caplog: pytest.LogCaptureFixture) -> None:
        repository.model("bad", "max_batch_size: many")
        repository.model("m")
        manifests = ModelManifests([repository.path], config_name="")
        assert manifests.read_now() == {"m": ModelCost()}
        repository.variant("m", "int8", 4.0)
        assert manifests.read_now() == {"m": ModelCost(by_variant={"int8": table(4.0)})}
        rebuilt = repository.variant("m", "int8", 5.5) / "manifest.json"
        os.utime(rebuilt, ns=(1, 1))
        assert manifests.read_now() == {"m": ModelCost(by_variant={"int8": table(5.5)})}
        assert len(caplog.messages) == 1  # of the bad one, which has not changed

    def test_what_is_gone_is_forgotten(self, repository: Repository) -> None:
        folder = repository.model("m")
        manifests = ModelManifests([repository.path], config_name="")
        assert list(manifests.read_now()) == ["m"]
        folder.rename(repository.path / "n")
        assert list(manifests.read_now()) == ["n"]


def test_our_own_models_have_their_costs() -> None:
    project = Path(__file__).parents[4]
    costs = ModelManifests([project / "model_repository", project / "ensembles"], config_name="").read_now()
    assert "text_encoder" in costs["text_embedding"].steps
    if (project / "model_repository/text_encoder/1/fp32/manifest.json").exists():
        assert "fp32" in costs["text_encoder"].by_variant

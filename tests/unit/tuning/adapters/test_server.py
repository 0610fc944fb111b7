"""Files that are placed for a candidate; tests/e2e/tuning/test_tune.py tests that Triton serves them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from control_plane.core.errors import ModelNotFound, StartupError
from control_plane.settings import TritonSettings
from control_plane.tuning.adapters.server import EmbeddedTuningServers
from control_plane.tuning.domain.candidates import DEFAULT, Candidate, Knob
from tests.aio import run

TWO = DEFAULT.changed(Knob.INSTANCES, 2)


class Lab:
    """Two repositories: `encoder` and `other` in one, the ensemble `both` in the next."""

    def __init__(self, folder: Path) -> None:
        self.models, self.ensembles, self.state = folder / "models", folder / "ensembles", folder / "state"
        for name in ("encoder", "other"):
            (self.models / name / "1").mkdir(parents=True)
            (self.models / name / "1" / "model.onnx").touch()
            (self.models / name / "config.pbtxt").write_text('backend: "onnxruntime"')
        (self.models / "encoder" / "configs").mkdir()
        (self.models / "encoder" / "configs" / "gpu.pbtxt").write_text('backend: "of the GPU"')
        (self.ensembles / "both").mkdir(parents=True)
        (self.ensembles / "both" / "config.pbtxt").write_text(
            'platform: "ensemble" ensemble_scheduling { step [ { model_name: "encoder" }, { model_name: "other" } ] }'
        )
        self.state.mkdir()

    def servers(
        self, model: str, *, config_of: Callable[[Candidate], str] = lambda candidate: f"# {candidate.label}", **settings: object
    ) -> EmbeddedTuningServers:
        given = TritonSettings(model_repository=[self.models, self.ensembles], **settings)  # type: ignore[arg-type]
        return EmbeddedTuningServers(given, model=model, tuned=self.models / "encoder", config_of=config_of)

    def placed(self) -> dict[str, str]:
        """Return every file that Triton sees, with its text."""
        root = self.state / "triton" / "repository"
        return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_the_tuned_model_is_linked_but_for_its_configuration(lab: Lab) -> None:
    lab.servers("encoder")._place(TWO, lab.state)
    assert lab.placed() == {"encoder/1/model.onnx": "", "encoder/config.pbtxt": "# instances 2"}
    assert (lab.state / "triton/repository/encoder/1/model.onnx").resolve() == lab.models / "encoder/1/model.onnx"
    assert (lab.models / "encoder/config.pbtxt").read_text() == 'backend: "onnxruntime"', "the source is as it was"


def test_the_candidate_stands_in_for_a_configuration_of_the_hardware_too(lab: Lab) -> None:
    lab.servers("encoder", model_config_name="gpu")._place(TWO, lab.state)
    assert lab.placed() == {"encoder/1/model.onnx": "", "encoder/config.pbtxt": "# instances 2"}


def test_an_ensemble_comes_with_its_other_models_as_they_are(lab: Lab) -> None:
    lab.servers("both")._place(TWO, lab.state)
    placed = lab.placed()
    assert placed["encoder/config.pbtxt"] == "# instances 2"
    assert placed["other/config.pbtxt"] == 'backend: "onnxruntime"'
    assert "both/config.pbtxt" in placed


def test_parameters_of_the_settings_are_over_the_candidates(lab: Lab) -> None:
    servers = lab.servers("encoder", config_of=lambda _: 'backend: "x"', model_parameter={"encoder": {"variant": "int8", "lanes": "7"}})
    servers._place(DEFAULT, lab.state)
    assert 'string_value: "int8"' in lab.placed()["encoder/config.pbtxt"]
    assert "7" not in lab.placed()["encoder/config.pbtxt"], "but for those that candidates differ in"


def test_a_folder_that_is_a_link_keeps_the_links_name(lab: Lab) -> None:
    (lab.models / "encoder").rename(lab.state / "elsewhere")
    (lab.models / "encoder").symlink_to(lab.state / "elsewhere")
    lab.servers("encoder")._place(TWO, lab.state)
    assert lab.placed() == {"encoder/1/model.onnx": "", "encoder/config.pbtxt": "# instances 2"}


def test_a_model_that_nobody_has_is_told(lab: Lab) -> None:
    with pytest.raises(ModelNotFound, match="nothing"):
        lab.servers("nothing")._place(DEFAULT, lab.state)


def test_a_triton_that_cannot_start_leaves_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    servers = lab.servers("encoder", cache_dir=tmp_path / "no cache")

    async def serve() -> None:
        async with servers.serve(DEFAULT):
            await asyncio.sleep(0)

    with pytest.raises(StartupError):
        run(serve())
    assert list(temporary.iterdir()) == []

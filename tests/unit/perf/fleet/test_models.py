from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from control_plane.models.adapters.model_descriptions import ModelDescriptionFiles
from perf.fleet.models import ENCODERS, INPUT, OUTPUT, Encoder, build, declare

MB = 1_000_000
SMALL = Encoder(32, 1, 200), Encoder(64, 2, 300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("encoders")
    build(made, SMALL)
    return made


def session(folder: Path, encoder: Encoder) -> ort.InferenceSession:
    return ort.InferenceSession(folder / encoder.name / "1/model.onnx")


class TestEncoders:
    def test_there_are_sixteen_of_different_sizes(self) -> None:
        sizes = [encoder.weights_bytes for encoder in ENCODERS]
        assert len({encoder.name for encoder in ENCODERS}) == len(set(sizes)) == 16
        assert 2 * MB < min(sizes) < 3 * MB
        assert 50 * MB < max(sizes) < 60 * MB

    @pytest.mark.parametrize("encoder", SMALL)
    def test_files_are_as_large_as_their_weights(self, folder: Path, encoder: Encoder) -> None:
        size = build(folder, SMALL)[encoder.name]
        assert 0 < size - encoder.weights_bytes < 20_000

    @pytest.mark.parametrize("encoder", SMALL)
    def test_a_file_is_what_onnx_allows(self, folder: Path, encoder: Encoder) -> None:
        onnx.checker.check_model(onnx.load(folder / encoder.name / "1/model.onnx"), full_check=True)


class TestVectors:
    @pytest.mark.parametrize("encoder", SMALL)
    @pytest.mark.parametrize("shape", [(1, 1), (3, 128)])
    def test_each_text_has_a_unit_vector(self, folder: Path, encoder: Encoder, shape: tuple[int, int]) -> None:
        ids = np.random.default_rng(1).integers(0, 200, shape)
        (vectors,) = session(folder, encoder).run([OUTPUT], {INPUT: ids})
        assert vectors.shape == (shape[0], encoder.hidden)
        assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)

    @pytest.mark.parametrize("encoder", SMALL)
    def test_words_and_their_order_matter_and_other_texts_do_not(self, folder: Path, encoder: Encoder) -> None:
        texts = np.array([[1, 2, 3], [3, 2, 1], [1, 2, 4]])
        run = session(folder, encoder).run
        (together,) = run([OUTPUT], {INPUT: texts})
        (alone,) = run([OUTPUT], {INPUT: texts[1:2]})
        assert together[1] == pytest.approx(alone[0], abs=1e-5)
        assert all(np.abs(together[0] - together[other]).max() > 1e-3 for other in (1, 2))


class TestBuilding:
    def test_the_same_ones_every_time(self, folder: Path, tmp_path: Path) -> None:
        build(tmp_path, SMALL)
        for encoder in SMALL:
            file = f"{encoder.name}/1/model.onnx"
            assert (tmp_path / file).read_bytes() == (folder / file).read_bytes()

    def test_what_is_there_is_not_made_again_and_what_is_half_there_is(self, tmp_path: Path) -> None:
        build(tmp_path, SMALL)
        kept, half = (tmp_path / encoder.name for encoder in SMALL)
        before = (kept / "1/model.onnx").stat().st_mtime_ns
        (half / ".made").unlink()
        (half / "1/model.onnx").write_bytes(b"cut short")
        assert build(tmp_path, SMALL)[half.name] > 1000
        assert (kept / "1/model.onnx").stat().st_mtime_ns == before

    def test_the_configuration_is_complete_so_that_a_load_reads_the_file_once(self, folder: Path) -> None:
        text = (folder / SMALL[1].name / "config.pbtxt").read_text()
        config = text_format.Parse(text, model_config_pb2.ModelConfig())
        assert (config.platform, [each.name for each in config.input], list(config.output[0].dims)) == ("onnxruntime_onnx", [INPUT], [64])

    def test_what_each_takes_can_be_declared(self, folder: Path, tmp_path: Path) -> None:
        declare(folder, tmp_path, {SMALL[0].name: 123, SMALL[1].name: 456})
        found = ModelDescriptionFiles([tmp_path], config_name="").read()
        assert {name: model.spec.resident_bytes for name, model in found.items()} == {SMALL[0].name: 123, SMALL[1].name: 456}
        assert {name: model.file_bytes for name, model in found.items()} == build(folder, SMALL)

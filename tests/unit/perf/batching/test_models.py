"""Each way of batching is a model whose configuration says so, with the files of one variant."""

from __future__ import annotations

from pathlib import Path

import pytest

from perf.batching.models import WAYS, place_way
from perf.batching.report import EXPLAINED, LENGTH_AWARE

RAGGED, BATCHED, AUTO_VARIANT = "allow_ragged_batch: true", "dynamic_batching {", 'string_value: "fp32"'


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    (tmp_path / "encoder" / "1" / "fp32").mkdir(parents=True)
    (tmp_path / "encoder" / "1" / "fp32" / "manifest.json").write_text("{}")
    return tmp_path / "encoder"


def test_every_way_is_explained() -> None:
    assert EXPLAINED.keys() == WAYS.keys()


@pytest.mark.parametrize(
    ("way", "has", "lacks"),
    [
        pytest.param("first-come", ["max_batch_size: 32", RAGGED, BATCHED, 'string_value: "0"'], [], id="first-come"),
        pytest.param("one-by-one", [RAGGED], [BATCHED], id="one-by-one"),
        pytest.param("triton", ["max_batch_size: 64", BATCHED], [RAGGED], id="triton"),
        pytest.param("padded-256", ["max_batch_size: 32", RAGGED, BATCHED, 'string_value: "256"'], ['string_value: "0"'], id="256"),
        pytest.param("padded-512", ["max_batch_size: 32", RAGGED, BATCHED, 'string_value: "512"'], ['string_value: "0"'], id="512"),
    ],
)
def test_ways_of_the_peer(tmp_path: Path, encoder: Path, way: str, has: list[str], lacks: list[str]) -> None:
    model = tmp_path / "repository" / place_way(tmp_path / "repository", way, "fp32", encoder=encoder)
    config = (model / "config.pbtxt").read_text()
    assert 'backend: "python"' in config
    assert [words for words in [*has, AUTO_VARIANT] if words not in config] == []
    assert [words for words in lacks if words in config] == []
    assert (model / "1" / "model.py").is_file()
    assert (model / "1" / "fp32").resolve() == encoder / "1" / "fp32"


def test_instances_are_the_others(tmp_path: Path, encoder: Path) -> None:
    for way in ("first-come", LENGTH_AWARE):
        place_way(tmp_path / "repository", way, "fp32", encoder=encoder, instances=2)
    configs = {path.parent.name: path.read_text() for path in (tmp_path / "repository").glob("*/config.pbtxt")}
    assert "count: 2" in configs["first_come_fp32"]
    assert "count: 2" not in configs["length_aware_fp32"]


def test_ours_is_the_shipped_backend_with_its_own_files(tmp_path: Path, encoder: Path) -> None:
    model = tmp_path / "repository" / place_way(tmp_path / "repository", LENGTH_AWARE, "fp32", encoder=encoder)
    assert 'backend: "text_encoder"' in (model / "config.pbtxt").read_text()
    assert not (model / "1" / "model.py").exists()

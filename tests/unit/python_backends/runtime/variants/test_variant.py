"""Which variants a version directory has, as their manifests tell it, and what is served where there are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from python_backends.runtime.errors import ConfigError
from python_backends.runtime.variants.latency_table import LatencyTable
from python_backends.runtime.variants.variant import choose_variant, find_candidates, is_importable
from python_backends.runtime.variants.variant_mix import Mix

HERE = "x86_64 avx512_vnni"


def manifest(directory: Path, **changes: Any) -> Path:
    """A variant's folder as a recipe leaves it."""
    directory.mkdir(parents=True)
    document = {
        "format_version": 3,
        "variant": directory.name,
        "runtime": "onnxruntime",
        "file": "model.onnx",
        "device": "cpu",
        "machine": {"kind": HERE, "processor": "AMD EPYC 9R14", "cpus": 2},
        "auto_eligible": True,
        "auto_objection": None,
        "latency_table": {"threads": 2, "batches": [1, 2], "lengths": [8, 16], "ms": [[1.0, 2.0], [2.0, 3.0]]},
        **changes,
    }
    (directory / "manifest.json").write_text(json.dumps(document))
    (directory / document["file"]).touch()
    return directory


def test_manifests_are_read(tmp_path: Path) -> None:
    directory = manifest(tmp_path / "m" / "1" / "int8")

    variant = choose_variant(tmp_path / "m" / "1", "int8", kind="CPU", machine_kind=HERE)

    assert (variant.name, variant.file, variant.runtime, variant.device) == ("int8", directory / "model.onnx", "onnxruntime", "cpu")
    assert variant.latency_table == LatencyTable((1, 2), (8, 16), ((1.0, 2.0), (2.0, 3.0)))
    assert [(one.machine_kind, one.objection, one.file_is_there) for one in find_candidates(tmp_path / "m" / "1")] == [(HERE, "", True)]


@pytest.mark.parametrize(
    ("changes", "objection"),
    [
        pytest.param({"auto_eligible": False, "auto_objection": "it loses 2.00%"}, "it loses 2.00%", id="judged"),
        pytest.param({"auto_eligible": "yes", "auto_objection": ""}, "its manifest does not say that it may be", id="not-in-so-many-words"),
        pytest.param({"auto_eligible": None}, "its manifest does not say that it may be", id="not-at-all"),
        pytest.param({"latency_table": {"ms": []}}, "its latency table is not whole", id="empty-table"),
        pytest.param(
            {"latency_table": {"batches": [1], "lengths": [8, 16], "ms": [[1.0, None]]}},
            "its latency table is not whole",
            id="missing-cell",
        ),
    ],
)
def test_why_auto_must_not_take_one_comes_from_its_manifest(tmp_path: Path, changes: dict[str, Any], objection: str) -> None:
    manifest(tmp_path / "m" / "1" / "int8", **changes)

    (candidate,) = find_candidates(tmp_path / "m" / "1")

    assert candidate.objection == objection
    assert choose_variant(tmp_path / "m" / "1", "int8", kind="CPU", machine_kind=HERE).name == "int8", "it can be served by name"


def test_auto_chooses_among_what_is_on_the_disk(tmp_path: Path) -> None:
    version = tmp_path / "m" / "1"
    manifest(version / "int8")
    manifest(version / "fp32", latency_table={"batches": [1], "lengths": [8, 64], "ms": [[50.0, 50.0]]})

    assert choose_variant(version, "auto", kind="CPU", machine_kind=HERE).name == "int8"
    assert choose_variant(version, "auto", kind="CPU", machine_kind=HERE, mix=Mix.parse("64x64")).name == "int8"
    assert choose_variant(version, "auto", kind="CPU", machine_kind="aarch64 asimddp").name == "fp32"


def test_what_is_no_variant_is_left_out(tmp_path: Path) -> None:
    manifest(tmp_path / "good")
    manifest(tmp_path / ".int8.building")
    manifest(tmp_path / "newer", format_version=4)
    (manifest(tmp_path / "cut-short") / "manifest.json").write_text('{"format_version": 3, "fi')
    (manifest(tmp_path / "list") / "manifest.json").write_text("[]")
    (tmp_path / "model.onnx").mkdir()

    assert [one.variant.name for one in find_candidates(tmp_path)] == ["good"]


def test_a_directory_without_variants_serves_its_file(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "other.onnx").write_bytes(b"")

    plain = choose_variant(tmp_path, "auto", kind="CPU", machine_kind=HERE)

    assert (plain.name, plain.file, plain.runtime, plain.latency_table) == ("", tmp_path / "model.onnx", "onnxruntime", None)
    assert choose_variant(tmp_path, "auto", kind="CPU", machine_kind=HERE, filename="other.onnx").file == tmp_path / "other.onnx"


def test_a_variant_of_a_directory_that_has_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")

    with pytest.raises(ConfigError, match=r"variant 'int8' is not built, there are none; run `tidegate models build"):
        choose_variant(tmp_path, "int8", kind="CPU", machine_kind=HERE)


def test_an_empty_directory_is_told_how_to_be_filled(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unable to find '.*/model.onnx', nor a variant beside it: run `tidegate models build m`"):
        choose_variant(tmp_path / "m" / "1", "auto", kind="CPU", machine_kind=HERE)


def test_a_runtime_is_importable_if_it_is_known_and_its_library_is_there() -> None:
    assert is_importable("onnxruntime")
    assert not is_importable("json")

"""Manifests: what they record, and when they say that something must be built again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from python_backends.export.discovery import load_targets
from python_backends.export.manifest import (
    Artefact,
    Measured,
    add_agreement,
    describe_artefact,
    read_manifest,
    stale_reason,
    write_manifest,
)
from python_backends.export.recipe import Calibration, Recipe
from python_backends.runtime.machine import this_machine
from python_backends.runtime.variants.variant import find_candidates
from tests.unit.python_backends.export.recipes import model_folder, variants_folder

AGREEMENT = {"against_reference": {"cosine_min": 0.99995}}


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return load_targets(model_folder(tmp_path))[0].recipe


@pytest.fixture
def built(tmp_path: Path, recipe: Recipe) -> Path:
    directory = tmp_path / "m" / "1"
    directory.mkdir()
    (directory / "model.bin").write_bytes(b"artefact")
    write_manifest(directory, recipe, Measured(AGREEMENT), inputs=recipe.inputs(), build_seconds=12.345)
    return directory


def test_an_artefact_is_its_digest_and_size(tmp_path: Path) -> None:
    # Larger than one block of reading.
    content = bytes(range(256)) * 5000
    path = tmp_path / "file"
    path.write_bytes(content)

    assert describe_artefact(path) == Artefact(hashlib.sha256(content).hexdigest(), len(content))


def test_a_manifest_records_what_was_built_and_from_what(built: Path, recipe: Recipe) -> None:
    document = json.loads((built / "manifest.json").read_text())

    assert document["format_version"] == 3
    assert document["artefacts"] == {"model.bin": {"sha256": hashlib.sha256(b"artefact").hexdigest(), "size_bytes": 8}}
    assert document["provenance"] == {"name": "org/name", "package": "package 1.0", "licence": "Apache-2.0", "sha256": "abc"}
    assert document["agreement"] == AGREEMENT
    assert document["inputs"] == recipe.inputs()
    assert document["inputs_sha256"] == hashlib.sha256(json.dumps(recipe.inputs(), sort_keys=True).encode()).hexdigest()
    assert (document["build_seconds"], document["calibration"]) == (12.3, None)
    assert {"variant", "runtime", "machine", "gate", "latency_table"}.isdisjoint(document)


def test_what_was_written_is_read_back(built: Path, recipe: Recipe) -> None:
    manifest = read_manifest(built)

    assert manifest is not None
    assert manifest.artefacts == {"model.bin": describe_artefact(built / "model.bin")}
    assert manifest.inputs == recipe.inputs()
    assert manifest.document == json.loads((built / "manifest.json").read_text())


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda text: text[: len(text) // 2], id="cut-short"),
        pytest.param(lambda text: text.replace('"format_version": 3', '"format_version": 2'), id="another-format"),
        pytest.param(lambda text: text.replace("size_bytes", "size"), id="another-field"),
        pytest.param(lambda text: "[]", id="no-object"),
        pytest.param(lambda text: "", id="empty"),
    ],
)
def test_a_manifest_that_cannot_be_trusted_is_as_good_as_none(built: Path, recipe: Recipe, damage: Callable[[str], str]) -> None:
    path = built / "manifest.json"
    path.write_text(damage(path.read_text()))

    assert read_manifest(built) is None
    assert stale_reason(built, recipe.inputs()) == "no manifest that can be trusted"


def test_nothing_there_is_not_built_yet(tmp_path: Path, recipe: Recipe) -> None:
    assert stale_reason(tmp_path / "absent", recipe.inputs()) == "not built yet"


def test_the_same_inputs_and_artefacts_are_up_to_date(built: Path, recipe: Recipe) -> None:
    assert stale_reason(built, recipe.inputs()) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"weights": "def"}, "changed: weights", id="weights"),
        pytest.param({"setting opset": "18", "weights": "def"}, "changed: weights, setting opset", id="two"),
        pytest.param({"source other.py": "1"}, "changed: source other.py", id="new-source"),
        pytest.param({"library numpy": "9.9"}, "changed: library numpy", id="other-library-version"),
    ],
)
def test_a_changed_input_is_named(built: Path, recipe: Recipe, change: dict[str, str], reason: str) -> None:
    assert stale_reason(built, {**recipe.inputs(), **change}) == reason


def test_a_source_that_is_no_longer_used_is_a_change(built: Path, recipe: Recipe) -> None:
    inputs = recipe.inputs()
    del inputs["setting opset"]

    assert stale_reason(built, inputs) == "changed: setting opset"


def test_a_library_that_is_only_needed_to_build_may_be_absent(built: Path, recipe: Recipe) -> None:
    inputs = recipe.inputs()
    del inputs["library numpy"]

    assert stale_reason(built, inputs) is None


def test_an_artefact_that_was_changed_or_lost_is_named(built: Path, recipe: Recipe) -> None:
    (built / "model.bin").write_bytes(b"ARTEFACT")
    assert stale_reason(built, recipe.inputs()) == "model.bin is not what was built"

    (built / "model.bin").unlink()
    assert stale_reason(built, recipe.inputs()) == "model.bin is not what was built"


TABLE = {"threads": 2, "batches": [1, 2], "lengths": [8, 16], "ms": [[1.0, 2.0], [2.0, 5.0]]}


@pytest.fixture
def built_variant(tmp_path: Path) -> Path:
    source = tmp_path / "calibration.txt"
    source.write_text("first\nsecond\n")
    (target,) = load_targets(variants_folder(tmp_path, int8={}))
    target.directory.mkdir(parents=True)
    (target.directory / "model.onnx").write_bytes(b"artefact")
    measured = Measured({"against_fp32": {"cosine_p1": 0.995}, "similarity": {"relative_loss": 0.002}}, TABLE, 12345)
    recipe = dataclasses.replace(target.recipe, calibration=Calibration(source, 2))
    write_manifest(target.directory, recipe, measured, inputs=recipe.inputs(), variant="int8", build_seconds=1)
    return target.directory


def test_a_variants_manifest_also_says_how_it_is_served_and_what_it_held(built_variant: Path, tmp_path: Path) -> None:
    document = json.loads((built_variant / "manifest.json").read_text())

    served = {key: document[key] for key in ("variant", "runtime", "file", "device")}
    assert served == {"variant": "int8", "runtime": "onnxruntime", "file": "model.onnx", "device": "cpu"}
    assert document["machine"] == dataclasses.asdict(this_machine("cpu"))
    assert document["gate"] == {"cosine_p1_at_least": 0.99, "spearman_loss_at_most": 0.01}
    assert (document["auto_eligible"], document["auto_objection"]) == (True, None)
    assert (document["latency_table"], document["resident_bytes"]) == (TABLE, 12345)
    digest = hashlib.sha256(b"first\nsecond\n").hexdigest()
    assert document["calibration"] == {"source": "calibration.txt", "texts": 2, "sha256": digest}


def test_a_variants_manifest_is_understood_by_those_who_serve_it(built_variant: Path) -> None:
    (candidate,) = find_candidates(built_variant.parent)

    assert (candidate.variant.file, candidate.variant.runtime) == (built_variant / "model.onnx", "onnxruntime")
    assert candidate.objection == ""
    assert candidate.variant.latency_table is not None
    assert candidate.variant.latency_table.cost_ms(2, 16) == 5.0
    assert candidate.machine_kind == this_machine("cpu").kind


@pytest.mark.parametrize(
    ("agreement", "objection"),
    [
        pytest.param({"cosine_p1": 0.99, "loss": 0.01}, None, id="just-good-enough"),
        pytest.param({"cosine_p1": 0.875, "loss": 0.0}, "the cosine with fp32 at the worst percentile is 0.87500, below 0.99", id="cosine"),
        pytest.param({"cosine_p1": 1.0, "loss": 0.0101}, "it loses 1.01% of the rank correlation, more than 1.00%", id="ranking"),
        pytest.param({"cosine_p1": float("nan"), "loss": 0.0}, "the cosine with fp32 at the worst percentile is nan, below 0.99", id="nan"),
        pytest.param({}, "not measured here yet", id="unmeasured"),
    ],
)
def test_whether_auto_may_choose_it_is_judged_here_alone(tmp_path: Path, agreement: dict[str, float], objection: str | None) -> None:
    (target,) = load_targets(variants_folder(tmp_path, int8={}))
    target.directory.mkdir(parents=True)
    measures = (
        {"against_fp32": {"cosine_p1": agreement["cosine_p1"]}, "similarity": {"relative_loss": agreement["loss"]}} if agreement else {}
    )
    write_manifest(target.directory, target.recipe, Measured(measures, TABLE, 1), inputs=target.recipe.inputs(), build_seconds=1)

    document = json.loads((target.directory / "manifest.json").read_text())

    assert (document["auto_eligible"], document["auto_objection"]) == (objection is None, objection)


def test_another_kind_of_machine_makes_it_stale_and_the_lack_of_one_does_not(built_variant: Path) -> None:
    manifest = read_manifest(built_variant)
    assert manifest is not None
    inputs = dict(manifest.inputs)

    assert stale_reason(built_variant, {**inputs, "machine": "riscv64"}) == "changed: machine"
    del inputs["machine"]
    assert stale_reason(built_variant, inputs) is None


def test_an_agreement_that_is_added_makes_nothing_stale(built: Path, recipe: Recipe) -> None:
    add_agreement(built, "sts_benchmark", {"spearman": 0.8})

    manifest = read_manifest(built)
    assert manifest is not None
    assert manifest.document["agreement"] == {**AGREEMENT, "sts_benchmark": {"spearman": 0.8}}
    assert stale_reason(built, recipe.inputs()) is None
    assert sorted(path.name for path in built.iterdir()) == ["manifest.json", "model.bin"]

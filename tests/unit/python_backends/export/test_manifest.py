"""Manifests: what they record, and when they say that something must be built again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from python_backends.export.manifest import Artefact, describe_artefact, read_manifest, stale_reason, write_manifest
from python_backends.export.recipe import Recipe, load_recipe
from tests.unit.python_backends.export.recipes import model_folder

AGREEMENT = {"against_reference": {"cosine_min": 0.99995}}


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return load_recipe(model_folder(tmp_path))


@pytest.fixture
def built(tmp_path: Path, recipe: Recipe) -> Path:
    directory = tmp_path / "m" / "1"
    directory.mkdir()
    (directory / "model.bin").write_bytes(b"artefact")
    write_manifest(directory, recipe, AGREEMENT, 12.345)
    return directory


def test_an_artefact_is_its_digest_and_size(tmp_path: Path) -> None:
    # Larger than one block of reading.
    content = bytes(range(256)) * 5000
    path = tmp_path / "file"
    path.write_bytes(content)

    assert describe_artefact(path) == Artefact(hashlib.sha256(content).hexdigest(), len(content))


def test_a_manifest_records_what_was_built_and_from_what(built: Path, recipe: Recipe) -> None:
    document = json.loads((built / "manifest.json").read_text())

    assert document["format_version"] == 1
    assert document["artefacts"] == {"model.bin": {"sha256": hashlib.sha256(b"artefact").hexdigest(), "size_bytes": 8}}
    assert document["provenance"] == {"name": "org/name", "package": "package 1.0", "licence": "Apache-2.0", "sha256": "abc"}
    assert document["agreement"] == AGREEMENT
    assert document["inputs"] == recipe.inputs()
    assert document["inputs_sha256"] == hashlib.sha256(json.dumps(recipe.inputs(), sort_keys=True).encode()).hexdigest()
    assert document["build_seconds"] == 12.3


def test_what_was_written_is_read_back(built: Path, recipe: Recipe) -> None:
    manifest = read_manifest(built)

    assert manifest is not None
    assert manifest.artefacts == {"model.bin": describe_artefact(built / "model.bin")}
    assert (manifest.inputs, manifest.agreement, manifest.build_seconds) == (recipe.inputs(), AGREEMENT, 12.3)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda text: text[: len(text) // 2], id="cut-short"),
        pytest.param(lambda text: text.replace('"format_version": 1', '"format_version": 2'), id="another-format"),
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

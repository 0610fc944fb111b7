"""Which variant is served: by name, by itself, from folders with manifests, and without any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from python_backends.runtime.errors import ConfigError
from python_backends.runtime.variant import Candidate, Variant, choose, choose_variant, find_candidates, is_importable

HERE = "x86_64 avx512_vnni"


def candidate(name: str = "int8", **changes: Any) -> Candidate:
    """One that `auto` may take on a CPU."""
    described = {"runtime": "onnxruntime", "device": "cpu", "machine": HERE, "ms": 4.0, "p1": 0.995, "loss": 0.002, **changes}
    directory = Path("/models/text_encoder/1", name)
    variant = Variant(name, directory, directory / "model.onnx", described["runtime"], described["device"], None)
    return Candidate(variant, described["machine"], described["ms"], described["p1"], described["loss"], described.get("there", True))


FP32 = candidate("fp32", ms=9.0, p1=None, loss=None)


def chosen(*candidates: Candidate, requested: str = "auto", kind: str = "CPU", installed: str = "onnxruntime torch tensorrt") -> Variant:
    machine = "NVIDIA H200" if kind == "GPU" else HERE
    names = installed.split()
    return choose(candidates, requested, model="m", kind=kind, machine_kind=machine, importable=names.__contains__)


def manifest(directory: Path, **changes: Any) -> Path:
    """A variant's folder as a recipe leaves it."""
    directory.mkdir(parents=True)
    document = {
        "format_version": 2,
        "variant": directory.name,
        "runtime": "onnxruntime",
        "file": "model.onnx",
        "device": "cpu",
        "machine": {"kind": HERE, "processor": "AMD EPYC 9R14", "cpus": 2},
        "agreement": {"against_fp32": {"cosine_p1": 0.991, "cosine_p50": 0.997}, "similarity": {"relative_loss": 0.003}},
        "latency_table": {"threads": 2, "batches": [1, 2], "lengths": [8, 16], "ms": [[1.0, 2.0], [2.0, 3.0]]},
        **changes,
    }
    (directory / "manifest.json").write_text(json.dumps(document))
    (directory / document["file"]).touch()
    return directory


def test_the_fastest_that_can_be_trusted_is_chosen() -> None:
    assert chosen(FP32, candidate("int8", ms=4.0), candidate("pruned", ms=3.0)).name == "pruned"
    assert chosen(FP32, candidate("int8", ms=4.0), candidate("bf16", ms=5.0)).name == "int8"
    assert chosen(candidate("int8", ms=10.0), FP32).name == "fp32"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"device": "gpu", "machine": "NVIDIA H200"}, "for a gpu", id="device"),
        pytest.param({"machine": "x86_64 avx2"}, f"measured on x86_64 avx2, this is {HERE}", id="machine"),
        pytest.param({"machine": ""}, "measured on an unknown machine", id="no-machine"),
        pytest.param({"runtime": "tensorrt"}, "tensorrt is not installed", id="runtime"),
        pytest.param({"ms": None}, "no latency table", id="no-table"),
        pytest.param({"there": False}, "model.onnx is missing", id="no-file"),
        pytest.param({"p1": 0.9899}, "cosine p1 0.9899 < 0.99", id="cosine"),
        pytest.param({"p1": float("nan")}, "cosine p1 nan", id="nan-is-not-good-enough"),
        pytest.param({"loss": 0.0101}, "loses 1.01% of the rank correlation, more than 1%", id="similarity"),
        pytest.param({"p1": None}, "its accuracy was not measured", id="no-cosine"),
        pytest.param({"loss": None}, "its accuracy was not measured", id="no-similarity"),
    ],
)
def test_a_fast_one_that_cannot_be_trusted_is_not_chosen_and_the_reason_is_told(changes: dict[str, Any], reason: str) -> None:
    variant = chosen(FP32, candidate("int8", **changes), installed="onnxruntime")

    assert variant.name == "fp32"
    assert variant.reason.startswith("model 'm': variant 'fp32' (9.0 ms on average), not int8 (")
    assert reason in variant.reason


def test_the_limits_themselves_are_good_enough() -> None:
    assert chosen(FP32, candidate("int8", p1=0.99, loss=0.01)).name == "int8"


def test_the_reason_is_one_line_about_every_variant() -> None:
    reason = chosen(FP32, candidate("int8"), candidate("pruned", p1=0.5)).reason

    assert reason == "model 'm': variant 'int8' (4.0 ms on average), not fp32 (9.0 ms on average), pruned (cosine p1 0.5000 < 0.99)"


def test_on_a_gpu_its_own_variants_count_and_fp32_is_the_fallback() -> None:
    compiled = candidate("compiled", runtime="torch", device="gpu", machine="NVIDIA H200")

    assert chosen(FP32, candidate("int8"), compiled, kind="GPU").name == "compiled"
    assert chosen(FP32, candidate("int8"), kind="GPU").name == "fp32"
    assert "'fp32' (the fallback)" in chosen(FP32, candidate("int8"), kind="GPU").reason


def test_kinds_other_than_gpu_are_for_the_cpu() -> None:
    assert chosen(FP32, candidate("int8"), kind="MODEL").name == "int8"


def test_the_reference_is_the_fallback_wherever_it_was_measured() -> None:
    assert chosen(candidate("fp32", machine="x86_64 avx2", p1=None, loss=None), candidate("int8", p1=0.1)).name == "fp32"


def test_without_a_fallback_the_error_says_what_is_wrong_with_the_others() -> None:
    with pytest.raises(ConfigError) as caught:
        chosen(candidate("int8", p1=0.5))

    assert str(caught.value) == (
        "model 'm': variant 'fp32' is not built, there are: int8 (cosine p1 0.5000 < 0.99); run `tidegate models build m --variant fp32`"
    )


def test_a_variant_that_is_named_is_taken_whatever_was_measured() -> None:
    variant = chosen(FP32, candidate("int8", machine="x86_64 avx2", p1=0.5, ms=None), requested="int8")

    assert variant.name == "int8"
    assert variant.reason == "model 'm': variant 'int8', as configured"


def test_a_cpu_variant_may_be_named_for_a_gpu() -> None:
    # ONNX Runtime runs it there.
    assert chosen(FP32, requested="fp32", kind="GPU").name == "fp32"


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        pytest.param(
            "int4",
            r"model 'm': variant 'int4' is not built, there are: fp32, plan; run `tidegate models build m --variant int4`$",
            id="not-built",
        ),
        pytest.param("plan", "variant 'plan' runs on a GPU: set `kind: KIND_GPU` in instance_group or choose another variant", id="device"),
        pytest.param("fp32", "variant 'fp32' needs the runtime onnxruntime, which is not installed here", id="runtime"),
    ],
)
def test_a_named_variant_that_cannot_run_is_refused(requested: str, message: str) -> None:
    plan = candidate("plan", runtime="tensorrt", device="gpu", machine="NVIDIA H200")

    with pytest.raises(ConfigError, match=message):
        chosen(FP32, plan, requested=requested, installed="tensorrt")


def test_manifests_are_read(tmp_path: Path) -> None:
    directory = manifest(tmp_path / "m" / "1" / "int8")

    variant = choose_variant(tmp_path / "m" / "1", "int8", kind="CPU", machine_kind=HERE)

    assert (variant.name, variant.file, variant.runtime, variant.device) == ("int8", directory / "model.onnx", "onnxruntime", "cpu")
    assert variant.latency_table is not None
    assert variant.latency_table["lengths"] == [8, 16]
    assert [(one.machine_kind, one.mean_ms, one.cosine_p1, one.relative_loss) for one in find_candidates(tmp_path / "m" / "1")] == [
        (HERE, 2.0, 0.991, 0.003)
    ]


def test_auto_chooses_among_what_is_on_the_disk(tmp_path: Path) -> None:
    version = tmp_path / "m" / "1"
    manifest(version / "int8")
    manifest(version / "fp32", latency_table={"batches": [1], "lengths": [8], "ms": [[50.0]]}, agreement={})

    assert choose_variant(version, "auto", kind="CPU", machine_kind=HERE).name == "int8"
    assert choose_variant(version, "auto", kind="CPU", machine_kind="aarch64 asimddp").name == "fp32"


def test_what_is_no_variant_is_left_out(tmp_path: Path) -> None:
    manifest(tmp_path / "good")
    manifest(tmp_path / ".int8.building")
    manifest(tmp_path / "newer", format_version=3)
    manifest(tmp_path / "no-cells", latency_table={"ms": []})
    (manifest(tmp_path / "cut-short") / "manifest.json").write_text('{"format_version": 2, "fi')
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

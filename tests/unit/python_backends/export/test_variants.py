"""The command on models with variants: each is tried out, has to meet its gate, and is published on its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from python_backends.export.__main__ import main
from python_backends.export.measure import BATCHES, LENGTHS
from python_backends.runtime.variants.variant import choose_variant
from tests.unit.python_backends.export.recipes import model_folder, variants_folder

PROJECT = Path(__file__).resolve().parents[4]
Output = pytest.CaptureFixture[str]


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def manifest(folder: Path, variant: str) -> Any:
    return json.loads((folder / "1" / variant / "manifest.json").read_text())


def written(folder: Path, variant: str) -> int:
    return (folder / "1" / variant / "manifest.json").stat().st_mtime_ns


def test_every_variant_is_built_and_measured_as_it_is_served(tmp_path: Path, capsys: Output) -> None:
    folder = variants_folder(tmp_path, fp32={}, int8={"cosine_p1": 0.995, "relative_loss": 0.002})

    assert run(tmp_path) == 0

    steps = r"  compare with fp32 and with people \.\.\. \d+\.\d s\n  measure latencies \.\.\. .*\n  measure memory \.\.\. .*\n"
    assert re.fullmatch(rf"m/fp32: not built yet\n{steps}m/int8: not built yet\n{steps}", capsys.readouterr().out)
    assert (names(folder), names(folder / "1")) == (["1", "build.py", "variants.json"], ["fp32", "int8"])
    document = manifest(folder, "int8")
    assert document["agreement"] == {
        "against_fp32": {"cosine_p1": 0.995},
        "similarity": {"relative_loss": 0.002},
        "own_check": {"cosine_min": 0.5},
    }
    assert [len(row) for row in document["latency_table"]["ms"]] == [len(LENGTHS)] * len(BATCHES)
    assert document["resident_bytes"] > 2**20


def test_what_was_built_can_be_chosen_by_those_who_serve(tmp_path: Path) -> None:
    folder = variants_folder(tmp_path, int8={})
    run(tmp_path)
    document = manifest(folder, "int8")

    chosen = choose_variant(folder / "1", "auto", kind="CPU", machine_kind=document["machine"]["kind"])

    assert (chosen.name, chosen.file) == ("int8", folder / "1" / "int8" / "model.onnx")


def test_only_the_variant_that_changed_is_built_again(tmp_path: Path, capsys: Output) -> None:
    folder = variants_folder(tmp_path, fp32={}, int8={})
    run(tmp_path)
    before = written(folder, "fp32")
    variants_folder(tmp_path, fp32={}, int8={"weights": "def"})
    capsys.readouterr()

    assert run(tmp_path) == 0

    assert re.findall(r"^m.*$", capsys.readouterr().out, re.MULTILINE) == ["m/int8: changed: weights"]
    assert written(folder, "fp32") == before
    assert run(tmp_path) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        pytest.param({"cosine_p1": 0.98}, "the cosine with fp32 at the worst percentile is 0.98000, below 0.99", id="cosine"),
        pytest.param({"relative_loss": 0.02}, "it loses 2.00% of the rank correlation, more than 1.00%", id="loss"),
    ],
)
def test_a_gate_that_is_not_met_fails_the_build_and_publishes_nothing_of_it(
    tmp_path: Path, capsys: Output, settings: dict[str, float], sentence: str
) -> None:
    folder = variants_folder(tmp_path, bad=settings)

    assert run(tmp_path) == 1

    assert capsys.readouterr().err == f"error: m/bad: {sentence}: nothing is published\n"
    assert names(folder) == ["build.py", "variants.json"]


def test_one_that_fails_does_not_keep_the_others_from_being_built(tmp_path: Path) -> None:
    folder = variants_folder(tmp_path, a={"cosine_p1": 0.5}, b={}, c={"fails": "no"})

    assert run(tmp_path) == 1

    assert names(folder / "1") == ["b"]


def test_a_worse_build_leaves_the_better_one_that_was_there(tmp_path: Path) -> None:
    folder = variants_folder(tmp_path, int8={})
    run(tmp_path)
    before = written(folder, "int8")
    variants_folder(tmp_path, int8={"weights": "def", "cosine_p1": 0.5})

    assert run(tmp_path) == 1

    assert written(folder, "int8") == before


def test_an_artefact_that_its_runtime_cannot_open_is_not_published(tmp_path: Path, capsys: Output) -> None:
    folder = variants_folder(tmp_path, fp32={"file": "other.onnx"})

    assert run(tmp_path) == 1

    assert re.fullmatch(r"error: m/fp32: .*unable to find .*other\.onnx.*\n", capsys.readouterr().err)
    assert names(folder) == ["build.py", "variants.json"]


def test_a_file_that_is_not_the_one_that_was_verified_is_not_published(tmp_path: Path, capsys: Output) -> None:
    folder = variants_folder(tmp_path, a={"verified": "same"}, b={"verified": "other"})

    assert run(tmp_path) == 1

    assert re.fullmatch(r"error: m/b: model\.onnx has the SHA-256 [0-9a-f]{64} instead of 0{64}, .*\n", capsys.readouterr().err)
    assert names(folder / "1") == ["a"]


def test_quickly_only_what_has_been_verified_is_built_and_nothing_is_measured(tmp_path: Path, capsys: Output) -> None:
    folder = variants_folder(tmp_path, fp32={"verified": "same"}, int8={})
    tokenizer = model_folder(tmp_path, "tokenizer")

    assert run("--quick", tmp_path) == 0

    assert capsys.readouterr().out.splitlines()[0] == "m/fp32: not built yet"
    assert (names(folder / "1"), names(tokenizer / "1")) == (["fp32"], ["manifest.json", "model.bin"])
    document = manifest(folder, "fp32")
    assert (document["latency_table"], document["auto_eligible"], document["auto_objection"]) == (None, False, "not measured here yet")
    assert choose_variant(folder / "1", "auto", kind="CPU", machine_kind=document["machine"]["kind"]).name == "fp32"
    written_ns = written(folder, "fp32")
    assert run("--quick", tmp_path) == 0
    assert written(folder, "fp32") == written_ns


def test_what_was_built_quickly_is_measured_by_the_next_build_and_not_built_again(tmp_path: Path, capsys: Output) -> None:
    folder = variants_folder(tmp_path, fp32={"verified": "same"}, int8={})
    run("--quick", tmp_path)
    artefact = (folder / "1" / "fp32" / "model.onnx").stat()
    capsys.readouterr()

    assert run(tmp_path) == 0

    assert re.findall(r"^m.*$", capsys.readouterr().out, re.MULTILINE) == ["m/fp32: not measured here yet", "m/int8: not built yet"]
    assert (folder / "1" / "fp32" / "model.onnx").stat() == artefact
    document = manifest(folder, "fp32")
    assert (document["auto_eligible"], list(document["artefacts"])) == (True, ["model.onnx"])
    assert document["agreement"].keys() == {"against_fp32", "similarity", "own_check"}
    assert document["latency_table"]
    assert document["resident_bytes"]
    assert run(tmp_path) == 0
    assert capsys.readouterr().out == ""


def test_a_measurement_that_fails_leaves_what_is_served_as_it_is(tmp_path: Path, capsys: Output) -> None:
    folder = variants_folder(tmp_path, fp32={"verified": "same", "cosine_p1": 0.5})
    run("--quick", tmp_path)
    before = manifest(folder, "fp32")

    assert run(tmp_path) == 1

    assert "error: m/fp32: the cosine with fp32 at the worst percentile is 0.50000" in capsys.readouterr().err
    assert manifest(folder, "fp32") == before


def test_a_program_is_told_what_may_be_served_now(tmp_path: Path, capsys: Output) -> None:
    variants_folder(tmp_path, fp32={}, weak={"cosine_p1": 0.9, "gate": "weak"}, bad={"cosine_p1": 0.5})

    assert run("--json", tmp_path) == 1

    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["event"], each["target"], each.get("is_auto_eligible")) for each in told if each["event"] != "step"] == [
        ("begun", "m/fp32", None),
        ("built", "m/fp32", True),
        ("begun", "m/weak", None),
        ("built", "m/weak", False),
        ("begun", "m/bad", None),
        ("failed", "m/bad", None),
    ]


def test_in_the_background_it_leaves_the_cpus_to_others_and_ends_with_its_parent(tmp_path: Path) -> None:
    folder = variants_folder(tmp_path, fp32={})
    command = [sys.executable, "-m", "python_backends.export", str(folder)]
    # In the recipe itself, once all has been set.
    (folder / "build.py").write_text(
        "import ctypes, os\nsignal = ctypes.c_int()\nctypes.CDLL(None).prctl(2, ctypes.byref(signal))\n"
        f"open({str(tmp_path / 'found')!r}, 'w').write(f'{{os.nice(0)}} {{signal.value}}')\n" + (folder / "build.py").read_text()
    )

    assert subprocess.run([*command, "--background-of", str(os.getpid())], cwd=PROJECT, timeout=240, check=False).returncode == 0
    assert (tmp_path / "found").read_text() == f"{min(19, os.nice(0) + 19)} 9"
    assert subprocess.run([*command, "--background-of", "1"], cwd=PROJECT, timeout=240, check=False).returncode == 1, "not its parent"


NEEDS = {"needs": "it needs an NVIDIA GPU", "device": "gpu"}


def test_one_that_needs_another_machine_is_skipped_with_one_line(tmp_path: Path, capsys: Output) -> None:
    folder = variants_folder(tmp_path, engine=NEEDS)

    assert run("--force", tmp_path) == 0

    said = capsys.readouterr()
    assert (said.out, said.err) == ("m/engine: skipped, it needs an NVIDIA GPU\n", "")
    assert names(folder) == ["build.py", "variants.json"]


def test_asked_for_by_name_it_is_an_error(tmp_path: Path, capsys: Output) -> None:
    variants_folder(tmp_path, fp32={}, engine=NEEDS)

    assert run("--variant", "engine", tmp_path) == 1

    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "error: m/engine: it needs an NVIDIA GPU\n")


def test_only_the_variants_named_are_built(tmp_path: Path) -> None:
    folder = variants_folder(tmp_path, a={}, b={}, c={})

    assert run("--variant", "c", "--variant", "a", tmp_path) == 0

    assert names(folder / "1") == ["a", "c"]


def test_a_variant_that_nobody_has_is_one_sentence(tmp_path: Path, capsys: Output) -> None:
    variants_folder(tmp_path, fp32={})

    assert run("--variant", "int4", tmp_path) == 1

    assert capsys.readouterr().err == "error: no variant 'int4': there are fp32\n"


def test_the_form_without_variants_and_variants_given_up_are_cleared_away(tmp_path: Path) -> None:
    folder = variants_folder(tmp_path, fp32={}, old={})
    (folder / "1").mkdir()
    (folder / "1" / "model.onnx").touch()
    (folder / "1" / "manifest.json").write_text(json.dumps({"format_version": 1, "artefacts": {"model.onnx": {}}}))
    assert run(tmp_path) == 0
    assert names(folder / "1") == ["fp32", "old"]
    variants_folder(tmp_path, fp32={})

    assert run(tmp_path) == 0

    assert names(folder / "1") == ["fp32"]


def test_the_benchmark_is_recorded_beside_the_rest_and_makes_nothing_stale(tmp_path: Path, capsys: Output) -> None:
    folder = variants_folder(tmp_path, fp32={}, engine=NEEDS)
    run(tmp_path)
    before = manifest(folder, "fp32")
    sts = tmp_path / "sts.csv"
    sts.write_text("0.75")
    capsys.readouterr()

    assert run("--sts", sts, tmp_path) == 0

    assert "  spearman 0.75, fp32 0.8, relative loss 0.0\n" in capsys.readouterr().out
    expected = {**before["agreement"], "sts_benchmark": {"spearman": 0.75, "spearman_fp32": 0.8, "relative_loss": 0.0}}
    assert manifest(folder, "fp32") == {**before, "agreement": expected}
    assert run("--list", tmp_path) == 0
    assert "m/fp32: up to date\n" in capsys.readouterr().out


def test_what_was_built_elsewhere_and_cannot_run_here_is_not_benchmarked(tmp_path: Path, capsys: Output) -> None:
    variants_folder(tmp_path, engine={})
    run(tmp_path)
    # Not part of what the recipe depends on, so it stays up to date.
    variants_folder(tmp_path, engine={"needs": "it needs an NVIDIA GPU"})
    sts = tmp_path / "sts.csv"
    sts.write_text("0.75")
    capsys.readouterr()

    assert run("--sts", sts, tmp_path) == 0

    assert capsys.readouterr().out == ""


def test_a_benchmark_that_is_not_there_is_one_sentence_before_anything_is_built(tmp_path: Path, capsys: Output) -> None:
    folder = variants_folder(tmp_path, fp32={})

    assert run("--sts", tmp_path / "nowhere.csv", tmp_path) == 1

    assert capsys.readouterr().err == f"error: --sts: there is no file '{tmp_path}/nowhere.csv'\n"
    assert not (folder / "1").exists()


def test_the_list_shows_state_and_measures_of_each(tmp_path: Path, capsys: Output) -> None:
    variants_folder(tmp_path, fp32={}, engine=NEEDS)
    run(tmp_path)
    capsys.readouterr()

    assert run("--list", tmp_path) == 0

    number = r"[\d.]+"
    assert re.fullmatch(
        rf"m/fp32: up to date\n"
        rf"  model\.onnx  0\.0 MB  sha256 [0-9a-f]{{12}}\n"
        rf"  against_fp32: cosine_p1 1\.0\n"
        rf"  similarity: relative_loss 0\.0\n"
        rf"  own_check: cosine_min 0\.5\n"
        rf"  gate: cosine_p1_at_least 0\.99, spearman_loss_at_most 0\.01\n"
        rf"  auto: may be chosen\n"
        rf"  onnxruntime, \d+ threads of .* \(.*\): "
        rf"1 x 8 {number} ms, 1 x 256 {number} ms, 8 x 64 {number} ms, 64 x 256 {number} ms\n"
        rf"  memory: \d+ MB\n"
        rf"m/engine: not built yet, it needs an NVIDIA GPU\n",
        capsys.readouterr().out,
    )


def test_an_interrupt_keeps_what_was_published_before(tmp_path: Path, capsys: Output) -> None:
    folder = variants_folder(tmp_path, fp32={}, int8={"fails": "interrupt"})

    assert run(tmp_path) == 130

    assert capsys.readouterr().err == "error: m/int8: interrupted, nothing is published\n"
    assert names(folder / "1") == ["fp32"]

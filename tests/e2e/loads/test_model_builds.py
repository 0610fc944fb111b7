"""What is built in the background while requests are answered is served as soon as it may be, and no request notices."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Start
from tests.e2e.tidegate import COMPLETE, PROJECT, Tidegate, descendants, living, proc_files, run_cli, wait_for

ENCODER = PROJECT / "model_repository" / "text_encoder"

# The shipped files as they were built, with measurements that are the same on every machine: int8 is the faster one. It waits for a word.
RECIPES = """
import shutil, time
from pathlib import Path
import numpy as np
from python_backends.export import builder, measure
from python_backends.export.manifest import describe_artefact
from python_backends.export.recipe import AUTO, Provenance, Recipe, Serving
from python_backends.runtime.model_config import parse_model_config

HERE = Path(__file__).parent
MS = {{"fp32": 4.0, "int8": 2.0}}
measure.BATCHES, measure.LENGTHS = (1,), (8,)


class Trial:
    tensors = [{{"name": name, "data_type": "TYPE_INT64", "dims": [-1]}} for name in ("INPUT_IDS", "ATTENTION_MASK")]
    config = parse_model_config({{
        "name": "text_encoder", "max_batch_size": 64, "input": tensors,
        "output": [{{"name": "EMBEDDING", "data_type": "TYPE_FP32", "dims": [384]}}],
    }})

    def __init__(self, variant):
        self.variant = variant

    def inputs(self, batch, length):
        ones = np.ones((batch, length), np.int64)
        return {{"INPUT_IDS": ones, "ATTENTION_MASK": ones}}

    def compare(self, run):
        builder.latency_table = lambda run, threads, **_: {{
            "threads": threads, "batches": [1, 64], "lengths": [8, 256], "ms": [[MS[self.variant]] * 2, [100.0] * 2]
        }}
        return {{"against_fp32": {{"cosine_p1": 1.0}}, "similarity": {{"relative_loss": 0.0}}}}


def recipe(variant):
    source = Path({built!r}) / variant / "model.onnx"

    def build(directory, progress):
        with progress.step("wait for the word"):
            while variant == "int8" and not (HERE.parent / "go").exists():
                time.sleep(0.05)
        shutil.copy(source, directory / "model.onnx")
        return {{}}

    sha256 = describe_artefact(source).sha256 if variant == "fp32" else ""
    serving = Serving("onnxruntime", "model.onnx", Trial(variant), AUTO, sha256=sha256)
    return Recipe(build, Provenance("n", "p", "l", variant), ("numpy",), (Path(__file__),), serving=serving)


RECIPES = {{variant: recipe(variant) for variant in MS}}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`text_encoder` as the quick build of a first `make serve` leaves it, beside its tokenizer."""
    folder = tmp_path_factory.mktemp("built")
    encoder = folder / "text_encoder"
    encoder.mkdir(parents=True)
    (folder / "text_tokenizer").symlink_to(PROJECT / "model_repository" / "text_tokenizer")
    shutil.copy(ENCODER / "config.pbtxt", encoder)
    (encoder / "build.py").write_text(RECIPES.format(built=str(ENCODER / "1")))
    command = [sys.executable, "-m", "python_backends.export", "--quick", str(encoder)]
    subprocess.run(command, cwd=PROJECT, check=True, timeout=100, capture_output=True)
    assert [variant.name for variant in (encoder / "1").iterdir()] == ["fp32"]
    return folder


@pytest.fixture
def repository(built: Path, tmp_path: Path) -> Path:
    """A copy, in which more is built."""
    return shutil.copytree(built, tmp_path / "models", symlinks=True)


def encoder(tidegate: Tidegate) -> dict[str, Any]:
    """What the admin API says of it."""
    with urllib.request.urlopen(f"{tidegate.endpoints['admin']}/models/text_encoder", timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def serve(start: Start, tmp_path: Path, repository: Path, *flags: str) -> Tidegate:
    sources = (repository, PROJECT / "ensembles")
    return start(
        tmp_path / "state", *(part for path in sources for part in ("--model-repository", str(path))), "--build-models", COMPLETE, *flags
    )


@contextmanager
def requests_without_end(tidegate: Tidegate) -> Iterator[list[tuple[int, list[float]]]]:
    """Status and the first values of the embedding of each; no two texts are alike, or the cache would answer."""
    answers: list[tuple[int, list[float]]] = []
    over = threading.Event()

    def ask() -> None:
        with closing(http.client.HTTPConnection(tidegate.address("http"), timeout=30)) as connection:
            while not over.wait(0.02):
                text = f"{len(answers)} ships in the harbour"
                tensor = {"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": [text]}
                body = json.dumps({"inputs": [tensor], "outputs": [{"name": "EMBEDDING"}]})
                connection.request("POST", "/v2/models/text_embedding/infer", body)
                answer = connection.getresponse()
                said: Any = json.loads(answer.read())
                answers.append((answer.status, said["outputs"][0]["data"][:4] if answer.status == 200 else [said]))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield answers
    finally:
        over.set()
        asking.join()


@pytest.mark.timeout(240)
def test_a_better_variant_is_taken_up_while_requests_are_answered(start: Start, tmp_path: Path, repository: Path) -> None:
    running = serve(start, tmp_path, repository)
    wait_for(lambda: encoder(running)["build"] == "building int8: wait for the word", timeout_s=90, what="the build of int8")
    assert encoder(running)["variant_reason"] == "fp32 (4.0 ms for 1x16 tokens)", "measured meanwhile, and loaded again"
    where = ("--state-dir", str(running.state_dir))
    for command in (("models", "list"), ("models", "show", "text_encoder")):
        assert "building int8: wait for the word" in run_cli(*command, *where).stdout

    with requests_without_end(running) as answers:
        wait_for(lambda: len(answers) > 20, timeout_s=60, what="answers")
        (repository / "go").touch()
        wait_for(lambda: encoder(running)["variant"] == "int8", timeout_s=90, what="int8 being served")
        served_at = len(answers)
        wait_for(lambda: len(answers) > served_at + 20, timeout_s=60, what="answers of int8")

    assert {status for status, _ in answers} == {200}, [said for status, said in answers if status != 200]
    assert encoder(running)["variant_reason"] == "int8 (2.0 ms for 1x16 tokens), not fp32 (4.0 ms)"
    assert encoder(running)["build"] == ""
    for line in ("building text_encoder/fp32 in the background: not measured here yet", "built text_encoder/int8"):
        assert line in running.said()
    below = descendants(running.process.pid)
    assert running.stop() == 0
    assert not living(below)


@pytest.mark.timeout(240)
def test_a_variant_that_was_named_and_is_not_built_yet_is_served_once_it_is(start: Start, tmp_path: Path, repository: Path) -> None:
    running = serve(start, tmp_path, repository, "--model-parameter", "text_encoder:variant=int8")
    assert "variant 'int8' is not built" in running.said()
    (repository / "go").touch()
    wait_for(lambda: encoder(running)["variant_reason"] == "int8, as configured", timeout_s=120, what="int8 being served")
    assert "384 dimensions" in run_cli("embed", "a text", "--state-dir", str(running.state_dir)).stdout


def test_a_gateway_that_ends_takes_the_build_with_it(start: Start, tmp_path: Path, repository: Path) -> None:
    running = serve(start, tmp_path, repository)
    wait_for(lambda: encoder(running)["build"] == "building int8: wait for the word", timeout_s=90, what="the build of int8")
    below = descendants(running.process.pid)
    assert any("python_backends.export" in line for line in proc_files(below, "cmdline").values())
    running.process.kill()
    running.process.wait()
    wait_for(lambda: not living(below), timeout_s=20, what="the end of all of it")

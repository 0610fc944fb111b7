"""The first `make serve` answers on any machine: with its own packages alone, and beside a GPU that nothing computes on."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dependencies.sections import LOCK, read_sections, requirements
from tests.e2e.conftest import Start
from tests.e2e.tidegate import PROJECT, Tidegate

MODELS = PROJECT / "model_repository"

# A program that runs Python where there is a device file of a GPU, which no other process sees.
WITH_GPU = """#!/bin/sh
exec unshare --mount --propagation private sh -eu -c '
    mount --bind /dev/shm {folder}/shm
    mount -t overlay overlay -o lowerdir={folder}/devices:/dev /dev
    mount --bind {folder}/shm /dev/shm
    exec {python} "$@"
' sh "$@"
"""


def ask(tidegate: Tidegate, path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"{tidegate.endpoints['http']}{path}", data, timeout=60) as answer:
        return json.load(answer)


def embedding(tidegate: Tidegate) -> list[float]:
    tensor = {"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["a first sentence"]}
    answer = ask(tidegate, "/v2/models/text_embedding/infer", {"inputs": [tensor], "outputs": [{"name": "EMBEDDING"}]})
    found: list[float] = answer["outputs"][0]["data"]
    return found


def serve(start: Start, tmp_path: Path, repository: Path, python: Path) -> Tidegate:
    sources = [part for path in (repository, PROJECT / "ensembles") for part in ("--model-repository", str(path))]
    return start(tmp_path / "state", *sources, python=str(python))


def pinned_for_serving() -> Iterator[str]:
    for entry in requirements(read_sections(LOCK.read_text())["serve"]):
        pin = Requirement(entry.partition(" --hash=")[0])
        if pin.marker is None or pin.marker.evaluate():
            yield canonicalize_name(pin.name)


def parts(installed: Distribution) -> set[Path]:
    """Its packages, modules and metadata, each by its topmost entry."""
    files = installed.files or []
    tops = {file.parts[0] for file in files} - {"..", "__pycache__"}
    return {Path(str(installed.locate_file(top))) for top in tops}


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Python of an environment as `make serve` makes it: it has the packages of its section of constraints.txt, and no other."""
    made = tmp_path / "environment"
    venv.create(made, with_pip=False, symlinks=True)
    (packages,) = made.glob("lib/python3.*/site-packages")
    here: dict[str, Distribution] = {canonicalize_name(each.name): each for each in distributions()}
    for name in ("tidegate", *pinned_for_serving()):
        for part in parts(here[name]):
            if not (packages / part.name).exists():
                (packages / part.name).symlink_to(part)
    return made / "bin" / "python"


def test_the_first_answer_takes_no_more_than_make_serve_installs(start: Start, tmp_path: Path, python: Path) -> None:
    refused = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True, timeout=60, check=False)
    assert "No module named 'torch'" in refused.stderr
    repository = tmp_path / "models"
    for model in ("text_encoder", "text_tokenizer"):
        shutil.copytree(MODELS / model, repository / model, ignore=shutil.ignore_patterns("1"))
    (line,) = re.findall(r"^\t@\$\(BUILD_MODELS\) (\S+) \|\|", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    build = [str(python), "-m", "python_backends.export", str(repository), line]
    done = subprocess.run(build, cwd=PROJECT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr

    running = serve(start, tmp_path, repository, python)

    assert len(embedding(running)) == 384
    assert [variant.name for variant in (repository / "text_encoder" / "1").iterdir()] == ["fp32"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can show a process another /dev")
@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
def test_beside_a_gpu_that_nothing_computes_on_models_are_served_on_the_cpu(start: Start, tmp_path: Path) -> None:
    for folder in ("devices", "shm"):
        (tmp_path / folder).mkdir()
    (tmp_path / "devices" / "nvidia0").touch()
    with_gpu = tmp_path / "python-with-gpu"
    with_gpu.write_text(WITH_GPU.format(folder=tmp_path, python=sys.executable))
    with_gpu.chmod(0o755)

    running = serve(start, tmp_path, MODELS, with_gpu)

    assert len(embedding(running)) == 384
    said = " ".join(running.said().split())
    assert "models are served on the CPU: there is an NVIDIA device (/dev/nvidia0), but nothing that computes on it: onnxruntime: " in said
    config = ask(running, "/v2/models/text_encoder/config")
    assert [group["kind"] for group in config["instance_group"]] == ["KIND_CPU"]

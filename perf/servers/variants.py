"""Copies of the shipped text models that differ in their settings only, for a scenario that serves one variant or compares several."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from perf.servers.processes import PROJECT

MODELS = PROJECT / "model_repository"
ENCODER = MODELS / "text_encoder"
TOKENIZER = MODELS / "text_tokenizer"
REFERENCE = "fp32"
ENSEMBLE = PROJECT / "ensembles" / "text_embedding"


def variant_folder(encoder: Path, variant: str) -> Path:
    """Return where a variant's files lie. Raises SystemExit when it is not built."""
    folder = encoder / "1" / variant
    if not (folder / "manifest.json").exists():
        raise SystemExit(f"the variant {variant} of {encoder} is not built: run `tidegate models build {encoder.name} --variant {variant}`")
    return folder


def build(variant: str) -> None:
    """Build a variant of the encoder that `make models` leaves to whoever names it, if it is not there."""
    if not (ENCODER / "1" / variant / "manifest.json").exists():
        subprocess.run([sys.executable, "-m", "python_backends.export", "--variant", variant, str(ENCODER)], cwd=PROJECT, check=True)


def bare_file(variants: Sequence[str], encoder: Path = ENCODER) -> Path:
    """The ONNX file of the first of these variants that has one; else the reference's, which all machines have."""
    files = (_file(variant_folder(encoder, variant)) for variant in (*variants, REFERENCE))
    return next(file for file in files if file.suffix == ".onnx")


def _file(folder: Path) -> Path:
    return folder / str(json.loads((folder / "manifest.json").read_text())["file"])


def place_ensemble(repository: Path, variant: str, *, encoder: Path = ENCODER) -> None:
    """`text_embedding` and what it needs, its encoder with this variant."""
    (repository / ENSEMBLE.name).symlink_to(ENSEMBLE)
    place_encoder(repository, ENCODER.name, variant, encoder=encoder)


def place_encoder(repository: Path, name: str, variant: str, *, encoder: Path = ENCODER) -> None:
    """`encoder` under another name, with its files linked and `variant` set, beside the tokenizer that it opens."""
    variant_folder(encoder, variant)
    repository.mkdir(parents=True, exist_ok=True)
    if not (repository / TOKENIZER.name).exists():
        (repository / TOKENIZER.name).symlink_to(TOKENIZER)
    place(repository, name, with_parameter((ENCODER / "config.pbtxt").read_text(), "variant", variant), {"1": encoder / "1"})


def place(repository: Path, name: str, config: str, links: dict[str, Path]) -> None:
    """A model of this configuration; `links` are its files and folders by path."""
    (repository / name).mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    for path, target in links.items():
        (repository / name / path).parent.mkdir(exist_ok=True)
        (repository / name / path).symlink_to(target.resolve())


def with_parameter(config: str, key: str, value: str) -> str:
    """The configuration with one parameter set, whatever it was."""
    entry = rf'(parameters[^{{]*\{{\s*key:\s*"{re.escape(key)}"\s*value\s*:?\s*\{{\s*string_value:\s*")[^"]*'
    if re.search(entry, config):
        return re.sub(entry, rf"\g<1>{value}", config)
    return f'{config}\nparameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'

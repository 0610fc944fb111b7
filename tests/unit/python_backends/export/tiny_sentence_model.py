"""`SentenceModel` of the tiny encoder, from files in memory that count how often they are read."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save

from python_backends.export.encoders.sentence_model import SentenceModel
from tests.unit.python_backends import tiny_encoder
from tests.unit.python_backends.text_tokenizer.tiny_tokenizer import save_tokenizer

MAX_TOKENS = 6


class GivenFile:
    """Fake of a `WheelFile`."""

    def __init__(self, content: bytes) -> None:
        self.reads = 0
        self._content = content

    def read(self) -> bytes:
        self.reads += 1
        return self._content


def files(tmp_path: Path) -> dict[str, GivenFile]:
    """Weights, config.json and tokenizer.json, the last one padding by itself as published ones do."""
    bert = tiny_encoder.encoder().bert
    tokenizer = save_tokenizer(tmp_path / "tokenizer.json", pads_with="[PAD]")
    contents = {
        "weights": save(bert.state_dict()),
        "config": json.dumps(bert.config.to_dict()).encode(),
        "tokenizer": tokenizer.read_bytes(),
    }
    return {name: GivenFile(content) for name, content in contents.items()}


def sentence_model(**given: GivenFile) -> SentenceModel:
    """The model of these files."""
    return SentenceModel(**given, max_tokens=MAX_TOKENS)

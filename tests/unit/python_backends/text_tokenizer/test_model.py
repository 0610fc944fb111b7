"""Backend `text_tokenizer` from Triton's side."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.unit.python_backends.configs import config_json
from tests.unit.python_backends.fake_triton import Request, TritonError, initialize_args, stub
from tests.unit.python_backends.text_tokenizer.tiny_tokenizer import CAT, CLS, SEP, save_tokenizer


def test_it_answers_what_it_can_and_explains_what_it_cannot(tmp_path: Path) -> None:
    version_directory = save_tokenizer(tmp_path / "m" / "2" / "tokenizer.json").parent
    outputs = ("INPUT_IDS", "ATTENTION_MASK", "TOKENS")
    with stub("text_tokenizer", version_directory) as backend:
        instance = backend()
        instance.initialize(initialize_args(version_directory, json.dumps(config_json(default_model_filename=""))))

        good, bad = instance.execute([Request({"TEXT": np.array([[value]], np.object_)}, outputs) for value in (b"cat", b"\xff")])

    assert {name: array.tolist() for name, array in good.arrays().items()} == {
        "INPUT_IDS": [[CLS, CAT, SEP]],
        "ATTENTION_MASK": [[1, 1, 1]],
        "TOKENS": [[3]],
    }
    assert bad.error == TritonError("TEXT[0] is not valid UTF-8: invalid start byte at byte 0 of 1", TritonError.INVALID_ARG)

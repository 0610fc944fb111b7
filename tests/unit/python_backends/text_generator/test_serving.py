"""One instance of a language model, from its folder to its answers; on a GPU (marked gpu) with a part of its weights there."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from python_backends.text_generator.generated_sequence import Written
from python_backends.text_generator.serving import Serving
from tests.unit.python_backends.configs import config, parameters
from tests.unit.python_backends.text_generator.tiny_language_model import WORDS, save_language_model

MIB = 1 << 20
WHOLE_MIB, LEAST_MIB = 96, 33
"""Layers have 16 MiB each."""
ANSWER = 8


class Answer:
    """Sender that keeps an answer."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.over = threading.Event()

    def send(self, part: Any, *, is_last: bool) -> None:
        self.parts.append(part)
        if is_last:
            self.over.set()

    def is_cancelled(self) -> bool:
        return False

    def text(self) -> str:
        assert self.over.wait(60)
        assert all(isinstance(part, Written) for part in self.parts), self.parts
        return "".join(part.text for part in self.parts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_language_model(tmp_path_factory.mktemp("model"), hidden_size=512, layers=6)


def answers(folder: Path, kind: str, **more: str) -> list[str]:
    """To prompts of many lengths, which share steps."""
    serving = Serving(folder, config(parameters=parameters(prefill_tokens="16", **more)), kind=kind, device_id=0)
    try:
        asked = [Answer() for _ in range(10)]
        sampling = np.array([f'{{"temperature": 0, "max_tokens": {ANSWER}, "ignore_eos": true}}'.encode()], np.object_)
        for number, answer in enumerate(asked):
            text = " ".join(WORDS[2 + (7 * number + place) % 190] for place in range(1 + 11 * number))
            inputs = {
                "text_input": np.array([text.encode()], np.object_),
                "sampling_parameters": sampling,
                "exclude_input_in_output": np.array([True]),
            }
            assert serving.ask(inputs, "", lambda _, answer=answer: answer) is None  # type: ignore[misc]
        return [answer.text() for answer in asked]
    finally:
        serving.close()


def test_an_instance_answers_all_at_once(tmp_path: Path) -> None:
    folder = save_language_model(tmp_path, hidden_size=64, layers=2)
    found = answers(folder, "CPU")

    assert [len(text.split()) for text in found] == [ANSWER] * 10
    assert len({*found}) > 5
    assert answers(folder, "CPU", max_sequences="1") == found


@pytest.mark.gpu
def test_a_part_of_the_weights_on_a_gpu_answers_as_all_of_them(folder: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU, or a CPU build of PyTorch")
    peak()
    whole, whole_peak = answers(folder, "GPU"), peak()
    streamed, streamed_peak = answers(folder, "GPU", weight_memory_mb=str(LEAST_MIB)), peak()

    assert streamed == whole
    assert whole_peak - streamed_peak > (WHOLE_MIB - LEAST_MIB - 5) * MIB


def peak() -> int:
    """Bytes of the GPU that were in use at most since the last call."""
    found = torch.cuda.max_memory_allocated()
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    return found

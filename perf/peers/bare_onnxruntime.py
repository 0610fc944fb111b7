"""The same file in ONNX Runtime alone, in this process, without a server: what everything around the model is measured against."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

BATCHES = (1, 8, 32)


class BareOnnxRuntime:
    """Session of ONNX Runtime with a thread per CPU."""

    def __init__(self, file: Path) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
        # Otherwise its threads spin for a while after each run, beside whatever is measured next.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        self._session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def embed(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """[batch, length] without padding -> [batch, 384]."""
        (embedding,) = self._session.run(None, {"INPUT_IDS": rows, "ATTENTION_MASK": np.ones_like(rows)})
        return np.asarray(embedding)

    def alone_ms(self, token_ids: Sequence[Sequence[int]]) -> list[float]:
        """Return the milliseconds of each sequence by itself."""
        return [1e3 * self._time_s([np.array([ids], dtype=np.int64)]) for ids in token_ids]

    def throughput(self, token_ids: Sequence[Sequence[int]], batch: int) -> float:
        """Sequences per second: batches of equal lengths and of at most `batch` rows, nothing padded."""
        return len(token_ids) / self._time_s(batches(token_ids, batch))

    def best_batch(self, token_ids: Sequence[Sequence[int]]) -> int:
        """The size with the highest throughput on these."""
        return max(BATCHES, key=lambda batch: self.throughput(token_ids, batch))

    def _time_s(self, batches: Sequence[NDArray[np.int64]]) -> float:
        started_s = time.perf_counter()
        for rows in batches:
            self.embed(rows)
        return time.perf_counter() - started_s


def batches(token_ids: Sequence[Sequence[int]], batch: int) -> list[NDArray[np.int64]]:
    """Return batches of equal lengths and at most `batch` rows each."""
    grouped = [list(rows) for _, rows in groupby(sorted(token_ids, key=len), key=len)]
    return [np.array(rows[at : at + batch], dtype=np.int64) for rows in grouped for at in range(0, len(rows), batch)]
